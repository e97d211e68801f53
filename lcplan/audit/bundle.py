"""A run to take away: a folder or tar that another team can verify, ask and replay without the rest.

    README.md  state/runs/<run>/  state/ledger.jsonl  state/recipes/  recipes/  plan.json  origin.jsonl

The ledger of a bundle is a chain of its own over the run's events; `origin.jsonl` holds the lines of the ledger that it
was taken from, so that its keeper can tell whether they are theirs.
"""

from __future__ import annotations

import json
import shlex
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest_bytes, dumps
from lcplan.base.diagnostics import fail
from lcplan.record import ledger, manifest

_ARCHIVES = {".tar": "w", ".tgz": "w:gz", ".tar.gz": "w:gz"}


@dataclass(frozen=True, slots=True)
class Bundled:
    """What was written: where, how many files with how many bytes, and what could not be taken along."""

    path: Path
    files: int
    bytes: int
    missing: tuple[str, ...]


def bundle(root: Path, run: str, output: Path) -> Bundled:
    """Write the bundle of a sealed run as a folder, or as an archive when the name ends in .tar, .tar.gz or .tgz.

    Raises LcplanError: `unknown-run`, `manifest-damaged`, `file-exists`.
    """
    predicate = manifest.read(root, run)["predicate"]
    if output.exists():
        raise fail("file-exists", f"{output} is there already", "name another one")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as temporary:
        made = Path(temporary) / run
        missing = _fill(made, root, predicate)
        files = [file for file in made.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        mode = next((mode for suffix, mode in _ARCHIVES.items() if output.name.endswith(suffix)), None)
        if mode is None:
            made.rename(output)
        else:
            packed = Path(temporary) / "packed"
            with tarfile.open(packed, mode) as archive:  # type: ignore[call-overload]
                archive.add(made, arcname=run)
            packed.rename(output)
    return Bundled(output, len(files), size, tuple(missing))


def _fill(made: Path, root: Path, predicate: Mapping[str, Any]) -> list[str]:
    """Write the content of a bundle; return what the records name but do not hold."""
    run = str(predicate["run"])
    shutil.copytree(manifest.folder(root, run), made / "state" / "runs" / run)
    _write(made / "state" / "ledger.jsonl", "".join(_excerpt(root, run)))
    _write(made / "origin.jsonl", "".join(_lines(root, run)))
    plan = _plan(root, predicate)
    missing = [] if plan else [f"plan {str((predicate.get('plan') or {}).get('id') or 'unknown')[:12]}"]
    if plan:
        _write(made / "plan.json", plan)
    missing += _recipes(made, root, _sources(predicate, plan))
    missing += [
        subject["name"]
        for subject in manifest.read(root, run)["subject"]
        if not (made / "state" / "runs" / run / subject["name"]).exists()
    ]
    _write(made / "README.md", _readme(predicate, plan, missing))
    return missing


def _excerpt(root: Path, run: str) -> Iterator[str]:
    """Yield the events of a run as a chain that begins with them."""
    prev = ledger.GENESIS
    for seq, entry in enumerate(one for one in ledger.readable(root) if one.run == run):
        line = dumps(asdict(replace(entry, seq=seq, prev=prev)))
        prev = digest_bytes(line.encode())
        yield line + "\n"


def _lines(root: Path, run: str) -> Iterator[str]:
    for entry in ledger.readable(root):
        if entry.run == run:
            yield dumps(asdict(entry)) + "\n"


def _plan(root: Path, predicate: Mapping[str, Any]) -> str:
    """Return the text of the run's plan file, "" when the file is gone or holds another plan by now."""
    plan = predicate.get("plan") or {}
    name = str(plan.get("file") or "")
    for file in (Path(name), root.parent / name) if name else ():
        try:
            text = file.read_text()
            if json.loads(text)["id"] == plan.get("id"):
                return text
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return ""


def _sources(predicate: Mapping[str, Any], plan: str) -> dict[str, str]:
    """Return the recipe files of a run with their hashes: all of the plan's when it is known, else those it names."""
    named = {str(one["file"]): str(one.get("hash") or "") for one in predicate.get("recipe") or []}
    blobs = json.loads(plan).get("recipes", {}).get("blobs", {}) if plan else {}
    return {**named, **blobs}


def _recipes(made: Path, root: Path, sources: Mapping[str, str]) -> list[str]:
    missing = []
    for name, sha256 in sorted(sources.items()):
        kept = root / "recipes" / f"{sha256}.yaml"
        if not sha256.isalnum() or not kept.is_file():
            missing.append(name)
            continue
        _write(made / "state" / "recipes" / kept.name, kept.read_text())
        target = made / "recipes" / Path(name).name
        if target.exists():
            target = made / "recipes" / f"{Path(name).parent.name}-{Path(name).name}"
        _write(target, kept.read_text())
    return missing


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _readme(predicate: Mapping[str, Any], plan: str, missing: list[str]) -> str:
    run = str(predicate["run"])
    image = predicate.get("image") or {}
    env = predicate.get("env") or {}
    secrets = sorted(str(name) for name in env if not isinstance(env, Mapping) or isinstance(env[name], Mapping))
    simulated = " It is simulated: its numbers are no measurements." if predicate["simulated"] else ""
    needs = [
        f"the model at `{(predicate.get('model') or {}).get('path') or 'a path that is not known'}`",
        f"the image `{image.get('digest') or image.get('declared') or 'none'}`",
        _node(predicate),
        *([f"in the environment {', '.join(secrets)}"] if secrets else []),
    ]
    parts = [
        f"# {run}",
        f"One run with its records, its command and its recipes.{simulated}",
        "## Verify and ask",
        f"    lcplan audit verify --state state\n    lcplan audit why {run} --state state",
        "`origin.jsonl` are the lines of the ledger that this run was taken from. Whoever keeps that ledger finds each "
        "of them in it, unchanged.",
        "## Replay the server",
        f"    bash state/runs/{run}/cmd.sh",
        f"It needs {', '.join(needs)}.",
    ]
    if predicate.get("recipe"):
        parts += ["## Replay the measurements", _replay(predicate, plan),
                  "Prompts differ in each measurement by design; what must agree are the figures."]  # fmt: skip
    if plan:
        parts.append("`plan.json` is the plan that the run was part of.")
    if missing:
        parts.append(f"Not in this bundle, because the records no longer hold it: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


def _replay(predicate: Mapping[str, Any], plan: str) -> str:
    """Return the commands that measure a run's stack again, in a state of its own."""
    select = f"stack={predicate.get('stack')},variant={predicate.get('variant') or ''}"
    runtime = "sim" if predicate["simulated"] else str(predicate.get("runtime") or "process")
    given = json.loads(plan).get("vars", {}) if plan else {}
    words = "".join(f" --var {shlex.quote(f'{name}={value}')}" for name, value in sorted(given.items()))
    chosen = f"--target {shlex.quote(select)} --runtime {runtime}{words}"
    return f"    lcplan plan recipes {chosen} --state again -o again.json\n    lcplan apply again.json --state again"


def _node(predicate: Mapping[str, Any]) -> str:
    placed = predicate.get("placement") or {}
    gpus = placed.get("gpus")
    return f"{len(gpus)} GPUs" if gpus else "the GPUs that cmd.sh names"
