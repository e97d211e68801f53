"""Any text -> the one server it starts, or a refusal. The door of the package; pure, and it never raises for a text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from lcplan.engine.importer import compose, docker, kubernetes
from lcplan.engine.importer.arguments import engine_of_flags
from lcplan.engine.importer.container import Container, split_image
from lcplan.engine.importer.expand import Variables
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.imported import Imported
from lcplan.engine.importer.paste import clean
from lcplan.engine.importer.program import Program, find_program, program_of, shell_wrapper
from lcplan.engine.importer.result import imported
from lcplan.engine.importer.script import Command, Script, read_script
from lcplan.engine.importer.shell import Budget
from lcplan.engine.importer.words import Value, Word
from lcplan.engine.importer.yaml_text import looks_like_yaml, read_yaml

LIMIT = 1 << 24
# More launches than this in one text are not counted.
_ENOUGH = 100
_RELEVANT = re.compile(
    r"vllm|sglang|docker|podman|nerdctl|run_cluster|--\w|^[ \t]*-\w|image\s*:|args\s*:|command\s*:|serve\s",
    re.MULTILINE,
)
_COMMENTED = re.compile(
    r"vllm serve|sglang serve|(?:docker|podman|nerdctl) run|-m (?:vllm|sglang)\.|"
    r"^(?:command|args|image|entrypoint)\s*:|^(?:- )?[\"']?--?[a-zA-Z][\w-]+"
)
# Images whose entrypoint is the engine itself.
_ENTRYPOINT = re.compile(r"(?:^|/)vllm-(?:openai|tpu|cpu)[\w.-]*$")
_OTHER_PROGRAMS = re.compile(
    r"(?:.*/)?(?:bash|sh|zsh|python[\d.]*|sleep|ray|tail|nvidia-smi|env|true|cat|ls|tini|vllm|sglang)"
)
_MODEL = re.compile(r"[\w.~$-][\w.${}~-]*(?:/[\w.${}~-]+)+/?")


@dataclass(slots=True)
class Launch:
    """A candidate: the container (or none: form `bare`, `args`), the server in it if any, the line it begins at."""

    box: Container
    program: Program | None
    line: int
    findings: list[Finding] = field(default_factory=list)


def read(text: str) -> Imported:
    """Return what a text says: the first server that it starts. A text that starts none gives `engine` None."""
    if len(text) > LIMIT:
        return imported(None, None, [Finding("text-too-large", f"{LIMIT >> 20} MiB")])
    if not _RELEVANT.search(text):
        return imported(None, None, [])
    pasted = clean(text)
    best: Launch | None = None
    findings = list(pasted.findings)
    budget = Budget()
    for section in pasted.sections:
        if budget.left <= 0:
            break
        launches, odd = _launches(section, budget)
        findings += odd
        serving = [launch for launch in launches if launch.program]
        if serving:
            best = serving[0]
            if len(serving) > 1:
                findings.append(Finding("several-launches", str(len(serving)), serving[1].line))
            break
        if best is None and launches:
            best = next((launch for launch in launches if _image_engine(launch.box)), launches[0])
    if best is None:
        return imported(None, None, findings)
    engine = best.program.engine if best.program else _image_engine(best.box)
    return imported(best.box, best.program, [*findings, *best.findings], engine)


def read_container(box: Container) -> Imported:
    """Return what a container that is known already says, for example a running one."""
    program, findings = container_program(box)
    return imported(box, program, findings, program.engine if program else _image_engine(box))


def _launches(text: str, budget: Budget) -> tuple[list[Launch], list[Finding]]:
    if looks_like_yaml(text):
        launches, findings = _yaml_launches(text, budget)
        if launches or not re.search(r"^[ \t]*(?:sudo\s|vllm\s|docker\s|python)|<<", text, re.MULTILINE):
            return launches, findings
    script = read_script(text, budget=budget)
    launches = _script_launches(script, budget)
    if not any(launch.program for launch in launches):
        for body in [body for command in script.commands for body, _ in command.documents]:
            inner, findings = _launches(body, budget) if "<<" not in body else ([], [])
            if any(launch.program for launch in inner):
                return inner, [*script.findings, *findings]
    findings = list(script.findings)
    return launches or _trimmed(script) or _others(script), [*findings, *_commented(script.comments), *_orphans(script)]


def _yaml_launches(text: str, budget: Budget) -> tuple[list[Launch], list[Finding]]:
    data = read_yaml(text)
    boxes: list[Container] = []
    for document in data.documents:
        if compose.is_compose(document):
            boxes += [compose.read_service(name, service) for name, service in compose.services(document)]
        else:
            boxes += [kubernetes.read_container(entry, pod) for entry, pod in kubernetes.containers(document)]
    out = []
    for box in boxes:
        program, findings = container_program(box, budget)
        out.append(Launch(box, program, box.line, findings))
    return out, [*data.findings, *_commented(data.comments)]


def _script_launches(script: Script, budget: Budget) -> list[Launch]:
    out: list[Launch] = []
    host: Launch | None = None
    for command in script.commands:
        if len(out) >= _ENOUGH:
            break
        words = command.words
        begin = docker.find_run(words)
        box = (
            docker.read_run(words, begin)
            if begin >= 0
            else docker.read_run_cluster(words) or docker.read_compose_run(words) or _headless(script, command)
        )
        if box is not None:
            program, findings = container_program(box, budget)
            if command.loop is not None:
                findings.append(_loop(command))
            launch = Launch(box, program, command.line, findings)
            out.append(launch)
            if program is None and (_image_engine(box) or host is None):
                host = launch
            continue
        program = program_of(command, script.variables, budget=budget)
        if program is None:
            continue
        if host is not None and host.program is None and _image_engine(host.box):
            # The container is started with a shell, the engine inside it by a later command.
            host.program = program
            host.box.argv = []
            continue
        out.append(Launch(_bare(command, program), program, command.line, _head_findings(command)))
    return out


def _headless(script: Script, command: Command) -> Container | None:
    """A docker line without its head, when the text begins with it."""
    words = command.words
    if command is not script.commands[0] or not words or words[0].startswith("-m"):
        return None
    return docker.read_trimmed(words)


def _bare(command: Command, program: Program) -> Container:
    inside = any(word.rpartition("/")[2] in docker.CLIENTS for word in command.words[:3])
    return Container("docker" if inside else "bare", line=command.line, asks_for_gpu=inside)


def _head_findings(command: Command) -> list[Finding]:
    return [Finding("partial-command", line=command.line)] if command.words[0].startswith("-m") else []


def _trimmed(script: Script) -> list[Launch]:
    """Launches whose head is missing: a docker line, `serve MODEL`, or arguments alone."""
    if not script.commands:
        return []
    first = script.commands[0]
    words = list(first.words)
    if not words:
        return []
    if words[0].startswith("-") and all(c.words[:1] and c.words[0].startswith("-") for c in script.commands):
        words = [word for command in script.commands for word in command.words]
        script.commands[1:] = []
    partial = [Finding("partial-command", line=first.line)]
    named = (
        len(words) > 1 and words[1].startswith("-") and (words[0].startswith("$") or bool(_MODEL.fullmatch(words[0])))
    )
    if words[0] == "serve" and len(words) > 1:
        program = Program(engine_of_flags(words) or "vllm", words[1:], positional=True, words=words)
        return [Launch(Container("bare", line=first.line), program, first.line, partial)]
    if not words[0].startswith("-") and not named:
        return []
    engine = engine_of_flags(words)
    if engine is None:
        return []
    program = Program(engine, words, positional=named, words=words)
    return [Launch(Container("args", line=first.line), program, first.line, partial)]


def _others(script: Script) -> list[Launch]:
    """The first command with flags, when the text starts none of the engines."""
    for command in script.commands:
        if any(word.startswith("-") for word in command.words[1:]) and not command.words[0].startswith("-"):
            values = {**command.exported, **command.env}
            box = Container("bare", line=command.line, env={name: value.text for name, value in values.items()})
            named = [Word(value.text, command.line, value.names) for value in values.values()]
            box.words = [*command.words, *named]
            return [Launch(box, None, command.line)]
    return []


def container_program(box: Container, budget: Budget | None = None) -> tuple[Program | None, list[Finding]]:
    """Return the server in a container: named by its words, else by its image, else by its flags."""
    findings: list[Finding] = []
    variables: Variables = {name: Value(text) for name, text in box.env.items() if text is not None}
    program = find_program(box.argv, variables, budget=budget)
    if program is None and (shell := shell_wrapper(box.argv)):
        box.options.setdefault("shell_wrapper", shell)
    name = split_image(box.image).name if box.image else ""
    starts = bool(_ENTRYPOINT.search(name)) and not box.entrypoint
    if program is not None:
        if starts and program.begin <= 2 and "shell_wrapper" not in program.options:
            findings.append(Finding("duplicate-entrypoint", line=box.line))
        _undouble(program, findings)
        return program, findings
    words = list(box.argv)
    doubled = bool(words) and words[0] == "serve"
    if doubled:
        findings.append(Finding("duplicate-entrypoint", line=box.line))
        words = words[1:]
    engine = _image_engine(box)
    flags_first = bool(words) and words[0].startswith("-")
    plain = (
        bool(words) and not flags_first and (starts or (engine and doubled)) and not _OTHER_PROGRAMS.fullmatch(words[0])
    )
    named = (
        bool(words)
        and not box.entrypoint
        and not flags_first
        and engine is not None
        and bool(_MODEL.fullmatch(words[0]))
    )
    bare_image = not words and starts
    if not ((flags_first and not (box.entrypoint and box.argv[0] is not words[0])) or plain or bare_image or named):
        return None, findings
    if box.entrypoint and not flags_first:
        return None, findings
    engine = engine or engine_of_flags(words)
    if engine is None:
        return None, findings
    return Program(engine, words, positional=True, words=list(box.argv)), findings


def _undouble(program: Program, findings: list[Finding]) -> None:
    inner = find_program(program.args[:3])
    if inner is not None and inner.engine == program.engine:
        count = len(program.args[:3]) - len(inner.args)
        program.args, program.positional = program.args[count:], inner.positional
        findings.append(Finding("duplicate-entrypoint", line=program.args[0].line if program.args else 0))
    elif program.args[:1] == ["serve"]:
        program.args = program.args[1:]
        findings.append(Finding("duplicate-entrypoint"))


def _image_engine(box: Container) -> str | None:
    image = (box.image or "").rpartition("@")[0] or (box.image or "")
    name = split_image(image).name.lower()
    if "sglang" in name or re.search(r"(?:^|/)sgl[-/]", name):
        return "sglang"
    return "vllm" if "vllm" in name else None


def _loop(command: Command) -> Finding:
    return Finding("shell-loop", f"{command.loop} instances" if command.loop else "", command.line)


def _commented(comments: Iterable[tuple[int, str]]) -> list[Finding]:
    for line, text in comments:
        if _COMMENTED.search(text):
            return [Finding("commented-out-command-ignored", line=line)]
    return []


def _orphans(script: Script) -> list[Finding]:
    """Lines that begin with a flag: the line before them lacks its backslash."""
    for command in script.commands[1:]:
        if command.words and re.match(r"--?[A-Za-z]", command.words[0]) and command.before == "\n":
            return [Finding("line-without-continuation-followed-by-flags", command.words[0], command.line)]
    return []


__all__ = ["Word", "read", "read_container"]
