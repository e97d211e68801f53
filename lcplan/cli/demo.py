"""`lcplan demo`: the whole way, on the simulator, in less than a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.output import show


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def demo(
        folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where the demo goes.")] = Path(
            "lcplan-demo"
        ),
    ) -> int:
        """Validate, plan, apply and audit a small campaign on the simulator."""
        from lcplan.apply.demo import demo as run
        from lcplan.audit.verify import verify
        from lcplan.audit.why import why
        from lcplan.view.apply import Lines
        from lcplan.view.audit import verified_text, why_text
        from lcplan.view.demo import ending

        made = run(folder, show, Lines().take)
        show(f"$ lcplan audit verify --state {made.state}")
        show(verified_text(verify(made.state)))
        name = f"{made.outcome.runs[-1]}/oneshot#ttft_s" if made.outcome.runs else ""
        if name:
            show(f"$ lcplan audit why {name} --state {made.state}")
            show(why_text(why(made.state, name)))
        show(ending(made, name))
        return 0 if made.outcome.good else 1
