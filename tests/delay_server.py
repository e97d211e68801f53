"""A server with known delays, in raw asyncio: what it does when is exact, so a client's error can be seen.

Run as `python tests/delay_server.py PORT [JSON]`; the JSON overrides fields of `Behaviour`. Prints `ready PORT`.
Request bodies are not parsed as JSON beyond what is needed: the prompt's ids are counted by their commas.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass


@dataclass
class Behaviour:
    ttft_s: float = 0.5
    chunk_s: float = 0.02
    tokens: int = 16
    tokens_per_chunk: int = 1
    role_frame: bool = False  # chat: sent at once, before the first token
    reasoning: int = 0  # chat: so many of the first tokens are reasoning
    usage: bool = True
    cut_after: int | None = None  # chunks, then the connection is closed
    limit: int | None = None  # requests served at once; others wait
    prompt_off: int = 0  # how far the counted prompt length is off
    tokens_off: int = 0
    status: int = 200
    fail_every: int = 0  # so many requests each, one is refused
    error_event: bool = False
    hits: float = 0.0  # share of prompt tokens that the metrics call cached
    metrics: bool = True
    silent_counters: bool = False  # they stay at 0, as with prefix caching off
    tokenize: bool = True
    foreign: int = 0  # prompt tokens counted on top with each request
    answer: str = ""
    find_code: bool = False  # answers with the first seven digits in the prompt (ids 1048..1057)
    stamps: bool = False  # virtual time in comments, no waiting
    tell: bool = False  # the first text: when the request was read, when this chunk was written (perf_counter)
    comment: bool = False  # a keep-alive comment before each chunk


class Server:
    def __init__(self, behaviour: Behaviour) -> None:
        self.b = behaviour
        self.queried = self.hit = self.waiting = 0
        self.gate = asyncio.Semaphore(behaviour.limit) if behaviour.limit else None
        self.requests = 0

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                line, headers = head
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                arrived = time.perf_counter()
                path = line.split()[1]
                if path.endswith("completions"):
                    self.requests += 1
                    if not await self.complete(writer, body, "chat" in path, arrived, headers):
                        break
                else:
                    writer.write(self.plain(path, body))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def plain(self, path: str, body: bytes) -> bytes:
        if path == "/v1/models":
            return _reply(200, json.dumps({"object": "list", "data": [{"id": "m"}]}))
        if path == "/metrics" and self.b.metrics:
            label = '{engine="0",model_name="m"}'
            lines = [
                f"vllm:prefix_cache_queries_total{label} {float(self.queried)}",
                f"vllm:prefix_cache_hits_total{label} {float(self.hit)}",
                f"vllm:num_requests_waiting{label} {float(self.waiting)}",
                f"vllm:num_requests_running{label} 0.0",
                f"vllm:kv_cache_usage_perc{label} 0.25",
                f"vllm:num_preemptions_total{label} 0.0",
            ]
            return _reply(200, "\n".join(lines) + "\n")
        if path == "/tokenize" and self.b.tokenize:
            return _reply(200, json.dumps({"tokens": [1000 + c for c in json.loads(body)["prompt"].encode()]}))
        if path == "/requests":
            return _reply(200, str(self.requests))
        return _reply(404, '{"detail":"Not Found"}')

    async def complete(
        self, writer: asyncio.StreamWriter, body: bytes, chat: bool, arrived: float, headers: dict[str, str]
    ) -> bool:
        b = self.b
        refused = b.fail_every and self.requests % b.fail_every == 0
        if b.status != 200 or refused:
            writer.write(
                _reply(500 if refused else b.status, json.dumps({"error": {"message": "no room", "code": b.status}}))
            )
            return True
        ids = body.find(b'"prompt": [')
        prompt = body[ids:].count(b",") + 1 if ids >= 0 else 7  # a text or a chat: any number will do
        asked = int(re.search(rb'"max_tokens": ?(\d+)', body)[1])  # type: ignore[index]
        tokens = min(b.tokens, asked)
        answer = b.answer
        if b.find_code and (code := re.search(rb"(?:,10(?:4[89]|5[0-7])){7}", body)):
            answer = "thinking about it ... " + "".join(chr(int(d) - 1000) for d in code[0].decode()[1:].split(","))
        if self.gate:
            self.waiting += 1
            await self.gate.acquire()
            self.waiting -= 1
            arrived = time.perf_counter()
        try:
            extra = b"x-lcplan-simulated: 1\r\n" if b.stamps else b""
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
                + extra
                + b"\r\n"
            )
            return await self.stream(writer, prompt, tokens, chat, arrived, answer)
        finally:
            if not b.silent_counters:
                self.queried += prompt + b.foreign
                self.hit += round(prompt * b.hits)
            if self.gate:
                self.gate.release()

    async def stream(
        self, writer: asyncio.StreamWriter, prompt: int, tokens: int, chat: bool, arrived: float, answer: str
    ) -> bool:
        b = self.b
        if chat and b.role_frame:
            _send(writer, _chunk({"delta": {"role": "assistant", "content": ""}, "finish_reason": None}))
        sent = number = 0
        while sent < tokens:
            due = b.ttft_s + number * b.chunk_s
            if not b.stamps:
                await _until(arrived + due)
            sent = min(tokens, sent + b.tokens_per_chunk)
            number += 1
            if b.stamps:
                _send_raw(writer, f": t={due:.6f}\n\n".encode())
            if b.comment:
                _send_raw(writer, b": keep alive\n\n")
            if b.error_event and number == 2:
                _send(writer, json.dumps({"error": {"message": "engine died", "code": 500}}))
                break
            finish = "length" if sent == tokens else None
            text = answer if number == 1 else ""
            if b.tell and number == 1:
                text = f"{arrived:.6f} {time.perf_counter():.6f}"
            if chat:
                channel = "reasoning" if number <= b.reasoning else "content"
                _send(writer, _chunk({"delta": {channel: "x"}, "finish_reason": finish}))
            else:
                _send(writer, _chunk({"index": 0, "text": text, "finish_reason": finish}))
            if b.cut_after is not None and number >= b.cut_after:
                return False
        if b.usage:
            usage = {"prompt_tokens": prompt + b.prompt_off, "completion_tokens": tokens + b.tokens_off}
            _send(writer, json.dumps({"choices": [], "usage": usage}))
        _send(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True


async def serve(port: int, behaviour: Behaviour) -> asyncio.Server:
    server = Server(behaviour)
    return await asyncio.start_server(server.connection, "127.0.0.1", port, limit=1 << 25, backlog=1024)


async def _until(moment: float) -> None:
    """Sleep until a moment of perf_counter, the last part of a millisecond by yielding, because timers are coarse."""
    while (left := moment - time.perf_counter()) > 0:
        await asyncio.sleep(left - 0.0005 if left > 0.001 else 0)


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    raw = await reader.readuntil(b"\r\n\r\n")
    lines = raw.decode().split("\r\n")
    return lines[0], {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}


def _reply(status: int, text: str) -> bytes:
    body = text.encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


def _chunk(choice: dict[str, object]) -> str:
    return json.dumps({"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice]})


def _send(writer: asyncio.StreamWriter, data: str) -> None:
    _send_raw(writer, b"data: " + data.encode() + b"\n\n")


def _send_raw(writer: asyncio.StreamWriter, event: bytes) -> None:
    writer.write(b"%x\r\n" % len(event) + event + b"\r\n")


async def _main() -> None:
    port, options = int(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    server = await serve(port, Behaviour(**options))
    print("ready", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main())
