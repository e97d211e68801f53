"""What `lcplan lock` has written, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lcplan.apply.lock_images import Locked


def locked_text(made: Locked) -> str:
    """Return a line per image: its digest, and whether that is new."""
    lines = []
    for image, digest in made.images.items():
        before = made.before.get(image)
        note = "" if before == digest else " (new)" if before is None else f" (was {before[:19]})"
        lines.append(f"{image}  {digest}{note}")
    return "\n".join([*lines, f"wrote {made.file}"])
