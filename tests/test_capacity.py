"""The calculator: worked examples, real starts, accuracy targets, what never may happen, the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lcplan.base.layout import Layout, parse_layout
from lcplan.capacity.agree import best_known, disagreements
from lcplan.capacity.cap import sequence_cap
from lcplan.capacity.config import read
from lcplan.capacity.fit import fit
from lcplan.capacity.gpus import gpu
from lcplan.capacity.pool import KvPool
from lcplan.capacity.predict import Launch, Prediction, predict
from lcplan.capacity.shapes import Attention, Latent, Model, Unknown
from lcplan.capacity.table import Point, Row, table
from lcplan.capacity.vllm import stages_of
from lcplan.capacity.weights import matrices, scheme_of
from lcplan.cli.capacity import register
from lcplan.view.capacity import tables_text
from tests import accuracy

CASES = Path(__file__).parent / "cases"
VECTORS = json.loads((CASES / "capacity_vectors.json").read_text())["vectors"]
MORE = json.loads((CASES / "model_shapes_more.json").read_text())["models"]
EVERY = accuracy.cases()
JUDGED = [case for case in EVERY if not case.unstated]


def shape(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CASES / f"model_shapes/{name}.json").read_text())
    return loaded


def calculate(
    name: str, memory: float | None = None, layout: str = "tp1", engine: str = "vllm", **flags: Any
) -> Prediction:
    named = {key.replace("_", "-"): value for key, value in flags.items()}
    version = "0.31.0" if engine == "vllm" else "0.5.21"
    return predict(shape(name), Launch(engine, version, "H200", parse_layout(layout), named), memory)


# --- worked examples and real starts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_worked_example(vector: dict[str, Any]) -> None:
    launch = Launch(vector["engine"], vector["version"], "H200", parse_layout(vector["layout"]), vector["flags"])
    got = predict(shape(vector["config"]), launch, vector["kv_memory_gib"])
    assert got.pool_tokens == vector["pool_tokens"]
    if "max_concurrency" in vector:
        assert round(got.concurrency or 0, 2) == vector["max_concurrency"]
    if "blocks" in vector:
        assert got.parts["blocks"] == vector["blocks"]


@pytest.mark.parametrize(
    "case", [c for c in JUDGED if "tokens_from_kv_memory" in c.uses and c.kv_memory], ids=lambda case: case.name
)
def test_tokens_from_memory(case: accuracy.Case) -> None:
    """The printed tokens lie between what the rounding of the printed memory allows."""
    assert case.kv_memory is not None
    if case.launch.layout.pp > 1:  # the printed memory is the first stage's, the pool the smallest stage's
        assert abs(accuracy.error(case, accuracy.from_memory(case))) < 0.02
        return
    # SGLang prints no budget: it is derived from three figures with two decimals each.
    slack = 0.005 if case.launch.engine == "vllm" else 0.015
    low = predict(case.config, case.launch, case.kv_memory - slack).pool_tokens
    high = predict(case.config, case.launch, case.kv_memory + slack).pool_tokens
    assert low is not None and high is not None
    assert low <= case.pool <= high


@pytest.mark.parametrize("shaped", MORE, ids=lambda shaped: shaped["model"])
def test_shapes_of_public_models(shaped: dict[str, Any]) -> None:
    """The bytes of a token in all layers, and the size of the checkpoint."""
    model = read(shaped["config"])
    assert isinstance(model, Model), model
    caches = [cache for layer in model.layers for cache in layer]
    heads = sum(2 * c.heads * (c.key + c.value) for c in caches if isinstance(c, Attention))
    latents = sum(2 * (c.rank + c.rope) + c.index + c.index // 32 for c in caches if isinstance(c, Latent))
    assert heads + latents == shaped["kv_bytes_per_token"]
    made = [one for one in matrices(model, range(len(model.layers)), 1) if one.name != "rotary_emb"]
    scheme = scheme_of(model.config)
    sizes = [2.0 if m.plain or scheme.skips(m.name) else scheme.size(m.name, 2.0) for m in made]
    absorbed = sum(2 * m.count for m in made if m.name.endswith(".absorbed"))  # beside the checkpoint
    total = sum(m.count * size for m, size in zip(made, sizes, strict=True)) - absorbed
    assert total / 2**30 == pytest.approx(shaped["weights_gib"], rel=0.01)


@pytest.mark.parametrize("case", [c for c in JUDGED if c.weights and c.uses], ids=lambda case: case.name)
def test_weights(case: accuracy.Case) -> None:
    got = accuracy.from_flags(case)
    if got.weights_gib is not None:
        assert got.weights_gib == pytest.approx(case.weights, rel=0.015, abs=0.05)


def test_accuracy_from_flags() -> None:
    errors: dict[bool, list[float]] = {True: [], False: []}
    held = []
    for case in JUDGED:
        if "tokens_from_flags" not in case.uses or case.launch.engine != "vllm":
            continue
        got = accuracy.from_flags(case)
        errors[accuracy.known_version(case)].append(abs(accuracy.error(case, got)))
        assert got.interval is not None
        held.append(got.interval[0] <= case.pool <= got.interval[1])
    known = sorted(errors[True])
    assert len(known) > 50
    assert known[len(known) // 2] < 0.01
    assert known[int(0.9 * len(known))] < 0.05
    assert sum(held) >= 0.9 * len(held)


@pytest.mark.parametrize(("left_out", "median", "ninth"), [("model", 0.01, 0.05), ("version", 0.02, 0.10)])
def test_accuracy_on_what_the_fit_has_not_seen(left_out: str, median: float, ninth: float) -> None:
    def key(row: accuracy.Row) -> Any:
        return row.case.model if left_out == "model" else row.version[:2]

    ranked = sorted(abs(error) for error in accuracy.held_out(accuracy.rows(EVERY), key).values())
    assert ranked[len(ranked) // 2] < median
    assert ranked[int(0.9 * len(ranked))] < ninth


# --- what never may happen --------------------------------------------------------------------------------------------

SHAPES = st.sampled_from(sorted({vector["config"] for vector in VECTORS}))
LENGTHS = st.sampled_from([4096, 32768, 131072, 1048576])


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(1, 120), st.floats(0, 60), LENGTHS, st.sampled_from(["vllm", "sglang"]))
def test_more_memory_never_holds_fewer_tokens(name: str, memory: float, more: float, length: int, engine: str) -> None:
    flags = {"max-model-len" if engine == "vllm" else "context-length": length}
    one, two = (calculate(name, size, engine=engine, **flags) for size in (memory, memory + more))
    assert (one.pool_tokens or 0) <= (two.pool_tokens or 0)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.floats(20, 120), LENGTHS)
def test_smaller_elements_never_hold_fewer_tokens(name: str, memory: float, length: int) -> None:
    wide = calculate(name, memory, max_model_len=length)
    narrow = calculate(name, memory, max_model_len=length, kv_cache_dtype="fp8")
    # Larger blocks may round a little more away.
    assert (narrow.pool_tokens or 0) >= 0.97 * (wide.pool_tokens or 0)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.floats(20, 120), st.sampled_from([1, 2, 4]), LENGTHS)
def test_more_ranks_never_hold_fewer_tokens(name: str, memory: float, tp: int, length: int) -> None:
    one, two = (calculate(name, memory, f"tp{n}", max_model_len=length) for n in (tp, 2 * tp))
    assert (one.pool_tokens or 0) <= (two.pool_tokens or 0)


@settings(max_examples=40, deadline=None)
@given(SHAPES, st.integers(1, 10**6), st.integers(0, 10**5))
def test_a_longer_sequence_never_takes_less(name: str, length: int, more: int) -> None:
    cost = calculate(name, 50, max_model_len=1048576).cost
    assert cost is not None
    assert cost.tokens(length) <= cost.tokens(length + more)


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"])
@pytest.mark.parametrize("value", [0, -1, "x", [], {}])
def test_a_shape_of_no_size_is_said(key: str, value: Any) -> None:
    got = predict({**shape("llama-3.1-8b"), key: value}, Launch("vllm", "0.31.0", "H200", Layout("tp1")))
    assert got.pool_tokens is None
    assert [d.code for d in got.diagnostics] == ["unknown-architecture"]


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_nextn_predict_layers", "num_kv_shared_layers"])
def test_a_number_of_layers_that_no_memory_holds_is_said(key: str) -> None:
    got = predict({**shape("deepseek-v3"), key: 10**12}, Launch("vllm", "0.31.0", "H200", Layout("tp1")))
    assert [d.code for d in got.diagnostics] == ["unknown-architecture"]


@pytest.mark.parametrize("config", [{}, {"model_type": "llama"}, {"model_type": "rwkv7", "architectures": ["Rwkv7"]}])
def test_unknown_is_named_and_never_guessed(config: dict[str, Any]) -> None:
    got = predict(config, Launch("vllm", "0.31.0", "H200", Layout("tp1")))
    assert got.pool_tokens is None
    assert [d.code for d in got.diagnostics] == ["unknown-architecture"]
    if config.get("architectures"):
        assert "Rwkv7" in got.diagnostics[0].message


@settings(max_examples=150, deadline=None)
@given(
    SHAPES,
    st.dictionaries(
        st.sampled_from(
            [
                "hidden_size",
                "num_attention_heads",
                "layer_types",
                "num_key_value_heads",
                "kv_lora_rank",
                "head_dim",
                "vocab_size",
                "sliding_window",
                "num_experts",
                "rope_scaling",
                "quantization_config",
                "vision_config",
            ]
        ),
        st.one_of(st.none(), st.integers(-1, 9), st.text(max_size=3), st.lists(st.integers(), max_size=2)),
        min_size=1,
        max_size=3,
    ),
)
def test_a_strange_config_is_said_and_never_raises(name: str, strange: dict[str, Any]) -> None:
    config = shape(name)
    config.get("text_config", config).update(strange)
    got = predict(config, Launch("vllm", "0.31.0", "H200", Layout("tp1")))
    assert got.pool_tokens is None or got.pool_tokens >= 0


CALIBRATED = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}


@pytest.mark.parametrize(
    ("version", "extra", "bytes_per_token"),
    [
        ("0.31.0", CALIBRATED, 65536),  # a checkpoint with scales for fp8 keys and values
        ("0.11.0", CALIBRATED, 131072),
        ("0.31.0", {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 65536),
        ("0.31.0", {"quant_method": "compressed-tensors", "kv_cache_scheme": None}, 131072),
    ],
)
def test_the_kv_dtype_of_a_checkpoint(version: str, extra: dict[str, Any], bytes_per_token: int) -> None:
    config = {**shape("llama-3.1-8b"), "quantization_config": extra}
    assert predict(config, Launch("vllm", version, "H200", Layout("tp1"))).bytes_per_token == bytes_per_token


@pytest.mark.parametrize(
    ("extra", "length"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 65536),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 32768),
        ({"model_max_length": 16384, "rope_scaling": None}, 16384),
        ({"max_position_embeddings": None, "rope_scaling": None}, 2048),
    ],
)
def test_the_context_without_a_flag(extra: dict[str, Any], length: int) -> None:
    config = {**shape("llama-3.1-8b"), "max_position_embeddings": 32768, **extra}
    assert predict(config, Launch("vllm", "0.31.0", "H200", Layout("tp1"))).max_model_len == length


@pytest.mark.parametrize("given", ["auto", -1])
def test_a_context_that_the_engine_fits(given: Any) -> None:
    got = calculate("llama-3.1-8b", 10.0, max_model_len=given)  # 10 GiB of 131,072 bytes
    assert (got.max_model_len, got.pool_tokens, got.diagnostics) == (81920, 81920, ())


def test_a_draft_that_is_not_counted_is_said() -> None:
    codes = [
        [d.code for d in calculate(name, 20.0, max_model_len=4096, speculative_config={"method": method}).diagnostics]
        for name, method in (("llama-3.1-8b", "eagle3"), ("llama-3.1-8b", "ngram"), ("qwen3.6-35b-a3b", "mtp"))
    ]
    assert codes == [["draft-not-counted"], [], []]


def test_chunked_attention_counts_whole_contexts_where_vllm_leaves_it_off() -> None:
    config = next(one["config"] for one in MORE if one["model"] == "llama-4-scout")
    needs = [
        predict(config, Launch("vllm", version, "H200", Layout("tp1"), {"max-model-len": 131072}), 80.0).bytes_per_token
        for version in ("0.11.0", "0.13.0")
    ]
    # 12 full layers, and 36 that keep a chunk of 8,192 and a batch of 8,192 of 131,072 tokens
    assert needs == [196608, 12 * 4096 + 36 * 4096 * 16384 / 131072]


@pytest.mark.parametrize(
    ("name", "memory", "known"),
    [
        ("NVIDIA H100 80GB HBM3", 79.19, True),
        ("NVIDIA H100 NVL", 93.10, True),
        ("8x H200", 139.80, True),
        ("NVIDIA A100-SXM4-40GB", 39.49, True),
        ("NVIDIA GH200 480GB", 94.50, True),
        ("H20-3e", 139.80, True),
        ("NVIDIA L40S (44.42 GiB)", 44.42, True),
        ("RTX 4090 48GB", 47.28, False),
        ("NVIDIA A30", 23.60, True),
        ("some card of 24 GB", 23.64, False),
    ],
)
def test_gpu_names(name: str, memory: float, known: bool) -> None:
    found = gpu(name)
    assert found is not None
    assert found.memory == pytest.approx(memory)
    assert found.known is known


def test_unknown_layer_kind_is_named() -> None:
    got = read({**shape("llama-3.1-8b"), "layer_types": ["lightning_attention"] * 32})
    assert isinstance(got, Unknown)
    assert "lightning_attention" in got.why


# --- shapes and parts -------------------------------------------------------------------------------------------------


def test_hybrids_cost_more_than_their_length() -> None:
    """The printed pool of a hybrid over-promises for short sequences: 496 of 9,216 tokens, not 1,226."""
    got = calculate("qwen3.6-35b-a3b", 109.26, "dp4", max_model_len=1048576, kv_cache_dtype="fp8")
    seen = {9216: 496, 33792: 237, 131072: 79, 262144: 41, 1048576: 10}
    assert {length: fit(got.pool_tokens, 1, length, law=got.cost).fits for length in seen} == seen


def test_too_small_a_pool_is_said() -> None:
    got = calculate("llama-3.1-8b", 6.26, max_model_len=131072)
    assert [d.code for d in got.diagnostics] == ["kv-too-small"]
    assert "16.00 GiB" in got.diagnostics[0].message


def test_parts_add_up() -> None:
    got = calculate("llama-3.1-8b", layout="tp2", max_model_len=131072, gpu_memory_utilization=0.92)
    parts = got.parts
    beside = sum(parts[f"{name}_gib"] for name in ("weights", "activations", "communication", "graphs", "other"))
    assert parts["share_gib"] - beside == pytest.approx(got.kv_memory_gib)
    assert got.interval is not None
    assert got.interval[0] <= (got.pool_tokens or 0) <= got.interval[1]


def test_shared_caches_and_nested_configs() -> None:
    got = read({"text_config": {**shape("gemma-2-2b"), "num_kv_shared_layers": 6}, "model_type": "wrapper"})
    assert isinstance(got, Model)
    assert sum(1 for layer in got.layers if layer) == 20


def test_stages() -> None:
    assert [len(s) for s in stages_of(61, 4)] == [15, 15, 16, 15]
    assert [len(s) for s in stages_of(10, 3, draft=1)] == [3, 4, 4]


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("NVIDIA H200", 139.80),
        ("NVIDIA H100 80GB HBM3", 79.19),
        ("H20 96GB", 95.58),
        ("Fancy 100GB", 98.5),
        ("?", None),
    ],
)
def test_gpu_memory_as_cuda_sees_it(name: str, memory: float | None) -> None:
    found = gpu(name)
    assert (found.memory if found else None) == memory


def test_sequence_caps() -> None:
    one, two = Layout("tp1"), Layout("dp4", dp=4)
    assert sequence_cap("vllm", "0.31.0", "H200", one, {})[0] == 1024
    assert sequence_cap("vllm", "0.31.0", "L40S", one, {})[0] == 256
    assert sequence_cap("vllm", "0.31.0", "?", one, {})[0] is None
    assert sequence_cap("vllm", "0.31.0", "H200", one, {"max-num-seqs": 8}) == (8, "--max-num-seqs")
    assert sequence_cap("sglang", "", "H200", two, {"max-running-requests": 64, "enable-dp-attention": True})[0] == 16
    assert sequence_cap("sglang", "0.5.17", "H200", one, {}, pool_tokens=879_569, context=131_072)[0] == 3435
    assert sequence_cap("openai", "", "H200", one, {})[0] is None


def test_which_pool_counts() -> None:
    assert best_known(10, [30, 20, 40], 15) == (30, "history")
    assert best_known(10, declared=15) == (15, "declared")
    assert best_known(10) == (10, "predicted")
    assert best_known(None) == (None, "unknown")


def test_disagreements() -> None:
    assert disagreements(100, 105, [104]) == []
    assert [d.code for d in disagreements(80, 100, [100, 101])] == ["pool-off-prediction", "pool-below-history"]
    assert [d.code for d in disagreements(120, 100, [100])] == ["pool-off-prediction"]


def test_tables() -> None:
    big = KvPool(3_900_000, "logged", 1, 16, "--max-num-seqs")
    points = tuple(Point("sweep", length, 8, big.at(length)) for length in (262144, 1048576))
    unknown = KvPool(None, "unknown", 2, 16, "--max-num-seqs")
    short = (Point("sweep", 262144, 1, unknown.at(262144)), Point("sweep", 262144, 64, unknown.at(262144)))
    made = table([Row("big", None, "tp8", 1048576, big, points), Row("small", "v", "dp2", 524288, unknown, short)])
    assert made["lengths"] == [8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]
    assert [made["stacks"][0]["at"][str(n)] for n in (262144, 1048576)] == [14, 3]
    assert [made["stacks"][1]["at"][str(n)] for n in (524288, 1048576)] == ["unknown", None]
    assert [point["limited"] for row in made["stacks"] for point in row["points"]] == [False, True, None, True]
    text = tables_text(made)
    assert "256K" in text
    assert "≤32" in text
    assert "Points with more users than fit" in text


# --- the command line -------------------------------------------------------------------------------------------------


def run(*words: str) -> Any:
    app = typer.Typer()
    register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["capacity", *words])


def test_cli_json() -> None:
    config = str(CASES / "model_shapes/llama-3.1-8b.json")
    words = ["--config", config, "--engine", "vllm", "--engine-version", "0.25.1", "--gpu", "H200", "--layout", "tp2"]
    words += ["--args", "--max-model-len 131072 --gpu-memory-utilization 0.92 --enforce-eager", "--json"]
    got = json.loads(run(*words).stdout)
    assert got["pool_tokens"] == pytest.approx(1_961_216, rel=0.01)
    assert got["engines"] == 1
    assert got["bytes_per_token"] == 65536
    assert set(got["predicted"]) >= {"weights_gib", "activations_gib", "pool_gib", "interval"}


def test_cli_memory_given() -> None:
    config = str(CASES / "model_shapes/llama-3.1-8b.json")
    for size in ("50GiB", "50"):
        done = run("--config", config, "--kv-memory", size, "--args", "--max-model-len 131072", "--json")
        assert json.loads(done.stdout)["pool_tokens"] == 409_600
    assert "409,600 tokens" in run("--config", config, "--kv-memory", "50", "--args", "--max-model-len 131072").stdout


def test_cli_unknown_architecture_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "rwkv7", "architectures": ["Rwkv7ForCausalLM"]}')
    done = run("--config", str(tmp_path), "--gpu", "H200", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["pool_tokens"] is None
    assert "Rwkv7ForCausalLM" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--config", "/nonexistent.json"),
        ("--config", str(CASES / "model_shapes/llama-3.1-8b.json"), "--layout", "tpp2"),
        ("--config", str(CASES / "model_shapes/llama-3.1-8b.json"), "--kv-memory", "lots"),
        ("--config", str(CASES / "model_shapes/llama-3.1-8b.json"), "--args", "'"),
        ("--config", str(CASES / "model_shapes/llama-3.1-8b.json"), "--args", "--max-modle-len 5"),
    ],
)
def test_cli_mistakes(words: tuple[str, ...]) -> None:
    assert run(*words, "--engine-version", "0.31.0", "--gpu", "H200").exit_code == 1


def test_cli_without_a_gpu_says_so() -> None:
    done = run("--config", str(CASES / "model_shapes/llama-3.1-8b.json"))
    assert done.exit_code == 0
    assert "unknown-gpu" in done.stderr
    assert "known after launch" in done.stdout
