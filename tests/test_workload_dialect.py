"""What engines say over HTTP, against captures of real servers."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.engine import dialect
from lcplan.engine.dialect import Capacity, Counters

REAL = Path(__file__).parent / "real"
VLLM = REAL / "vllm-0.25.1-h200"
SGLANG = REAL / "sglang-0.5.17-h200"


def capture(path: Path) -> tuple[int, str]:
    status, text = ast.literal_eval(path.read_text())
    return status, text


def test_vllm_counters_of_a_real_server() -> None:
    before, after = (dialect.counters((VLLM / f"llama8_tp1.metrics{n}.txt").read_text(), "vllm") for n in (0, 1))
    assert (before.queried, before.hit) == (0, 0)
    assert (after.queried, after.hit) == (12024, 5984)
    assert (after.waiting, after.running, after.preemptions, after.kv_usage) == (0, 0, 0, 0)
    assert after.draft_tokens is None


def test_sglang_counters_of_a_real_server() -> None:
    before, after = (dialect.counters((SGLANG / f"sg_llama8.metrics{n}.txt").read_text(), "sglang") for n in (0, 1))
    assert before.hit == 0  # the series is missing before the first hit
    assert after.hit == 5999
    assert after.queried is not None and before.queried is not None
    assert after.queried - before.queried == 12025
    assert (after.waiting, after.preemptions, after.accept_length) == (0, 0, None)


def test_pool_of_real_servers() -> None:
    vllm = dialect.capacity((VLLM / "llama8_tp1.metrics0.txt").read_text(), "vllm")
    assert vllm == Capacity(921_696, 1, 7.031982421875)
    assert dialect.capacity((SGLANG / "sg_llama8.metrics0.txt").read_text(), "sglang") == Capacity(879_569, 1)


def test_blocks_of_several_ranks_are_a_sum_and_tokens_are_not() -> None:
    page = "\n".join(
        f'vllm:cache_config_info{{block_size="16",engine="{rank}",num_gpu_blocks="400"{extra}}} 1.0'
        for rank in range(4)
        for extra in ("",)
    )
    assert dialect.capacity(page, "vllm") == Capacity(1600, 4)
    assert dialect.capacity(page.replace("400", "None"), "vllm") is None
    assert dialect.capacity("", "vllm") is None


def test_ranks_are_added_up_and_the_fullest_pool_counts() -> None:
    page = "\n".join(
        f'vllm:{name}{{engine="{rank}",model_name="m"}} {value}'
        for name, values in {
            "prefix_cache_queries_total": (5, 7),
            "kv_cache_usage_perc": (0.25, 0.5),
            "num_requests_waiting": (1, 2),
        }.items()
        for rank, value in enumerate(values)
    )
    assert dialect.counters(page, "vllm") == Counters(queried=12, waiting=3, kv_usage=0.5)
    assert dialect.gauges(page, "vllm") == dialect.Gauges(3, 0.5)


def test_speculative_decoding_totals() -> None:
    page = "\n".join(
        [
            'vllm:spec_decode_num_drafts_total{engine="0"} 10',
            'vllm:spec_decode_num_draft_tokens_total{engine="0"} 30',
            'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 21',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 9',
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 7',
        ]
    )
    found = dialect.counters(page, "vllm")
    assert (found.drafts, found.draft_tokens, found.accepted_tokens) == (10, 30, 21)
    assert found.accepted_per_position == {"0": 9, "1": 7}


def test_an_openai_server_may_be_an_engine_we_know() -> None:
    for page in (VLLM / "llama8_tp1.metrics1.txt", SGLANG / "sg_llama8.metrics1.txt"):
        assert (dialect.counters(page.read_text(), "openai").hit or 0) > 5000


def test_a_page_of_another_engine_says_nothing() -> None:
    assert dialect.counters((VLLM / "llama8_tp1.metrics1.txt").read_text(), "sglang") == Counters()
    assert dialect.counters("<html>not found</html>", "vllm") == Counters()
    assert dialect.gauges("", "openai") == dialect.Gauges(None, None)


def test_labels_with_quotes_braces_and_line_ends() -> None:
    page = 'a{x="b\\"c}d",y="1\\n2",z=""} 3 1700000000\nb 1e3\nc NaN\nbroken{ 1\n# HELP a a{x="1"} 5\n'
    series = dialect.parse_prometheus(page)
    assert series["a"] == [({"x": 'b"c}d', "y": "1\n2", "z": ""}, 3.0)]
    assert series["b"] == [({}, 1000.0)]


@given(st.text(max_size=200))
def test_no_page_breaks_the_reader(text: str) -> None:
    for kind in dialect.DIALECTS:
        dialect.counters(text, kind)
        dialect.capacity(text, kind)
        dialect.gauges(text, kind)


@pytest.mark.parametrize(
    ("kind", "path", "status", "means"),
    [
        ("vllm", "/health", None, "starting"),
        ("vllm", "/health", 200, "ready"),
        ("vllm", "/health", 503, "dead"),
        ("sglang", "/ready", 404, "next"),
        ("sglang", "/ready", 503, "starting"),
        ("sglang", "/health", 503, "starting"),
        ("sglang", "/health", 200, "ready"),
        ("openai", "/v1/models", 404, "starting"),
        ("openai", "/v1/models", 200, "ready"),
    ],
)
def test_readiness(kind: str, path: str, status: int | None, means: str) -> None:
    assert dialect.readiness(kind, path, status) == means


def test_names_versions_and_paths_of_real_servers() -> None:
    models = json.loads(capture(VLLM / "llama8_tp1.http_v1_models.txt")[1])
    assert dialect.served_names(models) == ["llama8"]
    assert dialect.model_path(models) == "/models/llama8"
    assert dialect.model_path(json.loads(capture(SGLANG / "sg_llama8.http_get_model_info.txt")[1])) == "/models/llama8"
    assert dialect.served_version(json.loads(capture(VLLM / "llama8_tp1.http_version.txt")[1])) == "0.25.1"
    assert dialect.served_version(json.loads(capture(SGLANG / "sg_llama8.http_server_info.txt")[1])) == "0.5.17"
    assert dialect.served_names(None) == dialect.served_names({"data": 3}) == []


@pytest.mark.parametrize(
    ("kind", "reply", "believed"),
    [
        ("vllm", capture(VLLM / "llama8_tp1.reset.txt"), False),
        ("vllm", (200, '{"success": true}'), True),
        ("vllm", (200, '{"success": false}'), False),
        ("vllm", (200, ""), False),
        ("sglang", capture(SGLANG / "sg_llama8.flush.txt"), True),
        ("sglang", (400, "Cache not flushed because there are running requests."), False),
        ("sglang", (200, "busy"), False),
    ],
)
def test_a_reset_is_believed_only_when_its_body_says_so(kind: str, reply: tuple[int, str], believed: bool) -> None:
    assert dialect.reset_done(kind, *reply) is believed
