"""Command lines: the stacks of the reference campaign against golden files, and what the rendering promises."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.base.diagnostics import LcplanError
from lcplan.base.layout import parse_layout
from lcplan.engine import KINDS, get
from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import load
from lcplan.engine.shell import ContainerSpec, read_script, render_script

GOLDEN = Path(__file__).parent / "golden" / "cmd"
M = 1024 * 1024
MODELS = "/mnt/data/models"
DSV4 = {
    "kv-cache-dtype": "fp8_e4m3",
    "page-size": 256,
    "mem-fraction-static": 0.9,
    "chunked-prefill-size": 4096,
    "swa-full-tokens-ratio": 0.1,
    "max-running-requests": 64,
}
GLM_FLASH = {
    "gpu-memory-utilization": 0.92,
    "enable-chunked-prefill": True,
    "enable-prefix-caching": True,
    "language-model-only": True,
    "max-num-batched-tokens": 8192,
    "max-num-seqs": 64,
}


def spec(kind: str, model: str = "m", layout: str = "tp1", context: int | None = None, **more: Any) -> ServerSpec:
    version = {"vllm": "0.31.0", "sglang": "0.5.21"}.get(kind)
    more.setdefault("model_context", M)
    return ServerSpec(kind, more.pop("version", version), model, context=context, layout=parse_layout(layout), **more)


def argv(server: ServerSpec, name: str = "@RUN_ID@", port: int = 8000) -> list[str]:
    return get(server.kind).argv(server, port=port, served_name=name)


MTP = {"speculative-config": {"method": "mtp", "num_speculative_tokens": 3}}
SMALL = {"gpu-memory-utilization": 0.92, "max-num-seqs": 64}
FP8 = {"kv-cache-dtype": "fp8", "enable-prefix-caching": True}
PD = {"gpu-memory-utilization": 0.92}
GLM = f"{MODELS}/zai-org__GLM-5.3-Flash"
STACKS = {
    "glm53_flash": spec("vllm", GLM, "tp4", M, args=GLM_FLASH),
    "glm53_flash__spec-nospec_fasp": spec(
        "vllm", GLM, "tp4", M, args={**GLM_FLASH, "attention-backend": "FLASH_ATTN_MLA_SPARSE"}
    ),
    "glm53_flash__spec-mtp_k3": spec("vllm", GLM, "tp4", M, args={**GLM_FLASH, **MTP}),
    "qwen38_flash_next": spec(
        "vllm", f"{MODELS}/Qwen__Qwen3.8-Flash-Next", "tep4", M, args={**SMALL, "max-num-batched-tokens": 8192}
    ),
    "dsv4_flash_0731_fp8": spec(
        "sglang",
        f"{MODELS}/AtlasCloud__DeepSeek-V4-Flash-0731-FP8-DSpark",
        "tp4",
        M,
        args=DSV4,
        env={"SGLANG_DSV4_FP4_EXPERTS": "0"},
    ),
    "dsv4_flash_fp8": spec("sglang", f"{MODELS}/sgl-project__DeepSeek-V4-Flash-FP8", "tp4", M, args=DSV4),
    "qwen36_35b": spec(
        "vllm",
        f"{MODELS}/Qwen__Qwen3.6-35B-A3B",
        "dp4",
        M,
        model_context=M // 4,
        rope_scaling={"type": "yarn", "factor": 4.0},
        args={"gpu-memory-utilization": 0.92, "max-num-batched-tokens": 8192},
    ),
    "qwen38_27b": spec("vllm", f"{MODELS}/Qwen__Qwen3.8-27B", "dp4", M // 4, model_context=M // 4, args=SMALL),
    "glm53": spec("vllm", f"{MODELS}/zai-org__GLM-5.3-FP8", "tp8dcp8", M, args={**FP8, "max-num-seqs": 8}),
    "minimax_m3": spec(
        "vllm", f"{MODELS}/MiniMaxAI__MiniMax-M3-MXFP8", "tep8", M, version=None, args={**FP8, "max-num-seqs": 16}
    ),
    "glm53_flash_pd.prefill": spec("vllm", GLM, "tp4", M // 4, role="prefill", args=PD),
    "glm53_flash_pd.decode": spec("vllm", GLM, "tp4", M // 4, role="decode", args=PD),
    "glm53_flash_pd.router": spec(
        "vllm-router",
        GLM,
        role="router",
        args={"prefill": ["http://127.0.0.1:8000"], "decode": ["http://127.0.0.1:8100"]},
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_the_reference_campaign(name: str) -> None:
    server = STACKS[name]
    command = argv(server)
    env = {**server.env, **get(server.kind).environment(server, port=8000)}
    box = ContainerSpec(
        image={"sglang": "lmsysorg/sglang:v0.5.21"}.get(server.kind, "vllm/vllm-openai:v0.31.0"),
        name="@RUN_ID@",
        gpus=("0", "1", "2", "3"),
        labels={"lcplan.run": "@RUN_ID@"},
        ipc="host",
        network="host",
        volumes=(f"{MODELS}:{MODELS}:ro",),
        cpuset_cpus="0-47,96-143",
    )
    forms = {"argv": json.dumps(command, indent=1) + "\n"}
    forms["bare.sh"] = render_script(command, env, header=[name])
    forms["docker.sh"] = render_script(command, env, secrets=["HF_TOKEN"], header=[name], container=box)
    for form, text in forms.items():
        file = GOLDEN / f"{name}.{form}"
        if os.environ.get("UPDATE_GOLDEN"):
            file.write_text(text)
        assert text == file.read_text(), file.name
    assert read_script(forms["bare.sh"])[-1] == command


def test_glm53_flash_in_the_declared_order() -> None:
    assert (
        "--max-model-len 1048576 --gpu-memory-utilization 0.92 --enable-chunked-prefill --enable-prefix-caching "
        "--language-model-only --max-num-batched-tokens 8192 --tensor-parallel-size 4 --max-num-seqs 64"
    ) in " ".join(argv(STACKS["glm53_flash"]))


@pytest.mark.parametrize("name", [name for name in STACKS if "router" not in name])
def test_what_is_rendered_parses_back_to_the_identity(name: str) -> None:
    server = STACKS[name]
    skip = {"vllm": 2, "sglang": 3}[server.kind]
    parsed = load(server.kind, server.version).parse(argv(server)[skip:])
    assert not parsed.problems
    known = {key: value for key, value in parsed.flags.items() if key not in ("host", "port", "served-model-name")}
    identity = get(server.kind).identity(server)
    assert identity.pop("model") in (known.pop("model-path", None), *parsed.positionals)
    assert known == identity


VLLM_ARGS: list[dict[str, Any]] = [
    {"max-num-seqs": 64, "gpu-memory-utilization": 0.9},
    {"max_num_seqs": "64", "gpu_memory_utilization": "0.90"},
    {"--max-num-seqs": 64, "device-memory-utilization": "9e-1"},
]


def test_spelling_is_no_behaviour() -> None:
    identities = [get("vllm").identity(spec("vllm", args=args)) for args in VLLM_ARGS]
    assert identities[0] == identities[1] == identities[2]
    assert identities[0]["gpu-memory-utilization"] == 0.9
    one = spec("vllm", args={"speculative-config": '{"method": "mtp"}', "no-enable-prefix-caching": True})
    two = spec("vllm", args={"speculative-config": {"method": "mtp"}, "enable-prefix-caching": False})
    assert get("vllm").identity(one) == get("vllm").identity(two)


RENDERED: list[tuple[str, dict[str, Any], str]] = [
    ("vllm", {"enable-prefix-caching": False}, "--no-enable-prefix-caching"),
    ("vllm", {"no-enable-prefix-caching": True}, "--no-enable-prefix-caching"),
    ("sglang", {"enable-metrics": False}, ""),
    ("sglang", {"enable-metrics": True}, "--enable-metrics"),
    ("vllm", {"max-num-batched-tokens": "8K"}, "--max-num-batched-tokens 8192"),
    ("sglang", {"max-total-tokens": "1M"}, "--max-total-tokens 1048576"),
    ("vllm", {"kv-cache-memory-bytes": "40G"}, "--kv-cache-memory-bytes 42949672960"),
    ("vllm", {"gpu-memory-utilization": "0.90"}, "--gpu-memory-utilization 0.90"),
    ("vllm", {"cudagraph-capture-sizes": [1, 2, 4]}, "--cudagraph-capture-sizes 1 2 4"),
    ("vllm", {"middleware": ["a", "b"]}, "--middleware a --middleware b"),
    ("vllm", {"compilation-config": {"mode": 3, "x": [1]}}, '--compilation-config {"mode":3,"x":[1]}'),
    ("vllm", {"hf-token": True}, "--hf-token"),
    ("vllm", {"seed": None}, ""),
    ("vllm", {"chat-template": "-x"}, "--chat-template=-x"),
    ("vllm", {"max-num-queued-tokens": -1}, "--max-num-queued-tokens -1"),
    ("vllm", {"not-a-flag": [1, "b"]}, "--not-a-flag 1 b"),
    ("sglang", {"json-model-override-args": {"a": 1}}, '--json-model-override-args {"a":1}'),
]


@pytest.mark.parametrize(("kind", "args", "expected"), RENDERED)
def test_values(kind: str, args: dict[str, Any], expected: str) -> None:
    name = argv(spec(kind, args=args))
    assert " ".join(name).partition("--served-model-name @RUN_ID@")[2].strip() == expected


LAYOUTS = [
    ("vllm", "tep4", "--tensor-parallel-size 4 --enable-expert-parallel"),
    ("vllm", "dp2tp2pp2", "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2"),
    ("vllm", "tp8dcp8", "--tensor-parallel-size 8 --decode-context-parallel-size 8"),
    ("sglang", "dp4", "--tp-size 4 --dp-size 4 --enable-dp-attention"),
    ("sglang", "tep4", "--tp-size 4 --ep-size 4"),
    ("sglang", "tp8dcp8pp2", "--tp-size 8 --pp-size 2 --dcp-size 8"),
]


@pytest.mark.parametrize(("kind", "layout", "expected"), LAYOUTS)
def test_layouts(kind: str, layout: str, expected: str) -> None:
    assert " ".join(argv(spec(kind, layout=layout))).endswith(f"@RUN_ID@ {expected}")


def test_rope_scaling_merges_with_overrides_of_the_recipe() -> None:
    scaling = {"type": "yarn", "factor": 2.0}
    for override in ({"a": 1}, '{"a": 1}'):
        server = spec("vllm", context=2048, model_context=1024, rope_scaling=scaling, args={"hf_overrides": override})
        rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}
        expected = {"rope_parameters": rope, "max_position_embeddings": 2048, "a": 1}
        assert get("vllm").identity(server)["hf-overrides"] == expected
    server = spec("sglang", context=2048, model_context=1024, rope_scaling={"type": "linear", "factor": 2.0})
    overrides = get("sglang").identity(server)["json-model-override-args"]
    assert overrides == {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def test_sequence_caps() -> None:
    cap = get("vllm").sequence_cap
    assert cap(spec("vllm", args={"max-num-seqs": 64}), 140.0) == (64, "--max-num-seqs")
    assert cap(spec("vllm"), 140.0)[0] == 1024
    assert cap(spec("vllm"), 24.0)[0] == 256
    assert cap(spec("vllm"), None)[0] is None
    sglang = spec("sglang", layout="dp4", args={"max-running-requests": 64})
    assert get("sglang").sequence_cap(sglang, 140.0) == (16, "--max-running-requests over 4 ranks")
    assert get("sglang").sequence_cap(spec("sglang"), 140.0)[0] is None


def test_labels_say_how_it_really_runs() -> None:
    assert get("vllm").label(STACKS["qwen36_35b"], moe=True) == "dp4 with tensor-parallel experts"
    assert get("vllm").label(STACKS["qwen38_27b"], moe=False) == "dp4"
    assert get("sglang").label(spec("sglang", layout="dp4ep4"), moe=True) == "dp4ep4"


def test_openai_fills_its_holes() -> None:
    server = spec("openai", command=("serve", "--port={port}", "--name", "{run_id}", "{model}"))
    assert argv(server, "r1", 9000) == ["serve", "--port=9000", "--name", "r1", "m"]
    assert get("openai").identity(server)["command"] == list(server.command or ())


def test_unknown_engine() -> None:
    with pytest.raises(LcplanError, match="vllm"):
        get("vlm")
    assert [get(kind).kind for kind in KINDS] == list(KINDS)


PARSED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("vllm", "--max_model_len 1k -tp 4 -dp=2 -n2", {"max-model-len": 1000, "tensor-parallel-size": 4}, []),
    ("vllm", "--max-model-len=1M", {"max-model-len": 1048576}, []),
    ("vllm", "--max-model-len auto", {"max-model-len": "auto"}, []),
    ("vllm", "--max-model-len -1", {"max-model-len": -1}, []),
    ("vllm", "--max-num-seqs 1k", {"max-num-seqs": "1k"}, ["flag-value"]),
    ("vllm", "--kv-cache-memory=1K", {"kv-cache-memory-bytes": 1024}, []),
    ("vllm", "--max-num-batched-tokens 25.6k", {"max-num-batched-tokens": 25600}, []),
    ("vllm", "--no-enable-prefix-caching", {"enable-prefix-caching": False}, []),
    ("vllm", "--enable-prefix-caching true", {"enable-prefix-caching": True}, ["flag-value"]),
    ("vllm", "-cc.mode=3 -cc.pass_config.x true", {"compilation-config": {"mode": 3, "pass_config": {"x": True}}}, []),
    ("vllm", "--speculative-config.method mtp", {"speculative-config": {"method": "mtp"}}, []),
    ("vllm", "--hf-overrides.a+ 1,b", {"hf-overrides": {"a": [1, "b"]}}, []),
    ("vllm", "--seed 1 --seed 2", {"seed": 2}, ["duplicate-flag"]),
    ("vllm", "--tensor-parallel-siz 2 --bogus 3", {"tensor-parallel-size": 2, "bogus": "3"}, ["unknown-flag"]),
    ("vllm", "--middleware a --middleware b", {"middleware": ["a", "b"]}, []),
    ("vllm", "--seed", {"seed": None}, ["flag-value"]),
    ("sglang", "--tp 4 --ep 2", {"tp-size": 4, "ep-size": 2}, []),
    ("sglang", "--pp 2", {"pp": "2"}, ["ambiguous-flag"]),
    ("sglang", "--context-length 1M", {"context-length": 1000000}, []),
    ("sglang", "--context-length 32Ki", {"context-length": 32768}, []),
    ("sglang", "--context-length 32K", {"context-length": "32K"}, ["flag-value"]),
    ("sglang", "--context_length 3", {"context_length": "3"}, ["unknown-flag"]),
    ("sglang", "--cuda-graph-bs-decode 1 2 --model m", {"cuda-graph-bs-decode": [1, 2], "model-path": "m"}, []),
]


@pytest.mark.parametrize(("kind", "text", "flags", "codes"), PARSED)
def test_parse(kind: str, text: str, flags: dict[str, Any], codes: list[str]) -> None:
    parsed = load(kind, None).parse(text.split())
    assert {key: parsed.flags[key] for key in flags} == flags
    assert [problem.code for problem in parsed.problems] == codes


def test_optimization_levels() -> None:
    for text in ("-O3", "-O=3", "-O 3"):
        assert load("vllm", None).parse(text.split()).flags["optimization-level"] in (3, "3")


@given(st.sampled_from(["vllm", "sglang"]), st.lists(st.text(max_size=12) | st.sampled_from(["-cc.a", "--", "-O"])))
def test_any_words_parse_without_exception(kind: str, tokens: list[str]) -> None:
    load(kind, None).parse(tokens)


def test_versions_without_a_table_use_the_nearest() -> None:
    assert (load("vllm", "0.31.0").version, load("vllm", "v0.31.0").exact) == ("0.31.0", True)
    assert (load("vllm", "0.25.1").version, load("vllm", "0.25.1").exact) == ("0.31.0", False)
    assert load("vllm", "nightly").exact is False
    assert load("openai", None).names() == []
