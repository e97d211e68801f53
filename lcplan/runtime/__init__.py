"""Starting and stopping servers: the only package that does. Each runtime keeps the same contract (`base.Runtime`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lcplan.runtime.base import Runtime

_MODULES = {"process": "lcplan.runtime.process", "sim": "lcplan.runtime.sim"}


def get(name: str) -> Runtime:
    """Return the runtime of a name: process or sim. Raises KeyError for a name that no plan of this version has."""
    made: Runtime = import_module(_MODULES[name]).RUNTIME
    return made
