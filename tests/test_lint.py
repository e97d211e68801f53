"""Lint: one case per kind of fault, and a clean bill for the reference campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lcplan.base.diagnostics import Source
from lcplan.engine.lint import LintFacts, lint, siblings, split_image
from tests.kit import lcplan
from tests.test_engine_command import STACKS, M, spec

GQA = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192}
MOE = {**GQA, "num_experts": 60}
QUIET = {"enable-metrics": True}
BOX: dict[str, Any] = {"image": "vllm/vllm-openai:v0.31.0", "ipc": "host"}
# (kind, spec, facts, codes)
CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    ("vllm", {"args": {"gpu-memory-utilisation": 0.9}}, {}, ["error unknown-flag"]),
    ("vllm", {"args": {"mem-fraction-static": 0.9}}, {}, ["error foreign-flag"]),
    ("sglang", {"args": {"gpu-memory-utilization": 0.9, **QUIET}}, {}, ["error foreign-flag"]),
    ("sglang", {"args": {"mem_fraction_static": 0.9, **QUIET}}, {}, ["error unknown-flag"]),
    ("vllm", {"args": {"max-num-seqs": "many"}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"max-num-seqs": 1.5}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"enable-prefix-caching": "yes"}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"dtype": "float17"}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"max-num-batched-tokens": "8k"}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"gpu-memory-utilization": 92}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"speculative-config": {"methode": "mtp"}}}, {}, ["error unknown-json-key"]),
    ("vllm", {"args": {"speculative-config": "{"}}, {}, ["error flag-value"]),
    ("vllm", {"args": {"tensor-parallel-size": 4}}, {}, ["error rendered-flag"]),
    ("vllm", {"args": {"max_model_len": 4}, "context": 4}, {}, ["error rendered-flag"]),
    ("vllm", {"args": {"port": 4}}, {}, ["error rendered-flag"]),
    ("vllm", {"args": {"seed": 4, "--seed": 4}}, {}, ["error duplicate-flag"]),
    ("sglang", {"args": {"host": "127.0.0.1", **QUIET}}, {}, ["warning bound-to-loopback", "error rendered-flag"]),
    ("sglang", {}, {}, ["warning no-metrics"]),
    ("vllm", {"context": 2 * M}, {}, ["error context-above-model"]),
    ("vllm", {"context": 16384, "model_context": None}, {"config": GQA}, ["error context-above-model"]),
    ("vllm", {"context": 2 * M, "args": {"hf-overrides": {"rope_parameters": {}}}}, {}, []),
    ("vllm", {"context": 2 * M, "rope_scaling": {"type": "yarn", "factor": 2.0}}, {}, []),
    ("vllm", {"context": 4 * M, "rope_scaling": {"type": "yarn", "factor": 2.0}}, {}, ["error context-above-model"]),
    ("vllm", {"layout": "tp3"}, {"config": GQA}, ["error indivisible-heads"]),
    ("vllm", {"layout": "tp16"}, {"config": GQA}, []),
    ("vllm", {"layout": "tp8dcp8"}, {"config": GQA}, ["error indivisible-heads"]),
    ("vllm", {"layout": "tp8dcp8"}, {"config": {**GQA, "kv_lora_rank": 512}}, []),
    ("vllm", {"layout": "tp3"}, {"config": {"text_config": GQA}}, ["error indivisible-heads"]),
    ("sglang", {"layout": "tep8", "args": QUIET}, {"config": MOE}, ["error indivisible-experts"]),
    ("vllm", {"layout": "dp4"}, {"moe": True}, ["warning tensor-parallel-experts"]),
    ("vllm", {"layout": "dp4"}, {"config": MOE}, ["warning tensor-parallel-experts"]),
    ("vllm", {"layout": "dp4ep4"}, {"moe": True}, []),
    ("vllm", {"layout": "dp4"}, {"config": GQA}, []),
    ("vllm", {"layout": "tp4ep2"}, {"moe": True}, ["warning expert-ranks"]),
    ("vllm", {"layout": "tep4"}, {"config": GQA}, ["error no-experts"]),
    ("vllm", {"args": {"max-num-seqs": 64, "max-num-batched-tokens": 32}}, {}, ["error contradicting-flags"]),
    (
        "vllm",
        {"args": {"enable-chunked-prefill": False, "max-num-batched-tokens": 2048}, "context": 4096},
        {},
        ["error contradicting-flags"],
    ),
    ("vllm", {"layout": "tp4"}, {"image": "vllm/vllm-openai:v0.31.0"}, ["warning small-shared-memory"]),
    ("vllm", {"layout": "tp4"}, {**BOX, "ipc": None, "shm_size": "16g"}, []),
    ("vllm", {}, {**BOX, "image": "vllm/vllm-openai:latest"}, ["warning moving-tag"]),
    ("vllm", {}, {**BOX, "image": "registry:5000/vllm"}, ["warning moving-tag"]),
    ("vllm", {}, {**BOX, "image": "vllm/vllm-openai@sha256:" + "a" * 64}, []),
    ("vllm", {}, {**BOX, "image": "vllm/vllm-openai:v0.30.0"}, ["warning version-differs-from-image"]),
    ("vllm", {"version": None}, {}, ["warning engine-without-version"]),
    ("vllm", {"version": "0.99.0"}, {}, ["warning no-catalogue"]),
    ("vllm", {"version": "0.99.0", "args": {"xyzzy": 1}}, {}, ["warning no-catalogue", "warning unknown-flag"]),
    ("vllm", {"args": {"swap-space": 4}}, {}, ["error removed-flag"]),
    ("vllm", {"version": "0.8.5", "args": {"swap_space": 4}}, {}, ["warning no-catalogue", "warning removed-flag"]),
    ("vllm", {"args": {"max-num-seqs": 8}}, {"users_max": 16}, ["warning cap-below-users"]),
    ("vllm", {"args": {"max-num-seqs": 8}, "layout": "dp4"}, {"users_max": 32}, []),
    ("vllm", {"env": {"CUDA_VISIBLE_DEVICES": "0"}}, {}, ["error placement-env"]),
    ("openai", {"command": ("serve", "{run_id}")}, {}, ["warning command-without-port"]),
    ("openai", {"command": ("serve", "{port}")}, {}, ["warning command-without-run-id"]),
    ("openai", {"command": ("serve", "{port}", "--name={run_id}")}, {}, ["error run-id-inside-word"]),
    ("openai", {"command": ("serve", "{port}", "{run_id}")}, {}, []),
]


@pytest.mark.parametrize(("kind", "server", "facts", "codes"), CASES)
def test_lint(kind: str, server: dict[str, Any], facts: dict[str, Any], codes: list[str]) -> None:
    found = lint(spec(kind, **server), LintFacts(**facts))
    assert [f"{one.severity} {one.code}" for one in found] == codes
    assert all(one.message for one in found)


HINTS = [
    ("vllm", {"gpu-memory-utilisation": 0.9}, "did you mean 'gpu-memory-utilization'?"),
    ("vllm", {"mem-fraction-static": 0.9}, "vLLM's own flag is 'gpu-memory-utilization'"),
    ("sglang", {"max-num-seqs": 9, **QUIET}, "SGLang's own flag is 'max-running-requests'"),
    ("sglang", {"context_length": 9, **QUIET}, "did you mean 'context-length'?"),
]


@pytest.mark.parametrize(("kind", "args", "hint"), HINTS)
def test_hints_name_the_right_flag(kind: str, args: dict[str, Any], hint: str) -> None:
    places = {f"args.{word}": Source("s.yaml", number) for number, word in enumerate(args, 1)}
    (found,) = lint(spec(kind, args=args), LintFacts(source_of=places.get))
    assert (found.hint, found.source) == (hint, Source("s.yaml", 1))


@pytest.mark.parametrize("name", STACKS)
def test_the_reference_campaign_has_no_errors(name: str) -> None:
    found = lint(STACKS[name], LintFacts(ipc="host", network="host", users_max=8))
    expected = {"sglang": {"no-metrics"}, "vllm-router": set()}.get(STACKS[name].kind, set())
    assert {one.code for one in found} == expected | ({"engine-without-version"} if name == "minimax_m3" else set())


def test_siblings_that_differ_alone_are_noted() -> None:
    servers = {name: spec("vllm", args={"max-num-seqs": 64}) for name in "abc"}
    assert siblings(servers) == []
    servers["d"] = spec("vllm", args={"max-num-seqs": 32, "seed": 1})
    notes = siblings(servers)
    assert [(note.severity, note.code) for note in notes] == [("note", "sibling-differs")] * 2
    assert notes[0].message == "d has --max-num-seqs 32, all its siblings have 64"
    assert siblings(servers, named=["max-num-seqs", "seed"]) == []


IMAGES = [
    ("a/b:v1", ("a/b", "v1", None)),
    ("host:5000/a/b", ("host:5000/a/b", None, None)),
    ("host:5000/a/b:t@sha256:0", ("host:5000/a/b", "t", "sha256:0")),
]


@pytest.mark.parametrize(("image", "parts"), IMAGES)
def test_images(image: str, parts: tuple[str, str | None, str | None]) -> None:
    assert split_image(image) == parts


CAMPAIGN = """\
lcplan: 1
engines: {vllm: {version: 0.31.0, runtime: process}}
models: {m: {path: /models/m, context: 32K}}
nodes: {n: {gpu: {model: H200, memory: 141GiB, count: 8}, quads: {a: {gpus: [0, 1, 2, 3], ports: 9000-9009}}}}
stacks:
  one: {model: m, engine: vllm, layout: tp1, args: {seed: 1}}
  two: {model: m, engine: vllm, layout: tp2, args: {seed: 1}}
  odd: {model: m, engine: vllm, layout: tp4, args: {seed: 1, enforce-eager: true}, env: {A: "1"}}
workloads: {w: {kind: oneshot, prompt: 1K, output: 8}}
experiments:
  first: {stacks: [one, two, odd], workloads: [w]}
  second: {stacks: [one, two, odd], workloads: [w]}
"""


def test_a_sibling_that_differs_is_noted_once(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CAMPAIGN)
    ran = lcplan("validate", str(tmp_path))
    assert ran.code == 0 and ran.err.count("note[sibling-differs]") == 1
    assert "odd has --enforce-eager" in ran.err
    (tmp_path / "c.yaml").write_text(
        CAMPAIGN.replace("layout: tp1,", "layout: tp1, variants: {e: {args: {enforce_eager: true}}},")
    )
    assert "sibling-differs" not in lcplan("validate", str(tmp_path)).err


def test_gpus_in_the_environment_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CAMPAIGN.replace("A: ", "CUDA_VISIBLE_DEVICES: "))
    ran = lcplan("validate", str(tmp_path))
    assert ran.code == 1 and "error[placement-env]" in ran.err and "c.yaml:8:" in ran.err


def test_the_servers_of_a_split_layout_are_checked(tmp_path: Path) -> None:
    split = "layout: pd_1p1d, roles: {decode: {layout: tp4, args: {max-num-sequences: 3}}}, args: {seed: 1}"
    text = CAMPAIGN.replace("layout: tp4, args: {seed: 1, enforce-eager: true}", split)
    text = text.replace("quads: {a: ", "quads: {b: {gpus: [4, 5, 6, 7], ports: 9010-9019}, a: ")
    (tmp_path / "c.yaml").write_text(text)
    ran = lcplan("validate", str(tmp_path))
    assert ran.code == 1 and "max-num-sequences" in ran.err
