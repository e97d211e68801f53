"""systemd service units and podman's quadlets -> the shell lines that they amount to.

Sources: systemd.service(5), systemd.exec(5) and podman-systemd.unit(5).
"""

from __future__ import annotations

import re
import shlex

_SECTION = re.compile(r"^\[(Container|Service)\][ \t]*$", re.MULTILINE)
_LINE = re.compile(r"[ \t]*([A-Za-z]+)[ \t]*=[ \t]*(.*)", re.DOTALL)
_EXEC_PREFIX = re.compile(r"\A[-@:+!|]+")
# Keys of [Container] -> options of `podman run`; those with several words in a value are split like a shell's.
_OPTIONS = {
    "AddCapability": "--cap-add",
    "AddDevice": "--device",
    "ContainerName": "--name",
    "EnvironmentFile": "--env-file",
    "GroupAdd": "--group-add",
    "HostName": "--hostname",
    "Mount": "--mount",
    "Network": "--network",
    "PublishPort": "-p",
    "Pull": "--pull",
    "ShmSize": "--shm-size",
    "Ulimit": "--ulimit",
    "User": "--user",
    "Volume": "-v",
    "WorkingDir": "--workdir",
    "Entrypoint": "--entrypoint",
}


def as_shell(text: str) -> str:
    """Return a text with its units as shell commands, line for line; a text without units stays as it is."""
    found = _SECTION.search(text)
    if found is None:
        return text
    lines = text.split("\n")
    out = [""] * len(lines)
    quadlet: dict[str, list[str]] = {}
    section, at = "", 0
    while at < len(lines):
        begin, whole = at, lines[at]
        while whole.endswith("\\") and at + 1 < len(lines):
            at += 1
            whole = f"{whole[:-1]}\n{lines[at]}" if section == "Service" else whole[:-1] + lines[at]
        at += 1
        if whole.startswith("["):
            section = whole.strip().strip("[]")
        elif whole.lstrip().startswith(("#", ";")):
            out[begin] = whole
        elif (pair := _LINE.match(whole)) and section == "Service":
            out[begin:at] = _service(pair[1], pair[2]).replace("\n", "\\\n").split("\n")[: at - begin]
        elif pair and section == "Container":
            quadlet.setdefault(pair[1], []).append(pair[2].strip())
    if quadlet.get("Image"):
        out[text.count("\n", 0, found.start())] = _podman(quadlet)
    return "\n".join(out)


def _service(key: str, value: str) -> str:
    if key == "Environment":
        return " ".join(["export", *map(_assignment, _words(value))])
    return _EXEC_PREFIX.sub("", value, count=1) if key == "ExecStart" else ""


def _podman(keys: dict[str, list[str]]) -> str:
    words = ["podman", "run"]
    for key, values in keys.items():
        for value in values:
            if key == "Environment":
                words += [word for pair in _words(value) for word in ("-e", shlex.quote(pair))]
            elif key in _OPTIONS:
                words += [_OPTIONS[key], shlex.quote(value)]
            elif key == "PodmanArgs":
                words.append(value)
    return " ".join([*words, keys["Image"][-1], *keys.get("Exec", [])[-1:]])


def _assignment(pair: str) -> str:
    name, _, value = pair.partition("=")
    return f"{name}={shlex.quote(value)}"


def _words(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()
