"""Gates: which records keep a run provisional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lcplan.audit.gates import standing
from lcplan.audit.refs import Records
from lcplan.record import index
from tests import statekit

SENT = {"sent": statekit.metric(8, "requests"), "completed": statekit.metric(8, "requests")}
FOUND = {"needles_found": statekit.metric(1, "needles"), "needles_asked": statekit.metric(1, "needles")}
LOADED = {"definition": {"needle": True}}
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("needle_under_load", {"metrics": SENT | FOUND, **LOADED}, ""),
    ("needle_under_load", {"metrics": SENT | FOUND | {"needles_found": statekit.metric(0, "needles")}, **LOADED},
     "found 0 of 1"),
    ("needle_under_load", {"metrics": SENT, **LOADED}, "asked no needle"),
    ("needle_under_load", {"metrics": SENT | FOUND}, "has no record yet"),
    ("completed", {"metrics": SENT}, ""),
    ("completed", {"metrics": SENT | {"completed": statekit.metric(7, "requests")}}, "completed 7 of 8"),
    ("capacity", {"metrics": SENT, "capacity": {"limited": False, "effective": 9}}, ""),
    ("capacity", {"metrics": SENT, "capacity": {"limited": True, "effective": 5}}, "capacity-limited, 5 fit"),
    ("capacity", {"metrics": SENT, "capacity": {"limited": None}}, ""),
    ("grid", {"metrics": SENT | FOUND, "kind": "grid"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("gate", "cell", "why"), CASES)
def test_a_gate_that_has_not_passed_keeps_a_run_provisional(
    gate: str, cell: dict[str, Any], why: str, tmp_path: Path
) -> None:
    statekit.seal(tmp_path, "r", cells=[statekit.cell("grid.users=8", **cell)], gates={"million": {gate: "all"}})
    with index.opened(tmp_path) as opened:
        found = standing(Records(tmp_path), opened, "r")
    assert found.word == ("provisional" if why else "published")
    assert why in found.provisional
