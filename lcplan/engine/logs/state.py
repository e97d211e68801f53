"""What is known after some lines of a log: takes one line after the other, in constant memory."""

from __future__ import annotations

import re
from datetime import datetime

from lcplan.engine.logs import faults, sglang, vllm
from lcplan.engine.logs.args import Arguments, read_arguments
from lcplan.engine.logs.lines import NOBODY, Owner, Record, records
from lcplan.engine.logs.patterns import Fact, Fault, fault
from lcplan.engine.logs.store import Store

NEAR = 5  # lines after a telling one that are read too: they may be its continuation
_WIDEST = 32_768
_MOST_ENGINES = 2048
_ARGS = re.compile(r"(?:non-default args: |server_args=|\bargs: (?=Namespace\())(?=[A-Za-z]{0,20}[({])")
_CONFIG = re.compile(r" LLM engine \(v[^)]{1,60}\) with config: ")
_EXCEPTION = re.compile(r"(?:[a-z_]\w{0,60}\.){0,8}([A-Z]\w{0,80}(?:Error|Exception))(?::|$)")
_NO_CAUSE = re.compile(
    r"(?:Cancelled|BrokenPipe|EOF|ConnectionReset|EngineDead|ActorDied)Error|cancelled|See stack trace"
    r"|See root cause above"
)
_UNKNOWN = fault("unknown_error", "Error", tier="unknown")
_STATS = re.compile(
    r"Engine (\d{1,6}): Avg prompt throughput: ([\d.]{1,12}) tokens/s, Avg generation throughput: ([\d.]{1,12}) tokens/s, "
    r"Running: (\d{1,9}) reqs?, Waiting: (\d{1,9}) reqs?"
)
_ALLOCATED = re.compile(r"(?:(\w[\w/-]{0,30}) )?KV Cache is allocated\..{0,80}?#tokens: (-?\d{1,15}).{0,80}")
_HANG = "No available shared memory broadcast block"
_HANG_TAIL = re.compile(
    r"(?:found in |This )?(?:\d+ seconds|typically|some processes|processes are|hanging|time-consuming)"
)
_READY = ("Application startup complete", "The server is fired up", "server is listening on http")
_STOP = ("shutdown triggered", "signal=SIGTERM", "SIGTERM received", "Received SIGTERM", "Shutting down")
_NOISE = ("Received request ", "# cmd: ")
_NUMBER_OF_BYTES = {"MiB": 1 / 1024, "MB": 1 / 1024}
SPECIAL = (
    "non-default args: ", "server_args=", "args: Namespace(", _HANG, " reqs, Waiting: ", "#tokens: ", "Error",
    "Exception", ") (EngineCore", *_READY, *_STOP,
)  # fmt: skip


class State:
    """The reading of one log. `kind` limits it to the lines of one engine kind; None reads them all."""

    def __init__(self, kind: str | None) -> None:
        self.kind = kind
        self.store = Store()
        self.words: dict[str, str] = {}
        self.choices: dict[str, object] = {}
        self.failures: dict[str, tuple[Fault, dict[str, object], str]] = {}
        self.votes = {"vllm": 0, "sglang": 0}
        self.arguments: Arguments | None = None
        self.phases: dict[str, datetime | None] = {}
        self.took: dict[str, float] = {}
        self.first_time: datetime | None = None
        self.last_time: datetime | None = None
        self.ready = False
        self.stopped = False
        self.hang = 0
        self.stuck: dict[int, tuple[int, int]] = {}
        self.last_line = ""
        self.near = 20  # the first lines hold the first time stamp
        self.cores: set[int] = set()
        self._window = ""
        self._owners: tuple[Owner, ...] = ()
        self._late: list[Owner] = []
        self._pools: dict[tuple[int | None, str], str] = {}

    def line(self, text: str, telling: bool) -> None:
        """Take the next line that is not blank; `telling` = it holds a needle of the tables."""
        self.near = max(self.near - 1, NEAR) if telling else self.near - 1
        self.last_line = text
        if not any(noise in text for noise in _NOISE):
            for record in records(text):
                self._record(record)
        if not self.near:
            self._window, self._late = "", []

    def skip(self, last_line: str) -> None:
        """Take note of lines without needles, far from any telling one; only the last of them matters."""
        self.last_line, self.hang, self._window, self._late = last_line, 0, "", []

    def _record(self, record: Record) -> None:
        body = record.body
        if record.stamp:
            self.first_time = self.first_time or record.stamp
            self.last_time = record.stamp
        if record.headed:
            owners, before = self._owners_of(record), ""
            self.votes[record.dialect] += record.dialect == "sglang" or bool(record.level)
        else:
            owners, before = self._owners or (NOBODY,), self._window
        if not body:
            self._window, self._owners = "", owners
            return
        self._watch(record)
        text = f"{before} {body}" if before else body
        start = _ARGS.search(text)
        if start:
            arguments = read_arguments(text[start.end() :])
            self._arguments(arguments, fresh=start.end() > len(before))
            self._window, self._owners = "" if arguments.complete else text[-_WIDEST:], owners
            if before and not arguments.complete:
                self._match(body, 0, owners, record)
            return
        self._match(text, len(before), owners, record)
        if _EXCEPTION.match(body) and record.level in ("", "ERROR", "CRITICAL") and not _NO_CAUSE.search(body):
            self._fail(_UNKNOWN, {}, body)
        self._window, self._owners = text if len(text) <= _WIDEST else "", owners

    def _owners_of(self, record: Record) -> tuple[Owner, ...]:
        """Two processes may print their tags before their texts: the second text then follows without a tag."""
        owners = record.owners
        if len(owners) > 1:
            self._late = list(owners[1:])
        elif not owners and record.level and self._late:
            owners = (self._late.pop(0),)
        return owners or (NOBODY,)

    def _match(self, text: str, boundary: int, owners: tuple[Owner, ...], record: Record) -> None:
        """Read what ends behind the boundary: what ends before it was read with the line before."""
        for dialect, table in _TABLES[self.kind]:
            for entry in table:
                if entry.needle in text:
                    for found in entry.regex.finditer(text):
                        if found.end() > boundary:
                            self.votes[dialect] += 1
                            self._fact(entry, found, owners)
        if "#tokens: " in text and self.kind in (None, "sglang"):
            for found in _ALLOCATED.finditer(text):
                if found.end() > boundary:
                    self._allocated(found, owners[0])
        for entry in _FAULTS[self.kind]:
            if entry.needle in text and (entry.any_level or record.level in ("", "ERROR", "CRITICAL")):
                found_fault = next((m for m in entry.regex.finditer(text) if m.end() > boundary), None)
                if found_fault:
                    self._fault(entry, found_fault, owners, text[boundary:].strip())
        config = _CONFIG.search(text)
        if config and config.end() > boundary:
            self._config(read_arguments(text[config.end() :]))

    def _fact(self, entry: Fact, found: re.Match[str], owners: tuple[Owner, ...]) -> None:
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        owner = _owner_for(groups, owners)
        scale = _NUMBER_OF_BYTES.get(groups.pop("unit", ""), 1.0)
        if owner.engine is not None and (owner.process.startswith("EngineCore") or not owner.process):
            self._core(owner.engine)
        if entry.phase:
            self._reach(entry.phase)
        for name, value in entry.chosen.items():
            self.choices[name] = value
        for name, value in groups.items():
            if name.startswith("choice_"):
                self._choose(name.removeprefix("choice_"), value, entry.repeat == "first")
            elif name.startswith("took_"):
                self.took.setdefault(name.removeprefix("took_"), float(value))
            elif name == "engine_version":
                self.words[name] = value
            elif name == "kv_memory_bytes":
                self.store.put("kv_memory_gib", int(value) / 2**30, owner, entry.level, entry.repeat)
            else:
                number = float(value.replace(",", ""))
                self.store.put(name, number * (scale if name.endswith("_gib") else 1), owner, entry.level, entry.repeat)
        if "kv_tokens" in groups:
            self.failures.pop("unknown_error", None)  # the start went on after it

    def _allocated(self, found: re.Match[str], owner: Owner) -> None:
        """A pool of SGLang: the target's, a sliding window's, or, behind the target's, a draft model's."""
        label, tokens, at = found[1] or "", int(found[2]), (owner.engine, owner.rank)
        text = " ".join(found[0].split())
        swa = self.store.of_engine("pool_swa", owner.engine, True)
        full = self.store.of_engine("pool_full", owner.engine, True)
        if label == "SWA" or (label != "Full" and tokens == swa and tokens != full):
            self.store.put("pool_swa", tokens, owner, 3)
        elif label.lower() == "draft" or self._pools.get(at, text) != text:
            self.store.put("pool_draft", tokens, owner)
        else:
            if len(self._pools) < _MOST_ENGINES:
                self._pools[at] = text
            self.store.put("allocated_tokens", tokens, owner, repeat="first")
        if owner.engine is not None:
            self._core(owner.engine)
        self._reach("pool")

    def _fault(self, entry: Fault, found: re.Match[str], owners: tuple[Owner, ...], text: str) -> None:
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        self._fail(entry, {name: _datum(name, value) for name, value in groups.items()}, text)
        for name, also in entry.facts.items():
            if name in groups:
                self.store.put(also, float(groups[name]), owners[0], 3, "min")

    def _fail(self, entry: Fault, data: dict[str, object], text: str) -> None:
        if self.stopped or (self.ready and entry.tier == "unknown"):
            return
        if "value" in data and entry.failure == "bad_flag":
            data["arguments"] = [*_words(data.get("arguments")), str(data.pop("value"))]
        known = self.failures.setdefault(entry.failure, (entry, data, text[:2000]))[1]
        for name, value in data.items():
            known.setdefault(name, value)

    def _watch(self, record: Record) -> None:
        """Look for what is told by where a line stands: readiness, a stop, silence, requests that do not run."""
        body = record.body
        if _HANG in body:
            self.hang += 1
        elif self.hang and not (not record.headed and _HANG_TAIL.search(body)):
            self.hang = 0
        if any(text in body for text in _READY):
            self.ready = True
            self.failures.clear()
            self.phases.pop("ready", None)
            self._reach("ready")
        elif not self.failures and any(text in body for text in _STOP):
            self.stopped = True
        stats = _STATS.search(body) if " reqs, Waiting: " in body else None
        if stats and len(self.stuck) < _MOST_ENGINES:
            idle = float(stats[2].strip(".") or 0) == 0 and float(stats[3].strip(".") or 0) == 0
            self.stuck.pop(int(stats[1]), None)
            if idle and int(stats[4]) == 0 and int(stats[5]) > 0:
                self.stuck[int(stats[1])] = (0, int(stats[5]))

    def _arguments(self, arguments: Arguments, fresh: bool) -> None:
        if fresh:
            self._begin()
        self.arguments = arguments
        if "model_path" in arguments.items:
            self.votes["sglang"] += 1
            names = ("attention_backend", "sampling_backend", "grammar_backend", "moe_runner_backend", "quantization",
                     "page_size", "chunked_prefill_size", "speculative_algorithm", "schedule_policy")  # fmt: skip
            for name in names:
                word = arguments.word(name)
                if word:
                    self._choose(name, word)
            for name, switch in (("prefix_caching", "disable_radix_cache"), ("cuda_graph", "disable_cuda_graph")):
                if arguments.word(switch) in ("True", "False"):
                    self.choices[name] = arguments.word(switch) == "False"
        else:
            self.votes["vllm"] += 1

    def _config(self, config: Arguments) -> None:
        names = {"dtype": "dtype", "quantization": "quantization", "kv_cache_dtype": "kv_cache_dtype",
                 "enforce_eager": "enforce_eager", "enable_prefix_caching": "prefix_caching",
                 "enable_chunked_prefill": "chunked_prefill"}  # fmt: skip
        for name, choice in names.items():
            word = config.word(name)
            if word:
                self._choose(choice, word)

    def _choose(self, name: str, word: str, first: bool = False) -> None:
        value: object = int(word) if re.fullmatch(r"-?\d{1,15}", word) else _WORDS.get(word, word)
        if name in ("dtype", "kv_cache_dtype"):
            value = dtype_name(word)
        if first:
            self.choices.setdefault(name, value)
        else:
            self.choices[name] = value

    def _begin(self) -> None:
        """A server starts (again, when the log holds an earlier start): what it said of itself before is over."""
        if self.ready or self.stopped or self.failures or self.store.engines("kv_tokens", "max_concurrency"):
            self.store.epoch += 1
            self.ready = self.stopped = False
            self.failures.clear()
            self.phases.clear()
            self.took.clear()
            self._pools.clear()
            self.first_time = self.last_time
        self._reach("start")

    def _reach(self, phase: str) -> None:
        self.phases.setdefault(phase, self.last_time)

    def _core(self, engine: int) -> None:
        if len(self.cores) < _MOST_ENGINES:
            self.cores.add(engine)


def dtype_name(word: str) -> str:
    """Return a dtype as flags spell it: torch.float8_e4m3fn is fp8_e4m3, torch.bfloat16 is bfloat16."""
    name = word.removeprefix("torch.")
    return {"float8_e4m3fn": "fp8_e4m3", "float8_e4m3fnuz": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}.get(name, name)


_WORDS: dict[str, object] = {"True": True, "False": False}
_DIALECTS = {"vllm": vllm.FACTS, "sglang": sglang.FACTS}
_TABLES: dict[str | None, tuple[tuple[str, tuple[Fact, ...]], ...]] = {
    None: tuple(_DIALECTS.items()),
    "vllm": (("vllm", vllm.FACTS),),
    "sglang": (("sglang", sglang.FACTS),),
    "openai": (),
}
_FAULTS: dict[str | None, tuple[Fault, ...]] = {
    None: faults.FAULTS,
    "vllm": faults.FAULTS,
    "sglang": faults.FAULTS,
    "openai": tuple(entry for entry in faults.FAULTS if entry.failure in faults.GENERIC),
}


def needles(kind: str | None) -> tuple[str, ...]:
    """Return the literals one of which every telling line holds, none within another."""
    entries: list[Fact | Fault] = [*_FAULTS[kind], *(entry for _, table in _TABLES[kind] for entry in table)]
    words = {*SPECIAL, *(entry.needle for entry in entries)}
    return tuple(sorted(w for w in words if not any(o != w and o in w for o in words)))


def _owner_for(groups: dict[str, str], owners: tuple[Owner, ...]) -> Owner:
    """Pool sizes are printed by engine cores: where tags of two processes stand before a text, theirs is the core's."""
    named = groups.pop("engine", None)
    if named is not None:
        return Owner("EngineCore", "", int(named))
    if len(owners) > 1 and not groups.keys().isdisjoint(("kv_tokens", "max_concurrency")):
        return next((owner for owner in owners if owner.process.startswith("EngineCore")), owners[0])
    return owners[0]


def _datum(name: str, value: str) -> object:
    if name == "arguments":
        return _words(value)
    if name == "image":
        return value.strip("\"'").removeprefix("docker.io/").removeprefix("library/")
    if name.endswith("_gib"):
        return float(value)
    return int(value) if re.fullmatch(r"-?\d{1,15}", value) else value.rstrip(".")


def _words(value: object) -> list[str]:
    return value.split() if isinstance(value, str) else [str(word) for word in value] if isinstance(value, list) else []
