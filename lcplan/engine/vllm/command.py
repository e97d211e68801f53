"""vLLM's command line: `vllm serve MODEL ...`."""

from __future__ import annotations

from typing import Any

from lcplan.engine import render
from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import Catalogue, load
from lcplan.engine.rope import with_rope

_CAP = "max-num-seqs"
# vllm/config/kv_transfer.py: the roles of a split layout; NixlConnector deprecates `kv_both`.
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


class Vllm:
    """The engine vLLM."""

    kind = "vllm"
    default_port = 8000

    def argv(self, spec: ServerSpec, *, port: int, served_name: str, host: str = "0.0.0.0") -> list[str]:
        """Return `vllm serve MODEL` with host, port, name, context, args, layout, and the sequence cap last."""
        address = ["--host", host, "--port", str(port), "--served-model-name", served_name]
        return ["vllm", "serve", spec.model_path, *address, *render.argv(_catalogue(spec), _items(spec))]

    def environment(self, spec: ServerSpec, *, port: int) -> dict[str, str]:
        """Return the variables that a role needs: the KV handshake of each server on a host needs a port of its own."""
        if spec.role not in _KV_ROLES or "VLLM_NIXL_SIDE_CHANNEL_PORT" in spec.env:
            return {}
        return {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port + 10_000)}

    def identity(self, spec: ServerSpec) -> dict[str, Any]:
        """Return canonical flag names -> typed values, and `model`."""
        return {"model": spec.model_path, **render.canonical(_catalogue(spec), _items(spec))}

    def sequence_cap(self, spec: ServerSpec, gpu_memory_gib: float | None) -> tuple[int | None, str]:
        """Return the cap per engine rank: the flag's, else the default for the GPU's memory (gigabytes of 2**30 bytes).

        Defaults: vllm/engine/arg_utils.py, 1,024 from 70 GiB on (256 on A100), 256 below; never above the batched
        tokens, doubled by `--performance-mode throughput`.
        """
        flags = self.identity(spec)
        if isinstance(flags.get(_CAP), int):
            return flags[_CAP], f"--{_CAP}"
        if gpu_memory_gib is None:
            return None, "vLLM's default, which depends on the GPU's memory"
        cap = 1024 if gpu_memory_gib >= 70 else 256
        if flags.get("performance-mode") == "throughput":
            cap *= 2
        batched = flags.get("max-num-batched-tokens")
        if isinstance(batched, int) and batched < cap:
            return batched, "vLLM's default, limited by --max-num-batched-tokens"
        return cap, f"vLLM's default for GPUs {'of 70 GiB and more' if gpu_memory_gib >= 70 else 'below 70 GiB'}"

    def label(self, spec: ServerSpec, moe: bool | None = None) -> str:
        """Return the layout as it will really run: without EP, the experts of a MoE are split over all ranks."""
        layout = spec.layout
        flags = self.identity(spec)
        if moe and layout.dp > 1 and flags.get("enable-expert-parallel") is not True:
            return f"{layout.text} with tensor-parallel experts"
        return layout.text


ENGINE = Vllm()


def _catalogue(spec: ServerSpec) -> Catalogue:
    return load("vllm", spec.version)


def _items(spec: ServerSpec) -> list[tuple[str, Any]]:
    catalogue = _catalogue(spec)
    cap: list[tuple[str, Any]] = []
    args: list[tuple[str, Any]] = []
    for word, value in spec.args.items():
        flag = catalogue.find(word)
        (cap if flag and flag.name == _CAP else args).append((word, value))
    context = [] if spec.context is None else [("max-model-len", spec.context)]
    args = with_rope(spec, catalogue, args, "hf-overrides", "rope_parameters")
    return [*context, *args, *_role(spec, catalogue, args), *_layout(spec), *cap]


def _layout(spec: ServerSpec) -> list[tuple[str, Any]]:
    layout = spec.layout
    sizes = [
        ("tensor-parallel-size", layout.tp),
        ("pipeline-parallel-size", layout.pp),
        ("data-parallel-size", layout.dp),
        ("enable-expert-parallel", layout.ep),
        ("decode-context-parallel-size", layout.dcp),
    ]
    return [(name, True if name.startswith("enable") else size) for name, size in sizes if size > 1]


def _role(spec: ServerSpec, catalogue: Catalogue, args: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    if spec.role not in _KV_ROLES:
        return []
    named = {flag.name for word, _ in args if (flag := catalogue.find(word))}
    if "kv-transfer-config" in named:
        return []
    return [("kv-transfer-config", {"kv_connector": "NixlConnector", "kv_role": _KV_ROLES[spec.role]})]
