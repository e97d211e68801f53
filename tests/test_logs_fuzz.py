"""Any text, cut anywhere, gives facts: never an exception, never slow, never much memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcplan.engine.logs import LogReader, parse_log
from lcplan.engine.logs.state import INDEX

PIECES = [
    line
    for case in json.loads((Path(__file__).parent / "cases" / "startup.json").read_text())["cases"]
    for line in case["text"].split("\n")
]
SIGNS = [
    "\n",
    "\r",
    "\r\n",
    "\x1b[0;36m",
    "[0m",
    "(EngineCore_DP1 pid=7) ",
    "[2026-01-15 10:00:00 DP1 TP0] ",
    "{",
    "'",
    '"',
    ")",
    "\\",
]
TEXT = st.lists(
    st.one_of(st.sampled_from([*PIECES, *SIGNS, *INDEX[None].words]), st.text(max_size=30)), max_size=30
).map("".join)


@settings(max_examples=150, deadline=None)
@given(TEXT, st.lists(st.integers(0, 4000), max_size=6))
def test_any_text_in_any_chunks(text: str, cuts: list[int]) -> None:
    raw = text.encode("utf-8", "replace")
    whole = parse_log(raw)
    json.dumps(whole.as_json(), allow_nan=False)
    reader, last = LogReader(), 0
    for cut in sorted(cuts):
        reader.feed(raw[last:cut])
        reader.facts()
        last = max(last, cut)
    reader.feed(raw[last:])
    assert reader.facts() == whole


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.sampled_from([None, "vllm", "sglang", "openai"]))
def test_any_bytes(raw: bytes, engine: str | None) -> None:
    json.dumps(parse_log(raw, engine).as_json())


HARD = {
    "words of one line": "max_total_num_tokens=1 Error ",
    "one word": "Model architectures ",
    "open arguments": "non-default args: {",
    "open quotes": "server_args={'a\\'\"",
    "tags": "(Worker_TP0 pid=1) ",
    "colour": "Error\x1b[1;1;1;1",
    "short lines": "ValueError: a\nValueError: b\n",
    "records": "(Worker pid=1) INFO 01-15 10:00:00 [a.py:1] Available KV cache memory: 3.0 GiB\n",
    "no line at all": "[",
    "blank": "\n",
}


@pytest.mark.parametrize("name", HARD)
def test_at_least_a_megabyte_a_second(name: str) -> None:
    text = HARD[name] * (400_000 // len(HARD[name]))
    start = time.process_time()
    parse_log(text)
    assert time.process_time() - start < len(text) / 1e6 + 0.5


def test_thirty_megabytes_in_constant_memory() -> None:
    def lines() -> Iterator[bytes]:
        for n in range(10**9):
            yield b'(APIServer pid=7) INFO:     127.0.0.1:%d - "POST /v1/completions HTTP/1.1" 200 OK\n' % (n % 60000)
            if n % 5000 == 0:
                yield b"(Worker_TP0 pid=%d) INFO 01-15 10:00:00 [a.py:1] Available KV cache memory: 3.5 GiB\n" % n

    chunks = [b"".join(islice(lines(), 12_000))] * 30
    reader, size = LogReader(), sum(map(len, chunks))
    assert size > 30_000_000
    tracemalloc.start()
    for chunk in chunks[:4]:
        reader.feed(chunk)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    for chunk in chunks[4:8]:
        reader.feed(chunk)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    start = time.process_time()
    for chunk in chunks[8:]:
        reader.feed(chunk)
    seconds = time.process_time() - start
    assert reader.facts().kv_memory_gib == 3.5
    assert peak < 6_000_000
    assert seconds < size / 5e6  # 20 MB/s and more when nothing else runs
