"""`audit doc`: what a document shows against what is recorded."""

from __future__ import annotations

import json
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.audit import figures
from lcplan.audit.doc import Options, doc
from lcplan.record import ledger
from tests import statekit

CASES = json.loads((Path(__file__).parent / "cases/doc.json").read_text())["cases"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("state")
    slower = {**statekit.METRICS, "ttft_s": statekit.metric(60.2, "s")}
    missed = {**statekit.METRICS, "needles_found": statekit.metric(2, "needles")}
    grid = statekit.cell("grid.prompt=32768.users=4", metrics={"ttft_s": statekit.metric(7.1, "s")})
    statekit.seal(made, "A", fingerprint="a")
    statekit.seal(made, "B", fingerprint="b", cells=[statekit.cell(metrics=slower), grid])
    statekit.seal(made, "P", fingerprint="p", cells=[statekit.cell(metrics=missed)])
    statekit.seal(made, "S", fingerprint="s", simulated=True)
    statekit.seal(made, "X", fingerprint="x")
    invalid = statekit.cell(status="invalid", reason="prefix-cache-hits", metrics=statekit.METRICS)
    statekit.seal(made, "I", fingerprint="i", cells=[invalid], gates={}, policy={})
    ledger.append(made, "retracted", "X", why="a fan had failed")
    return made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(root: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    file = tmp_path / "doc.md"
    file.write_text(case["text"])
    options = case.get("options", {})
    checked = doc(root, [file], Options(**options))
    found = [f"{d.source.line}:{d.source.column} {d.code}" for d in checked.findings if d.source]
    assert found == case["findings"]
    assert case.get("says", "") in "\n".join(map(str, checked.findings))
    assert file.read_text() == case["text"]
    if "fixed" in case:
        fixed = doc(root, [file], Options(fix=True, **options))
        assert fixed.findings == []
        assert fixed.fixed == len(case["findings"])
        assert file.read_text() == case["fixed"]
        assert doc(root, [file], Options(**options)).findings == []


def test_every_value_at_every_shown_precision_is_right(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "doc.md"
    shown = [f"{58.612:.{digits}f}" for digits in range(4)] + [f"{58.612 * 1000:,.0f} ms"]
    file.write_text("\n\n".join(f"[{text}](lcplan:A/needle#ttft_s)" for text in shown))
    checked = doc(root, [file])
    assert (checked.findings, checked.numbers) == ([], 5)


@given(
    value=st.floats(min_value=0.001, max_value=1e7, allow_nan=False).map(lambda v: Decimal(repr(round(v, 6)))),
    decimals=st.integers(0, 3),
    rounding=st.sampled_from([ROUND_HALF_EVEN, ROUND_UP, ROUND_DOWN]),
)
def test_a_number_is_right_within_half_of_its_last_digit(value: Decimal, decimals: int, rounding: str) -> None:
    last = Decimal(1).scaleb(-decimals)
    text = f"{value.quantize(last, rounding):,} s"
    shown = figures.first(text)
    assert shown is not None
    right = abs(shown.value - value) <= last / 2
    recorded = figures.Quantity(value, "s")
    assert (figures.compare(shown, recorded) == "right") == right
    again = figures.first(figures.render(recorded, shown))
    assert again is not None
    assert figures.compare(again, recorded) == "right"
