"""What engines print while they start and serve, read into facts: `parse_log`, `LogReader`, `classify_exit`."""

from __future__ import annotations

from pathlib import Path

from lcplan.engine.logs.facts import LogFacts, Phase
from lcplan.engine.logs.failure import FAILURES, Failure, classify_exit
from lcplan.engine.logs.reader import LogReader

__all__ = ["FAILURES", "Failure", "LogFacts", "LogReader", "Phase", "classify_exit", "last_error", "parse_log"]


def parse_log(log: str | bytes | Path, engine: str | None = None) -> LogFacts:
    """Return the facts of a log: its text, or the Path of its file. Raises OSError for a file that can't be read."""
    reader = LogReader(engine)
    if isinstance(log, Path):
        reader.follow(log)
    else:
        reader.feed(log)
    return reader.facts()


def last_error(log: str | bytes) -> str | None:
    """Return the line that names the root cause of a failure, None when the log shows no failure."""
    return parse_log(log).last_error
