"""What is known after some lines of a log: takes one line after the other, in constant memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from lcplan.engine.logs import faults, patterns, sglang, vllm
from lcplan.engine.logs.args import Arguments, read_arguments
from lcplan.engine.logs.lines import NOBODY, Owner, Record, records
from lcplan.engine.logs.patterns import Fact, Fault, Index, index
from lcplan.engine.logs.store import Store

NEAR = 5  # lines after a telling one that are read too: they may be its continuation
_WIDEST = 32_768
_MOST_ENGINES = 2048
_ARGS = re.compile(r"(?:non-default args: |server_args=|\bargs: (?=Namespace\())(?=[A-Za-z]{0,20}[({])")
_CONFIG = re.compile(r" LLM engine \(v[^)]{1,60}\) with config: ")
_EXCEPTION = re.compile(r"(?:[a-z_]\w{0,60}\.){0,8}(?:[A-Z]\w{0,80})?(?:Error|Exception)(?::|$)")
_NO_CAUSE = re.compile(
    r"(?:Cancelled|BrokenPipe|EOF|ConnectionReset|EngineDead|ActorDied)Error|cancelled|See stack trace"
    r"|See root cause above"
)
_UNKNOWN = patterns.fault("unknown_error", "Error", tier="unknown")
_STATS = re.compile(
    r"(?:Engine (\d{1,6}): )?Avg prompt throughput: ([\d.]{1,12}) tokens/s, "
    r"Avg generation throughput: ([\d.]{1,12}) tokens/s, Running: (\d{1,9}) reqs?, "
    r"(?:Swapped: \d{1,9} reqs?, )?(?:Waiting|Pending): (\d{1,9}) reqs?"
)
_ALLOCATED = re.compile(r"(?:(\w[\w/-]{0,30}) )?KV Cache is allocated\..{0,80}?#tokens: (-?\d{1,15}).{0,80}")
_HANG = ("No available shared memory broadcast block", "No available block found in ")
_HANG_TAIL = re.compile(
    r"(?:found in |This )?(?:\d+ seconds|typically|some processes|processes are|hanging|time-consuming)"
)
_READY = ("Application startup complete", "The server is fired up", "server is listening on http")
_STOP = ("shutdown triggered", "signal=SIGTERM", "SIGTERM received", "Received SIGTERM")
_STOP_OF_UVICORN = "Shutting down"
_FATAL = ("", "ERROR", "CRITICAL")
_NOISE = ("Received request ", "# cmd: ")
_GIB_OF = {"MiB": 1 / 1024, "MB": 1 / 1024}
SPECIAL = (
    "non-default args: ", "server_args=", "args: Namespace(", *_HANG, "Running: 0 reqs, ", "#tokens: ", "Error",
    "Exception", ") (EngineCore", *_READY, *_STOP,
    _STOP_OF_UVICORN,
)  # fmt: skip

Rule = Fact | Fault


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
        self._window: tuple[str, ...] = ()
        self._owners: tuple[Owner, ...] = ()
        self._rules: list[Rule] = []
        self._late: list[Owner] = []
        self._pools: dict[tuple[int | None, str], str] = {}

    def line(self, text: str, words: Sequence[str]) -> None:
        """Take the next line that is not blank, and the words of the index that it holds."""
        self.near = max(self.near - 1, NEAR) if words else self.near - 1
        if text == self.last_line and not self.hang:
            return  # a line said twice says nothing more
        self.last_line = text
        if not any(noise in text for noise in _NOISE):
            rules = {id(rule): rule for word in words for rule in INDEX[self.kind].rules[word]}
            for record in records(text):
                self._record(record, list(rules.values()), bool(words))
        if not self.near:
            self._window, self._rules, self._late = (), [], []

    def skip(self, last_line: str) -> None:
        """Take note of lines without words of the index, far from any telling one; only the last of them matters."""
        self.last_line, self.hang = last_line, 0
        self._window, self._rules, self._late = (), [], []

    def stats(self, line: str) -> None:
        """Take note of a statistics line: requests that wait while none runs and nothing is computed."""
        found = _STATS.search(line)
        if found:
            engine, waiting = int(found[1] or 0), int(found[5])
            idle = not any(found[group].strip("0.") for group in (2, 3, 4))
            self.stuck.pop(engine, None)
            if idle and waiting and len(self.stuck) < _MOST_ENGINES:
                self.stuck[engine] = (0, waiting)

    def _record(self, record: Record, rules: list[Rule], telling: bool) -> None:
        body = record.body
        if record.stamp:
            self.first_time = self.first_time or record.stamp
            self.last_time = record.stamp
        if record.headed:
            owners = self._owners_of(record)
            before: tuple[str, ...] = ()
            self.votes[record.dialect] += record.dialect == "sglang" or bool(record.level)
        else:
            before = self._window
            owners = self._owners if before else (NOBODY,)
        if not body:
            self._keep((), [], owners)
            return
        self._watch(record)
        text = " ".join((*before, body))
        boundary = len(text) - len(body) if before else 0
        start = _ARGS.search(text)
        if start:
            arguments = read_arguments(text[start.end() :])
            self._arguments(arguments, fresh=start.end() > boundary)
            self._keep(() if arguments.complete else (*before, body), [], owners)
            if before and not arguments.complete:
                self._match(body, 0, owners, record, rules)
            return
        if before:
            known = {id(rule) for rule in rules}
            rules = rules + [rule for rule in self._rules if id(rule) not in known]
        if telling or rules:
            self._match(text, boundary, owners, record, rules)
        if telling and record.level in _FATAL and _EXCEPTION.match(body) and not _NO_CAUSE.search(body):
            self._fail(_UNKNOWN, {}, body)
        self._keep((*before, body), rules, owners)

    def _keep(self, window: tuple[str, ...], rules: list[Rule], owners: tuple[Owner, ...]) -> None:
        """Keep the last lines for the case that the next one continues them."""
        window = window[-NEAR:]
        self._window = window if sum(map(len, window)) <= _WIDEST else ()
        self._rules, self._owners = rules, owners

    def _owners_of(self, record: Record) -> tuple[Owner, ...]:
        """Two processes may print their tags before their texts: the second text then follows without a tag."""
        owners = record.owners
        if len(owners) > 1:
            self._late = list(owners[1:])
        elif not owners and record.level and self._late:
            owners = (self._late.pop(0),)
        return owners or (NOBODY,)

    def _match(self, text: str, boundary: int, owners: tuple[Owner, ...], record: Record, rules: list[Rule]) -> None:
        """Read what ends behind the boundary: what ends before it was read with the line before."""
        for rule in rules:
            if rule.needle not in text:
                continue
            if isinstance(rule, Fact):
                for found in rule.regex.finditer(text):
                    if found.end() > boundary:
                        self.votes[rule.dialect] += 1
                        self._fact(rule, found, owners)
            elif rule.any_level or record.level in _FATAL:
                said = next((m for m in rule.regex.finditer(text) if m.end() > boundary), None)
                if said:
                    self._fault(rule, said, owners, text[boundary:].strip())
        if "#tokens: " in text and self.kind in (None, "sglang"):
            for found in _ALLOCATED.finditer(text):
                if found.end() > boundary:
                    self._allocated(found, owners[0])
        config = _CONFIG.search(text)
        if config and config.end() > boundary:
            self._config(read_arguments(text[config.end() :]))

    def _fact(self, entry: Fact, found: re.Match[str], owners: tuple[Owner, ...]) -> None:
        groups = {name: text for name, text in found.groupdict().items() if text is not None}
        owner = _owner_for(groups, owners)
        scale = _GIB_OF.get(groups.pop("unit", ""), 1.0)
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
        if any(text in body for text in _HANG):
            self.hang += 1
        elif self.hang and not (not record.headed and _HANG_TAIL.search(body)):
            self.hang = 0
        if any(text in body for text in _READY):
            self.ready = True
            self.failures.clear()
            self.phases.pop("ready", None)
            self._reach("ready")
        elif not self.failures and (body == _STOP_OF_UVICORN or any(text in body for text in _STOP)):
            self.stopped = True
        if "Avg prompt throughput" in body:
            self.stats(body)

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
            self.stuck.clear()
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
_TABLES: dict[str, tuple[Fact, ...]] = {
    name: tuple(replace(entry, dialect=name) for entry in table)
    for name, table in (("vllm", vllm.FACTS), ("sglang", sglang.FACTS))
}
INDEX: dict[str | None, Index] = {
    None: index([*_TABLES["vllm"], *_TABLES["sglang"], *faults.FAULTS], SPECIAL),
    "vllm": index([*_TABLES["vllm"], *faults.FAULTS], SPECIAL),
    "sglang": index([*_TABLES["sglang"], *faults.FAULTS], SPECIAL),
    "openai": index([entry for entry in faults.FAULTS if entry.failure in faults.GENERIC], SPECIAL),
}


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
