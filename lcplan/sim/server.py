"""The HTTP server process: routes, life cycle, streams, faults. One asyncio program, one engine, one pump."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web

from lcplan.sim import requests, tokens
from lcplan.sim.answer import Answer
from lcplan.sim.launch import Launch
from lcplan.sim.pace import Pump
from lcplan.sim.pool import Pool
from lcplan.sim.profiles import REQUEST_S
from lcplan.sim.rank import Rank, Sequence, spread
from lcplan.sim.requests import Refused
from lcplan.sim.schedule import Engine
from lcplan.sim.sglang_face import DEPRECATED, SglangFace
from lcplan.sim.sglang_metrics import WARM_S
from lcplan.sim.stream import Stream, whole
from lcplan.sim.vllm_face import VllmFace

KEEP_ALIVE_S = 5.0  # uvicorn's default in both engines
Face = VllmFace | SglangFace
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server:
    """One simulated server. `state` is warming, up, dying (the engine is dead, the server not yet) or stopping."""

    def __init__(self, launch: Launch, face: Face, speed: float) -> None:
        self.launch = launch
        self.face = face
        self.speed = speed
        self.engine = _engine(launch, face)
        self.pump = Pump(self.engine, speed)
        self.state = "warming"
        self.over = asyncio.Event()
        self.status = 0
        self._served = 0
        self._live: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[tuple[str, str], Handler] = {
            route: getattr(self, f"_{name}") for route, name in face.routes().items()
        }
        self.headers = {"Server": "uvicorn", "x-lcplan-simulated": "1", "x-lcplan-speed": f"{speed:g}"}

    async def run(self, door: socket.socket) -> int:
        """Serve on a bound socket until told to stop; return the exit status."""
        loop = asyncio.get_running_loop()
        server = web.Server(
            self._handle,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            read_bufsize=1 << 22,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        started = self.face.log.started_after
        self.face.log.elapsed = lambda: started + self.pump.now()
        self.state = "warming" if self.face.warms_up else "up"
        listening = await loop.create_server(server, sock=door, backlog=1024)
        self.face.log.listening()
        self._spawn(self.pump.run())
        self._spawn(self._warm_up())
        self._spawn(self._statistics())
        await self.over.wait()
        listening.close()
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(server.shutdown(0.2), 0.5)
        return self.status

    async def _warm_up(self) -> None:
        fault = self.launch.faults.get("never_ready")
        if isinstance(self.face, SglangFace):
            await asyncio.sleep(0.0 if self.launch.flags.get("skip-server-warmup") else min(0.2, WARM_S / self.speed))
            if fault:
                return
            self.face.watch.warm_up(self.engine.ranks[0])
            self.face.log.ready()
            self.state = "up"
        dying = self.launch.faults.get("die_while_serving")
        if dying and dying["seconds"] is not None:
            await asyncio.sleep(float(dying["seconds"]) / self.speed)
            await self._die()

    async def _statistics(self) -> None:
        """vLLM's line every ten virtual seconds, one more after activity, then silence."""
        if not isinstance(self.face, VllmFace):
            return
        before = (0, 0)
        quiet = True
        seconds = max(10.0, 0.05 * self.speed)
        while True:
            await asyncio.sleep(seconds / self.speed)
            totals = [rank.totals for rank in self.engine.ranks]
            now = (sum(t.computed for t in totals), sum(t.generated for t in totals))
            if now == before and quiet and not self.engine.busy:
                continue
            quiet = now == before
            for rank in self.engine.ranks:
                used = rank.pool.used / max(1, rank.pool.capacity)
                hits = rank.totals.hit / max(1, rank.totals.queried)
                prompt, generated = (now[0] - before[0]) / seconds, (now[1] - before[1]) / seconds
                self.face.log.statistics(rank.index, prompt, generated, rank.running, len(rank.waiting), used, hits)
            before = now

    def _stop(self) -> None:
        if self.state == "stopping":
            return
        self.state = "stopping"
        self.engine.abort_all()
        self.face.log.stopping()
        self.over.set()

    async def _die(self) -> None:
        """The engine dies: vLLM answers 200, then 503, then refuses; SGLang hangs, then resets and refuses."""
        if self.state != "up":
            return
        self.pump.hung = True
        sglang = isinstance(self.face, SglangFace)
        await asyncio.sleep(0 if sglang else max(0.15, 1 / self.speed))  # nobody has noticed yet
        self.state = "dying"
        self.face.log.died()
        for event in self._live:
            event.set()
        await asyncio.sleep(max(0.5, 4 / self.speed))
        self.face.log.gone()
        if sglang:
            os.kill(os.getpid(), signal.SIGKILL)
        self.status = 0 if self.launch.dp == 1 else 1
        self.over.set()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        route = (request.method, request.path)
        handler = self._routes.get(route)
        if isinstance(self.face, SglangFace):
            self.face.watch.requests[request.path, request.method] += 1
            if request.path in DEPRECATED:
                self.face.deprecated(request.path)
        if handler is None:
            known = any(path == request.path for _, path in self._routes)
            wrong = (405, "Method Not Allowed") if known else (404, "Not Found")
            return self._json(request, {"detail": wrong[1]}, wrong[0])
        if not self._authorised(request):
            return self._json(request, {"error": "Unauthorized"}, 401)
        try:
            return await handler(request)
        except Refused as refused:
            return self._json(request, self.face.error(refused), refused.status)

    def _authorised(self, request: web.BaseRequest) -> bool:
        key = self.launch.flags.get("api-key") or (
            self.launch.env.get("VLLM_API_KEY") if self.launch.kind == "vllm" else None
        )
        if not key:
            return True
        guarded = request.path.startswith("/v1")
        if self.launch.kind == "sglang":
            guarded = not request.path.startswith(("/health", "/ready", "/metrics"))
        keys = key if isinstance(key, list) else [key]
        return not guarded or request.headers.get("Authorization") in [f"Bearer {one}" for one in keys]

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.state == "dying" and self.face.health_costs_a_token:
            await self.over.wait()  # no answer until the process is gone
        if self.state != "up":
            return self._empty(request, 503)
        if isinstance(self.face, SglangFace):
            await asyncio.sleep(min(1.0, 1 / self.speed))
            if not self.engine.busy:
                self.face.watch.probe(self.engine.ranks[0])
        return self._empty(request, 200)

    async def _ready(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._empty(request, 200 if self.state == "up" else 503)

    async def _version(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._json(request, {"version": self.launch.version})

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._json(request, self.face.models())

    async def _model_info(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(self.face, SglangFace)
        return self._json(request, self.face.model_info())

    async def _info(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._json(request, self.face.info(self.engine))

    async def _load(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._json(request, self.face.load(self.engine))

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        return self._text(request, self.face.metrics(self.engine), 200, "text/plain; version=0.0.4; charset=utf-8")

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request)
        text = body.get("prompt")
        if text is None:
            text = "".join(str(message.get("content") or "") for message in body.get("messages") or [])
        ids = tokens.encode(str(text))
        reply: dict[str, Any] = {"count": len(ids), "max_model_len": self.launch.context, "tokens": ids}
        if self.launch.kind == "vllm":
            reply["token_strs"] = tokens.texts(ids) if body.get("return_token_strs") else None
        return self._json(request, reply)

    async def _detokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await _body(request)
        ids = body.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
            raise Refused(400, "tokens must be a list of integers", param="tokens")
        return self._json(request, {"prompt" if self.launch.kind == "vllm" else "text": tokens.decode(ids)})

    async def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        idle = not self.engine.busy
        if idle and self.launch.faults.get("reset_lies") is None:
            for rank in self.engine.ranks:
                rank.pool.clear()
        status, body = self.face.reset(idle)
        return self._text(request, body, status) if isinstance(body, str) else self._json(request, body, status)

    async def _completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._complete(request, chat=False)

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._complete(request, chat=True)

    async def _complete(self, request: web.BaseRequest, *, chat: bool) -> web.StreamResponse:
        sent = _number(request.headers.get("x-lcplan-sent"))
        with self.pump.inbound() if sent is not None else contextlib.nullcontext():
            raw = await request.content.read()
            if self.state != "up":
                raise self.face.dead()
            ask = requests.read(raw, chat=chat)
            limit = self.face.limit(ask)
            headers = {name.lower(): value for name, value in request.headers.items()}
            served = requests.sequences(ask, self.launch, limit, self.pump.arrival(sent), headers)
            event = asyncio.Event()
            for sequence, _ in served:
                sequence.wake = event.set
            self._count_served()
            self.pump.submit([sequence for sequence, _ in served], _whole(headers.get("x-lcplan-users")), len(raw))
        del raw
        self._live.add(event)
        try:
            if ask.stream:
                return await self._stream(request, Stream(ask, self.face, served), event)
            return await self._reply(request, ask, served, event)
        finally:
            self._live.discard(event)
            for sequence, _ in served:
                self.pump.abort(sequence)

    async def _stream(self, request: web.BaseRequest, stream: Stream, event: asyncio.Event) -> web.StreamResponse:
        response = web.StreamResponse(headers=self.headers)
        response.content_type = "text/event-stream"
        self._log_access(request, 200)
        await response.prepare(request)
        cut, written = self.launch.faults.get("cut_stream"), 0
        while not stream.done:
            await event.wait()
            event.clear()
            if self.state in ("dying", "stopping"):
                return await self._broken(response)
            chunks = stream.chunks()
            if cut and stream.sent >= int(cut["tokens"]):
                await response.write("".join(chunks[: max(0, int(cut["tokens"]) - written)]).encode())
                assert request.transport is not None
                request.transport.close()
                return response
            if chunks:
                await response.write("".join(chunks).encode())
                written += len(chunks)
        await response.write(stream.end().encode())
        await response.write_eof()
        return response

    async def _broken(self, response: web.StreamResponse) -> web.StreamResponse:
        """An error after the stream began: an event, then the end; SGLang's process simply goes."""
        if self.state == "dying" and isinstance(self.face, SglangFace):
            await self.over.wait()
        error = json.dumps(self.face.error(self.face.dead()), separators=(",", ":"))
        await response.write(f"data: {error}\n\ndata: [DONE]\n\n".encode())
        await response.write_eof()
        return response

    async def _reply(
        self, request: web.BaseRequest, ask: requests.Ask, served: list[tuple[Sequence, Answer]], event: asyncio.Event
    ) -> web.StreamResponse:
        while not all(sequence.done for sequence, _ in served):
            await event.wait()
            event.clear()
            if self.state in ("dying", "stopping"):
                if self.state == "dying" and isinstance(self.face, SglangFace):
                    await self.over.wait()
                raise self.face.dead()
        took = max(sequence.ended - sequence.arrived for sequence, _ in served)
        first = min(sequence.first - sequence.arrived for sequence, _ in served)
        stamps = {"x-lcplan-t": f"{took:.6f}", "x-lcplan-t-first": f"{first:.6f}"}
        return self._json(request, whole(ask, self.face, served), headers=stamps)

    def _count_served(self) -> None:
        self._served += 1
        hang = self.launch.faults.get("hang_engine")
        if hang and self._served > int(hang["requests"]):
            self.pump.hung = True
        dying = self.launch.faults.get("die_while_serving")
        if dying and dying["requests"] is not None and self._served > int(dying["requests"]):
            self._spawn(self._die())

    def _json(
        self, request: web.BaseRequest, body: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> web.Response:
        text = json.dumps(body, separators=(",", ":"))
        return self._text(request, text, status, "application/json", headers)

    def _empty(self, request: web.BaseRequest, status: int) -> web.Response:
        self._log_access(request, status)
        return web.Response(status=status, headers=self.headers)

    def _text(
        self,
        request: web.BaseRequest,
        text: str,
        status: int,
        kind: str = "text/plain; charset=utf-8",
        headers: dict[str, str] | None = None,
    ) -> web.Response:
        self._log_access(request, status)
        every = {**self.headers, **(headers or {}), "Content-Type": kind}
        return web.Response(body=text.encode(), status=status, headers=every)

    def _log_access(self, request: web.BaseRequest, status: int) -> None:
        if isinstance(self.face, SglangFace):
            self.face.watch.responses[request.path, request.method, str(status)] += 1
        peer = request.transport.get_extra_info("peername") if request.transport else None
        where = f"{peer[0]}:{peer[1]}" if peer else "127.0.0.1:0"
        self.face.log.access(where, f"{request.method} {request.path_qs}", f"{status} {HTTPStatus(status).phrase}")

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _engine(launch: Launch, face: Face) -> Engine:
    ranks = []
    for index in range(launch.dp):
        rank = Rank(
            index,
            launch.speed,
            Pool(launch.pool, launch.page, caching=launch.cached),
            chunk=launch.chunk,
            cap=launch.max_seqs,
            mixed=launch.kind == "vllm" or bool(launch.flags.get("enable-mixed-chunk")),
            gains=spread(launch.draft, launch.profile.acceptance),
        )
        rank.watch = face.watch
        rank.share_lie = float((launch.faults.get("cached") or {"share": 0.0})["share"])
        ranks.append(rank)
    return Engine(ranks, REQUEST_S)


async def _body(request: web.BaseRequest) -> dict[str, Any]:
    try:
        body = json.loads(await request.content.read())
    except ValueError as fault:
        raise Refused(400, f"JSON decode error: {fault}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    return body


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        raise Refused(400, f"x-lcplan-sent must be virtual seconds, got '{text}'") from None


def _whole(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
