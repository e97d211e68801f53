"""The page itself. One file that needs no network: styles, charts and commands stand in it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from lcplan import __version__
from lcplan.audit.listing import Listed
from lcplan.audit.scripts import scripts
from lcplan.report.campaign import Campaign, Measured
from lcplan.report.capacity import Held, capacity_rows
from lcplan.report.figures import Group, groups, show_number
from lcplan.report.gantt import gantt
from lcplan.report.html import link, table, tag, text
from lcplan.report.svg import draw, draw_gantt, key

_CSP = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_OPEN_TARGET = """
function reveal() {
  const section = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!section) return;
  section.querySelectorAll('details.cmd').forEach(one => { one.open = true; });
  section.scrollIntoView();
}
addEventListener('hashchange', reveal);
addEventListener('DOMContentLoaded', reveal);
"""
"""A link to a run opens its command."""
_SIMULATED = tag("span", "simulated", class_="mark")
_COLUMNS = (
    ("ttft_s", "TTFT s"), ("tpot_ms", "TPOT ms"), ("user_tokens_per_s", "user tokens/s"),
    ("output_tokens_per_s", "output tokens/s"), ("hit_rate_percent", "cache hits %"), ("completed", "completed"),
)  # fmt: skip


def page(campaign: Campaign, output: Path) -> str:
    """Return the HTML of a report to be written to `output`, from where it links to the files of the runs."""
    slots = _slots(campaign)
    made = groups(campaign.cells, campaign.left_out)
    to_runs = quote(os.path.relpath(campaign.root.resolve() / "runs", output.parent.resolve()))
    parts = [
        _head(campaign),
        _nav(made),
        tag("h2", "Results", id="results"),
        tag("p", text(_HOW_TO_READ), class_="soft"),
        *(_group(group, number, slots) for number, group in enumerate(made)),
        _capacity(campaign),
        _gantt(campaign, slots),
        _left_out(campaign),
        _runs(campaign),
        *(_run(one, campaign, to_runs) for one in campaign.runs),
    ]
    styles = files("lcplan.report").joinpath("page.css").read_text()
    head = tag(
        "head",
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">',
        tag("title", "lcplan campaign report"),
        tag("style", styles),
        tag("script", _OPEN_TARGET),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', *parts), lang='en')}\n"


_HOW_TO_READ = (
    "Filled points are published (or simulated, where marked), hollow ones are not published yet; grey hatched squares "
    "are capacity-limited: more users than fit at once. A whisker with a cap ends at the 90th percentile (at what was "
    "sent, for counts); one without spans all values, where there are too few for a percentile. Lines join medians. "
    "Every point leads to the run and the cmd.sh that made it."
)


def _slots(campaign: Campaign) -> dict[str, int]:
    """Return a colour for each subject, the same everywhere on the page."""
    return {
        name: number for number, name in enumerate(sorted({campaign.subject(one.predicate) for one in campaign.runs}))
    }


def _head(campaign: Campaign) -> str:
    standings = sorted(Counter(one.standing.word for one in campaign.runs).items())
    tiles = [("runs", len(campaign.runs)), ("results", len(campaign.cells))]
    tiles += [("cells without a result", len(campaign.left_out)), *((f"runs {word}", n) for word, n in standings)]
    notices = []
    if campaign.hidden:
        notices.append(f"Simulated numbers are not shown: {_count(campaign.hidden, 'simulated run')} left out. "
                       "`lcplan report --simulated` shows them, marked.")  # fmt: skip
    if any(one.predicate["simulated"] for one in campaign.runs):
        notices.append("This page holds simulated numbers, each marked as such. They are no measurements.")
    if not campaign.runs:
        notices.append("Nothing is recorded here yet.")
    notices += campaign.warnings
    of_plan = f", plan {campaign.plan[:12]}" if campaign.plan else ""
    facts = f"lineage {campaign.lineage[:12] or 'unknown'}, {_count(campaign.events, 'ledger event')}{of_plan}"
    return "".join([
        tag("h1", "Campaign report"),
        tag("p", text(f"{facts}; lcplan {__version__}"), class_="soft"),
        *(tag("p", text(notice), class_="notice") for notice in notices),
        tag("ul", *(tag("li", tag("b", text(f"{count:,}")), text(name)) for name, count in tiles), class_="tiles"),
    ])  # fmt: skip


def _nav(made: Sequence[Group]) -> str:
    items = [(f"#group-{number}", group.title) for number, group in enumerate(made)]
    items += [("#capacity", "What fits"), ("#gantt", "As run"), ("#left-out", "No results"), ("#runs", "Runs")]
    return tag("nav", tag("ul", *(tag("li", link(*item)) for item in items)))


def _group(group: Group, number: int, slots: Mapping[str, int]) -> str:
    mark = _SIMULATED if group.simulated else ""
    names = list(dict.fromkeys(series.name for chart in group.charts for series in chart.series))
    slot_of = {name: slots.get(name, slots.get(name.split(", ")[0], 0)) for name in names}
    if len(set(slot_of.values())) < len(names):  # a subject that is drawn twice, as the ramps of its conversations
        slot_of = {name: at for at, name in enumerate(names)}
    charts = [
        tag("figure", tag("figcaption", text(f"{chart.title} ({chart.unit})"), mark),
            draw(chart, slot_of, f"chart-{number}-{at}"))
        for at, chart in enumerate(group.charts)
    ]  # fmt: skip
    gone = ""
    if group.left_out:
        statuses = Counter(one.cell["status"] for one in group.left_out)
        said = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        gone = tag("p", text(f"Left out of these charts: {said} ("), link("#left-out", "why"), ").", class_="soft")
    limited = any(dot.limited for chart in group.charts for series in chart.series for dot in series.dots)
    hatched = [tag("li", tag("span", "&nbsp;&nbsp;", class_="limited"), " capacity-limited")] if limited else []
    shown = [] if all(chart.bars for chart in group.charts) else names
    legend = tag("ul", *(_key(name, slot_of[name]) for name in shown), *hatched, class_="legend")
    body = [legend, tag("div", *charts, class_="charts"), gone, _numbers(group, mark)] if charts else [gone]
    return tag("section", tag("h3", text(group.title), " ", mark), *body, id=f"group-{number}")


def _key(name: str, slot: int) -> str:
    shape, colour = key(slot)
    glyph = tag("span", shape, style=f"color: {colour}", aria_hidden="true")
    return tag("li", glyph, " ", text(name))


def _numbers(group: Group, mark: str) -> str:
    columns = [(metric, name) for metric, name in _COLUMNS if any(one.figure(metric) for one in group.cells)]
    rows = [
        [text(one.subject), text(one.cell["cell"]), *(_figure(one, metric) for metric, _ in columns),
         text(one.standing.word)]
        for one in sorted(group.cells, key=lambda one: one.subject)
    ]  # fmt: skip
    header = ["stack", "cell", *(name for _, name in columns), "standing"]
    return tag("details", tag("summary", f"Numbers ({len(rows)})"), table(header, rows, mark))


def _figure(one: Measured, metric: str) -> str:
    found = one.figure(metric)
    if found is None:
        return ""
    shown = show_number(found["value"])
    if metric == "completed" and (sent := one.figure("sent")):
        shown += f" of {show_number(sent['value'])}"
    p90 = f" (p90 {show_number(found['p90'])})" if "p90" in found and metric in ("ttft_s", "tpot_ms") else ""
    made = link(f"#run-{one.run}", shown, f"{one.ref}#{metric}") + text(p90)
    return tag("span", made, class_="limited", title="capacity-limited") if one.limited else made


def _capacity(campaign: Campaign) -> str:
    shapes, rows = capacity_rows([*campaign.cells, *campaign.left_out])
    head = tag("h2", "What fits", id="capacity")
    if not rows:
        return head + tag("p", "No run has recorded its capacity.")
    mixed = not all(row.simulated for row in rows)
    shown = [
        [
            link(f"#run-{row.run}", row.subject) + (f" {_SIMULATED}" if row.simulated and mixed else ""),
            *(_known(value) for value in (row.pool, row.engines, row.cap)),
            *(_held(row.held.get(shape), row.run) for shape in shapes),
        ]
        for row in rows
    ]
    said = (
        "Sequences that the whole launch holds at once, as read after it started, and what limits them: its pool of KV "
        "tokens or its cap of sequences. Hatched: more users were asked for than fit."
    )
    header = ["stack", "pool, tokens per engine", "engines", "cap per engine", *shapes]
    mark = _SIMULATED if any(row.simulated for row in rows) else ""
    return head + tag("p", text(said), class_="soft") + table(header, shown, mark)


def _held(held: Held | None, run: str) -> str:
    if held is None:
        return ""
    if held.effective is None:
        return "unknown"
    shown = link(f"#run-{run}", f"{held.effective:,}") + text(f" {held.limit}")
    if not held.limited:
        return shown
    return tag("span", shown, text(f", asked {held.asked}"), class_="limited")


def _gantt(campaign: Campaign, slots: Mapping[str, int]) -> str:
    head = tag("h2", "As run", id="gantt")
    found = gantt(campaign)
    if found is None:
        return head + tag("p", "No run has recorded its times.")
    plan = f"plan {found.plan[:12]}" if found.plan else "runs without a plan"
    caption = tag(
        "figcaption", text(f"Launches of {plan}, pale while they load"), _SIMULATED if found.simulated else ""
    )
    names = dict.fromkeys(bar.subject for bar in found.bars)
    coloured = [tag("li", _swatch(slots.get(name, 0)), " ", text(name)) for name in names]
    legend = tag("ul", *coloured, class_="legend")
    return head + tag("figure", caption, legend, tag("div", draw_gantt(found, slots, "gantt"), class_="wide gantt"))


def _swatch(slot: int) -> str:
    return tag("span", "■", style=f"color: {key(slot)[1]}", aria_hidden="true")


def _left_out(campaign: Campaign) -> str:
    head = tag("h2", "Cells without a result", id="left-out")
    rows = [
        [text(one.cell["status"]), link(f"#run-{one.run}", one.ref),
         text(one.cell.get("sentence") or one.cell.get("reason") or ""), _SIMULATED if one.standing.simulated else ""]
        for one in campaign.left_out
    ]  # fmt: skip
    if not rows:
        return head + tag("p", "None: every recorded cell that is shown here has a result.")
    return head + table(["status", "cell", "why", ""], rows)


def _runs(campaign: Campaign) -> str:
    rows = []
    for one in campaign.runs:
        run = one.predicate
        word = one.standing.word
        standing = _SIMULATED if word == "simulated" else text(word)
        done = sum(cell["status"] == "done" for cell in run["cells"])
        started = str((run.get("times") or {}).get("started") or "unknown")[:19].replace("T", " ")
        rows.append([tag("span", link(f"#run-{run['run']}", run["run"]), class_="run"), standing, text(one.status),
                     text(run.get("quad") or "node"), f"{done} of {len(run['cells'])}", text(started)])  # fmt: skip
    header = ["run", "standing", "status", "quad", "cells done", "started (UTC)"]
    return tag("h2", "Runs", id="runs") + table(header, rows)


def _run(one: Listed, campaign: Campaign, to_runs: str) -> str:
    run = one.predicate
    run_id = str(run["run"])
    folder = f"{to_runs}/{quote(run_id)}"
    why = one.standing.retracted or ("" if run["simulated"] else one.standing.provisional)
    image, engine = run.get("image") or {}, run.get("engine") or {}
    facts = [
        ("standing", one.standing.word + (f": {why}" if why else "")),
        ("stack", f"{campaign.subject(run)}, {run.get('label') or run.get('layout')}"),
        ("quad", str(run.get("quad") or "(whole node)")),
        ("engine", f"{engine.get('kind') or 'unknown'} {engine.get('served_version') or engine.get('version') or ''}"),
        ("image", " ".join(str(image[key]) for key in ("declared", "digest") if image.get(key)) or "none"),
        ("plan", str((run.get("plan") or {}).get("id") or "unknown")),
        ("recipe", ", ".join(dict.fromkeys(f"{r['file']}:{r['line']}" for r in run.get("recipe") or [])) or "unknown"),
    ]
    cells = [
        [text(cell["cell"]), text(cell["status"]), text(_in_short(Measured(run, cell, one.standing, "")))]
        for cell in run["cells"]
    ]
    commands = scripts(campaign.root, run_id) or {"cmd.sh": "(this run has no cmd.sh)"}
    names = ["manifest.json", *commands, "server.log", "niah.log"]
    present = [name for name in names if (campaign.root / "runs" / run_id / name).is_file()]
    return tag(
        "section",
        tag("h3", text(run_id), " ", _SIMULATED if run["simulated"] else ""),
        table([], [[text(name), text(value)] for name, value in facts]),
        tag("p", ", ".join(link(f"{folder}/{file}", file) for file in present)),
        *(
            tag("details", tag("summary", name), tag("pre", tag("code", text(script))), class_="cmd")
            for name, script in commands.items()
        ),
        tag("details", tag("summary", f"{_count(len(cells), 'cell')}"), table(["cell", "status", "figures"], cells,
                                                                           _SIMULATED if run["simulated"] else "")),
        id=f"run-{run_id}",
        class_="run",
    )  # fmt: skip


def _in_short(one: Measured) -> str:
    if one.cell["status"] != "done":
        return str(one.cell.get("sentence") or one.cell.get("reason") or "")
    shown = [f"{name} {show_number(found['value'])}" for metric, name in _COLUMNS if (found := one.figure(metric))]
    return ", ".join(shown)


def _known(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
