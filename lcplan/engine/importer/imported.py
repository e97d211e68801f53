"""The result of an import: what a text says of one server, in the keys of the JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lcplan.base.diagnostics import Diagnostic
from lcplan.engine.importer.findings import Finding

_HIDDEN = ("findings", "tokens", "line")


@dataclass(slots=True)
class Imported:
    """One server as a text describes it. None: the text does not say.

    `engine` is vllm, sglang or None (refused); `form` docker, podman, compose, k8s, bare or args. Values that hold
    unknown variables stay text. `flags` are the engine's flags that have no field of their own, values as written.
    `tokens` are the engine's arguments with full flag names, for proofs; secrets stand in neither.
    """

    engine: str | None = None
    form: str | None = None
    image: str | None = None
    tag: str | None = None
    digest: str | None = None
    model: str | None = None
    served_model_name: Any = None
    gpus: list[str] | str | None = None
    gpu_count: int | None = None
    tp: Any = None
    dp: Any = None
    pp: Any = None
    ep: Any = None
    dcp: Any = None
    nnodes: Any = None
    node_rank: Any = None
    world_size: int | None = None
    max_model_len: Any = None
    max_num_seqs: Any = None
    gpu_mem_util: Any = None
    kv_cache_dtype: Any = None
    env: dict[str, str | None] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    listen_port: Any = None
    container: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    unresolved: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    line: int = 0

    @property
    def failed(self) -> bool:
        """Whether the text is refused, or holds a fault that no recipe may carry."""
        return self.engine is None or any(finding.is_error for finding in self.findings)

    def diagnostics(self, file: str) -> list[Diagnostic]:
        """Return the findings as diagnostics about a file."""
        return [finding.diagnostic(file) for finding in self.findings]

    def as_json(self, file: str) -> dict[str, Any]:
        """Return the JSON form: every field, `diagnostics` as names, `messages` as sentences."""
        out = {name: getattr(self, name) for name in self.__slots__ if name not in _HIDDEN}
        names = list(dict.fromkeys(finding.name for finding in self.findings))
        out["diagnostics"] = names
        out["messages"] = [diagnostic.as_json() for diagnostic in self.diagnostics(file)]
        return out
