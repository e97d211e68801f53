"""The report in a real browser: from a point to the cmd.sh behind it, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path

from lcplan.cli import run as lcplan
from tests import report_kit
from tests.browser_kit import browser, needs_browser

_SHOWN = """
const run = document.getElementById('run-a'), box = run.getBoundingClientRect();
const command = run.querySelector('details.cmd');
return [location.hash, box.top < innerHeight && box.bottom > 0, command.open, command.querySelector('pre').innerText];
"""


def report(tmp_path: Path) -> Path:
    report_kit.campaign(tmp_path / "state")
    output = tmp_path / "report.html"
    assert lcplan(["report", "--state", str(tmp_path / "state"), "-o", str(output), "--simulated"]) == 0
    return output


@needs_browser
def test_a_click_on_a_point_shows_the_command_that_made_it(tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page:
        page.open(report(tmp_path))
        assert page.evaluate("return document.querySelector('#run-a details.cmd').open") is False
        page.click('#group-0 svg a[href="#run-a"]')
        address, seen, opened, command = page.evaluate(_SHOWN)
        assert (address, seen, opened) == ("#run-a", True, True)
        assert "exec vllm serve" in command and "--served-model-name a" in command
        page.click("#run-a a[href$='cmd.sh']")
        assert "exec vllm serve" in page.evaluate("return document.body.innerText")


@needs_browser
def test_the_page_fits_a_phone_and_follows_the_dark_scheme(tmp_path: Path) -> None:
    file = report(tmp_path)
    with browser(tmp_path / "profile", width=500, dark=True) as page:
        page.open(file)
        wide = page.evaluate("return document.documentElement.scrollWidth - innerWidth")
        paper = page.evaluate("return getComputedStyle(document.body).backgroundColor")
        errors = page.evaluate("return performance.getEntriesByType('resource').map(one => one.name)")
    assert wide <= 0
    assert paper == "rgb(18, 22, 28)"
    assert errors == []
