"""A flag table made from the source of an engine's package, without importing it: no GPU code runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from lcplan.base.diagnostics import Diagnostic, fail, warning
from lcplan.engine import catalog_arguments
from lcplan.engine.catalog_source import Package

_READERS: dict[str, Callable[[Package], list[dict[str, Any]]]] = {
    "vllm": catalog_arguments.vllm,
    "sglang": catalog_arguments.sglang,
    "vllm-router": catalog_arguments.router,
}
_ENTRY = {"vllm": "vllm serve", "sglang": "sglang serve | python -m sglang.launch_server", "vllm-router": "vllm-router"}
_NOTES = {
    "vllm": "underscores before the first '.' of a --long option are turned into dashes",
    "sglang": "dashes only; underscores are refused",
}
# Engines are published for Linux on x86-64; the table does not depend on the machine that makes it.
_PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(17, 41)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def make(requirement: str) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Return the flag table of `vllm==0.32.0`, and warnings on what its source does not tell.

    The installed package is read when it has that version, else its wheel is downloaded with pip. Raises LcplanError
    when the package can't be had or is none that can be read.
    """
    kind, _, version = requirement.partition("==")
    kind = kind.strip().replace("_", "-")
    if kind not in _READERS:
        raise fail("catalogue-package", f"'{kind}' has no reader", f"known: {', '.join(_READERS)}")
    version, package = _installed(kind, version.strip()) or _downloaded(kind, version.strip())
    return table(kind, version, package)


def table(kind: str, version: str, package: Package) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Return the flag table of a package's sources. Raises LcplanError when they declare no flags."""
    entries: dict[str, dict[str, Any]] = {}
    for entry in _READERS[kind](package):
        entries.setdefault(entry["flag"], entry)
    if not entries:
        raise fail("catalogue-package", f"the source of {kind} {version} declares no flags where they are looked for")
    kinds: dict[str, int] = {}
    for entry in entries.values():
        kinds[entry["kind"]] = kinds.get(entry["kind"], 0) + 1
    problems = [
        warning(
            "catalogue-unread",
            f"{key} of {len(flags)} flags are computed at run time and left open: {', '.join(flags[:5])}"
            + (", ..." if len(flags) > 5 else ""),
        )
        for key in ("choices", "default")
        if (flags := [flag for flag, entry in entries.items() if key in entry.get("unread", ())])
    ]
    head = {"engine": kind, "version": version, "entrypoint": _ENTRY[kind], "source": "read from the package's source"}
    notes = [_NOTES[kind]] if kind in _NOTES else []
    return {**head, "count": len(entries), "kinds": kinds, "notes": notes, "flags": list(entries.values())}, problems


def text(made: dict[str, Any]) -> str:
    """Return a table as JSON, one flag a line."""
    head = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if key != "flags")
    return "{\n" + head + ',\n"flags": [\n' + ",\n".join(json.dumps(entry) for entry in made["flags"]) + "\n]\n}\n"


def _installed(kind: str, version: str) -> tuple[str, Package] | None:
    try:
        found = metadata.distribution(kind)
    except metadata.PackageNotFoundError:
        return None
    if version and found.version != version:
        return None
    sources = {str(file): Path(str(found.locate_file(file))) for file in found.files or [] if file.suffix == ".py"}
    return found.version, Package({name: path.read_text() for name, path in sources.items() if path.exists()})


def _downloaded(kind: str, version: str) -> tuple[str, Package]:
    with tempfile.TemporaryDirectory(prefix="lcplan-catalog-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
        command += ["--only-binary", ":all:", "--python-version", "3.12", "--implementation", "cp"]
        command += [word for abi in ("cp312", "abi3", "none") for word in ("--abi", abi)]
        command += [word for platform in _PLATFORMS for word in ("--platform", platform)]
        command.append(f"{kind}=={version}" if version else kind)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(folder).glob("*.whl"), None)
        if wheel is None:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            reason = re.sub(r" \(from versions:.*\)", "", lines[0])[7:] if lines else "pip found no wheel"
            raise fail("catalogue-package", f"{command[-1]} can't be downloaded: {reason}")
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".py")]
            files = {name: archive.read(name).decode("utf-8", "replace") for name in names}
        return wheel.name.split("-")[1], Package(files)
