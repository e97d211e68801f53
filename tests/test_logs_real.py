"""Logs of real servers: figures as measured, failures by class, clean stops, growing files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lcplan.engine.logs import LogReader, parse_log

REAL = Path(__file__).parent / "real"
RECORDS = json.loads((REAL / "capacity_h200.json").read_text())["records"]
FAILED = {
    "llama8_nomem": "kv_no_memory",
    "llama8_toolong": "kv_too_small",
    "llama8_badflag": "bad_flag",
    "llama8_derived": "max_model_len_above_model",
    "llama8_graph": "worker_died",
    "sg_nomem": "kv_no_memory",
    "sg_badflag": "bad_flag",
    "sg_llama8": "worker_died",
}
SILENT = {"qwen3next_tp1", "llama8_tp1.bench"}
LOGS = sorted(REAL.glob("*/*.log"))


@pytest.mark.parametrize("record", RECORDS, ids=[record["run"] for record in RECORDS])
def test_capacity_as_measured(record: dict[str, Any]) -> None:
    facts = parse_log(REAL / record["log"])
    assert facts.engine == record["engine"]
    assert list(facts.kv_tokens) == ([record["pool_tokens_per_engine"]] if record["pool_tokens_per_engine"] else [])
    assert list(facts.max_concurrency) == ([record["max_concurrency"]] if record["max_concurrency"] else [])
    assert facts.max_model_len == record["max_model_len"]
    assert facts.weights_gib == record["weights_gib_per_rank"]
    assert facts.kv_memory_gib == record["available_kv_gib"]
    assert facts.cudagraph_gib == record["graph_gib"]
    assert facts.kv_cache_dtype == record["kv_cache_dtype"]
    assert (facts.tp, facts.pp, facts.dp) == (record["tp"], record["pp"], record["dp"])
    assert (facts.block_size or 16) == record["block_size"]
    assert facts.choices["attention_backend"] == record["attention_backend"]
    assert facts.choices.get("model_runner") == record["runner"]
    assert facts.choices.get("max_num_batched_tokens") == record["max_num_batched_tokens"]
    if record["engine"] == "sglang" or record["max_num_seqs_given"]:
        assert facts.max_num_seqs == record["max_num_seqs"]
    if record["engine"] == "vllm":
        assert facts.engine_version == record["engine_version"]


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_outcome(log: Path) -> None:
    facts = parse_log(log)
    assert facts.failure == FAILED.get(log.stem)
    assert facts.ready is (None if log.stem in SILENT else log.stem not in FAILED)
    assert bool(facts.last_error) == (log.stem in FAILED)
    assert facts.stopped == (facts.ready is True)


def test_numbers_of_a_pool_too_small() -> None:
    data = parse_log(REAL / "vllm-0.25.1-h200" / "llama8_toolong.log").failure_data
    assert (data["needed_gib"], data["available_gib"], data["estimated_max_len"]) == (16.0, 6.26, 51312)
    flags = parse_log(REAL / "sglang-0.5.17-h200" / "sg_badflag.log").failure_data
    assert flags["arguments"] == ["--context-lenght", "131072"]


def test_stages_and_time_to_ready() -> None:
    vllm = parse_log(REAL / "vllm-0.25.1-h200" / "llama8_graph.log")
    assert vllm.ready_seconds == 126
    assert [phase.name for phase in vllm.phases] == [
        "start", "engine", "weights", "pool", "graphs", "engine_ready", "listening", "ready",
    ]  # fmt: skip
    assert vllm.stage == "ready"
    sglang = parse_log(REAL / "sglang-0.5.17-h200" / "sg_llama8.log")
    assert sglang.ready_seconds == 88  # after the warm-up, not when uvicorn listens


def test_growing_file_is_read_from_where_it_was_left(tmp_path: Path) -> None:
    whole = (REAL / "vllm-0.25.1-h200" / "llama8_tp2.log").read_bytes()
    file, reader = tmp_path / "server.log", LogReader()
    file.touch()
    for at in range(0, len(whole), 1000):
        with file.open("ab") as out:
            out.write(whole[at : at + 1000])
        assert reader.follow(file) == min(at + 1000, len(whole))
        reader.facts()
    assert reader.facts() == parse_log(whole)
    file.write_bytes(whole[:500])
    reader.follow(file)
    assert reader.facts() == parse_log(whole[:500])
