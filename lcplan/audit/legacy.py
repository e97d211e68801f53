"""What the files of an older campaign say of a run: `<run id>/{cmd.sh, niah.log, server.log, *.json}`.

What they do not say is named as unknown and never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard

from lcplan.audit.figures import unit_of
from lcplan.base.canonical import digest
from lcplan.base.diagnostics import fail
from lcplan.engine.importer import Imported
from lcplan.engine.importer import read as read_command
from lcplan.engine.logs import LogFacts, parse_log

_RUN = re.compile(
    r"(?P<stack>.+?)__(?P<layout>[a-z0-9]+?(?:_\d+p\d+d)?)(?:_(?P<quad>[A-Za-z0-9-]+))?__(?P<context>\d+(?:\.\d+)?)k"
    r"__(?P<engine>[A-Za-z0-9.-]+)(?:__(?P<variant>.+?))?__(?P<stamp>\d{4}-\d{6})"
)
_SAME_LENGTH = 0.01
"""Needle prompts whose lengths differ by less belong to one cell."""
_BENCH = ("completed", "median_ttft_ms")
"""Keys that every result of `vllm bench serve` and `sglang.bench_serving` has."""


@dataclass(slots=True)
class Legacy:
    """What is known of a run, in the keys of a manifest's predicate, and in words what is not.

    `complete` says that the whole command line is known.
    """

    known: dict[str, Any] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    complete: bool = False


def read(folder: Path) -> Legacy:
    """Return what a folder says of its run. Raises OSError, or LcplanError `literal-secret` for a command with one."""
    made = Legacy()
    _name(folder.name, made)
    _command(folder / "cmd.sh", made)
    _log(folder / "server.log", made)
    _needles(folder / "niah.log", made)
    for file in sorted(folder.rglob("*.json")):
        _bench(file, file.relative_to(folder).as_posix(), made)
    if not made.cells:
        made.unknown.append("results: no needle rows and no benchmark results")
    _number(made.cells)
    for cell in made.cells:
        cell["fingerprint"] = digest(["adopted", folder.name, cell["cell"]])
    made.unknown += ["driver", "model files", "node", "recipe and plan", "whether prefix caches were cold"]
    return made


def _name(run: str, made: Legacy) -> None:
    found = _RUN.fullmatch(run)
    if found is None:
        made.unknown.append("stack, layout, quad, context and time: the run id does not tell them")
        return
    made.known |= {key: found[key] for key in ("stack", "layout", "quad", "variant")}
    made.known |= {"label": found["layout"], "context": round(float(found["context"]) * 1024)}
    made.known["engine"] = {"kind": found["engine"]}
    made.unknown.append(f"the year of {found['stamp']}")


def _command(file: Path, made: Legacy) -> None:
    if not file.is_file():
        made.unknown.append("command, image and settings: there is no cmd.sh")
        return
    command = read_command(file.read_text(errors="replace"))
    literal = [finding for finding in command.findings if finding.code == "secret-literal"]
    if literal:
        raise fail("literal-secret", f"{file} holds the value of the secret {literal[0].about}",
                   "what is adopted goes to git: replace the value by its name, and revoke it",
                   literal[0].diagnostic(str(file)).source)  # fmt: skip
    if command.engine is None:
        made.unknown.append("command, image and settings: cmd.sh starts no engine that is known")
        return
    _settings(command, made)
    elided = any(finding.code == "elided-arguments" for finding in command.findings)
    made.complete = not elided and not command.unresolved
    if elided:
        made.unknown.append("some arguments, which cmd.sh elides")
    if command.unresolved:
        made.unknown.append(f"values of variables in cmd.sh: {', '.join(map(str, command.unresolved))}")


def _settings(command: Imported, made: Legacy) -> None:
    image = command.image and command.image + (f":{command.tag}" if command.tag else "")
    tag = re.fullmatch(r"v?(\d+\.\d+\.\d+)", command.tag or "")
    made.known |= {
        "argv": command.tokens,
        "env": dict(command.env),
        "image": {"declared": image, "id": None, "digest": command.digest},
        "engine": {"kind": command.engine, "version": tag[1] if tag else None},
        "model": {"path": command.model},
        "runtime": "docker" if command.form == "docker" else "process",
        "gpus": command.gpus or command.gpu_count,
    }
    if not command.digest:
        made.unknown.append("image digest")
    if not tag:
        made.unknown.append("engine version")


def _log(file: Path, made: Legacy) -> None:
    if not file.is_file():
        made.unknown.append("capacity and the engine's own choices: there is no server.log")
        return
    facts = parse_log(file)
    engine = made.known.setdefault("engine", {})
    engine["choices"] = dict(facts.choices)
    if facts.engine_version:
        engine["served_version"] = facts.engine_version
        made.unknown = [one for one in made.unknown if one != "engine version"]
    made.known["capacity"] = {"predicted": None, "logged": _capacity(facts), "law": None}
    if not facts.kv_tokens:
        made.unknown.append("capacity: server.log does not print the pool")
    if facts.failure:
        made.known["failure"] = {"class": facts.failure, "last_error": facts.last_error}


def _capacity(facts: LogFacts) -> dict[str, Any] | None:
    if not facts.kv_tokens:
        return None
    return {
        "pool_tokens": min(facts.kv_tokens),
        "engines": facts.engines or len(facts.kv_tokens),
        "concurrency": min(facts.max_concurrency, default=None),
        "max_model_len": facts.max_model_len,
        "cap": facts.max_num_seqs,
    }


def _needles(file: Path, made: Legacy) -> None:
    if not file.is_file():
        return
    rows, damaged = _json_lines(file.read_text(errors="replace"))
    asked = [row for row in rows if isinstance(row.get("ok"), bool)]
    if damaged or len(asked) < len(rows):
        made.unknown.append(f"{damaged + len(rows) - len(asked)} lines of niah.log, which are no needle rows")
    for some in _by_length(asked):
        metrics = {
            "needles_found": _metric([sum(row["ok"] for row in some)], "needles"),
            "needles_asked": _metric([len(some)], "needles"),
        }
        latencies = [float(row["latency_s"]) for row in some if _is_number(row.get("latency_s"))]
        if latencies:
            metrics["e2e_s"] = _metric(latencies, "s")
        length = some[0].get("prompt_tokens")
        definition = {"kind": "needle", "depths": [row.get("depth") for row in some]}
        made.cells.append(_cell("needle", "needle", {"prompt": length} if length else {}, definition, metrics))


def _by_length(rows: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return rows in groups of one prompt length."""
    groups: list[list[dict[str, Any]]] = []
    for row in sorted(rows, key=lambda row: int(row.get("prompt_tokens") or 0)):
        first = int(groups[-1][0].get("prompt_tokens") or 0) if groups else -1
        if groups and int(row.get("prompt_tokens") or 0) <= first * (1 + _SAME_LENGTH):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _bench(file: Path, name: str, made: Legacy) -> None:
    try:
        result = json.loads(file.read_bytes())
    except ValueError:
        made.unknown.append(f"{name}, which is no JSON")
        return
    if not isinstance(result, Mapping) or not all(_is_number(result.get(key)) for key in _BENCH):
        made.unknown.append(f"{name}, which is no result of `vllm bench serve` or `sglang.bench_serving`")
        return
    completed = int(result["completed"])
    users = result.get("max_concurrency")
    axes = {"users": int(users)} if _is_number(users) else {}
    if not axes:
        made.unknown.append(f"users of {name}")
    if completed and _is_number(result.get("total_input_tokens")):
        axes["prompt"] = round(result["total_input_tokens"] / completed)
    definition = {"kind": "sweep", "file": name, **axes}
    made.cells.append(_cell("bench", "sweep", axes, definition, dict(_bench_metrics(result, completed))))


def _bench_metrics(result: Mapping[str, Any], completed: int) -> Iterable[tuple[str, dict[str, Any]]]:
    for metric, key, factor in (("ttft_s", "ttft_ms", 0.001), ("tpot_ms", "tpot_ms", 1.0), ("e2e_s", "e2el_ms", 0.001)):
        value = result.get(f"median_{key}")
        if _is_number(value):
            p90 = result.get(f"p90_{key}")
            tail = {"p90": _scaled(p90, factor)} if _is_number(p90) and completed >= 10 else {}
            yield metric, {"value": _scaled(value, factor), "unit": unit_of(metric), "n": completed, **tail}
            if metric == "tpot_ms" and value > 0:
                yield "user_tokens_per_s", _metric([1000 / value], "tokens/s", completed)
    for metric, key in (("output_tokens_per_s", "output_throughput"), ("total_tokens_per_s", "total_token_throughput")):
        if _is_number(result.get(key)):
            yield metric, _metric([float(result[key])], "tokens/s")
    yield "completed", _metric([completed], "requests")
    sent = result.get("num_prompts")
    if not _is_number(sent) and _is_number(result.get("failed")):
        sent = completed + int(result["failed"])
    if _is_number(sent):
        yield "sent", _metric([int(sent)], "requests")


def _cell(
    workload: str, kind: str, axes: Mapping[str, Any], definition: Mapping[str, Any], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "cell": workload,
        "workload": workload,
        "kind": kind,
        "axes": dict(axes),
        "definition": {**definition, **axes},
        "users": axes.get("users", 1),
        "repeat": 1,
        "experiments": ["adopted"],
        "status": "done",
        "reason": None,
        "metrics": dict(metrics),
    }


def _number(cells: Sequence[dict[str, Any]]) -> None:
    """Give cells their names: the axes where a workload has several, then the repeat."""
    taken: dict[str, int] = {}
    for cell in cells:
        several = sum(other["workload"] == cell["workload"] for other in cells) > 1
        named = several or cell["workload"] == "bench"
        axes = "".join(f".{axis}={cell['axes'][axis]}" for axis in sorted(cell["axes"])) if named else ""
        name = cell["workload"] + axes
        taken[name] = taken.get(name, 0) + 1
        cell["repeat"] = taken[name]
        cell["cell"] = name + (f".r{taken[name]}" if taken[name] > 1 else "")


def _json_lines(text: str) -> tuple[list[dict[str, Any]], int]:
    rows, damaged = [], 0
    for line in filter(str.strip, text.splitlines()):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            damaged += 1
    return rows, damaged


def _metric(values: Sequence[float], unit: str, n: int | None = None) -> dict[str, Any]:
    span = {"min": min(values), "max": max(values)} if len(values) > 1 else {}
    return {"value": median(values), "unit": unit, "n": n or len(values), **span}


def _scaled(value: float, factor: float) -> float:
    return round(value * factor, 9)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
