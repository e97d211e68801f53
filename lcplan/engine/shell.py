"""`cmd.sh`: one launch as a shell script, and scripts read back to their commands.

A script runs exactly one argv. The bare form exports the environment and replaces itself by the engine; the docker form
is one `docker run`. Every flag stands on a line of its own, quoted so that any shell reads back the same argv.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What shellcheck remarks on inside single quotes, where it is meant: $ and backticks, backslashes, typographic quotes.
_QUOTED = ("SC1003", "SC1111", "SC1112", "SC2016")
_LITERAL = re.compile("[$`\\\\\u2018-\u201f]")


@dataclass(frozen=True)
class ContainerSpec:
    """A docker container: what `docker run` is told beside the engine's own argv.

    `gpus` are device names (UUIDs or indexes), () for none, None for all. `ports` and `volumes` are docker's own
    `host:container` words. `cpuset_mems` needs the capability SYS_NICE in the container and is opt-in.
    """

    image: str
    name: str
    gpus: tuple[str, ...] | None = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    ipc: str | None = None
    shm_size: str | None = None
    network: str | None = None
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    cpuset_cpus: str | None = None
    cpuset_mems: str | None = None
    ulimits: tuple[str, ...] = ()
    init: bool = True
    log_opts: Mapping[str, str] = field(default_factory=dict)
    restart: str | None = None
    detach: bool = False
    extra: tuple[str, ...] = ()


def render_script(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    secrets: Sequence[str] = (),
    header: Sequence[str] = (),
    container: ContainerSpec | None = None,
    wrapper: Sequence[str] = (),
) -> str:
    """Return the text of `cmd.sh` for an engine's argv.

    `secrets` are names of variables whose values come from the caller's environment and never stand in the text.
    `header` lines become comments. `wrapper` is a command in front of the engine, such as `numactl --cpunodebind=0`.
    Raises ValueError for names that no shell takes and for NUL characters, which no argv can hold.
    """
    for name in (*env, *secrets):
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' is no name of an environment variable")
    parts = [["exec", *wrapper, *argv]] if container is None else _docker_parts(argv, env, secrets, container, wrapper)
    words = [word for part in parts for word in (*part, *env.values())]
    if any("\0" in word for word in words):
        raise ValueError("a NUL character can be no part of a command")
    if container is not None:
        parts[0].insert(0, "exec")
    body = [f': "${{{name}:?is needed from the environment}}"' for name in secrets]
    if container is None:
        body += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
        body += [f"export {name}" for name in secrets]
    groups = [group for part in parts for group in _by_flag(part)]
    body.append(" \\\n  ".join(" ".join(map(shlex.quote, group)) for group in groups))
    head = ["#!/usr/bin/env bash", *(f"# {line}".rstrip() for text in header for line in text.splitlines() or [""])]
    if any(_LITERAL.search(word) for word in words):
        head.append("# Words stand in single quotes so that nothing expands.")
        head.append(f"# shellcheck disable={','.join(_QUOTED)}")
    return "\n".join([*head, "set -eu", "", *body]) + "\n"


def docker_argv(
    argv: Sequence[str],
    env: Mapping[str, str],
    secrets: Sequence[str],
    container: ContainerSpec,
    wrapper: Sequence[str] = (),
) -> list[str]:
    """Return the `docker run` command of an engine's argv: options, image, then the engine's own words.

    The program is the entrypoint (the image's own is not relied upon), so the engine's argv starts behind the image.
    """
    return [word for part in _docker_parts(argv, env, secrets, container, wrapper) for word in part]


def read_script(text: str) -> list[list[str]]:
    """Return the commands of a script, word by word, without comments, `set`, tests of variables and a leading `exec`.

    Reads what `render_script` writes: quotes, line continuations, comments; nothing is expanded. Raises ValueError for
    quotes that are not closed.
    """
    commands = [shlex.split(command) for command in _commands(text)]
    kept = [command for command in commands if command and command[0] not in ("set", ":")]
    return [command[1:] if command[0] == "exec" else command for command in kept]


def _docker_parts(
    argv: Sequence[str],
    env: Mapping[str, str],
    secrets: Sequence[str],
    box: ContainerSpec,
    wrapper: Sequence[str],
) -> list[list[str]]:
    options = ["docker", "run", "--name", box.name]
    options += ["--detach"] if box.detach else []
    if box.gpus is None:
        options += ["--gpus", "all"]
    elif box.gpus:
        # The quotes are docker's: without them its CSV reader ends the device list at the first comma.
        options += ["--gpus", f'"device={",".join(box.gpus)}"']
    single = [
        ("--cpuset-cpus", box.cpuset_cpus),
        ("--cpuset-mems", box.cpuset_mems),
        ("--cap-add", "SYS_NICE" if box.cpuset_mems else None),
        ("--ipc", box.ipc),
        ("--shm-size", box.shm_size),
        ("--network", box.network),
        ("--restart", box.restart),
    ]
    options += [word for name, value in single if value is not None for word in (name, value)]
    options += ["--init"] if box.init else []
    many: list[tuple[str, Sequence[str]]] = [
        ("-p", box.ports),
        ("-v", box.volumes),
        ("--ulimit", box.ulimits),
        ("--log-opt", [f"{key}={value}" for key, value in box.log_opts.items()]),
        ("--label", [f"{key}={value}" for key, value in box.labels.items()]),
        ("-e", [f"{key}={value}" for key, value in env.items()]),
        ("-e", secrets),
    ]
    options += [word for name, values in many for value in values for word in (name, value)]
    program, *rest = [*wrapper, *argv]
    return [[*options, *box.extra, "--entrypoint", program], [box.image], rest]


def _by_flag(words: Sequence[str]) -> list[list[str]]:
    """Words in groups, one per flag: each starts at a word with a dash, the first one at the program."""
    groups: list[list[str]] = []
    for word in words:
        if not groups or word.startswith("-"):
            groups.append([])
        groups[-1].append(word)
    return groups


def _commands(text: str) -> list[str]:
    """Split a script at the ends of its commands, minding quotes, continuations and comments."""
    commands = [""]
    quote = ""
    at = 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\" and quote == '"':
                commands[-1] += char
                at += 1
            elif char == quote:
                quote = ""
        elif text.startswith("\\\n", at):
            at += 2
            continue
        elif char == "\\":
            commands[-1] += char
            at += 1
        elif char in "'\"":
            quote = char
        elif char == "#" and (not commands[-1] or commands[-1][-1] in " \t"):
            at = text.find("\n", at)
            if at < 0:
                break
            continue
        elif char in "\n;":
            commands.append("")
            at += 1
            continue
        commands[-1] += text[at : at + 1]
        at += 1
    return commands
