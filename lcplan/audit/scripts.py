"""The commands of a run: cmd.sh, and for a split layout one more per server, which cmd.sh starts."""

from __future__ import annotations

from pathlib import Path

from lcplan.record import manifest


def scripts(root: Path, run: str) -> dict[str, str]:
    """Return the texts of a run's `cmd.sh` and `cmd.<role>.sh` by name, cmd.sh first; {} when there are none.

    Raises LcplanError `unknown-run`.
    """
    folder = manifest.folder(root, run)
    files = [folder / "cmd.sh", *sorted(folder.glob("cmd.*.sh"))]
    return {file.name: file.read_text(errors="replace") for file in files if file.is_file()}
