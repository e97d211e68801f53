"""A small campaign for reports: sealed runs of every kind of workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest
from tests import statekit
from tests.statekit import metric


def point(run: str, users: int, status: str = "done", limited: bool = False, **others: Any) -> dict[str, Any]:
    """Return a cell of a sweep."""
    name = f"chat.prompt=1024.users={users}"
    metrics = {
        "ttft_s": metric(0.5 * users, "s", p90=0.8 * users, min=0.1, max=users),
        "user_tokens_per_s": metric(200 / users, "tokens/s"),
        "output_tokens_per_s": metric(150.0 * users, "tokens/s"),
        "sent": metric(4 * users, "requests"),
        "completed": metric(4 * users - 1, "requests"),
    }
    return {
        "cell": name,
        "fingerprint": digest([run, name]),
        "workload": "chat",
        "kind": "sweep",
        "axes": {"prompt": 1024, "users": users},
        "definition": {"kind": "sweep", "prompt": 1024, "users": users, "output": 512},
        "users": users,
        "experiments": ["million"],
        "status": status,
        "reason": "" if status == "done" else "cache-hits",
        "sentence": "" if status == "done" else "12 % of the prompt came from the cache",
        "metrics": metrics if status == "done" else {},
        "capacity": {"fits": 64, "cap": 8, "effective": 8, "limit": "cap", "limited": limited},
        **others,
    }


def ramp(run: str) -> dict[str, Any]:
    """Return a ramp of three turns."""
    metrics = {}
    for turn in (1, 2, 3):
        metrics |= {
            f"turn{turn}_ttft_s": metric(3.0 * turn, "s"),
            f"turn{turn}_tpot_ms": metric(10.0 * turn, "ms"),
            f"turn{turn}_hit_rate_percent": metric(25.0 * (turn - 1), "%"),
        }
    definition = {"kind": "ramp", "turns": [32768, 65536, 131072], "output": 128}
    return {
        **point(run, 1),
        "cell": "ramp.conversations=1",
        "fingerprint": digest([run, "ramp"]),
        "workload": "ramp",
        "kind": "ramp",
        "axes": {"conversations": 1},
        "definition": definition,
        "metrics": metrics,
    }


def campaign(root: Path) -> None:
    """Seal a published run, a provisional one, a retracted one and a simulated one."""
    from lcplan.record import ledger

    cells = [point("a", 1), point("a", 8), point("a", 16, limited=True), point("a", 32, status="invalid"), ramp("a")]
    statekit.seal(root, "a", cells=[statekit.cell(kind="needle"), *cells])
    missed = {**statekit.METRICS, "needles_found": metric(1, "needles")}
    fingerprints = {"fingerprint": "of b", "stack": "other", "variant": "fast"}
    statekit.seal(root, "b", cells=[statekit.cell(metrics=missed, fingerprint="b"), point("b", 8)], **fingerprints)
    statekit.seal(root, "gone", cells=[point("gone", 8)], stack="withdrawn")
    ledger.append(root, "retracted", "gone", why="wrong image")
    statekit.seal(root, "sim", cells=[point("sim", 8)], simulated=True, stack="rehearsed")
    statekit.saved(root)
