"""What `lcplan state orphans` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lcplan.apply.orphans import Orphan


def orphans_text(some: Sequence[Orphan], removed: Sequence[Orphan]) -> str:
    """Return one line per server, and what was or can be done about them."""
    if not some:
        return "no orphans: every labelled server has a live owner"
    lines = []
    for one in some:
        where = f"state directory {one.found.state}" if one.found.state else "no state directory"
        fate = "removed" if one in removed else "left alone" if one.owner == "elsewhere" else "owner gone"
        lines.append(f"{one.found.run}  {one.found.what}, {where}: {fate}")
    if not removed and any(one.owner == "gone" for one in some):
        lines.append("`lcplan state orphans --remove` ends those whose owner is gone")
    return "\n".join(lines)
