"""`lcplan report`: what the page shows, marks and leaves out."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lcplan.audit.doc import doc
from lcplan.audit.why import why
from lcplan.cli import run as lcplan
from lcplan.record import manifest
from lcplan.report.campaign import gather
from lcplan.report.figures import groups, show_number
from lcplan.report.gantt import gantt
from tests import report_kit, statekit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    report_kit.campaign(tmp_path / "state")
    return tmp_path / "state"


def page(root: Path, *options: str) -> str:
    output = root.parent / "report" / "index.html"
    assert lcplan(["report", "--state", str(root), "-o", str(output), *options]) == 0
    return output.read_text()


def test_charts_of_a_campaign(root: Path) -> None:
    found = gather(root)
    made = {group.title: group for group in groups(found.cells, found.left_out)}
    assert [*made] == ["chat", "needle", "ramp"]
    assert [chart.title for chart in made["chat"].charts] == [
        "TTFT, median and p90", "User speed, median", "Total output", "Completed of sent",
    ]  # fmt: skip
    ttft, _, _, completed = made["chat"].charts
    assert [series.name for series in ttft.series] == ["glm53_flash", "other / fast"]
    assert [(dot.x, dot.y, dot.high, dot.limited) for dot in ttft.series[0].dots] == [
        (1, 0.5, 0.8, False), (8, 4.0, 6.4, False), (16, 8.0, 12.8, True),
    ]  # fmt: skip
    assert [(dot.y, dot.high) for dot in completed.series[1].dots] == [(31, 32)]
    assert [dot.open for series in ttft.series for dot in series.dots] == [False, False, False, True]
    assert [one.cell["cell"] for one in made["chat"].left_out] == ["chat.prompt=1024.users=32"]
    speed = made["ramp"].charts[1].series[0]
    assert [(dot.x, round(dot.y)) for dot in speed.dots] == [(32768, 100), (65536, 50), (131072, 33)]


def test_repeats_are_dots_of_their_own_and_the_line_joins_their_medians(tmp_path: Path) -> None:
    cells = [report_kit.point("r", 1), report_kit.point("r", 8)]
    again = [report_kit.point("s", 1), report_kit.point("s", 8)]
    again[1]["metrics"]["ttft_s"] = statekit.metric(6.0, "s")
    statekit.seal(tmp_path, "r", cells=cells)
    statekit.seal(tmp_path, "s", cells=again)
    statekit.saved(tmp_path)
    series = groups(gather(tmp_path).cells, ())[0].charts[0].series[0]
    assert len(series.dots) == 4 and series.line == [(1, 0.5), (8, 5.0)]


def test_simulated_numbers_are_left_out_unless_asked_for_and_then_marked(root: Path) -> None:
    without = page(root)
    assert "rehearsed" not in without and "1 simulated run left out" in without
    assert 'class="mark">simulated' not in without
    with_them = page(root, "--simulated")
    chat = re.search(r'<section id="group-0">.*?</section>', with_them, re.S)
    assert chat and "rehearsed (simulated)" in chat[0]
    assert all('class="mark">simulated' in one for one in re.findall(r"<figcaption>.*?</figcaption>", chat[0]))
    assert re.search(r'<caption><span class="mark">simulated</span></caption>', chat[0])
    assert re.search(r"rehearsed \(simulated\), chat\S+: 4 s, .*\(simulated\)", with_them)


def test_a_rehearsal_and_a_measurement_of_one_stack_are_never_joined(tmp_path: Path) -> None:
    statekit.seal(tmp_path, "real", cells=[report_kit.point("real", 1)])
    statekit.seal(tmp_path, "sim", cells=[report_kit.point("sim", 8)], simulated=True)
    statekit.saved(tmp_path)
    series = groups(gather(tmp_path, simulated=True).cells, ())[0].charts[0].series
    assert [(one.name, len(one.dots)) for one in series] == [("glm53_flash", 1), ("glm53_flash (simulated)", 1)]


def test_what_is_no_result_is_counted_and_listed_with_its_reason(root: Path) -> None:
    text = page(root)
    assert "Left out of these charts: 1 invalid" in text
    assert "12 % of the prompt came from the cache" in text
    assert not any("withdrawn" in one for one in re.findall(r'<section id="group-.*?</section>', text, re.S))
    assert re.search(r'href="#run-gone".*?<td>retracted</td>', text)
    assert re.search(r'href="#run-b".*?<td>provisional</td>', text)


def test_every_link_on_the_page_leads_somewhere(root: Path) -> None:
    text = page(root, "--simulated")
    ids = set(re.findall(r' id="([^"]+)"', text))
    assert len(re.findall(r' id="([^"]+)"', text)) == len(ids)
    links = re.findall(r'href="([^"]+)"', text)
    assert {one[1:] for one in links if one.startswith("#")} <= ids
    files = [one for one in links if not one.startswith("#")]
    assert "../state/runs/a/cmd.sh" in files and "../state/runs/a/manifest.json" in files
    assert all((root.parent / "report" / one).is_file() for one in files)
    assert "--tensor-parallel-size 4" in text
    assert not re.search(r"""(src|href|url)=?["'(]*https?://(?!www\.w3\.org/)""", text)


def test_charts_are_well_formed_named_and_limited_points_are_hatched(root: Path) -> None:
    charts = re.findall(r"<svg.*?</svg>", page(root), re.S)
    assert len(charts) == 10  # four of the sweep, two of the needles, three of the ramp, one of what ran when
    for chart in charts:
        tree = ElementTree.fromstring(chart)
        assert tree[0].tag.endswith("title") and tree[0].text
        links = tree.iter("{http://www.w3.org/2000/svg}a")
        assert all(one.get("aria-label") and one.get("href", "").startswith("#run-") for one in links)
        assert not re.search(r"#0[1-5]0[0-9a-f]{3}", chart)
    assert "<pattern" in charts[0] and "var(--grey)" in charts[0]


def test_a_report_is_the_same_bytes_each_time_and_follows_a_plan(root: Path, tmp_path: Path) -> None:
    assert page(root) == page(root)
    plan = tmp_path / "plan.json"
    cell = report_kit.point("b", 8)
    plan.write_text(json.dumps({"id": "p" * 64, "runtime": "docker", "cells": [cell]}))
    text = page(root, "--plan", str(plan))
    assert "#run-b" in text and "#run-a" not in text


def test_the_gantt_shows_the_last_plan_as_it_ran(tmp_path: Path) -> None:
    def times(start: int, ready: int, end: int) -> dict[str, str]:
        stamp = "2026-10-10T00:{:02d}:00+00:00"
        return {"started": stamp.format(start), "ready": stamp.format(ready), "ended": stamp.format(end)}

    placed = {"node": "h200", "quads": ["a", "b"]}
    statekit.seal(tmp_path, "old", times=times(0, 1, 2), plan={"id": "1"})
    statekit.seal(tmp_path, "one", times=times(10, 12, 20), plan={"id": "2"})
    statekit.seal(tmp_path, "two", times=times(20, 21, 30), plan={"id": "2"}, placement=placed)
    statekit.saved(tmp_path)
    found = gantt(gather(tmp_path))
    assert found and [(bar.run, bar.start, bar.ready, bar.end) for bar in found.bars] == [
        ("one", 0, 2, 10), ("two", 10, 11, 20),
    ]  # fmt: skip
    assert found.lanes == ("h200/a", "h200/b", "node/a") and found.x_label == "min since the first start"


def test_an_empty_state_makes_a_page_and_none_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "state").mkdir()
    assert "Nothing is recorded here yet" in page(tmp_path / "state")
    assert lcplan(["report", "--state", str(tmp_path / "nowhere"), "-o", str(tmp_path / "x.html")]) == 1
    assert "error[no-state]" in capsys.readouterr().err


def test_without_matplotlib_the_command_to_install_it_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert lcplan(["report", "--state", str(root), "-o", str(root / "x.html")]) == 1
    assert "pip install 'lcplan[charts]'" in capsys.readouterr().err


def test_text_of_records_is_no_markup(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    statekit.seal(tmp_path, "x", stack=name, cells=[report_kit.point("x", 1)])
    statekit.saved(tmp_path)
    assert name not in page(tmp_path)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(58.612, "58.61"), (17053.6, "17,054"), (0.0512, "0.051"), (3.0, "3"), (0.0000123, "1.23e-05"), (0, "0")],
)
def test_numbers_are_shown_with_four_digits(number: float, shown: str) -> None:
    assert show_number(number) == shown


def test_every_server_of_a_split_layout_shows_its_command(tmp_path: Path) -> None:
    staging = tmp_path / "staging" / "pd"
    staging.mkdir(parents=True)
    for name in ("cmd.sh", "cmd.decode.sh", "cmd.prefill.sh"):
        (staging / name).write_text(f"exec the-{name}-of-it --flag\n")
    predicate = manifest.read(_sealed(tmp_path), statekit.RUN)["predicate"]
    manifest.seal(tmp_path, staging, {**predicate, "run": "pd"})
    statekit.saved(tmp_path)
    text = page(tmp_path)
    assert all(f"exec the-{name}-of-it" in text for name in ("cmd.sh", "cmd.decode.sh", "cmd.prefill.sh"))
    assert "# cmd.decode.sh\nexec the-cmd.decode.sh-of-it" in why(tmp_path, "pd").chains[0].script
    document = tmp_path / "doc.md"
    document.write_text("```sh lcplan:pd\nthe-cmd.decode.sh-of-it ... --flag\n```\n")
    assert doc(tmp_path, [document]).findings == []
    document.write_text("```sh lcplan:pd\nthe-cmd.other.sh-of-it\n```\n")
    assert [d.code for d in doc(tmp_path, [document]).findings] == ["doc-quote"]


def _sealed(root: Path) -> Path:
    statekit.seal(root)
    return root
