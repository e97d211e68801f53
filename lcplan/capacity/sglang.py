"""SGLang: from memory to pool tokens. The budget, the cost of a token, and the pools of hybrid models.

Sources: sglang/srt/model_executor/pool_configurator.py, sglang/srt/mem_cache/kv_cache_configurator.py and
sglang/srt/arg_groups/memory_hook.py of 0.5.21; earlier versions where named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lcplan.base.layout import Layout
from lcplan.capacity.flags import element, integer, kv_size, model_dtype, number, numbers
from lcplan.capacity.gpus import Gpu
from lcplan.capacity.shapes import Attention, Cache, Compressed, Latent, Model, State
from lcplan.capacity.vllm import indexer, stages_of

NEWEST = (0, 5, 21)


@dataclass(frozen=True, slots=True)
class Settings:
    """SGLang's settings for one launch. `heads_tp` is attention's tensor parallelism, smaller with DP attention."""

    version: tuple[int, ...]
    gpu: Gpu | None
    tp: int
    pp: int
    dp: int
    ep: bool
    dcp: int
    heads_tp: int
    fraction: float
    context: int
    page: int
    kv_dtype: str
    kv_bytes: float
    dtype: str
    quantization: str
    swa_ratio: float
    state_ratio: float
    ssm_bytes: float
    states: int  # --max-mamba-cache-size, 0: not given
    draft: bool
    draft_known: bool  # whether the draft's layers are in the model's own config.json, or there is none
    draft_tokens: int
    running: int  # --max-running-requests, 0: not given
    most: int  # --max-total-tokens, 0: not given
    chunk: int


@dataclass(frozen=True, slots=True)
class Pool:
    """What the budget becomes: `cell` bytes per token on each stage, after `fixed` bytes that do not follow tokens."""

    cells: tuple[float, ...]
    fixed: tuple[float, ...]
    share: float  # of the budget that the states of hybrids take
    state: tuple[int, ...]  # bytes of one sequence's states, per stage
    settings: Settings

    def printed(self, memory: list[float]) -> int:
        """Return max_total_num_tokens for the bytes available on a rank of each stage."""
        counts = [self._stage(at, bytes_) for at, bytes_ in enumerate(memory)]
        tokens = max(0, min(counts)) * self.settings.dcp
        return min(tokens, self.settings.most) if self.settings.most else tokens

    def tokens(self, length: int) -> float:
        """Return the pool tokens that one sequence takes: its own length, in whole pages."""
        return -(-length // self.settings.page) * self.settings.page

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token on one rank of the first stage."""
        return self.cells[0]

    def _stage(self, at: int, available: float) -> int:
        left = available - self.fixed[at]
        if self.state[at]:
            slots = self.settings.states or int((left * self.share - self.state[at]) // self.state[at])
            left -= (max(slots, 0) + 1) * self.state[at]
        return int(left // self.cells[at]) // self.settings.page * self.settings.page


def settings(model: Model, version: str, gpu: Gpu | None, layout: Layout, flags: Mapping[str, Any]) -> Settings:
    """Return what SGLang makes of its flags. Flags win over the layout."""
    tp = integer(flags, "tensor-parallel-size", integer(flags, "tp-size", layout.tp))
    dp = integer(flags, "data-parallel-size", integer(flags, "dp-size", layout.dp))
    inside = bool(flags.get("enable-dp-attention"))  # DP ranks lie inside the TP group
    if inside and layout.dp == dp and "tensor-parallel-size" not in flags and "tp-size" not in flags:
        tp = max(tp, dp)
    v4 = model.family == "deepseek_v4"
    kv_dtype = str(flags.get("kv-cache-dtype") or "auto")
    dtype = model_dtype(model, flags)
    pp = integer(flags, "pipeline-parallel-size", integer(flags, "pp-size", layout.pp))
    draft = bool(flags.get("speculative-algorithm")) and str(flags["speculative-algorithm"]).upper() in (
        "EAGLE",
        "EAGLE3",
        "NEXTN",
    )
    chunk = integer(flags, "chunked-prefill-size", _chunk(gpu))
    fraction = number(flags, "mem-fraction-static", 0)
    made = Settings(
        version=numbers(version) or NEWEST,
        gpu=gpu,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=integer(flags, "expert-parallel-size", integer(flags, "ep-size", layout.ep)) > 1,
        dcp=integer(flags, "dcp-size", layout.dcp),
        heads_tp=max(1, tp // dp) if inside else tp,
        fraction=fraction or _fraction(model, gpu, tp, pp, dp if inside else 1, chunk, flags),
        context=integer(flags, "context-length", model.context or 8192),
        page=integer(flags, "page-size", 256 if v4 else 64 if _indexed(model) else 1),
        kv_dtype=kv_dtype,
        kv_bytes=kv_size(kv_dtype, dtype),
        dtype=dtype,
        quantization=str(flags.get("quantization") or ""),
        swa_ratio=1.0
        if flags.get("disable-hybrid-swa-memory")
        else number(flags, "swa-full-tokens-ratio", 0.1 if v4 else 0.8),
        state_ratio=number(flags, "mamba-full-memory-ratio", 0.9),
        ssm_bytes=element(str(flags.get("mamba-ssm-dtype") or "float32")),
        states=integer(flags, "max-mamba-cache-size", 0),
        draft=draft,
        draft_known=bool(model.draft) or str(flags.get("speculative-algorithm") or "NGRAM").upper() == "NGRAM",
        draft_tokens=integer(flags, "speculative-num-draft-tokens", 0),
        running=integer(flags, "max-running-requests", 0),
        most=integer(flags, "max-total-tokens", 0),
        chunk=chunk,
    )
    return made


def pool(model: Model, given: Settings) -> Pool:
    """Return how a budget is cut into pools."""
    cells, fixed, states = [], [], []
    for stage in stages_of(len(model.layers), given.pp):
        caches = [cache for at in stage for cache in model.layers[at]]
        cell, constant = _compressed(caches, given) if model.family == "deepseek_v4" else (_cell(caches, given), 0.0)
        if given.draft:
            cell *= 1 + max(1, len(model.draft)) / len(model.layers)
        cells.append(cell)
        fixed.append(constant)
        states.append(sum(_state(cache, given) for cache in caches if isinstance(cache, State)))
    share = given.state_ratio / (1 + given.state_ratio)
    return Pool(tuple(cells), tuple(fixed), share, tuple(states), given)


def free_at_start(card: Gpu, given: Settings) -> float:
    """Return GiB that are free once context and process groups exist: what the fraction is taken of (fitted)."""
    return card.memory - 0.62 - 0.19 * (given.tp - 1)  # 139.18 of 139.80 at TP1 on H200, 93.61 of 95.58 at TP8 on H20


def running(tokens: int, given: Settings) -> int:
    """Return max_running_requests of one engine: as given, else from the pool (seen in 0.5.17)."""
    derived = max(2048, min(4096, int(tokens / given.context * 512)))
    most = given.running // given.dp if given.running and given.heads_tp != given.tp else given.running
    return min(most or derived, max(1, tokens // 2))


def _cell(caches: list[Cache], given: Settings) -> float:
    attention = [c for c in caches if isinstance(c, Attention)]
    sliding = [c for c in attention if c.window or c.chunk]
    full = [c for c in attention if not (c.window or c.chunk)]
    latent = [c for c in caches if isinstance(c, Latent)]
    cell = sum(_attention(c, given) for c in full) + sum(_latent(c, given) for c in latent)
    ratio = given.swa_ratio if full or latent else 1.0  # without full layers there is one pool
    return cell + ratio * sum(_attention(c, given) for c in sliding)


def _attention(cache: Attention, given: Settings) -> float:
    return max(1, cache.heads // given.heads_tp) * (cache.key + cache.value) * given.kv_bytes


def _latent(cache: Latent, given: Settings) -> float:
    if cache.index and given.kv_dtype.startswith("fp8"):
        entry = cache.rank + cache.rank // 128 * 4 + 2.0 * cache.rope
    else:
        entry = (cache.rank + cache.rope) * given.kv_bytes
    return entry + indexer(cache.index) / cache.pool


def _state(state: State, given: Settings) -> int:
    conv = (state.kernel - 1) * state.channels * element(given.dtype)
    return int((conv + state.elements * given.ssm_bytes) / given.heads_tp)


def _compressed(caches: list[Cache], given: Settings) -> tuple[float, float]:
    """DeepSeek-V4: bytes per full token, and bytes that do not follow the tokens."""
    flat = [c for c in caches if isinstance(c, Compressed)]
    one = flat[0]
    fast, slow = [c for c in flat if c.ratio == 4], [c for c in flat if c.ratio == 128]
    index = max((c.index for c in flat), default=0)
    entry = one.dim + one.rope + 8.0  # fp8 but for the bf16 rope, and scales
    ring4, ring128 = (16, 256) if given.draft else (8, 128)
    fast_state = 2 * 2 * (one.dim + index) * 4 * ring4  # fp32 rings of the compressors of keys and of the indexer
    slow_state = 2 * one.dim * 4 * ring128
    if given.version < (0, 5, 20):
        # Every state followed the tokens of the window pool, in pages of the window; the list counts the MTP layer.
        window = entry * (len(flat) + 1) + (len(fast) * fast_state + len(slow) * slow_state) / one.window
        rest = len(fast) * (entry + indexer(index)) / 4 + len(slow) * entry / 128
        return given.swa_ratio * window + rest, 0.0

    def paged(ratio: int) -> float:
        count = max(1, given.page // ratio)
        return -(-int(count * entry) // 576) * 576 / count

    window = paged(1) * len(flat) + len(fast) * fast_state / given.page
    rest = len(fast) * (paged(4) + indexer(index)) / 4 + len(slow) * paged(128) / 128
    slots = (given.running or 2048) + 3
    return given.swa_ratio * window + rest, float(len(slow) * slow_state * slots)


def _indexed(model: Model) -> bool:
    return any(isinstance(c, Latent) and c.index for layer in model.layers for c in layer)


def _chunk(gpu: Gpu | None) -> int:
    memory = gpu.memory if gpu else 80
    return 2048 if memory < 34 else 4096 if memory < 59 else 8192 if memory < 158 else 16384


def _fraction(model: Model, gpu: Gpu | None, tp: int, pp: int, dp: int, chunk: int, flags: Mapping[str, Any]) -> float:
    """The default of --mem-fraction-static (memory_hook.py), in MiB of the size that nvidia-smi shows."""
    if gpu is None:
        return 0.88
    total = gpu.memory / 0.9957 * 1024  # nvidia-smi shows a little more than CUDA: 140.40 GiB against 139.80
    small = tp < 4
    default = 8 if total < 20480 else (48 if small else 160) if total < 35840 else (32 if small else 160)
    if total >= 61440:
        default = 256 if small and total < 163840 else 512
    batch = integer(flags, "cuda-graph-max-bs", default)
    graphs = 2.0 * batch
    if dp > 1:
        graphs += batch * dp * (3 + (1.5 if batch > 300 else 0))
    graphs += 1536 if model.latent else 0
    reserved = 512 + 1.5 * max(chunk, 2048) + tp * pp / 8 * 1024 + graphs
    if total > 61440:
        reserved = max(reserved, 10240)
    return round((total - reserved) / total, 3) * (0.95 if model.multimodal else 1)
