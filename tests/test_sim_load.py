"""Virtual time under load: the same workload gives the same stamps; what it costs in wall and processor time."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.sim_kit import DSV4, FLASH, QWEN_DP, Sim, health, serving, started, until

SLACK = 3.0  # a budget holds on an idle core; a busy machine may need longer
Times = list[tuple[float, float]]


def closed_loop(sim: Sim, users: int, rounds: int, prompt: int, output: int, *, told: bool = True) -> Times:
    """First and last stamps of all requests; every user sends its next request when the last one has ended."""
    chance, out = random.Random(), []

    async def user(session: aiohttp.ClientSession) -> None:
        sent = 0.0
        for turn in range(rounds):
            headers = {"x-lcplan-sent": f"{sent:.6f}"}
            if told:
                headers |= {"x-lcplan-users": str(users), "x-lcplan-last": "1" if turn == rounds - 1 else "0"}
            ids = [chance.randint(3000, 150_000) for _ in range(prompt)]
            body = {"model": "m1", "prompt": ids, "max_tokens": output, "ignore_eos": True, "stream": True}
            url = f"http://127.0.0.1:{sim.port}/v1/completions"
            async with session.post(url, json=body, headers=headers) as reply:
                stamps = [float(line[4:]) async for line in reply.content if line.startswith(b": t=")]
            assert stamps == sorted(stamps)
            out.append((stamps[0], stamps[-1]))
            sent += stamps[-1]

    async def run() -> None:
        connections = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connections) as session:
            await asyncio.gather(*(user(session) for _ in range(users)))

    asyncio.run(run())
    return sorted(out)


@pytest.mark.parametrize("argv", [FLASH, QWEN_DP, DSV4], ids=["vllm", "dp4", "sglang"])
def test_the_same_load_has_the_same_stamps(argv: list[str], tmp_path: Path) -> None:
    loads = [(8, 3, 2000, 200), (1, 2, 500, 50), (24, 2, 3000, 64)]
    seen = []
    for _ in range(2):
        with serving(argv, tmp_path) as sim:
            seen.append([closed_loop(sim, *load) for load in loads])
    for first, second in zip(*seen, strict=True):
        for one, other in zip(first, second, strict=True):
            assert one == pytest.approx(other, rel=0.01)


def test_a_client_that_tells_no_users_has_nearly_the_same(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path) as sim:
        told, guessed = (closed_loop(sim, 6, 4, 4000, 200, told=told) for told in (True, False))
    ours, theirs = (statistics.median(last for _, last in times) for times in (guessed, told))
    assert ours == pytest.approx(theirs, rel=0.15)


def test_users_who_never_come_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path) as sim:
        began = time.monotonic()
        reply = sim.post("/v1/completions", {"prompt": [3000], "max_tokens": 3}, x_lcplan_sent="0", x_lcplan_users="9")
        assert reply.status == 200
        assert time.monotonic() - began < 5
        assert sim.post("/v1/completions", {"prompt": [3000]}, x_lcplan_sent="soon").status == 400


def test_requests_sent_at_one_virtual_moment_share_the_engine(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path) as sim:
        alone = closed_loop(sim, 1, 1, 200_000, 64)
        first, second = closed_loop(sim, 2, 1, 200_000, 64)
        assert first[0] == pytest.approx(alone[0][0], rel=0.05)
        assert second[0] == pytest.approx(2 * alone[0][0], rel=0.05)


def test_a_start_takes_a_fraction_of_a_second(tmp_path: Path) -> None:
    took = []
    for _ in range(3):
        with started(FLASH, tmp_path) as sim:
            until(lambda sim=sim: health(sim) == 200, sim)
            spent = psutil.Process(sim.process.pid).cpu_times()
            took.append(spent.user + spent.system)  # wall time is the same on an idle machine: nothing is waited for
    assert min(took) < 0.3 * SLACK


def test_a_million_tokens_and_a_long_answer_cost_milliseconds(tmp_path: Path) -> None:
    ids = [random.randint(3000, 150_000) for _ in range(1_000_000)]
    long, short = json.dumps({"prompt": ids, "max_tokens": 1}), json.dumps({"prompt": ids[:1000], "max_tokens": 1024})

    def cost(sim: Sim, body: str, **more: Any) -> float:
        connection = sim.open()
        before = psutil.Process(sim.process.pid).cpu_times()
        connection.request("POST", "/v1/completions", body)
        assert connection.getresponse().read()
        after = psutil.Process(sim.process.pid).cpu_times()
        return after.user + after.system - before.user - before.system

    streamed = short.replace('"max_tokens"', '"ignore_eos": true, "stream": true, "max_tokens"')
    with serving(FLASH, tmp_path) as sim:
        assert min(cost(sim, long) for _ in range(2)) < 0.15 * SLACK
        assert min(cost(sim, streamed) for _ in range(3)) < 0.03 * SLACK


def test_a_router_splits_prefill_and_decode(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("prefill", "decode", "router")]
    for folder in folders:
        folder.mkdir()
    transfer = ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
    with serving([*FLASH, *transfer], folders[0]) as prefill, serving([*FLASH, *transfer], folders[1]) as decode:
        urls = [f"http://127.0.0.1:{sim.port}" for sim in (prefill, decode)]
        argv = ["vllm-router", "--vllm-pd-disaggregation", "--prefill", urls[0], "--decode", urls[1]]
        with serving(argv, folders[2], name_it=False) as router:
            ids = [random.randint(3000, 150_000) for _ in range(100_000)]
            stream = router.stream(ids, 64)
            assert stream.usage["completion_tokens"] == 64
            assert stream.stamps == sorted(stream.stamps)
            assert 3 < stream.stamps[0] < 4
            assert router.get("/v1/models").json["data"][0]["id"] == "m1"
        assert prefill.counter("vllm:generation_tokens_total") == 1
        assert decode.counter("vllm:external_prefix_cache_hits_total") == 99_999
        assert decode.counter("vllm:generation_tokens_total") == 64
