"""The last words of the demo."""

from __future__ import annotations

from lcplan.apply.demo import Demo


def ending(made: Demo, name: str) -> str:
    """Return where the sealed runs are and what to ask next."""
    lines = ["", "Sealed runs:"]
    lines += [f"  {made.state / 'runs' / run}" for run in made.outcome.runs]
    lines += [
        "Ask where a number comes from:",
        f"  lcplan audit why {name} --state {made.state}",
        "Plan again (nothing changed, so it says so):",
        f"  lcplan plan {made.folder / 'recipes'} --runtime sim --state {made.state}",
        "Everything above is simulated and marked so; it can never pass for a measurement.",
    ]
    return "\n".join(lines)
