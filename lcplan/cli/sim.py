"""`lcplan sim`: the simulated engine by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Var, Wait
from lcplan.cli.output import show, show_json, variables


def register(app: typer.Typer) -> None:
    """Add the commands."""
    sim = typer.Typer(no_args_is_help=True, help="The simulated engine.")
    app.add_typer(sim, name="sim")

    @sim.callback()
    def group() -> None:
        """The simulated engine."""

    # Everything behind the options is the engine's own command line, unknown dashes included.
    @sim.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    def serve(
        argv: Annotated[list[str], typer.Argument(metavar="ENGINE ARGV...", help="vllm serve MODEL ... and the like.")],
        speed: Annotated[float | None, typer.Option(help="Virtual seconds per second; default 200.")] = None,
        faults: Annotated[str | None, typer.Option(help="JSON list of {match, fault, ...}.")] = None,
        pool: Annotated[int | None, typer.Option(help="Tokens of KV cache per engine rank.")] = None,
    ) -> int:
        """Serve as the engine whose command line follows would, simulated."""
        from lcplan.sim.main import main

        options = {"--speed": speed, "--faults": faults, "--pool": pool}
        given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
        return main([*given, "--", *argv])

    @sim.command()
    def record(
        plan: Annotated[Path, typer.Argument(metavar="PLAN")] = Path("plans/plan.json"),
        state: State = DEFAULT_STATE,
        var: Var = None,
        wait: Wait = False,
        as_json: AsJson = False,
    ) -> None:
        """Seal simulated records for every cell of a plan without starting anything."""
        from lcplan.apply.sim_record import record as run

        runs = run(plan, state, variables(var), wait)
        if as_json:
            show_json({"runs": runs})
        else:
            show(f"sealed {len(runs)} simulated runs in {state}; nothing was started")
