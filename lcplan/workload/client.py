"""The client: sends planned requests to an OpenAI-compatible server and writes down when what came back.

Times are nanoseconds: of `time.perf_counter_ns` on a real server, of the launch's virtual clock on the simulator,
which stamps every chunk with the seconds since its request arrived.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lcplan.workload.exchange import CHAT, Record, Request
from lcplan.workload.stream import Stream

if TYPE_CHECKING:
    import aiohttp
    import httpx

SIMULATED_HEADER = "x-lcplan-simulated"
SENT_HEADER = "x-lcplan-sent"
USERS_HEADER = "x-lcplan-users"
LAST_HEADER = "x-lcplan-last"
_CONNECT_S = 30.0
_IDLE_S = 3600.0  # no byte for this long: a million-token prefill behind a queue takes minutes, never an hour
_KEEPALIVE_S = 4.0  # vLLM closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)


_sending: contextvars.ContextVar[Record | None] = contextvars.ContextVar("_sending", default=None)

Script = Callable[[Record | None], Awaitable[Request | None]]
"""A user of a closed loop: given the record of its last request (None at first), returns the next one or None."""


class Client:
    """Connections to one server. Use as an async context manager."""

    def __init__(self, base_url: str, *, simulated: bool = False, idle_s: float = _IDLE_S) -> None:
        self.base_url = base_url.rstrip("/")
        self._simulated = simulated
        self._idle_s = idle_s
        self.on_first_token: Callable[[], None] | None = None
        self._load: httpx.AsyncClient = self._new()
        self._control: httpx.AsyncClient = self._new()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._load.aclose()
        await self._control.aclose()

    async def open(self, connections: int) -> None:
        """Open this many connections, so that no handshake falls into a measured time. Failures show when used."""
        probes = (self._load.get(self.base_url + "/v1/models") for _ in range(connections))
        await asyncio.gather(*probes, return_exceptions=True)

    async def closed_loop(
        self, users: Sequence[Script], start: int = 0, done: Callable[[Record], None] | None = None
    ) -> list[Record]:
        """Run all users at once, each sending its next request when the last one has ended; return all records.

        `start` is the virtual time at which they begin; a real server has its own clock. `done` hears of every record.
        """
        parts = await asyncio.gather(*(self._user(script, len(users), start, done) for script in users))
        return [record for part in parts for record in part]

    async def open_loop(
        self,
        requests: Sequence[Request],
        offsets_s: Sequence[float],
        start: int = 0,
        done: Callable[[Record], None] | None = None,
    ) -> list[Record]:
        """Send every request at its offset after the start, ended or not the earlier ones; return all records."""
        zero = start if self._simulated else time.perf_counter_ns()

        async def one(request: Request, scheduled: int) -> Record:
            if not self._simulated:
                await asyncio.sleep(max(0.0, (scheduled - time.perf_counter_ns()) / 1e9))
            record = await self.send(request, scheduled, len(requests))
            if done:
                done(record)
            return record

        plan = zip(requests, offsets_s, strict=True)
        return list(await asyncio.gather(*(one(r, zero + round(offset * 1e9)) for r, offset in plan)))

    async def send(self, request: Request, scheduled: int, users: int = 1) -> Record:
        """Send one request and return its record; what goes wrong stands in the record. `scheduled` in ns.

        A simulator is told when this is on the virtual clock and of how many users, so that it can wait for them all.
        """
        import aiohttp
        import httpx

        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._simulated:
            headers |= {SENT_HEADER: f"{scheduled / 1e9:.9f}", USERS_HEADER: str(users)}
            headers |= {LAST_HEADER: "1"} if request.last else {}
        outgoing = self._load.build_request("POST", self.base_url + request.path, content=request.body, headers=headers)
        sent = scheduled if self._simulated else time.perf_counter_ns()
        record = Record(request, scheduled, sent)
        _sending.set(record)
        try:
            response = await self._load.send(outgoing, stream=True)
            try:
                await self._receive(response, record)
            finally:
                await response.aclose()
        except (httpx.HTTPError, aiohttp.ClientError, OSError) as error:
            record.error = record.error or _sentence(error)
            record.unreachable = record.status is None
        return record

    async def get(self, path_or_url: str, timeout_s: float = 10.0) -> tuple[int, str]:
        """Return (status, text) of a GET on the control connections. Raises OSError when unreachable."""
        return await self._ask("GET", path_or_url, None, timeout_s)

    async def post(self, path: str, value: object, timeout_s: float = 60.0) -> tuple[int, str]:
        """Return (status, text) of a POST of JSON on the control connections. Raises OSError when unreachable."""
        return await self._ask("POST", path, json.dumps(value).encode(), timeout_s)

    async def _ask(self, method: str, where: str, content: bytes | None, timeout_s: float) -> tuple[int, str]:
        import aiohttp
        import httpx

        url = where if "://" in where else self.base_url + where
        headers = {"content-type": "application/json"} if content is not None else {}
        try:
            reply = await self._control.request(method, url, content=content, headers=headers, timeout=timeout_s)
        except (httpx.HTTPError, aiohttp.ClientError) as error:
            raise OSError(_sentence(error)) from error
        return reply.status_code, reply.text

    async def _user(
        self, script: Script, users: int, start: int, done: Callable[[Record], None] | None
    ) -> list[Record]:
        records: list[Record] = []
        free = start
        request = await script(None)
        while request is not None:
            record = await self.send(request, free if self._simulated else time.perf_counter_ns(), users)
            records.append(record)
            free = max(free, record.last or record.sent)
            if done:
                done(record)
            request = await script(record)
        return records

    async def _receive(self, response: httpx.Response, record: Record) -> None:
        record.status = response.status_code
        record.simulated = response.headers.get(SIMULATED_HEADER) == "1"
        if response.status_code != 200:
            await response.aread()
            record.error = f"HTTP {response.status_code}: {error_text(response.content)}"
            return
        if self._simulated and not record.simulated:
            record.error = "the server is no simulator, so it has no virtual time"
            return
        stream = Stream(
            chat=record.request.path == CHAT,
            origin=record.sent if record.simulated else None,
            keep_text=record.request.keep_text,
        )
        waiting = True
        try:
            async for piece in response.aiter_raw():
                stream.feed(time.perf_counter_ns(), piece)
                if waiting and stream.chunks:
                    waiting = False
                    if self.on_first_token:
                        self.on_first_token()
            stream.close(time.perf_counter_ns())
        finally:
            record.chunks = stream.chunks
            record.first = stream.chunks[0] if stream.chunks else None
            record.last = stream.chunks[-1] if stream.chunks else None
            record.prompt_tokens, record.output_tokens = stream.prompt_tokens, stream.output_tokens
            record.cached_tokens, record.finish = stream.cached_tokens, stream.finish
            record.text, record.error = stream.text, stream.error

    def _new(self) -> httpx.AsyncClient:
        import httpx
        import httpx_aiohttp

        timeout = httpx.Timeout(self._idle_s, connect=_CONNECT_S)
        transport = httpx_aiohttp.AiohttpTransport(client=self._connections)
        # The benchmark tool takes the server's key from the same variable.
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(transport=transport, timeout=timeout, headers=headers, trust_env=False)

    def _connections(self) -> aiohttp.ClientSession:
        """Return a pool without a limit, which stamps a request at the moment its bytes go out.

        Many requests that are made ready at once would else carry each other's preparation in their times.
        """
        import aiohttp

        trace = aiohttp.TraceConfig()
        if not self._simulated:
            trace.on_request_chunk_sent.append(_stamp)
        pool = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S)
        return aiohttp.ClientSession(connector=pool, trace_configs=[trace])


def sequence(requests: Sequence[Request]) -> Script:
    """Return the script of a user who sends these requests one after the other, stopping when one fails to connect."""
    left = iter([replace(request, last=at == len(requests)) for at, request in enumerate(requests, 1)])

    async def script(record: Record | None) -> Request | None:
        return None if record is not None and record.unreachable else next(left, None)

    return script


async def _stamp(*_: object) -> None:
    """Note when the first bytes of a body go out; the task that writes them has this context for itself."""
    record = _sending.get()
    if record is not None:
        record.sent = time.perf_counter_ns()
        _sending.set(None)


def error_text(body: bytes) -> str:
    """Return the sentence of an error body: vLLM nests it under `error`, SGLang and FastAPI do not."""
    try:
        value: Any = json.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:300]
    inner = value.get("error", value) if isinstance(value, Mapping) else value
    if isinstance(inner, Mapping):
        inner = inner.get("message") or inner.get("detail") or inner
    return str(inner)[:300]


def _sentence(error: BaseException) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
