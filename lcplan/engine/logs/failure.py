"""What a failed launch means to its user: one sentence and one hint for each class of failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lcplan.base.units import show_tokens

if TYPE_CHECKING:
    from lcplan.engine.logs.facts import LogFacts

_MEANING = {
    "memory_not_free": ("less GPU memory is free than the engine was told to use", "wait for or stop what holds it"),
    "kv_no_memory": (
        "nothing is left for the KV cache once the weights are loaded",
        "raise --gpu-memory-utilization (SGLang: --mem-fraction-static), or spread the model over more GPUs",
    ),
    "kv_too_small": (
        "the KV cache holds less than one request of the full context",
        "lower the context, raise --gpu-memory-utilization, or use an FP8 KV cache",
    ),
    "oom": (
        "the GPU ran out of memory after the KV cache was sized",
        "lower --gpu-memory-utilization (SGLang: --mem-fraction-static), the sequence cap or the prefill chunk",
    ),
    "mamba_cache_blocks": ("the sequence cap exceeds the state slots of a hybrid model", "lower the sequence cap"),
    "req_slots_exhausted": ("the scheduler ran out of request slots while serving", "lower --max-running-requests"),
    "max_model_len_above_model": (
        "the context is longer than the model's own",
        "lower the context or declare rope_scaling",
    ),
    "unsupported_model": (
        "this engine version does not know the model's architecture",
        "use a newer engine version, or another engine",
    ),
    "gated_model": (
        "the model's files may not be read with this account",
        "accept the model's licence and pass HF_TOKEN as a from_env secret",
    ),
    "bad_flag": (
        "the engine refused its command line",
        "correct the flags that it names; compare the engine's version",
    ),
    "bad_parallel_size": (
        "a size of the model is not divisible by the parallel size",
        "choose a tensor parallel size that divides it",
    ),
    "not_enough_gpus": ("fewer GPUs are visible than the layout needs", "check the layout and the GPUs given to it"),
    "port_in_use": ("a port is taken by another process", "stop what listens there, or choose another port"),
    "hang": ("the workers wait for each other and nothing goes on", "look at GPU health and NCCL; launch it again"),
    "engine_stuck": (
        "requests wait and none runs",
        "launch the server again; look for one request larger than the pool",
    ),
    "worker_died": ("a process of the engine died", "look for host memory exhaustion and GPU errors in the system log"),
    "engine_failed": ("the engine failed and the log does not say why", "launch it with debug logging"),
    "unknown_error": (
        "the engine failed with an error that has no class",
        "read the line quoted and the log around it",
    ),
    "gpu_missing": (
        "no GPU is visible to the process",
        "check the driver and the container's GPU access, then restart it",
    ),
    "container_name_conflict": ("a container of that name exists", "remove or rename the existing container"),
    "image_pull": ("the image cannot be pulled", "check its name and tag, the registry login, and pin a digest"),
}
FAILURES = tuple(_MEANING)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure for the report: class (one of FAILURES), sentence and hint."""

    kind: str
    sentence: str
    hint: str


def classify_exit(facts: LogFacts, exit_code: int | None) -> Failure | None:
    """Return why a server that has ended (or never came up) failed; None when neither log nor exit code say so.

    `exit_code` is negative for a signal, as subprocess gives it; None = still running. The log's class wins over the
    code: SGLang may end with 0 after a crash, and a container's 137 says only that it was killed.
    """
    if facts.failure:
        return Failure(facts.failure, *_words(facts))
    if exit_code in (None, 0) or (facts.stopped and exit_code in (-15, 143, -2, 130)):
        return None
    if exit_code in (-9, 137):
        return Failure("worker_died", "the server was killed (signal 9)", _MEANING["worker_died"][1])
    if exit_code == 2 and facts.ready is None and not facts.kv_tokens:
        return Failure("bad_flag", *_MEANING["bad_flag"])
    return Failure("unknown_error", f"the server ended with exit code {exit_code}", _MEANING["unknown_error"][1])


def _words(facts: LogFacts) -> tuple[str, str]:
    sentence, hint = _MEANING[str(facts.failure)]
    data = facts.failure_data
    match facts.failure:
        case "kv_too_small" if "estimated_max_len" in data or "fits_tokens" in data:
            longest = data.get("estimated_max_len", data.get("fits_tokens"))
            if "needed_gib" in data:
                sentence += f": {data['needed_gib']} GiB needed, {data['available_gib']} GiB available"
            hint = f"lower the context to at most {longest:,} tokens, or raise --gpu-memory-utilization"
        case "kv_too_small" if "needed_gib" in data:
            sentence += f": {data['needed_gib']} GiB needed, {data['available_gib']} GiB available"
        case "memory_not_free" if "free_gib" in data and "wanted_gib" in data:
            sentence += f": {data['free_gib']} of {data['wanted_gib']} GiB"
        case "mamba_cache_blocks" if "allowed" in data:
            hint = f"lower the sequence cap to at most {data['allowed']}"
        case "max_model_len_above_model" if "model_max" in data:
            sentence += f" ({show_tokens(int(str(data['model_max'])))} tokens)"
        case "bad_flag" if data.get("arguments"):
            sentence += f": {' '.join(map(str, _list(data['arguments'])))}"
        case "port_in_use" if "port" in data:
            sentence = f"port {data['port']} is taken by another process"
        case "gated_model" | "image_pull" | "container_name_conflict":
            name = data.get("model") or data.get("image") or data.get("name")
            sentence += f": {name}" if name else ""
        case "bad_parallel_size" if "value" in data:
            sentence += f": {data['value']} by {data.get('tp', data.get('block', '?'))}"
    return sentence, hint


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
