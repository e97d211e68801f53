"""The words of one command -> which engine they start, through which prefixes, and the engine's own arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.engine.importer.expand import Variables
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.script import Command, read_script
from lcplan.engine.importer.shell import Budget
from lcplan.engine.importer.words import Value, Word

_MODULES = {
    "vllm.entrypoints.openai.api_server": ("vllm", True),
    "vllm.entrypoints.api_server": ("vllm", False),
    "sglang.launch_server": ("sglang", True),
    "sglang.srt.server": ("sglang", True),
}
_FILES = (
    (re.compile(r"(?:.*/)?vllm/entrypoints/openai/api_server\.py"), "vllm", True),
    (re.compile(r"(?:.*/)?vllm/entrypoints/api_server\.py"), "vllm", False),
    (re.compile(r"(?:.*/)?sglang/launch_server\.py"), "sglang", True),
)
_SHELLS = {"bash", "sh", "zsh", "dash", "ash"}
# Programs that may name an engine in their words but never start one.
_TALKERS = {
    *(
        "echo",
        "printf",
        "grep",
        "egrep",
        "rg",
        "pkill",
        "pgrep",
        "kill",
        "killall",
        "ps",
        "cat",
        "tail",
        "head",
        "less",
    ),
    *("curl", "wget", "pip", "pip3", "apt", "apt-get", "git", "which", "man", "alias", "ls", "cd", "cp", "mv", "rm"),
    *(
        "mkdir",
        "chmod",
        "test",
        "[",
        "[[",
        "sed",
        "awk",
        "tee",
        "logger",
        "read",
        "return",
        "exit",
        "trap",
        "wait",
        "sleep",
    ),
}
_NEUTRAL = {
    "set",
    "cd",
    "source",
    ".",
    "export",
    "ulimit",
    "sleep",
    "echo",
    "printf",
    "true",
    "shopt",
    "trap",
    "umask",
    "[",
}
_NUMACTL = {
    "cpunodebind": "cpunodebind",
    "N": "cpunodebind",
    "membind": "membind",
    "m": "membind",
    "physcpubind": "physcpubind",
    "C": "physcpubind",
    "interleave": "interleave",
    "i": "interleave",
    "preferred": "preferred",
    "p": "preferred",
    "localalloc": "localalloc",
    "l": "localalloc",
}
_ENV = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)
# The word behind these is a variable, even if its value reads like a command.
_ENV_FLAGS = (["-e"], ["--env"])
_HINT = re.compile(r"vllm|sglang", re.IGNORECASE)
_NESTING = 4


@dataclass(slots=True)
class Program:
    """A server that a command starts. `openai` is False for vLLM's old demo server; `positional`: the first plain word
    is the model; `env` holds what prefixes and inner scripts set."""

    engine: str
    args: list[Word]
    openai: bool = True
    positional: bool = False
    env: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    begin: int = 0


def find_program(
    words: Sequence[Word], variables: Variables | None = None, depth: int = 0, budget: Budget | None = None
) -> Program | None:
    """Return the server that some words start, or None. `variables` are known inside shells that the words start."""
    if not words or words[0].rpartition("/")[2] in _TALKERS or depth > _NESTING:
        return None
    together = " ".join(words)
    if not _HINT.search(together) and "$" not in together:
        return None
    for at, word in enumerate(words):
        name = word.rpartition("/")[2]
        if name in _SHELLS and (script := _script_of(words, at)):
            program = _in_script(script, variables or {}, depth, budget)
            if program:
                program.options.setdefault("shell_wrapper", f"{name} -c")
            return program and _prefixed(program, words, at)
        if " " in word and _HINT.search(word) and not word.startswith("-") and words[at - 1 : at] not in _ENV_FLAGS:
            program = _in_script(word, variables or {}, depth, budget)
            if program:
                if name not in ("ssh", "tmux", "screen", "eval", "su"):
                    program.findings.append(Finding("argument-contains-space", word[:60], word.line))
                return _prefixed(program, words, at)
        found = _launch_at(words, at)
        if found:
            found.words += words
            return _prefixed(found, words, at)
    return None


def shell_wrapper(words: Sequence[Word]) -> str | None:
    """Return `bash -c`, `sh -c`, ... when words run a script given as an argument, else None."""
    for at, word in enumerate(words[:4]):
        name = word.rpartition("/")[2]
        if name in _SHELLS and _script_of(words, at):
            return f"{name} -c"
    return None


def _launch_at(words: Sequence[Word], at: int) -> Program | None:
    word = words[at]
    name = word.rpartition("/")[2]
    following = words[at + 1] if at + 1 < len(words) else ""
    if name in ("vllm", "sglang") and following == "serve":
        return Program(str(name), list(words[at + 2 :]), positional=True, begin=at)
    if (
        word in ("-m", "-um", "-Om")
        and following == "vllm.entrypoints.cli.main"
        and words[at + 2 : at + 3] == ["serve"]
    ):
        return Program("vllm", list(words[at + 3 :]), positional=True, begin=at)
    if word in ("-m", "-um", "-Om") and following in _MODULES:
        engine, openai = _MODULES[following]
        return Program(engine, list(words[at + 2 :]), openai, begin=at)
    if word.startswith("-m") and word[2:] in _MODULES:
        engine, openai = _MODULES[word[2:]]
        return Program(engine, list(words[at + 1 :]), openai, begin=at)
    for pattern, engine, openai in _FILES:
        if pattern.fullmatch(word):
            return Program(engine, list(words[at + 1 :]), openai, begin=at)
    return None


def _script_of(words: Sequence[Word], at: int) -> Word | None:
    """The script of `bash -c SCRIPT`, `sh -lc SCRIPT` at an index."""
    for place in range(at + 1, min(at + 5, len(words) - 1)):
        word = words[place]
        if re.fullmatch(r"-[a-z]*c", word):
            return words[place + 1]
        if not word.startswith(("-", "+")) and words[place - 1] not in ("-o", "+o"):
            return None
    return None


def _in_script(text: str, variables: Variables, depth: int, budget: Budget | None) -> Program | None:
    if depth >= _NESTING:
        return None
    script = read_script(text, variables, budget)
    others = False
    for command in script.commands:
        program = program_of(command, script.variables, depth + 1, budget)
        if program is None:
            others = others or (bool(command.words) and command.words[0] not in _NEUTRAL)
            continue
        program.env = {**program.exported, **program.env}
        program.findings += script.findings
        if others:
            program.findings.append(Finding("extra-commands-before-launch", line=command.line))
        return program
    return None


def program_of(command: Command, variables: Variables, depth: int = 0, budget: Budget | None = None) -> Program | None:
    """Return the server that a command of a script starts, with the environment the script gives it, or None."""
    program = find_program(command.words, variables, depth, budget)
    if program is None:
        return None
    for name, value in command.exported.items():
        program.exported.setdefault(name, value.text)
        program.words.append(_word(value, command.line))
    for name, value in command.env.items():
        program.env.setdefault(name, value.text)
        program.words.append(_word(value, command.line))
    if command.loop is not None:
        program.findings.append(
            Finding("shell-loop", f"{command.loop} instances" if command.loop else "", command.line)
        )
    return program


def _word(value: Value, line: int) -> Word:
    return Word(value.text, line, value.names, defaulted=value.defaulted)


def _prefixed(program: Program, words: Sequence[Word], begin: int) -> Program:
    """Add what stands before the program: assignments of `env`, numactl's binding, sudo."""
    at = 0
    while at < begin:
        word = words[at]
        name = word.rpartition("/")[2]
        assigned = _ENV.fullmatch(word)
        if assigned:
            program.env.setdefault(assigned[1], assigned[2])
        elif name == "sudo":
            program.options["sudo"] = True
        elif name == "numactl":
            binding = _numactl(words[at + 1 : begin])
            program.options["numactl"] = binding
            program.findings.append(Finding("numactl-prefix", line=word.line))
        at += 1
    known = {id(word) for word in program.words}
    program.words += [word for word in words[:begin] if id(word) not in known]
    return program


def _numactl(words: Sequence[Word]) -> dict[str, str]:
    out: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        at += 1
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(name) > 1:
            name, value, equals = name[0], name[1:], "="
        key = _NUMACTL.get(name)
        if key is None or key == "localalloc":
            out[key or name] = value or "true"
            continue
        if not equals and at < len(words):
            value = str(words[at])
            at += 1
        out[key] = value
    return out
