"""Questions to a server over HTTP: is it ready, is it ours, does it generate, what does it say of its capacity."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lcplan.engine import dialect

if TYPE_CHECKING:
    import httpx

_TOKEN_LIMIT_S = 600.0


@dataclass
class Probe:
    """An HTTP client of one server, with every question bounded in time."""

    kind: str
    base_url: str
    client: httpx.AsyncClient
    simulator_speed: float | None = None
    """The speed of lcplan's simulator when a reply said that it is one, whatever started it."""

    @classmethod
    def open(cls, kind: str, base_url: str, key: str = "") -> Probe:
        """Return a probe, with the server's API key; proxies of the environment are not used: the server is ours."""
        import httpx

        headers = {"Authorization": f"Bearer {key}"} if key else {}
        probe = cls(kind, base_url, httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False))
        probe.client.event_hooks = {"response": [probe._note_simulator]}
        return probe

    async def ready(self) -> dialect.Readiness:
        """Return what the engine's own readiness says now."""
        for path in dialect.DIALECTS[self.kind].ready:
            status = await self._status(path)
            said = dialect.readiness(self.kind, path, status)
            if said != "next":
                return said
        return "starting"

    async def served(self) -> list[str]:
        """Return the model names that /v1/models lists."""
        return dialect.served_names(await self._json(dialect.DIALECTS[self.kind].models))

    async def version(self) -> str | None:
        """Return the engine's version as served, None when it does not say."""
        for path in dialect.DIALECTS[self.kind].version:
            found = dialect.served_version(await self._json(path))
            if found:
                return found
        return None

    async def token(self, model: str) -> bool:
        """Return whether one token was generated: the proof of readiness that no health page gives."""
        body = {"model": model, "prompt": [1000, 1001, 1002, 1003], "max_tokens": 1, "temperature": 0}
        try:
            reply = await self.client.post("/v1/completions", json=body, timeout=_TOKEN_LIMIT_S)
            return reply.status_code == 200 and bool(reply.json().get("choices"))
        except Exception:
            return False

    async def metrics(self) -> str:
        """Return the text of /metrics, "" where there is none."""
        try:
            reply = await self.client.get(dialect.DIALECTS[self.kind].metrics, timeout=10.0)
            return reply.text if reply.status_code == 200 else ""
        except Exception:
            return ""

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    async def _note_simulator(self, reply: httpx.Response) -> None:
        if reply.headers.get("x-lcplan-simulated") == "1":
            self.simulator_speed = float(reply.headers.get("x-lcplan-speed") or 1.0)

    async def _status(self, path: str) -> int | None:
        try:
            limit = dialect.DIALECTS[self.kind].probe_timeout_s
            return (await self.client.get(path, timeout=limit)).status_code
        except asyncio.CancelledError:
            raise
        except Exception:
            return None

    async def _json(self, path: str) -> Any:
        try:
            reply = await self.client.get(path, timeout=30.0)
            return reply.json() if reply.status_code == 200 else None
        except Exception:
            return None
