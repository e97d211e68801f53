"""What an apply tells while it runs: plain mappings for a view to show. Version 1, documented in docs/events.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

VERSION = 1
Sink = Callable[[dict[str, Any]], None]


def quiet(event: dict[str, Any]) -> None:
    """Take an event and show nothing."""
