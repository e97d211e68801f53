"""vLLM: from KV memory to pool tokens. Pages, groups, blocks per request, and what differs between versions.

Sources: vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py and vllm/platforms/interface.py of the versions
named, checked against the figures that real servers print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, lcm

from lcplan.capacity.flags import Vllm, element
from lcplan.capacity.shapes import Attention, Cache, Compressed, Latent, Model, State


@dataclass(frozen=True, slots=True)
class Need:
    """Blocks that a request takes of a group: of `block` tokens each, of no more than `limit` tokens, and `extra`."""

    block: int
    extra: int = 0
    limit: float = inf
    spread: int = 1  # decode context parallelism: tokens are spread over that many ranks
    fixed: bool = False  # only `extra`, whatever the length

    def blocks(self, length: int) -> int:
        """Return the blocks of a request of `length` tokens."""
        if self.fixed:
            return self.extra
        return _cdiv(int(min(_cdiv(length, self.spread), self.limit)), self.block) + self.extra


@dataclass(frozen=True, slots=True)
class Pool:
    """One engine's block pool. `stages` are the bytes of a block on a rank of each pipeline stage."""

    stages: tuple[int, ...]
    needs: tuple[Need, ...]
    block: int
    version: tuple[int, ...]
    max_model_len: int
    spread: int = 1

    def blocks(self, memory: Sequence[float]) -> int:
        """Return the blocks that fit in the bytes of each stage: the pool is the least over stages."""
        return max(0, min(int(m // size) for m, size in zip(memory, self.stages, strict=True)))

    def request(self, length: int) -> int:
        """Return the blocks of a request of `length` tokens, over all groups."""
        return sum(need.blocks(length) for need in self.needs)

    def printed(self, blocks: int) -> int:
        """Return the tokens that the engine prints for this many blocks."""
        if self.version < (0, 20):  # later versions print concurrency x max-model-len
            return blocks // len(self.needs) * self.block * self.spread
        return int(blocks / self.request(self.max_model_len) * self.max_model_len)

    def longest(self, blocks: int) -> int:
        """Return the longest request up to max-model-len that so many blocks hold, at least 1."""
        low, high = 1, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request(middle) <= blocks else (low, middle - 1)
        return low

    def concurrency(self, blocks: int) -> float:
        """Return the printed concurrency: requests of max-model-len that fit."""
        return blocks / self.request(self.max_model_len)

    def tokens(self, length: int) -> float:
        """Return the pool tokens, as printed, that one sequence of `length` tokens takes."""
        if self.version < (0, 20):
            return self.request(length) / len(self.needs) * self.block * self.spread
        return self.request(length) * self.max_model_len / self.request(self.max_model_len)

    @property
    def bytes_per_token(self) -> float:
        """Bytes on one rank of the first stage, per token of a request of max-model-len."""
        return self.stages[0] * self.request(self.max_model_len) / self.max_model_len


def pool(model: Model, settings: Vllm) -> Pool:
    """Return the block pool of a model under resolved settings."""
    layers = [*model.layers, *(model.draft if settings.draft else ())]
    stages = stages_of(len(model.layers), settings.pp, len(layers) - len(model.layers))
    if any(isinstance(cache, Compressed) for layer in layers for cache in layer):
        sizes, needs = _compressed(layers, stages, settings)
        block = settings.block
    else:
        sizes, needs, block = _grouped(model, layers, stages, settings)
    return Pool(sizes, needs, block, settings.version, settings.max_model_len, settings.dcp)


def stages_of(count: int, pp: int, draft: int = 0) -> list[range]:
    """Return the layers of each pipeline stage (vllm/distributed/utils.py); draft layers sit on the last one."""
    base, left = divmod(count, pp)
    sizes = [base] * pp
    for at in range(2, left + 2):  # what is left goes to the stages before the last
        sizes[-at] += 1
    sizes[-1] += draft
    starts = [sum(sizes[:at]) for at in range(pp)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


@dataclass(frozen=True, slots=True)
class _Spec:
    """A layer's cache under an engine: bytes of one page on one rank, and the blocks that a request needs."""

    page: int
    need: Need


def _grouped(
    model: Model, layers: Sequence[tuple[Cache, ...]], stages: Sequence[range], settings: Vllm
) -> tuple[tuple[int, ...], tuple[Need, ...], int]:
    block = _hybrid_block(layers, settings) if model.hybrid else settings.block
    specs = [(at, _spec(cache, layers, block, settings)) for at, layer in enumerate(layers) for cache in layer]
    if len({spec.need for _, spec in specs}) == 1:  # one group, whatever the page sizes
        sizes = tuple(sum(spec.page for at, spec in specs if at in stage) for stage in stages)
        return sizes, (specs[0][1].need,), block
    specs = _one_page_size(specs)
    buckets: dict[_Spec, list[int]] = {}
    for at, spec in specs:
        buckets.setdefault(spec, []).append(at)
    counts = [len(members) for members in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups: list[tuple[Need, list[int]]] = []
    for spec, members in buckets.items():
        parts = _cdiv(len(members), size)
        groups += [(spec.need, members[first::parts]) for first in range(parts)]
    if any(isinstance(c, Latent) and c.pool > 1 for layer in layers for c in layer):
        groups.append((Need(block, 1, fixed=True), []))  # the tokens that do not fill a pooled entry yet
    page = specs[0][1].page
    sizes = tuple(max(sum(at in stage for at in members) for _, members in groups) * page for stage in stages)
    return sizes, tuple(need for need, _ in groups), min(need.block for need, _ in groups)


def _spec(cache: Cache, layers: Sequence[tuple[Cache, ...]], block: int, settings: Vllm) -> _Spec:
    if isinstance(cache, State):
        page = block * _per_token(_widest(layers, settings), settings)
        if settings.state_mode == "all":
            return _Spec(page, Need(block, settings.draft_tokens))
        kept = 2 if settings.state_mode == "align" else 1
        return _Spec(page, Need(block, kept + settings.draft_tokens, fixed=True))
    page = block * _per_token(cache, settings)
    if isinstance(cache, Attention) and settings.hybrid:
        if cache.window:
            return _Spec(page, Need(block, 1, cache.window - 1 + settings.in_flight))
        if cache.chunk and settings.version >= (0, 13):  # off by default before: slower (vllm pull 29627)
            return _Spec(page, Need(block, 0, cache.chunk + settings.in_flight))
    return _Spec(page, Need(block, spread=settings.dcp))


def _per_token(cache: Cache, settings: Vllm) -> int:
    """Bytes of one token of one layer on one rank."""
    if isinstance(cache, Latent):
        return _latent(cache, settings.kv_dtype, settings.kv_bytes)
    if isinstance(cache, Attention):
        heads = max(1, cache.heads // settings.tp)  # replicated when there are fewer heads than ranks
        return int(heads * (cache.key + cache.value) * settings.kv_bytes)
    raise TypeError(cache)


def _latent(cache: Latent, kv_dtype: str, size: float) -> int:
    """Bytes of one MLA token with its indexer entry: the same on every rank."""
    if kv_dtype == "fp8_ds_mla":  # fp8 latent, four fp32 scales, bf16 rope
        entry = cache.rank + 16 + 2 * cache.rope
    elif kv_dtype == "nvfp4_ds_mla":
        entry = 352
    else:
        entry = int((cache.rank + cache.rope) * size)
    return entry + indexer(cache.index) // cache.pool


def indexer(dim: int) -> int:
    """Bytes of one token of a sparse indexer: fp8 and one fp32 scale per 128 elements."""
    return dim + dim // 128 * 4


def _widest(layers: Sequence[tuple[Cache, ...]], settings: Vllm) -> Cache:
    attention = [cache for layer in layers for cache in layer if not isinstance(cache, State)]
    return max(attention, key=lambda cache: _per_token(cache, settings))


def _hybrid_block(layers: Sequence[tuple[Cache, ...]], settings: Vllm) -> int:
    """Tokens of a block of a hybrid with states: an attention page must hold a state (platforms/interface.py)."""
    state = max((state_bytes(c, settings) for layer in layers for c in layer if isinstance(c, State)), default=0)
    widest = _widest(layers, settings)
    if isinstance(widest, Latent):  # the state must fit beside the indexer's own pages
        widest = Latent(widest.rank, widest.rope)
    per_token = _per_token(widest, settings)
    if settings.state_mode == "all":
        chunk = lcm(256, settings.align)
        return chunk * _cdiv(_cdiv(state, per_token), chunk)
    return settings.align * _cdiv(state, settings.align * per_token)


def state_bytes(state: State, settings: Vllm) -> int:
    """Bytes of one recurrent state of one layer on one rank."""
    conv = (state.kernel - 1 + settings.draft_tokens) * (state.channels // settings.tp)
    dtype = settings.ssm_dtype if settings.ssm_dtype != "auto" else state.dtype or settings.dtype
    return int(conv * element(settings.dtype) + state.elements // settings.tp * element(dtype))


def _one_page_size(specs: list[tuple[int, _Spec]]) -> list[tuple[int, _Spec]]:
    """Enlarge the blocks of kinds with smaller pages until all pages are equal (unify_kv_cache_spec_page_size)."""
    widest = max(spec.page for _, spec in specs)
    out = []
    for at, spec in specs:
        if spec.page < widest and not spec.need.fixed:
            ratio = max(1, widest // spec.page)
            need = spec.need
            spec = _Spec(widest, Need(need.block * ratio, need.extra, need.limit, need.spread))
        out.append((at, _Spec(widest, spec.need)))
    return out


def _compressed(
    layers: Sequence[tuple[Cache, ...]], stages: Sequence[range], settings: Vllm
) -> tuple[tuple[int, ...], tuple[Need, ...]]:
    """DeepSeek-V4: one group of compressed caches, and groups of sliding caches that share its pages.

    A block of 256 tokens holds per layer of ratio 4 its compressed keys and indexer entries, per layer of ratio 128 its
    keys. Windows (every layer, blocks of 64) and the compressors' states (blocks of 4 and 8 tokens) are sliding caches.
    """
    flat = [(at, cache) for at, layer in enumerate(layers) for cache in layer if isinstance(cache, Compressed)]
    one = flat[0][1]
    by_ratio = {ratio: [at for at, cache in flat if cache.ratio == ratio] for ratio in (4, 128)}
    index = max(cache.index for _, cache in flat)
    entry = _entry(one, settings)
    unit = 576 if settings.kv_dtype in ("auto", "fp8", "fp8_ds_mla", "fp8_e4m3") else 512

    def page(ratio: int, size: float) -> int:
        return _cdiv(int(settings.block // ratio * size), unit) * unit

    fast, slow = page(4, entry) + page(4, indexer(index)), page(128, entry)
    tuples = _tuples([len(by_ratio[4]), len(flat), len(by_ratio[4]), len(by_ratio[128])], len(by_ratio[4]))
    sizes = []
    for stage in stages:
        here = {ratio: sum(at in stage for at in members) for ratio, members in by_ratio.items()}
        packed = here[4] * fast + here[128] * slow
        padded = _cdiv(tuples * len(stage), len(layers)) * (fast + slow)
        sizes.append(packed if settings.version >= (0, 26) else padded)
    kept = settings.in_flight
    window = Need(64, 1, one.window - 1 + kept)
    needs = [Need(settings.block, spread=settings.dcp)]
    needs += [window] * _cdiv(len(flat), tuples)
    needs += [Need(4, 1, 7 + kept)] * _cdiv(len(by_ratio[4]), tuples)
    needs += [Need(8, 1, 127 + kept)] * _cdiv(len(by_ratio[128]), tuples)
    return tuple(sizes), tuple(needs)


def _entry(cache: Compressed, settings: Vllm) -> float:
    if settings.kv_dtype in ("bfloat16", "float16"):
        return cache.dim * 2
    if settings.kv_dtype == "nvfp4_ds_mla":
        return 352
    return cache.dim - cache.rope + 2 * cache.rope + 8  # fp8, bf16 rope, scales


def _tuples(counts: Sequence[int], least: int) -> int:
    """Layers per group that pad least (kv_cache_utils._approximate_gcd); ties take the larger."""
    return min(range(least, max(counts) + 1), key=lambda d: (sum(-count % d for count in counts), -d))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)
