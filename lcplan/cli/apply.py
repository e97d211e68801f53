"""`lcplan apply`: do what a plan says."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Var, Wait, Yes
from lcplan.cli.output import show, variables


class Rehearsal(StrEnum):
    """The only override of a plan's runtime."""

    SIM = "sim"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def apply(
        plan: Annotated[Path, typer.Argument(metavar="PLAN")] = Path("plans/plan.json"),
        runtime: Annotated[Rehearsal | None, typer.Option(help="Rehearse this very plan on the simulator.")] = None,
        sim_speed: Annotated[float, typer.Option("--sim-speed", min=1.0, help="Virtual seconds per second.")] = 200.0,
        hash_weights: Annotated[
            bool, typer.Option("--hash-weights", help="Record the sha256 of every shard; kept, since it takes minutes.")
        ] = False,
        yes: Yes = False,
        wait: Wait = False,
        var: Var = None,
        as_json: AsJson = False,
        state: State = DEFAULT_STATE,
    ) -> int:
        """Apply a plan: launch, check, measure, stop, seal. Ctrl-C once finishes the cell, twice stops now."""
        from lcplan.apply.prepare import read_plan
        from lcplan.apply.run import apply as run
        from lcplan.view.apply import closing, sink_for
        from lcplan.view.plan import plan_text

        made, plan_id = read_plan(plan)
        if not as_json:
            show(plan_text(made, plan_id))
        if made.changes and not yes and not as_json and sys.stdin.isatty() and not typer.confirm("Apply this plan?"):
            return 1
        with sink_for(made, as_json) as sink:
            outcome = run(
                plan, state, variables=variables(var), rehearsal=runtime is not None, speed=sim_speed, wait=wait,
                sink=sink, hash_weights=hash_weights,
            )  # fmt: skip
        if not as_json:
            show(closing(outcome))
        return 0 if outcome.good else 1
