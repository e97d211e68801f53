"""Facts of a state: which of several printed figures counts."""

from __future__ import annotations

from datetime import datetime

from lcplan.engine.logs.args import Arguments, model_name
from lcplan.engine.logs.facts import LogFacts, Phase
from lcplan.engine.logs.patterns import TIERS, Fault
from lcplan.engine.logs.state import State, dtype_name

_BLOCK = 16  # tokens in a block of vLLM unless it prints another number
_SOURCES = ("kv_tokens", "max_concurrency", "gpu_blocks", "allocated_tokens", "pool_full")
_POOLS = ("full", "swa", "c4", "c128", "c4_state", "c128_state", "draft", "mamba")
_HANG_SECONDS = 60  # vLLM repeats the line once a minute (vllm/distributed/device_communicators/shm_broadcast.py)
_FAILURES_WHILE_SERVING = ("req_slots_exhausted", "engine_stuck")


def resolve(state: State) -> LogFacts:
    """Return the facts of a state."""
    store, args = state.store, state.arguments or Arguments({}, False)
    engines = store.engines(*_SOURCES) or store.engines("stored_tokens", "allowed_tokens")
    tokens = [t for t in (_tokens(state, engine, len(engines) == 1) for engine in engines) if t is not None]
    factors = [store.of_engine("max_concurrency", engine, len(engines) == 1) for engine in engines]
    blocks = store.smallest("gpu_blocks")
    failure, data, error = _failure(state, tokens)
    pools = {name: int(v) for name in _POOLS if (v := store.smallest(f"pool_{name}")) is not None}
    if pools and "full" not in pools and tokens:
        pools["full"] = min(tokens)
    shown = bool(store.engines(*_SOURCES))
    ready_at = state.phases.get("ready")
    return LogFacts(
        kv_tokens=tuple(tokens),
        engines=len({*engines, *state.cores} - {None}) or (1 if shown else None),
        max_concurrency=tuple(f for f in factors if f is not None),
        max_model_len=_context(state, args),
        max_num_seqs=_whole(store.smallest("max_num_seqs")) or args.integer("max_num_seqs", "max_running_requests"),
        block_size=_block_size(state, args, tokens, blocks),
        gpu_blocks=_whole(blocks),
        cpu_blocks=_whole(store.smallest("cpu_blocks")),
        kv_memory_gib=store.smallest("kv_memory_gib"),
        weights_gib=store.smallest("weights_gib"),
        activation_gib=store.smallest("activation_gib"),
        non_torch_gib=store.smallest("non_torch_gib"),
        cudagraph_gib=store.smallest("cudagraph_gib"),
        gpu_mem_util=args.number("gpu_memory_utilization", "mem_fraction_static") or store.latest("gpu_mem_util"),
        tp=_parallel(args, "tensor_parallel_size", "tp_size"),
        pp=_parallel(args, "pipeline_parallel_size", "pp_size"),
        dp=_parallel(args, "data_parallel_size", "dp_size"),
        model=model_name(path) if (path := args.word("model", "model_tag", "model_path")) else None,
        kv_cache_dtype=_kv_dtype(state, args),
        pools=pools,
        failure=failure,
        failure_data=data,
        ready=_ready(state, failure),
        engine=state.kind or (max(state.votes, key=lambda k: state.votes[k]) if any(state.votes.values()) else None),
        engine_version=state.words.get("engine_version"),
        choices=dict(sorted(state.choices.items())),
        phases=tuple(
            Phase(
                name, _seconds(state.first_time, at), state.took.get("init_engine" if name == "engine_ready" else name)
            )
            for name, at in state.phases.items()
        ),
        ready_seconds=_seconds(state.first_time, ready_at),
        stopped=state.stopped,
        last_error=error,
        last_line=state.last_line.strip()[:2000] or None,
    )


def _tokens(state: State, engine: int | None, alone: bool) -> int | None:
    """vLLM: tokens, blocks x 16, the error's number. SGLang: summary, full pool, allocated tokens, error's number."""
    store = state.store
    blocks = store.of_engine("gpu_blocks", engine, alone)
    args = state.arguments
    size = (args.integer("block_size") if args else None) or _BLOCK
    for value in (
        store.of_engine("kv_tokens", engine, alone),
        blocks * size if blocks is not None else None,
        store.of_engine("stored_tokens", engine, alone),
        store.of_engine("pool_full", engine, alone),
        store.of_engine("allocated_tokens", engine, alone),
        store.of_engine("allowed_tokens", engine, alone),
    ):
        if value is not None:
            return int(value)
    return None


def _context(state: State, args: Arguments) -> int | None:
    printed = _whole(state.store.latest("max_model_len"))
    given = args.integer("max_model_len", "context_length")
    return printed or (given if given and given > 0 else None)


def _block_size(state: State, args: Arguments, tokens: list[int], blocks: float | None) -> int | None:
    printed = _whole(state.store.latest("block_size")) or args.integer("block_size", "page_size")
    if printed:
        return printed
    return _BLOCK if blocks and len(tokens) == 1 and tokens[0] == blocks * _BLOCK else None


def _kv_dtype(state: State, args: Arguments) -> str | None:
    named = args.word("kv_cache_dtype")
    if named or args.complete:
        return named or "auto"
    chosen = state.choices.get("kv_cache_dtype")
    return dtype_name(str(chosen)) if chosen else None


def _parallel(args: Arguments, *names: str) -> int | None:
    return args.integer(*names) or (1 if args.complete else None)


def _failure(state: State, tokens: list[int]) -> tuple[str | None, dict[str, object], str | None]:
    """A cause wins over its consequences, the first of equals over later ones."""
    found = [entry for entry in state.failures.values() if not _client_error(state, entry[0], tokens)]
    if found:
        fault, data, text = min(found, key=lambda entry: TIERS.index(entry[0].tier))
        args = state.arguments
        if fault.failure == "bad_parallel_size" and "tp" not in data and args and args.integer("tensor_parallel_size"):
            data = {**data, "tp": args.integer("tensor_parallel_size")}
        path = args.word("model", "model_path") if args else None
        if fault.failure == "gated_model" and path:
            data = {"model": model_name(path), **data}
        return fault.failure, dict(data), text
    if state.hang and not state.stopped:
        return "hang", {"seconds_at_least": _HANG_SECONDS * state.hang}, state.last_line.strip()[:2000]
    if state.stuck and not state.stopped:
        running, waiting = next(iter(state.stuck.values()))
        return "engine_stuck", {"running": running, "waiting": waiting}, None
    return None, {}, None


def _client_error(state: State, fault: Fault, tokens: list[int]) -> bool:
    """A request longer than the context is its sender's fault; one longer than the pool is the server's."""
    allowed = state.store.smallest("allowed_tokens")
    return (
        fault.serving
        and fault.failure == "kv_too_small"
        and bool(tokens)
        and allowed is not None
        and (allowed + _BLOCK < min(tokens))
    )


def _ready(state: State, failure: str | None) -> bool | None:
    if failure is None:
        return True if state.ready else None
    entry = state.failures.get(failure)
    serving = failure in _FAILURES_WHILE_SERVING or (entry is not None and entry[0].serving)
    return None if serving and not state.ready else False


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None or start.year != end.year:
        return None
    seconds = (end - start).total_seconds()
    return seconds if seconds >= 0 else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
