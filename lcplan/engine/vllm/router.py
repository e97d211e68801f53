"""The router in front of a split layout: `vllm-router`, one prefill and one decode pool behind one port."""

from __future__ import annotations

from typing import Any

from lcplan.engine import render
from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import load


class Router:
    """vllm-router. The addresses of the servers are its args `prefill` and `decode`, each a list of URLs."""

    kind = "vllm-router"
    default_port = 30000

    def argv(self, spec: ServerSpec, *, port: int, served_name: str, host: str = "0.0.0.0") -> list[str]:
        """Return `vllm-router` with host, port and args; it serves the names of the servers behind it."""
        address = ["--host", host, "--port", str(port), "--vllm-pd-disaggregation"]
        return ["vllm-router", *address, *render.argv(load(self.kind, spec.version), spec.args.items())]

    def environment(self, spec: ServerSpec, *, port: int) -> dict[str, str]:
        """Return no variables."""
        return {}

    def identity(self, spec: ServerSpec) -> dict[str, Any]:
        """Return canonical flag names -> typed values, without the addresses of the servers: ports are no behaviour."""
        args = render.canonical(load(self.kind, spec.version), spec.args.items())
        return {name: value for name, value in args.items() if name not in ("prefill", "decode", "worker-urls")}

    def sequence_cap(self, spec: ServerSpec, gpu_memory_gib: float | None) -> tuple[int | None, str]:
        """Return the router's own limit of requests, if it has one."""
        cap = self.identity(spec).get("max-concurrent-requests")
        return (cap, "--max-concurrent-requests") if isinstance(cap, int) and cap > 0 else (None, "no limit of its own")

    def label(self, spec: ServerSpec, moe: bool | None = None) -> str:
        """Return `router`: it runs no model."""
        return "router"


ENGINE = Router()
