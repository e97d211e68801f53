"""Failures at start that a fault asks for, in each engine's own words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcplan.sim.launch import StartFailure
from lcplan.sim.logs import NOTICE
from lcplan.sim.profiles import GPU_GIB

if TYPE_CHECKING:
    from lcplan.sim.server import Face

_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity "
    "of 139.81 GiB of "
    "which 1.20 GiB is free."
)


def fail_as_told(face: Face) -> None:
    """Write the failure that fault `die_at_start` names and raise StartFailure; return without that fault."""
    fault = face.launch.faults.get("die_at_start")
    if fault is None:
        return
    kind = str(fault["class"])
    face.log.err(NOTICE)
    if kind == "port_in_use":
        raise StartFailure("Traceback (most recent call last):\nOSError: [Errno 98] Address already in use", 1)
    if kind == "gated_model":
        model = face.launch.model.rsplit("/", 1)[-1]
        raise StartFailure(
            "Traceback (most recent call last):\n"
            f"OSError: You are trying to access a gated repo.\n401 Client Error. Access to {model} is restricted.",
            1,
        )
    face.log.fail(_cause(face, kind))


def _cause(face: Face, kind: str) -> str:
    launch = face.launch
    available, context = launch.available_gib, launch.context
    asked = f"({launch.fraction}, {round(launch.fraction * GPU_GIB, 2)} GiB)"
    sglang = launch.kind == "sglang"
    return {
        "oom": _OOM,
        "kv_no_memory": "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
        "Current value: "
        f"mem_fraction_static={launch.fraction}"
        if sglang
        else "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine.",
        "kv_too_small": f"ValueError: To serve at least one request with the model's max seq len ({context}), "
        f"({round(available + 8, 2)} GiB KV cache is needed, which is larger than the available KV cache memory "
        f"({round(available, 2)} GiB). Based on the available memory, the estimated maximum model length "
        f"is {context // 2}. "
        "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        "memory_not_free": f"ValueError: Free memory on device cuda:0 (3.1/{GPU_GIB} GiB) on startup is "
        "less than desired "
        f"GPU memory utilization {asked}. Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes.",
        "not_enough_gpus": f"World size ({launch.tp * launch.dp * launch.pp}) is larger than the number "
        "of available GPUs "
        "(1) in this node.",
        "worker_died": "RuntimeError: Worker proc VllmWorker-1 died unexpectedly (exit code: -9), "
        "shutting down executor.",
        "engine_failed": "RuntimeError: simulated failure of the engine",
    }[kind]
