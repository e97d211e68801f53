"""From an engine's own command line to what the simulator has to know, or to the failure that the engine would show."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lcplan.base.diagnostics import Diagnostic
from lcplan.engine.catalogue import load
from lcplan.sim import faults, profiles

VERSIONS = {"vllm": "0.31.0", "sglang": "0.5.21"}
_FORMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "vllm": (
        ("vllm", "serve"),
        ("-m", "vllm.entrypoints.openai.api_server"),
        ("-m", "vllm.entrypoints.cli.main", "serve"),
    ),
    "sglang": (("-m", "sglang.launch_server"), ("sglang", "serve")),
}

_AUTO = (-1, "auto")
_NO_CHOICE = re.compile(r"(--\S+) has no choice (.+); known: (.+)")
_NO_INTEGER = re.compile(r"(--\S+) takes an integer, not (.+)")
_NO_NUMBER = re.compile(r"(--\S+) takes a number, not (.+)")


class StartFailure(Exception):
    """The engine does not start: what it prints on stderr, and its exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


@dataclass(frozen=True, slots=True)
class Launch:
    """One simulated server. `pool` is in tokens of one rank, `weights_gib` and `available_gib` are of one GPU."""

    kind: str
    program: str
    model: str
    names: tuple[str, ...]
    host: str
    port: int
    profile: profiles.Profile
    speed: profiles.Speed
    native_context: int
    context: int
    tp: int
    pp: int
    dp: int
    dcp: int
    ep: bool
    page: int
    chunk: int
    max_seqs: int
    pool: int
    weights_gib: float
    available_gib: float
    fraction: float
    draft: int
    flags: Mapping[str, Any]
    env: Mapping[str, str]
    faults: faults.Faults

    @property
    def version(self) -> str:
        """The engine version whose face is shown."""
        return VERSIONS[self.kind]

    @property
    def eager(self) -> bool:
        """Whether decode steps run without graphs."""
        return bool(self.flags.get("enforce-eager" if self.kind == "vllm" else "disable-cuda-graph"))

    @property
    def cached(self) -> bool:
        """Whether there is a prefix cache."""
        off = not self.flags.get("enable-prefix-caching", True) if self.kind == "vllm" else None
        return not (off if off is not None else self.flags.get("disable-radix-cache", False))


def read(argv: Sequence[str], env: Mapping[str, str], fault_text: str = "", pool: int | None = None) -> Launch:
    """Return the launch that an engine's argv means. Raises StartFailure for what the engine would refuse at once."""
    kind, program, tokens = _engine(argv)
    catalogue = load(kind, VERSIONS[kind])
    parsed = catalogue.parse(tokens)
    errors = [p for p in parsed.problems if p.severity == "error"]
    surplus = parsed.positionals[1:] if kind == "vllm" else parsed.positionals
    if errors or surplus:
        raise StartFailure(_usage(kind, program, tokens, parsed.unknown, surplus, errors), 2)
    flags = parsed.flags
    model = str(flags.get("model") or flags.get("model-path") or next(iter(parsed.positionals), ""))
    if not model:
        missing = "--model-path/--model" if kind == "sglang" else "model_tag"
        name = "sglang serve" if kind == "sglang" else program
        raise StartFailure(f"{name}: error: the following arguments are required: {missing}", 2)
    return _launch(kind, program, model, flags, env, fault_text, pool)


def _launch(
    kind: str,
    program: str,
    model: str,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    fault_text: str,
    pool: int | None,
) -> Launch:
    config = _config(model)
    profile = profiles.resolve(model, config)
    named = flags.get("served-model-name") or [model]
    names = tuple(named) if isinstance(named, list) else (str(named),)
    chosen = faults.read(fault_text, names[0])
    tp = int(flags.get("tensor-parallel-size" if kind == "vllm" else "tp-size") or 1)
    dp = int(flags.get("data-parallel-size" if kind == "vllm" else "dp-size") or 1)
    pp = int(flags.get("pipeline-parallel-size" if kind == "vllm" else "pp-size") or 1)
    dcp = int(flags.get("decode-context-parallel-size" if kind == "vllm" else "dcp-size") or 1)
    native = _native(profile, config, flags)
    context = _context(kind, flags, native, profile.context)
    sized = flags.get("gpu-memory-utilization" if kind == "vllm" else "mem-fraction-static")
    fraction = float(sized) if sized is not None else (0.92 if kind == "vllm" else 0.88)
    # SGLang's DP attention splits the TP group; its experts, as vLLM's DP experts, still lie on all GPUs.
    gpus = tp * pp if kind == "sglang" else tp * pp * dp
    own = max(1, tp // dp) if kind == "sglang" and flags.get("enable-dp-attention") else tp
    used = profile.gpu_gib(own * pp, gpus)
    given = flags.get("kv-cache-memory-bytes")
    available = int(given) / 2**30 if given else fraction * profiles.GPU_GIB - used
    page = int(flags.get("block-size") or 16) if kind == "vllm" else int(flags.get("page-size") or 1)
    size = pool or (chosen.get("pool") or {}).get("tokens") or _pool(profile, flags, own, dcp, available)
    if flags.get("num-gpu-blocks-override"):
        size = int(flags["num-gpu-blocks-override"]) * page
    if flags.get("max-total-tokens"):
        size = min(size, int(flags["max-total-tokens"]))
    if flags.get("max-model-len") in _AUTO and size > 0:
        context = min(context, int(size) // page * page)
    draft = _draft(kind, flags)
    scale = (profile.tp / own) ** 0.85 * float((chosen.get("slow") or {"factor": 1.0})["factor"])
    launch = Launch(
        kind=kind,
        program=program,
        model=model,
        names=names,
        host=str(flags.get("host") or ("0.0.0.0" if kind == "vllm" else "127.0.0.1")),
        port=int(flags.get("port") or (8000 if kind == "vllm" else 30000)),
        profile=profile,
        speed=profile.speed.slower(scale, draft=draft),
        native_context=native,
        context=context,
        tp=tp,
        pp=pp,
        dp=dp,
        dcp=dcp,
        ep=bool(flags.get("enable-expert-parallel") or int(flags.get("ep-size") or 1) > 1),
        page=page,
        chunk=_chunk(kind, flags),
        max_seqs=_max_seqs(kind, flags, profile, size, context, dp),
        pool=int(size) // page * page if kind == "sglang" else int(size),
        weights_gib=used - profiles.OVERHEAD_GIB,
        available_gib=available,
        fraction=fraction,
        draft=draft,
        flags=flags,
        env=env,
        faults=chosen,
    )
    if not launch.eager:
        return launch
    step = max(launch.speed.step, profile.eager_step)
    return replace(launch, speed=replace(launch.speed, step=step))


def _engine(argv: Sequence[str]) -> tuple[str, str, list[str]]:
    words = list(argv)
    for kind, forms in _FORMS.items():
        for form in forms:
            for at in range(min(4, len(words))):
                head = (words[at].rsplit("/", 1)[-1], *words[at + 1 : at + len(form)])
                if head == form:
                    return kind, _program(kind, form), words[at + len(form) :]
    raise StartFailure(
        "lcplan sim: error: no vLLM or SGLang command line (vllm serve MODEL ..., python -m sglang.launch_server ...)",
        2,
    )


def _program(kind: str, form: Sequence[str]) -> str:
    """The name that argparse shows for a form of the command, `vllm` for the console script."""
    names = {"vllm.entrypoints.openai.api_server": "api_server.py", "vllm.entrypoints.cli.main": "main.py"}
    return form[1] if kind == "sglang" else names.get(form[1], "vllm")


def _usage(
    kind: str,
    program: str,
    tokens: Sequence[str],
    unknown: Sequence[str],
    surplus: Sequence[str],
    errors: Sequence[Diagnostic],
) -> str:
    """What argparse prints; SGLang calls itself `sglang serve` however it was started."""
    name = "sglang serve" if kind == "sglang" else program
    spelled: list[str] = []
    for at, word in enumerate(tokens):
        if word.startswith("-") and word.split("=")[0].lstrip("-") in unknown:
            after = tokens[at + 1 : at + 2]
            spelled += [word] if "=" in word or not after or after[0].startswith("-") else [word, *after]
    if spelled or surplus:
        return f"usage: {name} [-h] ...\n{name}: error: unrecognized arguments: {' '.join([*spelled, *surplus])}"
    name = "vllm serve" if name == "vllm" else name
    return f"usage: {name} [-h] ...\n{name}: error: {_in_argparse_words(errors[0].message)}"


def _in_argparse_words(message: str) -> str:
    for pattern, kind in ((_NO_CHOICE, "choice"), (_NO_INTEGER, "int"), (_NO_NUMBER, "float")):
        if hit := pattern.match(message):
            if kind == "choice":
                known = ", ".join(f"'{word}'" for word in hit[3].split(", "))
                return f"argument {hit[1]}: invalid choice: {hit[2]} (choose from {known})"
            return f"argument {hit[1]}: invalid {kind} value: {hit[2]}"
    flag, _, rest = message.partition(" ")
    return f"argument {flag}: {rest}" if flag.startswith("-") else message


def _config(model: str) -> Mapping[str, Any] | None:
    try:
        found = json.loads((Path(model) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _native(profile: profiles.Profile, config: Mapping[str, Any] | None, flags: Mapping[str, Any]) -> int:
    """The longest context of the model with the rope overrides given; without a config.json nothing is refused."""
    text = (config or {}).get("text_config") or config or {}
    own = int(text.get("max_position_embeddings") or 0)
    if not own:
        return 0
    given = flags.get("hf-overrides") or flags.get("json-model-override-args") or {}
    overrides = json.loads(given) if isinstance(given, str) else given
    overrides = {**overrides, **(overrides.get("text_config") or {})}
    own = int(overrides.get("max_position_embeddings") or own)
    rope = overrides.get("rope_parameters") or overrides.get("rope_scaling") or {}
    start = int(rope.get("original_max_position_embeddings") or own)
    return max(own, int(start * float(rope.get("factor") or 1)))


def _context(kind: str, flags: Mapping[str, Any], native: int, default: int) -> int:
    asked = flags.get("max-model-len" if kind == "vllm" else "context-length")
    if asked is None or asked in _AUTO:
        return native or default
    return int(asked)


def _pool(profile: profiles.Profile, flags: Mapping[str, Any], tp: int, dcp: int, available: float) -> float:
    at_reference = profile.fraction * profiles.GPU_GIB - profile.gpu_gib(profile.tp, profile.gpus or profile.tp)
    per_gib = profile.pool / max(1.0, at_reference)
    kv_bytes = 1 if str(flags.get("kv-cache-dtype", "auto")).startswith("fp8") else profile.kv_bytes
    # fp8 keeps scales beside the numbers: 8.79M against 4.57M tokens on GLM-5.3-Flash, a factor of 1.924, not 2.
    narrower = {(2, 1): 1.924, (1, 2): 1 / 1.924}.get((profile.kv_bytes, kv_bytes), 1.0)
    heads = 1.0 if profile.latent else tp / profile.tp
    return max(0.0, per_gib * available * narrower * heads * dcp / profile.dcp)


def _chunk(kind: str, flags: Mapping[str, Any]) -> int:
    given = flags.get("max-num-batched-tokens" if kind == "vllm" else "chunked-prefill-size")
    size = int(given) if given is not None else 8192
    return size if size > 0 else 1 << 30


def _max_seqs(
    kind: str, flags: Mapping[str, Any], profile: profiles.Profile, pool: float, context: int, dp: int
) -> int:
    """The sequence cap of one rank: the flag, else the engine's own rule for a GPU of 70 GB and more."""
    if kind == "vllm":
        return int(flags.get("max-num-seqs") or 1024)
    given = flags.get("max-running-requests")
    if given is not None:
        return max(1, min(int(given) // dp, int(pool) // 2))
    if profile.name == "dsv4_flash":
        return 256
    if flags.get("speculative-algorithm"):
        return 48
    return max(1, min(max(2048, min(4096, int(pool / context * 512))), int(pool) // 2))


def _draft(kind: str, flags: Mapping[str, Any]) -> int:
    """Tokens drafted per step; 0 without speculative decoding."""
    if kind == "sglang":
        return int(flags.get("speculative-num-draft-tokens") or 3) if flags.get("speculative-algorithm") else 0
    config = flags.get("speculative-config")
    config = json.loads(config) if isinstance(config, str) else config
    return int(config.get("num_speculative_tokens") or 1) if config else 0
