"""`vllm-router` before simulated servers: each request is prefilled on one server and decoded on another.

The prefill server computes the prompt and one token; the decode server then takes the prompt's cache as transferred and
gives every token. Stamps are moved by the prefill's virtual time, so a client sees one request.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from itertools import count
from typing import Any

import aiohttp
from aiohttp import web

from lcplan.sim.logs import NOTICE, Log
from lcplan.sim.routing import Routing

_STAMP = re.compile(rb"^: t=([\d.]+)", re.MULTILINE)
_COMPLETIONS = ("/v1/completions", "/v1/chat/completions")


class Router:
    """Forwards requests in turn to the servers behind it."""

    def __init__(self, plan: Routing, speed: float) -> None:
        self.plan = plan
        self.log = Log()
        self.headers = {"x-lcplan-simulated": "1", "x-lcplan-speed": f"{speed:g}"}
        self._turn = count()
        self._session: aiohttp.ClientSession | None = None

    async def run(self, door: socket.socket) -> int:
        """Serve on a bound socket until SIGTERM; return the exit status."""
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, over.set)
        server = web.Server(self._handle, access_log=None, handler_cancellation=True, read_bufsize=1 << 22)
        limit = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
        async with aiohttp.ClientSession(connector=limit, timeout=aiohttp.ClientTimeout(None)) as self._session:
            listening = await loop.create_server(server, sock=door, backlog=1024)
            self.log.err(NOTICE)
            self.log.err(f"vllm-router listens on http://{self.plan.host}:{self.plan.port}")
            await over.wait()
            listening.close()
            await server.shutdown(0.2)
        return 0

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        turn = next(self._turn)
        body = await request.content.read()
        behind = [*self.plan.prefill, *self.plan.decode]
        decode = self.plan.decode[turn % len(self.plan.decode)]
        try:
            if request.path == "/health":
                found = [await self._status(url) for url in behind]
                return web.Response(status=200 if set(found) == {200} else 503, headers=self.headers)
            if request.path in _COMPLETIONS and self.plan.prefill:
                return await self._split(request, self.plan.prefill[turn % len(self.plan.prefill)], decode, body)
            return await self._forward(request, decode, body, {}, 0.0)
        except aiohttp.ClientError as fault:
            text = json.dumps({"error": {"message": str(fault), "type": "BadGateway", "param": None, "code": 502}})
            return web.Response(status=502, text=text, content_type="application/json", headers=self.headers)

    async def _split(self, request: web.BaseRequest, prefill: str, decode: str, raw: bytes) -> web.StreamResponse:
        try:
            body: dict[str, Any] = json.loads(raw)
        except ValueError:
            return await self._forward(request, decode, raw, {}, 0.0)
        sent = request.headers.get("x-lcplan-sent")
        alone = {"max_tokens": 1, "min_tokens": 1, "stream": False, "kv_transfer_params": {"do_remote_decode": True}}
        first = {key: value for key, value in body.items() if key not in ("stream_options", "max_completion_tokens")}
        headers = {"x-lcplan-sent": sent} if sent else {}
        async with self._client.post(prefill + request.path, json=first | alone, headers=headers) as reply:
            answer = await reply.read()
            if reply.status != 200:
                return web.Response(status=reply.status, body=answer, headers=self.headers)
            took = float(reply.headers["x-lcplan-t"])
        body["kv_transfer_params"] = {"do_remote_prefill": True}
        headers = {"x-lcplan-sent": f"{float(sent) + took:.6f}"} if sent else {}
        return await self._forward(request, decode, json.dumps(body).encode(), headers, took)

    async def _forward(
        self, request: web.BaseRequest, url: str, body: bytes, headers: dict[str, str], took: float
    ) -> web.StreamResponse:
        ask = self._client.request(request.method, url + request.path_qs, data=body or None, headers=headers)
        async with ask as reply:
            kept = {**self.headers, "Content-Type": reply.headers.get("Content-Type", "text/plain")}
            for name in ("x-lcplan-t", "x-lcplan-t-first"):
                if name in reply.headers:
                    kept[name] = f"{float(reply.headers[name]) + took:.6f}"
            if "event-stream" not in kept["Content-Type"]:
                return web.Response(status=reply.status, body=await reply.read(), headers=kept)
            response = web.StreamResponse(status=reply.status, headers=kept)
            await response.prepare(request)
            rest = b""
            async for piece in reply.content.iter_any():
                lines, newline, rest = (rest + piece).rpartition(b"\n")
                await response.write(_STAMP.sub(lambda hit: b": t=%.6f" % (float(hit[1]) + took), lines + newline))
            await response.write_eof()
            return response

    async def _status(self, url: str) -> int:
        async with self._client.get(f"{url}/health") as reply:
            return reply.status

    @property
    def _client(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session
