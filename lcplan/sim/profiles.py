"""What the simulator believes of a model: how fast it runs, how much it weighs, how many tokens its cache holds.

Speeds of the named profiles are calibrated on published figures of the reference campaign (first-token time and decode
time at a million tokens); the generic profile scales by the active parameters in the model's name or config.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GPU_GIB = 139.80  # what an H200 reports to the engine
OVERHEAD_GIB = 2.56  # activations, communication buffers, graphs
DRAFT_COST = 0.15  # of a decode step, per drafted token
REQUEST_S = 0.03  # HTTP, tokenising and scheduling of one request

# An H200 at Llama-3.1-8B's shape, bf16, vLLM 0.25.1: first token after 1.22 s at 32,768 and 10.45 s at 130,816 tokens.
MATRIX_FLOPS = 6.9e14
ATTENTION_FLOPS = 5.9e14
MEMORY_BYTES = 4.3e12
# Without graphs a step takes what the CPU needs to launch its kernels: seconds of a layer, dense and with experts.
EAGER_LAYER_S, EAGER_MOE_LAYER_S = 0.8e-3, 2.5e-3


@dataclass(frozen=True, slots=True)
class Speed:
    """Virtual durations of one engine rank. Prefill of the tokens at positions a..b takes `linear * (b - a) + square *
    (b*b - a*a)` seconds; a decode step takes `step + each * sequences + deep * tokens in all their contexts`."""

    linear: float
    square: float
    step: float
    each: float
    deep: float

    def prefill(self, start: int, end: int) -> float:
        """Return the seconds that computing the tokens from start to end takes."""
        return self.linear * (end - start) + self.square * (end * end - start * start)

    def decode(self, sequences: int, context: int) -> float:
        """Return the seconds of one decode step over sequences with that many tokens of context in all."""
        return self.step + self.each * sequences + self.deep * context

    def slower(self, factor: float, *, draft: int = 0) -> Speed:
        """Return the same speed, every duration multiplied; drafting and checking tokens makes a decode step longer."""
        decode = factor * (1 + DRAFT_COST * draft)
        prefill = (factor * self.linear, factor * self.square)
        return Speed(*prefill, decode * self.step, decode * self.each, decode * self.deep)


@dataclass(frozen=True, slots=True)
class Profile:
    """A model. `pool` is the cache of one rank in tokens at the layout `tp`/`dcp`, memory fraction and `kv_bytes` named
    beside it (bytes per cached number: 2 for bf16, 1 for fp8)."""

    name: str
    pattern: str
    speed: Speed
    weights_gib: float
    pool: int
    tp: int = 1
    dcp: int = 1
    gpus: int = 0  # of the reference server, which the experts of a MoE are spread over; 0: tp
    fraction: float = 0.92
    kv_bytes: int = 2
    latent: bool = False  # one latent head for all TP ranks: TP does not enlarge the pool
    moe: bool = True
    thinks: bool = False
    layers: int = 0  # where known
    context: int = 1_048_576
    architecture: str = "SimulatedForCausalLM"
    acceptance: tuple[float, ...] = field(default=(0.85, 0.7, 0.55, 0.4, 0.3))

    @property
    def eager_step(self) -> float:
        """The least seconds of a decode step without graphs, 0 where the layers are not known."""
        return self.layers * (EAGER_MOE_LAYER_S if self.moe else EAGER_LAYER_S)

    def gpu_gib(self, gpus: int, moe_gpus: int) -> float:
        """Return GiB on one GPU that are no cache; the experts of a MoE are spread over all GPUs of the server."""
        return self.weights_gib / (moe_gpus if self.moe else gpus) + OVERHEAD_GIB


def resolve(path: str, config: Mapping[str, Any] | None) -> Profile:
    """Return the profile of a model path: a named one, else one made from config.json or from the sizes in its name."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    for profile in NAMED:
        if re.search(profile.pattern, name, re.IGNORECASE):
            return profile
    return _generic(name, config or {})


def _calibrated(
    tokens: int, ttft_s: float, decode_ms: float, *, linear_us: float, step_ms: float, each_ms: float
) -> Speed:
    """The speed at which a lone prompt of that many tokens has its first token after ttft_s, then decode_ms each."""
    linear = linear_us * 1e-6
    square = (ttft_s - REQUEST_S - linear * tokens) / tokens**2
    deep = (decode_ms - step_ms - each_ms) * 1e-3 / tokens
    return Speed(linear, square, step_ms * 1e-3, each_ms * 1e-3, deep)


def _generic(name: str, config: Mapping[str, Any]) -> Profile:
    sizes = re.search(r"(\d+(?:\.\d+)?)B(?:-A(\d+(?:\.\d+)?)B)?", name, re.IGNORECASE)
    shape = _shape(config)
    total = float(sizes[1]) if sizes else shape.total or 8.0
    active = float(sizes[2]) if sizes and sizes[2] else min(total, shape.active or total)
    per_number = 1 if re.search(r"fp8|mxfp8|int8", name, re.IGNORECASE) else 2
    weights = total * per_number * 1e9 / 2**30
    per_token = shape.kv_bytes or 131_072 * (active / 8) ** 0.5
    # A model heavier than a GPU is taken to be meant for a quad or a node; the pool is what is left there.
    gpus = next((n for n in (1, 4, 8) if weights / n + OVERHEAD_GIB < 0.85 * GPU_GIB), 8)
    left = max(4.0, 0.92 * GPU_GIB - weights / gpus - OVERHEAD_GIB)
    share = 1 if shape.latent else gpus
    linear, square, deep = 6e-6 * active, 4e-12 * active**0.5, 1.5e-9 * active**0.5
    if shape.attended:
        linear, square = 2e9 * active / MATRIX_FLOPS, 2 * shape.attended / ATTENTION_FLOPS
        deep = shape.kv_bytes / MEMORY_BYTES
    return Profile(
        name="generic",
        pattern="",
        speed=Speed(linear, square, 4e-3 + 0.3e-3 * active, 0.1e-3, deep),
        weights_gib=weights,
        pool=int(left * 2**30 / (per_token / share)) // 256 * 256,
        tp=gpus,
        latent=shape.latent,
        moe=shape.moe or bool(sizes and sizes[2]),
        layers=shape.layers,
        context=int(config.get("max_position_embeddings") or 131_072),
        architecture=str((config.get("architectures") or ["SimulatedForCausalLM"])[0]),
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """What config.json says: billions of parameters, in all and per token; bytes of bf16 cache per token; layers, and
    numbers of a query that meet every earlier token in all of them (0 when not every layer looks at all of them)."""

    total: float = 0.0
    active: float = 0.0
    kv_bytes: float = 0.0
    latent: bool = False
    moe: bool = False
    layers: int = 0
    attended: float = 0.0


def _shape(config: Mapping[str, Any]) -> _Shape:
    text = config.get("text_config") or config
    hidden, layers = int(text.get("hidden_size") or 0), int(text.get("num_hidden_layers") or 0)
    heads = int(text.get("num_attention_heads") or 0)
    if not (hidden and layers and heads):
        return _Shape()
    head = int(text.get("head_dim") or hidden // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    rank, rope = int(text.get("kv_lora_rank") or 0), int(text.get("qk_rope_head_dim") or 0)
    latent = rank > 0
    cached = (rank + rope) if latent else 2 * kv_heads * head
    attention = hidden * head * (2 * heads + 2 * kv_heads)
    experts = int(text.get("num_experts") or text.get("n_routed_experts") or text.get("num_local_experts") or 0)
    used = int(text.get("num_experts_per_tok") or 0) + int(text.get("n_shared_experts") or 0)
    one = (
        3 * hidden * int((text.get("moe_intermediate_size") if experts else None) or text.get("intermediate_size") or 0)
    )
    embedding = 2 * int(text.get("vocab_size") or 0) * hidden
    total = embedding + layers * (attention + one * max(1, experts))
    active = embedding / 2 + layers * (attention + one * max(1, used))
    nope, value = int(text.get("qk_nope_head_dim") or 0), int(text.get("v_head_dim") or 0)
    width = (nope + rope + value) / 2 if latent else head
    partial = any(text.get(key) for key in ("sliding_window", "layer_types", "linear_num_value_heads", "index_topk"))
    attended = 0.0 if partial else layers * heads * width
    return _Shape(total / 1e9, active / 1e9, cached * 2 * layers, latent, experts > 0, layers, attended)


NAMED = (
    Profile(
        name="glm53_flash",
        pattern=r"GLM-5\.3-Flash",
        speed=_calibrated(1_000_000, 58.6, 7.0, linear_us=30, step_ms=4.2, each_ms=0.12),
        weights_gib=210,
        pool=4_568_144,
        tp=4,
        latent=True,
        thinks=True,
        architecture="Glm5NextForCausalLM",
    ),
    Profile(
        name="glm53",
        pattern=r"GLM-5\.3",
        speed=_calibrated(1_000_000, 212.0, 24.0, linear_us=95, step_ms=14.0, each_ms=0.35),
        weights_gib=704,
        pool=5_662_310,
        tp=8,
        dcp=8,
        kv_bytes=1,
        latent=True,
        thinks=True,
        architecture="GlmMoeDsaForCausalLM",
    ),
    Profile(
        name="minimax_m3",
        pattern=r"MiniMax-M3",
        speed=_calibrated(1_000_000, 171.0, 19.0, linear_us=70, step_ms=9.0, each_ms=0.3),
        weights_gib=430,
        pool=3_774_873,
        tp=8,
        kv_bytes=1,
        thinks=True,
        architecture="MiniMaxM3ForCausalLM",
    ),
    Profile(
        name="qwen38_flash_next",
        pattern=r"Qwen3\.8-Flash-Next",
        speed=_calibrated(1_000_000, 49.0, 6.1, linear_us=26, step_ms=3.9, each_ms=0.1),
        weights_gib=150,
        pool=9_842_688,
        tp=4,
        architecture="Qwen3NextForCausalLM",
    ),
    Profile(
        name="qwen36_35b",
        pattern=r"Qwen3\.6-35B-A3B",
        speed=_calibrated(963_000, 145.0, 11.5, linear_us=45, step_ms=5.0, each_ms=0.15),
        weights_gib=67.2,
        pool=11_304_766,
        gpus=4,
        thinks=True,
        context=262_144,
        architecture="Qwen3_5MoeForConditionalGeneration",
    ),
    Profile(
        name="qwen38_27b",
        pattern=r"Qwen3\.8-27B",
        speed=_calibrated(262_144, 61.0, 24.0, linear_us=140, step_ms=17.0, each_ms=0.25),
        weights_gib=52,
        pool=2_031_616,
        moe=False,
        context=262_144,
        architecture="Qwen3_5ForConditionalGeneration",
    ),
    Profile(
        name="dsv4_flash",
        pattern=r"DeepSeek-V4-Flash",
        speed=_calibrated(1_000_000, 77.0, 9.2, linear_us=41, step_ms=6.0, each_ms=0.18),
        weights_gib=290,
        pool=8_991_488,
        tp=4,
        fraction=0.90,
        kv_bytes=1,
        latent=True,
        thinks=True,
        architecture="DeepseekV4ForCausalLM",
    ),
)
