"""What the child is told: the launch it measures and the cells, one at a time. Plain data from JSON lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcplan.engine.dialect import DIALECTS
from lcplan.workload.prompts import Identity


class BadMessage(ValueError):
    """A message that lacks something or holds something of the wrong type; its text is a sentence."""


@dataclass(frozen=True, slots=True)
class Job:
    """One launch under measurement: where it answers, as what, and where its records go.

    `engine_url` is where an engine itself answers, what a router in front of it may not pass on.
    """

    base_url: str
    engine: str
    served: str
    folder: Path
    lineage: str
    run: str
    attempt: int = 1
    simulated: bool = False
    speed: float = 200.0
    engine_url: str = ""
    metrics_urls: tuple[str, ...] = ()
    vocabulary: int | None = None
    tokenizer: str | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell to measure. `workload` is the resolved point: kind, lengths, users, outputs.

    `bench` is the command of the benchmark tool that measures a sweep, without its flags.
    """

    name: str
    fingerprint: str
    workload: Mapping[str, Any]
    repeat: int = 1
    attempt: int = 1
    bench: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of workload."""
        return str(self.workload.get("kind", ""))

    def count(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number of the point. Raises BadMessage."""
        value = self.workload.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadMessage(f"{self.name}: '{key}' must be a positive whole number, got {value!r}")
        return value

    def requests(self, key: str, default: int | None = None) -> int:
        """Return a positive whole number of what the point says of its requests. Raises BadMessage."""
        said = self.workload.get("requests") or {}
        value = said.get(key, default) if isinstance(said, Mapping) else said
        if type(value) is not int or value < 1:
            raise BadMessage(f"{self.name}: 'requests' needs '{key}', a positive whole number, got {said!r}")
        return value

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers of the point, not empty. Raises BadMessage."""
        value = self.workload.get(key)
        if not isinstance(value, list) or not value or not all(type(v) in (int, float) for v in value):
            raise BadMessage(f"{self.name}: '{key}' must be a list of numbers, got {value!r}")
        return [float(v) for v in value]


def read_job(message: Mapping[str, Any]) -> Job:
    """Return the job of a message. Raises BadMessage."""
    for key in ("base_url", "engine", "served", "folder", "lineage", "run"):
        if not isinstance(message.get(key), str):
            raise BadMessage(f"the job has no '{key}'")
    if message["engine"] not in DIALECTS:
        raise BadMessage(f"the job names the engine kind '{message['engine']}'; known: {', '.join(DIALECTS)}")
    urls = message.get("metrics_url") or []
    return Job(
        base_url=message["base_url"].rstrip("/"),
        engine=message["engine"],
        served=message["served"],
        folder=Path(message["folder"]),
        lineage=message["lineage"],
        run=message["run"],
        attempt=int(message.get("attempt") or 1),
        simulated=bool(message.get("simulated")),
        speed=float(message.get("speed") or 200.0),
        engine_url=str(message.get("engine_url") or message["base_url"]).rstrip("/"),
        metrics_urls=tuple([urls] if isinstance(urls, str) else urls),
        vocabulary=message.get("vocabulary"),
        tokenizer=message.get("tokenizer"),
    )


def read_cell(message: Mapping[str, Any]) -> Cell:
    """Return the cell of a message. Raises BadMessage."""
    if not isinstance(message.get("cell"), str) or not isinstance(message.get("workload"), Mapping):
        raise BadMessage("a measure message needs 'cell' and 'workload'")
    return Cell(
        name=message["cell"],
        fingerprint=str(message.get("fingerprint") or ""),
        workload=message["workload"],
        repeat=int(message.get("repeat") or 1),
        attempt=int(message.get("attempt") or 1),
        bench=tuple(message.get("bench") or ()),
    )


def identity(job: Job, cell: Cell, attempt: str) -> Identity:
    """Return what makes this measurement's prompts its own."""
    return Identity(job.lineage, job.run, cell.name, cell.repeat, attempt)
