"""Settable faults, and failures at start in the engines' own words."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lcplan.engine.logs import parse_log
from tests.sim_kit import DSV4, FLASH, Sim, health, serving, started, until


def fault(kind: str, **parameters: Any) -> list[dict[str, Any]]:
    return [{"match": "m*", "fault": kind, **parameters}]


def ids(count: int) -> list[int]:
    return [random.randint(3000, 150_000) for _ in range(count)]


def failed(argv: list[str], folder: Path, *options: str, **more: Any) -> tuple[int, str]:
    with started(argv, folder, *options, **more) as sim:
        status = sim.wait()
        return status, sim.log


@pytest.mark.parametrize(
    "kind", ["oom", "kv_no_memory", "kv_too_small", "memory_not_free", "gated_model", "port_in_use", "not_enough_gpus"]
)
def test_vllm_dies_at_start_with_the_chosen_failure(kind: str, tmp_path: Path) -> None:
    status, log = failed(FLASH, tmp_path, faults=fault("die_at_start", **{"class": kind}))
    assert status == 1
    facts = parse_log(log)
    assert facts.failure == kind


@pytest.mark.parametrize(("kind", "expected"), [("oom", "oom"), ("kv_no_memory", "kv_no_memory")])
def test_sglang_dies_at_start_by_killing_itself(kind: str, expected: str, tmp_path: Path) -> None:
    status, log = failed(DSV4, tmp_path, faults=fault("die_at_start", **{"class": kind}))
    assert status == -9
    facts = parse_log(log)
    assert facts.failure == expected


def test_too_little_memory_fails_by_itself(tmp_path: Path) -> None:
    status, log = failed([*FLASH, "--gpu-memory-utilization", "0.3"], tmp_path)
    assert status == 1 and "No available memory for the cache blocks" in log
    status, log = failed(FLASH, tmp_path, "--pool", "100000")
    assert status == 1 and "To serve at least one request with the model's max seq len (1048576)" in log
    status, log = failed([*DSV4, "--mem-fraction-static", "0.3"], tmp_path)
    assert status == -9 and "Loaded weights leave no GPU memory for the KV cache" in log


def test_a_context_above_the_models_needs_rope_scaling(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 262144}))
    argv = ["vllm", "serve", str(model), "--max-model-len", "1048576"]
    status, log = failed(argv, tmp_path, "--pool", "2000000")
    assert status == 1 and "is greater than the derived max_model_len (max_position_embeddings=262144.0" in log
    rope = json.dumps({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}})
    with serving([*argv, "--hf-overrides", rope], tmp_path, "--pool", "2000000") as sim:
        assert sim.get("/v1/models").json["data"][0]["max_model_len"] == 1_048_576
    sglang = ["sglang", "serve", "--model-path", str(model), "--context-length", "1048576"]
    status, log = failed(sglang, tmp_path, "--pool", "2000000")
    assert status == 1 and "is greater than the derived context_length (262144)" in log


def test_a_busy_port_is_seen_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "lcplan.sim", "--", *FLASH, "--host", "127.0.0.1", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1 and "Address already in use" in done.stderr


def test_bad_flags_exit_with_2_and_bad_faults_with_1(tmp_path: Path) -> None:
    status, log = failed([*FLASH, "--max-modle-len", "5"], tmp_path)
    assert status == 2 and "error: unrecognized arguments: --max-modle-len 5" in log
    status, log = failed(FLASH, tmp_path, faults=fault("nonsense"))
    assert status == 1 and "unknown fault 'nonsense'" in log


def test_never_ready_refuses_or_warms_up_for_ever(tmp_path: Path) -> None:
    with started(FLASH, tmp_path, faults=fault("never_ready")) as sim:
        until(lambda: "GPU KV cache size" in sim.log, sim)
        assert health(sim) is None
        sim.process.terminate()
        sim.wait()
    with started(DSV4, tmp_path, faults=fault("never_ready", stage="warmup")) as sim:
        until(lambda: health(sim) == 503, sim)
        assert {health(sim) for _ in range(50)} == {503}
        assert sim.get("/model_info").status == 200


def test_vllms_engine_dies_while_serving(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("die_while_serving", requests=1)) as sim:
        assert sim.complete(ids(10), 4).status == 200
        assert sim.complete(ids(10), 4).status == 500
        seen: list[int | None] = []
        until(lambda: seen.append(health(sim)) or seen[-1] is None, sim)
        assert 503 in seen
        assert sim.wait() == 0
        assert "engine core exited unexpectedly" in sim.log and "shutdown triggered" not in sim.log


def test_vllms_stream_ends_with_an_error_when_the_engine_dies(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("die_while_serving", requests=0)) as sim:
        text = sim.complete(ids(100_000), 100_000, stream=True).text
        assert '"type":"InternalServerError"' in text and text.endswith("data: [DONE]\n\n")


def test_sglang_dies_while_serving_without_a_503(tmp_path: Path) -> None:
    with serving(DSV4, tmp_path, faults=fault("die_while_serving", requests=0)) as sim:
        with pytest.raises(OSError):
            sim.complete(ids(1000), 400)
        assert sim.wait() == -9
        assert "crashed with exit code -9" in sim.log and health(sim) is None


def test_lies_about_usage(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("wrong_token_counts", by=3)) as sim:
        assert sim.complete(ids(10), 4).json["usage"]["prompt_tokens"] == 13
    with serving(FLASH, tmp_path, faults=fault("drop_usage")) as sim:
        assert sim.stream(ids(10), 4).usage is None


def test_a_reset_that_lies_keeps_the_cache(tmp_path: Path) -> None:
    env = {"VLLM_SERVER_DEV_MODE": "1"}
    with serving(FLASH, tmp_path, faults=fault("reset_lies"), env=env) as sim:
        prompt = ids(2000)
        sim.complete(prompt, 1)
        assert sim.post("/reset_prefix_cache").json == {"success": True}
        sim.complete(prompt, 1)
        assert sim.counter("vllm:prefix_cache_hits_total") == 1984


def test_hits_on_prompts_that_were_never_sent(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("cached", share=0.5)) as sim:
        sim.complete(ids(2000), 1)
        assert sim.counter("vllm:prefix_cache_hits_total") == 992


def test_slow_and_small(tmp_path: Path) -> None:
    def first(sim: Sim) -> float:
        return sim.stream(ids(10_000), 2).stamps[0]

    with serving(FLASH, tmp_path) as sim:
        usual = first(sim)
    both = [*fault("slow", factor=4.0), *fault("pool", tokens=1_100_000)]
    with serving(FLASH, tmp_path, faults=both) as sim:
        assert first(sim) == pytest.approx(4 * usual, rel=0.1)
        assert list(parse_log(sim.log).kv_tokens) == [1_100_000]


def test_an_engine_that_hangs_still_looks_healthy(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("hang_engine", requests=1)) as sim:
        assert sim.complete(ids(10), 4).status == 200
        connection = sim.open()
        connection.timeout = 0.3
        connection.request("POST", "/v1/completions", '{"prompt":[3000],"max_tokens":1}')
        with pytest.raises(TimeoutError):
            connection.getresponse()
        assert health(sim) == 200


def test_a_cut_stream_has_no_end(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("cut_stream", tokens=5)) as sim:
        connection = sim.open()
        connection.request("POST", "/v1/completions", '{"prompt":[3000],"max_tokens":50,"stream":true}')
        reply = connection.getresponse()
        seen = b""
        with pytest.raises(Exception, match=r"IncompleteRead|reset"):
            while True:
                piece = reply.read1(1 << 16)
                if not piece:
                    raise ConnectionResetError("reset")
                seen += piece
        assert 0 < seen.count(b"data: ") <= 5 and b"[DONE]" not in seen


def test_needles_are_missed_at_some_depths(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, faults=fault("miss_needle", depths=[0.5])) as sim:
        planted = sim.tokenize("\nThe secret number of Oslo is 7654321.\n")
        question = sim.tokenize("\nWhat is the secret number of Oslo?")

        def answer(before: int) -> str:
            prompt = [*ids(before), *planted, *ids(10_000 - before), *question]
            text: str = sim.complete(prompt, 300, ignore_eos=False).json["choices"][0]["text"]
            return text

        assert "7654321" in answer(1000)
        assert "7654321" not in answer(5000)


def test_faults_of_other_names_do_not_apply_and_the_environment_carries_them(tmp_path: Path) -> None:
    env = {"LCPLAN_SIM_FAULTS": json.dumps([{"match": "other", "fault": "die_at_start"}]), "LCPLAN_SIM_SPEED": "1000"}
    with serving(FLASH, tmp_path, env=env) as sim:
        assert sim.get("/health").headers["x-lcplan-speed"] == "1000"
        began = time.monotonic()
        assert float(sim.complete(ids(100_000), 4).headers["x-lcplan-t"]) > 3
        assert time.monotonic() - began < 1
