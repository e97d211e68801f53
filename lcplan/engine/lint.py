"""What is wrong with a server before it is started: flags, image, layout and model looked at together.

Codes, meanings and remedies: docs/diagnostics.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lcplan.base import canonical
from lcplan.base.diagnostics import Diagnostic, Source, error, nearest, warning
from lcplan.engine import get, lint_model, render
from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import Catalogue, Flag, load
from lcplan.engine.vllm.removed import REMOVED_FLAGS

_OTHER = {"vllm": "sglang", "sglang": "vllm"}
_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "vllm-router": "vllm-router"}
# The same wish in the words of vLLM and of SGLang.
_SAME = (
    ("gpu-memory-utilization", "mem-fraction-static"),
    ("max-num-seqs", "max-running-requests"),
    ("max-num-batched-tokens", "chunked-prefill-size"),
    ("hf-overrides", "json-model-override-args"),
    ("block-size", "page-size"),
    ("no-enable-prefix-caching", "disable-radix-cache"),
    ("enforce-eager", "disable-cuda-graph"),
    ("tool-call-parser", "tool-call-parser"),
    ("speculative-config", "speculative-algorithm"),
    ("enable-prompt-tokens-details", "enable-cache-report"),
    ("language-model-only", "language-only"),
)
# What lcplan itself renders -> where a recipe says it.
_RENDERED = {
    "vllm": {
        "host": "", "port": "", "served-model-name": "", "model": "model", "max-model-len": "context",
        "tensor-parallel-size": "layout", "pipeline-parallel-size": "layout", "data-parallel-size": "layout",
        "enable-expert-parallel": "layout", "decode-context-parallel-size": "layout",
    },
    "sglang": {
        "host": "", "port": "", "served-model-name": "", "model-path": "model", "context-length": "context",
        "tp-size": "layout", "pp-size": "layout", "dp-size": "layout", "ep-size": "layout", "dcp-size": "layout",
        "enable-dp-attention": "layout",
    },
    "vllm-router": {"host": "", "port": "", "vllm-pd-disaggregation": "layout"},
}  # fmt: skip
# Shares of the GPU's memory: vllm/config/cache.py (0 < x <= 1), sglang/srt/server_args.py (0 < x < 1).
_SHARES = ("gpu-memory-utilization", "mem-fraction-static")
# Variables by which an engine chooses its GPUs.
_GPUS = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_VERSION_TAG = re.compile(r"v?(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class LintFacts:
    """What is known around a server. None: not known. `image` None: it runs without a container.

    `config` is the model's config.json, `users_max` the most users any of the experiment's cells has. `source_of` gives
    the place of `args.<flag>`, `layout`, `context`, `image`, `engine`, `rope_scaling` in the recipe.
    """

    image: str | None = None
    ipc: str | None = None
    shm_size: str | None = None
    network: str | None = None
    config: Mapping[str, Any] | None = None
    moe: bool | None = None
    users_max: int | None = None
    source_of: Callable[[str], Source | None] = field(default=lambda _: None)


def lint(spec: ServerSpec, facts: LintFacts) -> list[Diagnostic]:
    """Return what is wrong with a server. `no-catalogue` and `engine-without-version` repeat for every server of an
    engine, with equal texts: the caller shows each once."""
    found = [*_image(spec, facts), *_environment(spec, facts)]
    if spec.kind == "openai":
        return [*found, *_command(spec, facts)]
    catalogue = load(spec.kind, spec.version)
    found += [*_version(spec, facts, catalogue), *_flags(spec, facts, catalogue)]
    if spec.kind in _OTHER:
        flags = get(spec.kind).identity(spec)
        found += [*_contradictions(spec, facts, flags), *_container(spec, facts)]
        found += [*_hidden(spec, facts, flags), *_cap(spec, facts), *lint_model.lint(spec, facts, flags)]
    return found


def siblings(
    specs: Mapping[str, ServerSpec], named: Collection[str] = (), places: Mapping[str, Source] | None = None
) -> list[Diagnostic]:
    """Return notes on flags in which one server differs from all its siblings of the same kind in an experiment.

    `named` are the flags that the matrix varies on purpose, `places` where each server is declared. Model, context and
    layout differ by nature.
    """
    found: list[Diagnostic] = []
    for kind in _OTHER:
        flags = {name: get(kind).identity(spec) for name, spec in specs.items() if spec.kind == kind}
        natural = {"model", "hf-overrides", "json-model-override-args", *_RENDERED[kind], *named}
        if len(flags) < 3:
            continue
        for flag in sorted({flag for known in flags.values() for flag in known} - natural):
            by_value: dict[str, list[str]] = {}
            for name, known in flags.items():
                by_value.setdefault(canonical.dumps(known[flag]) if flag in known else "", []).append(name)
            if sorted(map(len, by_value.values())) == [1, len(flags) - 1]:
                (odd, (who,)), (usual, _) = sorted(by_value.items(), key=lambda item: len(item[1]))
                message = f"{who} has --{flag} {odd}" if odd else f"{who} leaves --{flag} to the engine"
                others = f"all its siblings have {usual}" if usual else "all its siblings leave it to the engine"
                hint = "say so in a variant if it is meant"
                found.append(
                    Diagnostic("note", "sibling-differs", f"{message}, {others}", hint, (places or {}).get(who))
                )
    return found


def split_image(image: str) -> tuple[str, str | None, str | None]:
    """Return name, tag and digest of an image: `host:5000/a/b:tag@sha256:...`."""
    rest, _, digest = image.partition("@")
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:
        return rest, None, digest or None
    return name, tag, digest or None


def _image(spec: ServerSpec, facts: LintFacts) -> Iterator[Diagnostic]:
    if facts.image is None:
        return
    _, tag, digest = split_image(facts.image)
    place = facts.source_of("image")
    if digest is None and not re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", facts.image):
        if tag is None:
            message = f"the image '{facts.image}' has no tag: what it means changes without notice"
            yield warning("moving-tag", message, "name a version or a digest", place)
        elif not re.search(r"\d+\.\d+", tag):
            message = f"the tag '{tag}' names no version: what it means may change without notice"
            yield warning("moving-tag", message, "name a version, or pin the digest", place)
    found = _VERSION_TAG.match(tag or "")
    if found and spec.version and spec.kind in _OTHER and spec.version.removeprefix("v") != found[1]:
        message = f"the engine's version is given as {spec.version}, but its image is tagged '{tag}'"
        yield warning("version-differs-from-image", message, "make them agree", place)


def _environment(spec: ServerSpec, facts: LintFacts) -> Iterator[Diagnostic]:
    for name in _GPUS:
        if name in spec.env:
            message = f"{name} would choose other GPUs than those of the quad that the server is placed on"
            yield error(
                "placement-env", message, "leave it out; pin a quad if it matters", facts.source_of(f"env.{name}")
            )


def _command(spec: ServerSpec, facts: LintFacts) -> Iterator[Diagnostic]:
    words, place = spec.command or (), facts.source_of("engine")
    if not any("{port}" in word for word in words):
        hint = "write {port} where the command takes its port"
        yield warning(
            "command-without-port", "the command has no {port}: it can't be told where to listen", hint, place
        )
    if any("{run_id}" in word and word != "{run_id}" for word in words):
        message = "{run_id} stands inside a longer word: it is only filled in as a word of its own"
        yield error("run-id-inside-word", message, 'write two words, such as "--name", "{run_id}"', place)
    elif "{run_id}" not in words:
        message = "the command has no {run_id}: that a server is the run's own can't be proven by its name"
        yield warning(
            "command-without-run-id", message, "write {run_id} where the command takes the served name", place
        )


def _version(spec: ServerSpec, facts: LintFacts, catalogue: Catalogue) -> Iterator[Diagnostic]:
    engine, place = _NAMES.get(spec.kind, spec.kind), facts.source_of("engine")
    if spec.kind not in _OTHER:
        return
    if spec.version is None:
        message = f"{engine} without a version: flags are checked against {catalogue.version}"
        yield warning("engine-without-version", message, "give the engine a version", place)
    elif not catalogue.exact:
        message = f"no flag table for {engine} {spec.version}: flags are checked against {catalogue.version}"
        hint = f"make one: lcplan engine catalog {spec.kind}=={spec.version}"
        yield warning("no-catalogue", message, hint, place)


def _flags(spec: ServerSpec, facts: LintFacts, catalogue: Catalogue) -> Iterator[Diagnostic]:
    if not catalogue.names():
        return
    seen: dict[str, str] = {}
    for word, value in spec.args.items():
        place = facts.source_of(f"args.{word}")
        flag = catalogue.find(word)
        if flag is None:
            yield _unknown(spec, catalogue, word, place)
            continue
        if flag.name in seen:
            message = f"'{word}' and '{seen[flag.name]}' are the same flag, {flag.option}"
            first = facts.source_of(f"args.{seen[flag.name]}")
            yield error("duplicate-flag", message, "keep one", place, *([first] if first else []))
        seen[flag.name] = word
        yield from _rendered(spec, flag, value, place)
        try:
            typed = render.recipe_value(catalogue, flag, value)
        except ValueError as fault:
            yield error("flag-value", str(fault), "", place)
            continue
        yield from _content(flag, typed, place)


def _unknown(spec: ServerSpec, catalogue: Catalogue, word: str, place: Source | None) -> Diagnostic:
    engine, other = _NAMES.get(spec.kind, spec.kind), _OTHER.get(spec.kind)
    name = word.lstrip("-")
    foreign = load(other, None).match(name) if other else None
    if other and foreign and foreign[0].name == name.replace("_", "-"):
        column = 0 if other == "vllm" else 1
        same = next((pair[1 - column] for pair in _SAME if foreign[0].name == pair[column].removeprefix("no-")), "")
        hint = f"{engine}'s own flag is '{same}'" if same else f"{engine} has no such flag"
        return error("foreign-flag", f"'{word}' is a flag of {_NAMES[other]}, not of {engine}", hint, place)
    rivals = [known for known in catalogue.names() if known.startswith(name)]
    if len(rivals) > 1:
        return error("ambiguous-flag", f"'{word}' could be {', '.join(rivals[:4])}", "write the full name", place)
    if spec.kind == "vllm" and name.replace("_", "-") in REMOVED_FLAGS:
        message = f"'{word}' is gone in vLLM 0.31"
        if spec.version and not catalogue.exact:
            return warning("removed-flag", message, f"vLLM {spec.version} may have it", place)
        return error("removed-flag", message, "leave it out, or name the older version of the engine", place)
    hint = nearest(name.replace("_", "-"), catalogue.names())
    message = f"{engine} {catalogue.version} has no flag '{word}'"
    if spec.version and not catalogue.exact and not hint:
        return warning("unknown-flag", message, f"{engine} {spec.version} may have it", place)
    return error("unknown-flag", message, hint, place)


def _rendered(spec: ServerSpec, flag: Flag, value: Any, place: Source | None) -> Iterator[Diagnostic]:
    said = _RENDERED.get(spec.kind, {}).get(flag.name)
    if flag.name == "host" and value in ("127.0.0.1", "localhost", "::1"):
        message = f"{flag.option} {value} can't be reached from outside the container or the machine"
        yield warning("bound-to-loopback", message, "leave it out: lcplan binds to 0.0.0.0", place)
    if said is None or (said == "context" and spec.context is None):
        return
    hint = f"declare it as '{said}:' instead" if said else "leave it out"
    yield error("rendered-flag", f"{flag.option} is set by lcplan itself", hint, place)


def _content(flag: Flag, value: Any, place: Source | None) -> Iterator[Diagnostic]:
    if flag.name in _SHARES and isinstance(value, float) and not 0 < value <= 1:
        yield error("flag-value", f"{flag.option} is a share of the GPU's memory: {value} is not in 0..1", "", place)
    if flag.kind == "json" and isinstance(value, Mapping) and flag.json_fields:
        for key in value:
            if key not in flag.json_fields:
                hint = nearest(str(key), flag.json_fields)
                yield error("unknown-json-key", f"{flag.option} has no key '{key}'", hint, place)


def _contradictions(spec: ServerSpec, facts: LintFacts, flags: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """vLLM's: vllm/config/scheduler.py. A pair of --enable-x and --disable-x contradicts itself in any engine."""
    batched, seqs = flags.get("max-num-batched-tokens"), flags.get("max-num-seqs")
    place = _place(spec, facts, "max-num-batched-tokens")
    if isinstance(batched, int) and isinstance(seqs, int) and batched < seqs:
        message = f"--max-num-batched-tokens {batched} is below --max-num-seqs {seqs}"
        yield error("contradicting-flags", message, "each running sequence needs a token of the batch", place)
    if flags.get("enable-chunked-prefill") is False and isinstance(batched, int) and batched < (spec.context or 0):
        message = f"without chunked prefill --max-num-batched-tokens must reach the context: {batched} < {spec.context}"
        yield error("contradicting-flags", message, "raise it, or allow chunked prefill", place)
    if flags.get("kv-cache-memory-bytes") and "gpu-memory-utilization" in flags:
        message = "--gpu-memory-utilization has no effect on the pool beside --kv-cache-memory-bytes"
        yield warning("flag-without-effect", message, "keep one", _place(spec, facts, "gpu-memory-utilization"))
    for name, value in flags.items():
        stem = name.removeprefix("enable-")
        if stem != name and value is True and flags.get(f"disable-{stem}") is True:
            message = f"--{name} and --disable-{stem} contradict each other"
            yield error("contradicting-flags", message, "keep one", _place(spec, facts, name))


def _container(spec: ServerSpec, facts: LintFacts) -> Iterator[Diagnostic]:
    ranks = spec.layout.tp * (spec.layout.dp if spec.kind == "sglang" else 1)
    if facts.image is not None and ranks > 1 and facts.ipc != "host" and not facts.shm_size:
        message = f"{spec.layout.text} in a container with docker's 64 MiB of shared memory: its ranks talk through it"
        yield warning("small-shared-memory", message, "set docker.ipc: host, or docker.shm_size: 16g",
                      facts.source_of("layout"))  # fmt: skip


def _hidden(spec: ServerSpec, facts: LintFacts, flags: Mapping[str, Any]) -> Iterator[Diagnostic]:
    unknown = "cache hits and KV usage can't be known"
    if spec.kind == "sglang" and flags.get("enable-metrics") is not True:
        message = f"SGLang without --enable-metrics has no counters: {unknown}"
        yield warning("no-metrics", message, "add enable-metrics: true to args", facts.source_of("args"))
    if spec.kind == "vllm" and flags.get("disable-log-stats") is True:
        message = f"--disable-log-stats switches vLLM's counters off: {unknown}"
        yield warning("no-metrics", message, "leave it out", _place(spec, facts, "disable-log-stats"))


def _cap(spec: ServerSpec, facts: LintFacts) -> Iterator[Diagnostic]:
    cap, origin = get(spec.kind).sequence_cap(spec, None)
    if cap is None or facts.users_max is None:
        return
    total = cap * spec.layout.engines
    if total < facts.users_max:
        ranks = f" x {spec.layout.engines} engine ranks" if spec.layout.engines > 1 else ""
        message = (
            f"at most {total} sequences run at once ({origin}: {cap}{ranks}), but cells have {facts.users_max} users"
        )
        flag = origin.split()[0].lstrip("-")
        yield warning("cap-below-users", message, f"raise {flag}, or ask for fewer users", _place(spec, facts, flag))


def _place(spec: ServerSpec, facts: LintFacts, name: str) -> Source | None:
    """The place of the arg that means a flag, however it is spelt."""
    catalogue = load(spec.kind, spec.version)
    for word in spec.args:
        flag = catalogue.find(word)
        if flag and flag.name == name:
            return facts.source_of(f"args.{word}")
    return None
