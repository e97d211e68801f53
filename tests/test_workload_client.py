"""The client against a server with known delays: time to first token 500 ms, 20 ms a chunk."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import uvloop

from lcplan.workload import fleet
from lcplan.workload.client import Client, sequence
from lcplan.workload.exchange import CHAT, Record, Request
from lcplan.workload.lag import beating
from lcplan.workload.prompts import Identity, alphabet, body, salted
from tests.workload_kit import delay_server

TRIES = 6  # a busy machine may disturb some; an error of the client is in all of them
BUSY = 8.0  # on a machine with more to do than cores only gross errors can be told


def request(index: int = 0, prompt: int = 100, output: int = 16, **facts: Any) -> Request:
    made = salted(Identity("l", "r", "c", 1, "1").salt(str(index)), prompt, alphabet())
    return Request(index, index, prompt, output, body(made, "m", output), prompt, **facts)


def send(url: str, requests: Sequence[Request], **options: Any) -> list[Record]:
    async def run() -> list[Record]:
        async with Client(url, **options) as client:
            await client.open(len(requests))
            return await client.closed_loop([sequence([r]) for r in requests])

    return uvloop.run(run())


def within(ms: float, errors: Callable[[], list[float]]) -> None:
    """Assert that the errors of a measurement (in ms) are small, on one of a few tries."""
    ms *= BUSY if os.getloadavg()[0] > (os.cpu_count() or 1) else 1.0
    seen: list[float] = []
    for _ in range(TRIES):
        found = errors()
        seen.append(max(found, key=abs))
        if abs(seen[-1]) < ms:
            return
    pytest.fail(f"errors of {seen} ms, {ms} ms are allowed")


@pytest.mark.parametrize("streams", [1, 16])
def test_times_are_right(streams: int) -> None:
    with delay_server() as url:

        def errors() -> list[float]:
            records = send(url, [request(i) for i in range(streams)])
            assert [r.error for r in records] == [None] * streams
            ttft = sorted((r.ttft_s or 0) * 1e3 - 500 for r in records)[streams // 2]
            return [ttft, max(abs((r.tpot_ms or 0) - 20) for r in records)]

        within(2.0, errors)


def test_tokens_are_counted_by_usage_not_by_chunks() -> None:
    with delay_server(ttft_s=0.1, tokens=33, tokens_per_chunk=4, comment=True) as url:

        def errors() -> list[float]:
            [record] = send(url, [request(output=33)])
            assert (len(record.chunks), record.output_tokens) == (9, 33)
            return [(record.tpot_ms or 0) - 8 * 20 / 32]

        within(1.0, errors)


def test_a_role_frame_is_no_token_and_reasoning_is() -> None:
    with delay_server(ttft_s=0.1, role_frame=True, reasoning=3) as url:

        def errors() -> list[float]:
            [record] = send(url, [request(path=CHAT)])
            assert len(record.chunks) == 16
            return [(record.ttft_s or 0) * 1e3 - 100]

        within(2.0, errors)


def test_without_usage_there_is_no_speed() -> None:
    with delay_server(ttft_s=0.01, usage=False) as url:
        [record] = send(url, [request()])
    assert (record.error, record.output_tokens, record.tpot_ms, len(record.chunks)) == (None, None, None, 16)


def test_a_cut_stream_is_an_error_and_keeps_what_came() -> None:
    with delay_server(ttft_s=0.01, cut_after=3) as url:
        [record] = send(url, [request()])
    assert record.error
    assert (len(record.chunks), record.unreachable) == (3, False)


def test_an_error_in_the_stream_is_an_error() -> None:
    with delay_server(ttft_s=0.01, error_event=True) as url:
        [record] = send(url, [request()])
    assert record.error == "engine died"


def test_a_refusal_gives_its_sentence() -> None:
    with delay_server(status=400) as url:
        [record] = send(url, [request()])
    assert (record.error, record.status, record.first) == ("HTTP 400: no room", 400, None)


def test_no_server_is_unreachable() -> None:
    with delay_server() as url:
        pass
    [record] = send(url, [request()])
    assert record.unreachable
    assert record.error


def test_a_silent_server_is_given_up() -> None:
    with delay_server(ttft_s=60) as url:
        [record] = send(url, [request()], idle_s=0.2)
    assert record.error is not None and not record.chunks


def test_waiting_in_the_server_is_part_of_the_time() -> None:
    with delay_server(ttft_s=0.2, tokens=2, chunk_s=0.0, limit=2) as url:
        ttfts = sorted(r.ttft_s or 0 for r in send(url, [request(i, output=2) for i in range(4)]))
    assert 0.19 < ttfts[1] < 0.35 < 0.39 < ttfts[2] < 0.8


def test_a_million_tokens_arrive_whole() -> None:
    with delay_server(ttft_s=0.3, tokens=4) as url:

        def errors() -> list[float]:
            [record] = send(url, [request(prompt=1_000_000, output=4)])
            assert record.prompt_tokens == 1_000_000
            return [(record.ttft_s or 0) * 1e3 - 300]

        within(50.0, errors)  # 6 MB have to be sent and read first: that is time to first token too


def test_virtual_times_are_exact_and_loops_follow_them() -> None:
    with delay_server(stamps=True) as url:

        async def run() -> list[Record]:
            async with Client(url, simulated=True) as client:
                return await client.closed_loop([sequence([request(0), request(1)])], start=5_000_000_000)

        first, second = uvloop.run(run())
    assert (first.ttft_s, first.tpot_ms, first.simulated) == (0.5, pytest.approx(20), True)
    assert (first.sent, second.sent) == (5_000_000_000, 5_800_000_000)


def test_without_a_simulator_there_is_no_virtual_time() -> None:
    with delay_server(ttft_s=0.01) as url:
        [record] = send(url, [request()], simulated=True)
    assert record.error is not None and "no simulator" in record.error and record.first is None


def test_arrivals_by_rate_are_sent_when_planned() -> None:
    with delay_server(ttft_s=0.1, tokens=2) as url:

        async def run() -> list[Record]:
            async with Client(url) as client:
                await client.open(4)
                return await client.open_loop([request(i, output=2) for i in range(4)], [0.0, 0.05, 0.1, 0.15])

        def errors() -> list[float]:
            records = uvloop.run(run())
            gaps = [(b.scheduled - a.scheduled) / 1e6 for a, b in itertools.pairwise(records)]
            assert gaps == pytest.approx([50] * 3)
            return [(r.sent - r.scheduled) / 1e6 for r in records]

        within(5.0, errors)


def test_lag_of_a_blocked_loop_is_seen() -> None:
    async def run() -> float:
        async with beating() as lag:
            for _ in range(25):
                await asyncio.sleep(0.006)
                deadline = time.perf_counter() + 0.02
                while time.perf_counter() < deadline:
                    pass
        return lag.p90_ms or 0.0

    assert uvloop.run(run()) > 10


def test_many_users_are_spread_over_processes() -> None:
    with delay_server(ttft_s=0.05, tokens=4, chunk_s=0.001) as url:
        users = [[request(2 * i, output=4), request(2 * i + 1, output=4)] for i in range(fleet.USERS_PER_PROCESS + 1)]
        heard: list[Record] = []
        records, _ = uvloop.run(fleet.closed_loop(url, users, heard.append))
    assert sorted(r.request.index for r in records) == list(range(2 * len(users))) and len(heard) == len(records)
    assert all(r.error is None and r.output_tokens == 4 and r.first is not None for r in records)
    starts = [r.sent for r in records if r.request.index % 2 == 0]
    assert max(starts) - min(starts) < 5_000_000_000  # one clock for all processes
