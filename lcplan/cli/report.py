"""`lcplan report`: a static page of a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_STATE, State
from lcplan.cli.output import show

Output = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Where the page goes.")]
Simulated = Annotated[bool, typer.Option("--simulated", help="Show simulated numbers too, marked as such.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="PLAN", help="Only the cells of this plan file.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help="Write a static HTML page: charts, tables of what fits, runs and their cmd.sh.")(_report)


def _report(
    output: Output = Path("report/index.html"),
    simulated: Simulated = False,
    plan: PlanFile = None,
    state: State = DEFAULT_STATE,
) -> None:
    from lcplan.base.files import write_atomic
    from lcplan.cli.audit import read_plan_file
    from lcplan.report.campaign import gather
    from lcplan.report.page import page

    campaign = gather(state, simulated, read_plan_file(plan) if plan else None)
    write_atomic(output, page(campaign, output))
    hidden = f", {campaign.hidden} simulated runs left out (--simulated shows them)" if campaign.hidden else ""
    show(f"wrote {output}: {len(campaign.runs)} runs, {len(campaign.cells)} results{hidden}")
