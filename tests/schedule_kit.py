"""Machines and launches for tests of placement and schedule."""

from __future__ import annotations

from typing import Any

from lcplan.plan.model import Launch
from lcplan.plan.place import Machine, machine_of


def nodes(count: int, quads: int, gpus: int = 4) -> dict[str, Any]:
    """Return declared nodes of `quads` quads of `gpus` GPUs, 12 CPUs for each GPU and 100 ports for each quad."""
    return {
        f"n{i}": {
            "gpu": {"model": "H200", "memory": 141.0, "count": quads * gpus},
            "quads": {
                "abcdefgh"[q]: {
                    "gpus": list(range(q * gpus, (q + 1) * gpus)),
                    "numa": [q],
                    "cpus": f"{q * gpus * 12}-{(q + 1) * gpus * 12 - 1}",
                    "ports": (8000 + q * 100, 8099 + q * 100),
                }
                for q in range(quads)
            },
        }
        for i in range(count)
    }


def machine(count: int, quads: int, gpus: int = 4) -> Machine:
    """Return the machine of such nodes."""
    return machine_of(nodes(count, quads, gpus))


def uneven(sizes: list[list[int]]) -> Machine:
    """Return a machine of nodes whose quads have the given numbers of GPUs."""
    declared: dict[str, Any] = {}
    for i, quads in enumerate(sizes):
        first = [sum(quads[:q]) for q in range(len(quads))]
        declared[f"n{i}"] = {
            "quads": {
                "abcdefgh"[q]: {
                    "gpus": list(range(first[q], first[q] + size)),
                    "ports": (8000 + q * 100, 8099 + q * 100),
                }
                for q, size in enumerate(quads)
            }
        }
    return machine_of(declared)


def launch(
    name: str, gpus: int, seconds: float, *, pin: str | None = None, quiet: bool = False, preempt: bool = False,
    priority: int = 0, layout: str = "", roles: dict[str, Any] | None = None,
) -> Launch:  # fmt: skip
    """Return a launch that takes so many GPUs for so many seconds."""
    return Launch(
        id=name, stack=name, variant=None, repeat=1, engine="vllm", kind="vllm", version=None, image=None, model="m",
        model_path="/m", layout=layout or f"tp{gpus}", gpus=gpus, engines=1, context=None, runtime="process",
        behaviour={"roles": roles} if roles else {}, digest=name, pin=pin, env={}, docker={}, ready_timeout_s=1,
        label="", source="recipes/x.yaml:1:1", quiet=quiet, preempt=preempt, priority=priority, measure_s=seconds,
    )  # fmt: skip
