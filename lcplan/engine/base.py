"""What every engine is to the rest of lcplan: a server described by values, and what one may ask of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from lcplan.base.layout import Layout

_EMPTY: Mapping[str, Any] = MappingProxyType({})
RUN_ID = "@RUN_ID@"


@dataclass(frozen=True)
class ServerSpec:
    """One server as declared.

    Contexts are tokens: `model_context` is what the model was trained for, `context` what is asked for (None: the
    engine decides). `args` are the engine's own flags without dashes, in declared order. `role` is prefill, decode or
    router in a split layout. `command` is the whole command of an `openai` server.
    """

    kind: str
    version: str | None
    model_path: str
    model_context: int | None
    context: int | None
    layout: Layout
    args: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    env: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    rope_scaling: Mapping[str, Any] | None = None
    role: str | None = None
    command: tuple[str, ...] | None = None


class Engine(Protocol):
    """One kind of server: its command line, and what follows from its flags before it runs."""

    kind: str
    default_port: int

    def argv(self, spec: ServerSpec, *, port: int, served_name: str, host: str = "0.0.0.0") -> list[str]:
        """Return the command line, program first."""
        ...

    def environment(self, spec: ServerSpec, *, port: int) -> dict[str, str]:
        """Return the variables that the spec's role needs beside its own `env`."""
        ...

    def identity(self, spec: ServerSpec) -> dict[str, Any]:
        """Return what decides the server's behaviour: canonical flag names -> typed values, `model` among them.

        Program form, host, port and served name are left out; 0.90 equals 0.9; aliases and underscores are folded.
        """
        ...

    def sequence_cap(self, spec: ServerSpec, gpu_memory_gib: float | None) -> tuple[int | None, str]:
        """Return the most sequences that one engine rank runs at once (None: not known), and where that comes from."""
        ...

    def label(self, spec: ServerSpec, moe: bool | None = None) -> str:
        """Return the layout as the engine will really run it, e.g. `dp4 with tensor-parallel experts`."""
        ...
