"""Prompts, event streams and figures: pure parts of the client."""

from __future__ import annotations

import ast
import itertools
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.workload import prompts, stats
from lcplan.workload.prompts import Identity, alphabet, body, salted
from lcplan.workload.sse import EventReader
from lcplan.workload.stream import Stream

REAL = Path(__file__).parent / "real"

lines = st.sampled_from([b"data: {}", b"data:x", b"data", b": t=1.5", b":", b"", b"", b"event: ping", b"data: a: b"])
ends = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(st.tuples(lines, ends)), st.lists(st.integers(0, 200)))
def test_events_do_not_depend_on_where_the_network_cuts(parts: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(line + end for line, end in parts)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = EventReader()
    pieces = [list(reader.feed(stream[a:b])) for a, b in itertools.pairwise(edges)]
    whole = EventReader()
    assert [e for piece in pieces for e in piece] + list(reader.close()) == list(whole.feed(stream)) + list(
        whole.close()
    )


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    stream = Stream()
    stream.feed(1, noise)
    stream.close(2)


words = st.sampled_from(
    ["choices", "delta", "usage", "error", "text", "content", "role", "prompt_tokens", "finish_reason"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=4),
)


@given(values, st.booleans())
def test_no_chunk_breaks_the_stream(chunk: object, chat: bool) -> None:
    stream = Stream(chat=chat, origin=0, keep_text=True)
    stream.feed(1, b": t=1e999\n\ndata: " + json.dumps(chunk).encode() + b"\n\n")
    stream.close(2)
    assert stream.text == "" or stream.chunks or chat


@pytest.mark.parametrize("name", ["vllm-0.25.1-h200/llama8_tp1.stream1", "vllm-0.25.1-h200/llama8_tp1.stream2"])
def test_real_vllm_streams(name: str) -> None:
    stream = _replay(name)
    assert (stream.prompt_tokens, stream.output_tokens, stream.finish, stream.error) == (6000, 8, "length", None)
    assert len(stream.chunks) == (7 if name.endswith("2") else 8)  # async scheduling put two tokens in one chunk


@pytest.mark.parametrize(("name", "cached"), [("sg_llama8.stream1", None), ("sg_llama8.stream2", 5999)])
def test_real_sglang_streams(name: str, cached: int | None) -> None:
    stream = _replay(f"sglang-0.5.17-h200/{name}")
    assert (stream.prompt_tokens, stream.output_tokens, stream.cached_tokens, stream.error) == (6000, 8, cached, None)
    assert len(stream.chunks) == 8  # half of them without text


def _replay(name: str) -> Stream:
    stream = Stream()
    for line in (REAL / f"{name}.txt").read_text().split("\n"):
        stamp, _, text = line.partition(" ")
        if stamp:
            stream.feed(round(float(stamp) * 1e9), text.encode() + b"\n")
    stream.close(0)
    return stream


@pytest.mark.parametrize(
    ("deltas", "first"),
    [
        ([{"role": "assistant", "content": ""}, {"content": "a"}, {"content": ""}], 1),
        ([{"role": "assistant", "content": "a"}, {"content": "b"}], 0),
        ([{"role": "assistant"}, {"reasoning": "hm"}, {"content": "a"}], 1),
        ([{"role": "assistant", "content": None, "reasoning_content": None}, {"reasoning_content": "hm"}], 1),
        ([{"role": "assistant", "content": ""}, {"tool_calls": [{"index": 0}]}], 1),
        ([{"role": "assistant", "content": ""}, {"content": ""}], 1),
    ],
)
def test_first_token_of_a_chat_is_no_role_frame(deltas: list[dict[str, object]], first: int) -> None:
    stream = Stream(chat=True)
    for at, delta in enumerate(deltas):
        stream.feed(at, b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n")
    assert stream.chunks[0] == first


def test_stamps_of_the_simulator_are_taken_instead_of_arrival_times() -> None:
    stream = Stream(origin=1_000_000_000)
    stream.feed(7, b': t=58.612345\n\ndata: {"choices": [{"text": "", "finish_reason": null}]}\n\n')
    stream.feed(8, b': t=58.619\n\ndata: {"choices": [{"text": "", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n')
    stream.close(9)
    assert stream.chunks == [59_612_345_000, 59_619_000_000]


def test_a_prompt_has_its_length_its_salt_and_only_ordinary_ids() -> None:
    salt = Identity("l", "r", "c", 1, "1.1").salt("0")
    for tokens in (1, 5, 8, 9, 1000):
        ids = json.loads(body(salted(salt, tokens, alphabet()), "m", 4))["prompt"]
        assert len(ids) == tokens
        assert ids[:8] == [10_000 + byte for byte in salt[:tokens]]
        assert all(10_000 <= i < 30_000 for i in ids)


@given(st.integers(400, 200_000))
def test_ids_stay_inside_a_vocabulary(vocabulary: int) -> None:
    ids = alphabet(vocabulary)
    made = json.loads(b"[" + salted(b"\xff" * 8, 300, ids).text + b"]")
    assert all(ids.low <= i < min(vocabulary, 30_000) for i in made)


def test_a_prompt_depends_on_everything_that_tells_measurements_apart() -> None:
    same = ("line", "run", "cell", 1, "1.1")
    others = [
        ("x", *same[1:]),
        ("line", "x", *same[2:]),
        (*same[:2], "x", *same[3:]),
        (*same[:3], 2, "1.1"),
        (*same[:4], "1.2"),
    ]
    salts = {Identity(*facts).salt(str(i)) for facts in (same, *others) for i in range(500)}  # type: ignore[arg-type]
    assert len(salts) == 6 * 500
    assert salted(Identity(*same).salt("0"), 100, alphabet()) == salted(Identity(*same).salt("0"), 100, alphabet())


def test_a_million_ids_take_milliseconds() -> None:
    def seconds() -> float:
        start = time.process_time()
        made = body(salted(b"12345678", 1_000_000, alphabet()), "m", 16)
        assert made.count(b",") > 1_000_000
        return time.process_time() - start

    assert min(seconds() for _ in range(3)) < 0.05


def test_parts_of_prompts_join_and_cut() -> None:
    a, b = prompts.of_ids([1, 2]), prompts.of_ids([3])
    empty = prompts.of_ids([])
    assert (a + b, empty + a, a + empty, (a + b).cut(2)) == (prompts.of_ids([1, 2, 3]), a, a, a)


@pytest.mark.parametrize(
    ("n", "keys"), [(1, {"values"}), (9, {"values"}), (10, {"p90"}), (99, {"p90"}), (100, {"p90", "p99"})]
)
def test_no_percentile_that_the_sample_cannot_carry(n: int, keys: set[str]) -> None:
    figures = stats.metric("ttft_s", [float(i) for i in range(n)])
    assert figures is not None
    assert set(figures) == {"value", "unit", "n", "median", "min", "max"} | keys
    assert (figures["value"], figures["n"], figures["unit"]) == ((n - 1) / 2, n, "s")


def test_figures_of_nothing_are_left_out() -> None:
    assert stats.metrics({"ttft_s": [], "tpot_ms": [None, 2.0]}).keys() == {"tpot_ms"}


UNITS = {
    "ttft_s": "s",
    "turn10_ttft_s": "s",
    "tpot_ms": "ms",
    "user_tokens_per_s": "tokens/s",
    "acceptance_length_tokens": "tokens",
    "hit_rate_percent": "%",
    "sent": "requests",
    "needles_found": "needles",
}


@pytest.mark.parametrize(("name", "unit"), UNITS.items())
def test_metric_names_end_in_their_unit(name: str, unit: str) -> None:
    assert stats.unit(name) == unit


def test_percentiles_are_those_of_the_benchmark_tool() -> None:
    found = ast.literal_eval((REAL / "vllm-0.25.1-h200/llama8_tp1.bench.json").read_text().replace("null", "None"))
    ttfts = stats.metric("ttft_s", found["ttfts"])
    assert ttfts is not None
    assert ttfts["p90"] * 1e3 == pytest.approx(found["p90_ttft_ms"])
    assert ttfts["value"] * 1e3 == pytest.approx(found["median_ttft_ms"])
