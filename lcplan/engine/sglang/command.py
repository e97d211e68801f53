"""SGLang's command line: `python3 -m sglang.launch_server --model-path MODEL ...`."""

from __future__ import annotations

from typing import Any

from lcplan.engine import render
from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import Catalogue, load
from lcplan.engine.rope import with_rope

_CAP = "max-running-requests"


class Sglang:
    """The engine SGLang."""

    kind = "sglang"
    default_port = 30000

    def argv(self, spec: ServerSpec, *, port: int, served_name: str, host: str = "0.0.0.0") -> list[str]:
        """Return `python3 -m sglang.launch_server` with model, host, port, name, context, layout and args."""
        address = ["--host", host, "--port", str(port), "--served-model-name", served_name]
        program = ["python3", "-m", "sglang.launch_server", "--model-path", spec.model_path]
        return [*program, *address, *render.argv(_catalogue(spec), _items(spec))]

    def environment(self, spec: ServerSpec, *, port: int) -> dict[str, str]:
        """Return no variables: SGLang's roles are flags."""
        return {}

    def identity(self, spec: ServerSpec) -> dict[str, Any]:
        """Return canonical flag names -> typed values, and `model`."""
        return {"model": spec.model_path, **render.canonical(_catalogue(spec), _items(spec))}

    def sequence_cap(self, spec: ServerSpec, gpu_memory_gib: float | None) -> tuple[int | None, str]:
        """Return the cap per engine rank: the flag is for the whole server, each data-parallel rank gets its share.

        Without the flag SGLang derives it from the pool (2,048 to 4,096 as a rule), which only the log tells.
        """
        cap = self.identity(spec).get(_CAP)
        if not isinstance(cap, int):
            return None, "derived by SGLang from its pool"
        ranks = spec.layout.dp
        return cap // ranks, f"--{_CAP}" if ranks == 1 else f"--{_CAP} over {ranks} ranks"

    def label(self, spec: ServerSpec, moe: bool | None = None) -> str:
        """Return the layout as it will really run: without EP, the experts of a MoE are split over all ranks."""
        layout = spec.layout
        if moe and layout.dp > 1 and layout.ep == 1 and "ep-size" not in self.identity(spec):
            return f"{layout.text} with tensor-parallel experts"
        return layout.text


ENGINE = Sglang()


def _catalogue(spec: ServerSpec) -> Catalogue:
    return load("sglang", spec.version)


def _items(spec: ServerSpec) -> list[tuple[str, Any]]:
    catalogue = _catalogue(spec)
    context = [] if spec.context is None else [("context-length", spec.context)]
    args = with_rope(spec, catalogue, list(spec.args.items()), "json-model-override-args", "rope_scaling")
    return [*context, *_layout(spec), *_role(spec, catalogue), *args]


def _layout(spec: ServerSpec) -> list[tuple[str, Any]]:
    """Data parallelism is that of attention: the ranks lie inside the tensor-parallel group (DP attention)."""
    layout = spec.layout
    sizes = [("tp-size", layout.tp * layout.dp), ("pp-size", layout.pp), ("dp-size", layout.dp)]
    sizes += [("ep-size", layout.ep), ("dcp-size", layout.dcp)]
    items: list[tuple[str, Any]] = []
    for name, size in sizes:
        if size > 1:
            items.append((name, size))
            if name == "dp-size":
                items.append(("enable-dp-attention", True))
    return items


def _role(spec: ServerSpec, catalogue: Catalogue) -> list[tuple[str, Any]]:
    named = {flag.name for word in spec.args if (flag := catalogue.find(word))}
    if spec.role not in ("prefill", "decode") or "disaggregation-mode" in named:
        return []
    return [("disaggregation-mode", spec.role)]
