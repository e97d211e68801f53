"""The simulator as a server: life cycle, shapes and errors beside those captured from real servers, metrics, stop."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcplan.engine.logs import parse_log
from tests.sim_kit import (
    DSV4,
    FLASH,
    QWEN_DP,
    REAL,
    Sim,
    captured,
    captured_stream,
    families,
    health,
    keys,
    labels,
    serving,
    started,
    until,
)

VLLM, SGLANG = "vllm-0.25.1-h200/llama8_tp1", "sglang-0.5.17-h200/sg_llama8"
WITH_METRICS = [*DSV4, "--enable-metrics", "--enable-cache-report"]


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving([*FLASH, "--enable-prompt-tokens-details"], tmp_path_factory.mktemp("vllm")) as sim:
        yield sim


@pytest.fixture(scope="module")
def sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    with serving(WITH_METRICS, tmp_path_factory.mktemp("sglang")) as sim:
        yield sim


def ids(count: int) -> list[int]:
    return [random.randint(3000, 150_000) for _ in range(count)]


def test_vllm_refuses_then_serves_and_stops_within_a_second(tmp_path: Path) -> None:
    with started(FLASH, tmp_path) as sim:
        seen: list[int | None] = []
        until(lambda: seen.append(health(sim)) or seen[-1] == 200, sim)
        assert set(seen) == {None, 200}
        began = time.monotonic()
        sim.process.send_signal(signal.SIGTERM)
        assert sim.wait() == 0
        assert time.monotonic() - began < 1.0
        assert "[shutdown] API server: shutdown triggered" in sim.log
        assert sim.log.rstrip().endswith(f"Finished server process [{sim.process.pid}]")
        assert sim.log.startswith("lcplan simulator: every number of this server is simulated\n")


def test_sglang_refuses_then_warms_up_then_serves(tmp_path: Path) -> None:
    with started(DSV4, tmp_path) as sim:
        seen: list[int | None] = []
        until(lambda: seen.append(health(sim)) or seen[-1] == 200, sim)
        assert [status for at, status in enumerate(seen) if at == 0 or seen[at - 1] != status] == [None, 503, 200]
        sim.process.terminate()
        assert sim.wait() == 0
        assert "SIGTERM received." in sim.log


def test_the_log_of_vllm_is_read_as_that_of_a_real_one(vllm: Sim) -> None:
    facts = parse_log(vllm.log)
    assert facts.ready and facts.failure is None
    assert list(facts.kv_tokens) == [4_568_144]
    assert facts.max_model_len == 1_048_576


def test_data_parallel_ranks_print_a_pool_each(tmp_path: Path) -> None:
    with serving(QWEN_DP, tmp_path) as sim:
        facts = parse_log(sim.log)
        assert list(facts.kv_tokens) == [11_304_766] * 4
        assert "Maximum concurrency for 1,048,576 tokens per request: 10.78x" in sim.log
        assert sim.log.count("Available KV cache memory: 109.26 GiB") == 1
        assert sim.log.count("Detected DP deployment with no --enable-expert-parallel.") == 1
        assert sim.log.count("Application startup complete.") == 4
        text = sim.get("/metrics").text
        assert text.count("vllm:num_requests_running{") == 4
        assert 'num_gpu_blocks="2826188"' in text and 'kv_cache_size_tokens="11304766"' in text


def test_the_log_of_sglang_is_read_as_that_of_a_real_one(sglang: Sim) -> None:
    facts = parse_log(sglang.log)
    assert facts.ready and facts.failure is None
    assert list(facts.kv_tokens) == [8_991_488]
    assert facts.max_num_seqs == 64


@pytest.mark.parametrize("path", ["v1_models", "version", "load"])
def test_vllm_answers_in_the_shape_of_a_real_one(vllm: Sim, path: str) -> None:
    status, body = captured(f"{VLLM}.http_{path}.txt")
    reply = vllm.get(f"/{path.replace('_', '/')}")
    assert reply.status == status
    if path == "v1_models":
        for one in (*body["data"], *reply.json["data"]):
            one.pop("permission")
        assert reply.json["data"][0]["root"] == "/m/zai-org__GLM-5.3-Flash"
    assert keys(reply.json) | {} == keys(body) | ({"data": keys(reply.json)["data"]} if path == "v1_models" else {})


def test_vllm_streams_in_the_shape_of_a_real_one(vllm: Sim) -> None:
    prompt, real = ids(6000), captured_stream(f"{VLLM}.stream2.txt")
    vllm.complete(prompt, 8)
    options = {"include_usage": True, "continuous_usage_stats": True}
    ours = vllm.stream(prompt, 8, stream_options=options)
    assert keys(ours.chunks[0]["choices"][0]) == keys(real.chunks[0]["choices"][0])
    assert set(ours.chunks[-1]) == set(real.chunks[-1])
    assert ours.events[-1] == "[DONE]"
    assert [chunk["usage"]["completion_tokens"] for chunk in ours.chunks[:-1]] == list(range(1, 9))
    assert ours.choices[-1]["finish_reason"] == "length"
    assert ours.usage["prompt_tokens_details"] == {"cached_tokens": 5984}
    assert len(ours.stamps) == len(ours.chunks)


def test_chat_streams_a_role_first_and_chunks_are_not_tokens(vllm: Sim) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "ignore_eos": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    text = vllm.post("/v1/chat/completions", body).text
    assert '"delta":{"role":"assistant","content":""}' in text.split("\n\n")[1]
    assert '"completion_tokens":200' in text
    assert '"content":""' in text.split("\n\n", 2)[2]


def test_vllm_replies_whole_in_the_shape_of_a_real_one(vllm: Sim) -> None:
    status, real = captured(f"{VLLM}.chat.txt")
    body = {"model": "m1", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 5}
    reply = vllm.post("/v1/chat/completions", body)
    assert reply.status == status
    assert keys(reply.json) == keys(real)
    assert reply.json["usage"]["completion_tokens"] == 5
    assert float(reply.headers["x-lcplan-t"]) > float(reply.headers["x-lcplan-t-first"]) > 0
    assert reply.headers["x-lcplan-simulated"] == "1"
    assert reply.headers["x-lcplan-speed"] == "200"


def test_vllm_refuses_as_a_real_one(vllm: Sim) -> None:
    status, real = captured(f"{VLLM}.badmodel.txt")
    reply = vllm.post("/v1/completions", {"model": "nope", "prompt": [3000], "max_tokens": 8})
    assert (reply.status, reply.json) == (status, real)
    status, real = captured(f"{VLLM}.toolong.txt")
    reply = vllm.complete([3000] * 1_048_576, 8)
    assert reply.status == status
    expected = real["error"]["message"].replace("131072", "1048576").replace("140008", "1048584")
    assert reply.json["error"] == {**real["error"], "message": expected.replace("140000", "1048576")}
    status, real = captured(f"{VLLM}.reset.txt")
    reply = vllm.post("/reset_prefix_cache")
    assert (reply.status, reply.json) == (status, real)
    assert vllm.complete(["a"], -1).status == vllm.complete([-1], 1).status == vllm.complete("", 1).status == 400
    assert vllm.ask("PUT", "/v1/models").status == 405


def test_vllm_metrics_have_the_names_and_labels_of_a_real_one(vllm: Sim) -> None:
    real, ours = (REAL / f"{VLLM}.metrics1.txt").read_text(), vllm.get("/metrics").text
    assert not families(real) - families(ours)
    for family in families(real) - {"vllm:cache_config_info"}:
        series = family if "histogram" not in real.split(f"# TYPE {family} ")[1].split("\n")[0] else f"{family}_count"
        assert labels(ours, series) == labels(real, series), family
    assert labels(ours, "vllm:cache_config_info") < labels(real, "vllm:cache_config_info")


def test_vllm_counts_queries_hits_and_tokens(vllm: Sim) -> None:
    names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "request_success")
    before = [vllm.counter(f"vllm:{name}_total") for name in names]
    prompt = ids(6000)
    for _ in range(2):
        vllm.complete(prompt, 8)
    after = [vllm.counter(f"vllm:{name}_total") for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [12_000, 5984, 12_000, 16, 2]


def test_prompts_come_as_text_ids_and_lists_of_both(vllm: Sim) -> None:
    reply = vllm.complete([ids(10), ids(20)], 3).json
    assert [choice["index"] for choice in reply["choices"]] == [0, 1]
    assert reply["usage"] == {
        "prompt_tokens": 30,
        "total_tokens": 36,
        "completion_tokens": 6,
        "prompt_tokens_details": None,
    }
    assert vllm.complete("the code", 3).json["usage"]["prompt_tokens"] == len(vllm.tokenize("the code"))
    assert len(vllm.complete(["a", "b", "c"], 1).json["choices"]) == 3
    streamed = vllm.stream([ids(10), ids(20)], 3)
    assert sorted(choice["index"] for choice in streamed.choices) == [0, 0, 0, 1, 1, 1]
    assert vllm.stream(ids(10), 1000).usage["completion_tokens"] == 1000
    assert len(vllm.stream(ids(10), 1000).choices) < 1000


@pytest.mark.parametrize("face", ["vllm", "sglang"])
def test_a_planted_needle_is_answered(face: str, request: pytest.FixtureRequest) -> None:
    sim: Sim = request.getfixturevalue(face)
    parts = ["\nThe secret number of Oslo is 7654321.\n", "\nWhat is the secret number of Oslo?\nAnswer:"]
    assert sim.detokenize([token for part in parts for token in sim.tokenize(part)]) == "".join(parts)
    planted, question = map(sim.tokenize, parts)
    prompt = [*ids(3000), *planted, *ids(7000), *question]
    reply = sim.complete(prompt, 300, ignore_eos=False).json
    assert reply["choices"][0]["text"].endswith("</think>\n\nThe secret code is 7654321.")
    assert reply["choices"][0]["finish_reason"] == "stop"
    said = sim.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "".join(parts)}]}).json
    assert "7654321" in said["choices"][0]["message"]["content"]


@pytest.mark.parametrize(
    ("argv", "parser", "field"), [(FLASH, "glm45", "reasoning"), (DSV4, "deepseek-v3", "reasoning_content")]
)
def test_a_reasoning_parser_takes_thoughts_out_of_the_text(
    argv: list[str], parser: str, field: str, tmp_path: Path
) -> None:
    with serving([*argv, "--reasoning-parser", parser], tmp_path) as sim:
        body = {"model": "m1", "messages": [{"role": "user", "content": "The code is 1234567. What is the code?"}]}
        message = sim.post("/v1/chat/completions", body).json["choices"][0]["message"]
        assert message[field] and "</think>" not in message["content"] and "1234567" in message["content"]
        text = sim.post("/v1/chat/completions", {**body, "stream": True}).text
        assert f'"delta":{{"{field}":' in text and "</think>" not in text


def test_a_client_that_goes_frees_its_place(vllm: Sim) -> None:
    connection = vllm.open()
    body = '{"model":"m1","prompt":[3000],"max_tokens":900000,"ignore_eos":true,"stream":true}'
    connection.request("POST", "/v1/completions", body)
    until(lambda: vllm.counter("vllm:num_requests_running") == 1, vllm)
    connection.close()
    until(lambda: vllm.counter("vllm:num_requests_running") == 0, vllm)
    assert 'finished_reason="abort",model_name="m1"} 1.0' in vllm.get("/metrics").text
    assert vllm.counter("vllm:kv_cache_usage_perc") == 0


def test_connections_are_kept_alive(vllm: Sim) -> None:
    connection = vllm.open()
    for _ in range(3):
        connection.request("POST", "/v1/completions", '{"prompt":[3000],"max_tokens":3,"stream":true}')
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    first = connection.sock
    connection.request("GET", "/health")
    assert connection.getresponse().read() == b"" and connection.sock is first


def test_the_cache_is_reset_in_dev_mode_and_not_while_requests_run(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path, env={"VLLM_SERVER_DEV_MODE": "1"}) as sim:
        prompt = ids(2000)
        sim.complete(prompt, 1)
        assert sim.post("/reset_prefix_cache").json == {"success": True}
        sim.complete(prompt, 1)
        assert sim.counter("vllm:prefix_cache_hits_total") == 0
        connection = sim.open()
        connection.request("POST", "/v1/completions", '{"prompt":[3000],"max_tokens":900000,"ignore_eos":true}')
        until(lambda: sim.counter("vllm:num_requests_running") == 1, sim)
        assert sim.post("/reset_prefix_cache").json == {"success": False}
        connection.close()


@pytest.mark.parametrize("path", ["v1_models", "get_model_info"])
def test_sglang_answers_in_the_shape_of_a_real_one(sglang: Sim, path: str) -> None:
    status, body = captured(f"{SGLANG}.http_{path}.txt")
    reply = sglang.get(f"/{path.replace('v1_', 'v1/')}")
    assert reply.status == status
    if path == "v1_models":
        assert keys(reply.json) == keys(body)
        assert reply.json["data"][0]["root"] == "m1"
    else:
        assert {"model_path", "is_generation", "architectures", "served_model_name"} <= set(reply.json)
        assert "Endpoint '/get_model_info' is deprecated" in sglang.log


def test_sglang_streams_and_replies_in_the_shape_of_a_real_one(sglang: Sim) -> None:
    prompt, real = ids(6000), captured_stream(f"{SGLANG}.stream2.txt")
    sglang.complete(prompt, 8)
    ours = sglang.stream(prompt, 8)
    assert keys(ours.chunks[0]) == keys(real.chunks[0])
    assert keys(ours.chunks[-1]) == keys(real.chunks[-1])
    assert ours.usage["prompt_tokens_details"]["cached_tokens"] == 5888
    assert "prompt_tokens_details" not in sglang.stream(ids(100), 8).usage
    _, whole = captured(f"{SGLANG}.chat.txt")
    body = {"model": "any", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 5}
    reply = sglang.post("/v1/chat/completions", body).json
    assert keys(reply) == keys(whole) and reply["model"] == "any"


def test_sglang_refuses_and_flushes_as_a_real_one(sglang: Sim) -> None:
    _, real = captured(f"{SGLANG}.toolong.txt")
    reply = sglang.complete([3000] * 1_048_577, 8)
    expected = real["message"].replace("140000", "1048577").replace("131072", "1048576")
    assert (reply.status, reply.json) == (400, {**real, "message": expected})
    assert sglang.get("/version").status == sglang.get("/get_load").status == 404
    reply = sglang.post("/flush_cache")
    assert reply.status == 200 and reply.text.startswith("Cache flushed.\nPlease check backend logs")
    assert sglang.get("/ready").status == 200
    assert sglang.get("/server_info").json["max_total_num_tokens"] == 8_991_488


def test_sglang_metrics_start_above_zero_and_count_hits(sglang: Sim) -> None:
    real, ours = (REAL / f"{SGLANG}.metrics1.txt").read_text(), sglang.get("/metrics").text
    common = families(real) & families(ours)
    assert {"sglang:realtime_tokens_total", "sglang:token_usage", "sglang:num_requests_total"} <= common
    for family in ("sglang:realtime_tokens_total", "sglang:prompt_tokens_total", "sglang:token_usage"):
        assert labels(ours, family) == labels(real, family)
    assert sglang.counter("sglang:num_requests_total") >= 1
    before, prompt = sglang.metrics(), ids(6000)
    for _ in range(2):
        sglang.complete(prompt, 8)
    after = sglang.metrics()
    hit = {series: after[series] - before.get(series, 0.0) for series in after if "realtime" in series}
    assert sorted(hit.values()) == [16.0, 5888.0, 6112.0]


def test_sglang_has_metrics_only_when_asked(tmp_path: Path) -> None:
    with serving(DSV4, tmp_path) as sim:
        assert sim.get("/metrics").status == 404


def test_speculative_decoding_sends_several_tokens_a_chunk_and_counts_drafts(tmp_path: Path) -> None:
    config = '{"method":"mtp","num_speculative_tokens":3}'
    with serving([*FLASH, "--speculative-config", config], tmp_path) as sim:
        stream = sim.stream(ids(100), 500)
        assert stream.usage["completion_tokens"] == 500
        assert len(stream.choices) < 300
        drafts = sim.counter("vllm:spec_decode_num_drafts_total")
        accepted = sim.counter("vllm:spec_decode_num_accepted_tokens_total")
        assert sim.counter("vllm:spec_decode_num_draft_tokens_total") == 3 * drafts
        assert sim.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
        assert 1 < accepted / drafts < 3


def test_a_key_guards_the_api_paths_only(tmp_path: Path) -> None:
    with serving([*FLASH, "--api-key", "s3cret"], tmp_path) as sim:
        assert sim.get("/v1/models").status == 401
        assert sim.ask("GET", "/v1/models", Authorization="Bearer s3cret").status == 200
        assert sim.get("/metrics").status == 200
        assert "s3cret" not in sim.log
