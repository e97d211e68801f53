"""Starting and stopping servers: the only package that does. Each runtime keeps the same contract (`base.Runtime`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lcplan.runtime.base import Runtime

_MODULES = {
    "process": "lcplan.runtime.process",
    "docker": "lcplan.runtime.docker",
    "sim": "lcplan.runtime.sim",
}


def get(name: str) -> Runtime:
    """Return the runtime of a name: process, docker or sim. Raises KeyError for any other."""
    made: Runtime = import_module(_MODULES[name]).RUNTIME
    return made
