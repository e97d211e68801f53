"""`docker run`, `podman run`, `nerdctl run`, their trimmed forms, and vLLM's run_cluster.sh -> a container."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lcplan.engine.importer.container import Container, gpu_request
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.shell import lex
from lcplan.engine.importer.words import Word

CLIENTS = {"docker", "podman", "nerdctl", "nvidia-docker", "docker.exe", "podman-hpc"}
_SHORT = {
    "e": "env",
    "v": "volume",
    "p": "publish",
    "w": "workdir",
    "u": "user",
    "h": "hostname",
    "m": "memory",
    "c": "cpu-shares",
    "l": "label",
    "a": "attach",
    "d": "detach",
    "i": "interactive",
    "t": "tty",
    "P": "publish-all",
    "q": "quiet",
}
_SWITCHES = {
    *("detach", "interactive", "tty", "rm", "privileged", "init", "read-only", "publish-all", "no-healthcheck"),
    *("no-deps", "service-ports", "use-aliases", "build", "remove-orphans", "quiet-pull", "no-TTY"),
    *("oom-kill-disable", "sig-proxy", "disable-content-trust", "quiet", "replace", "no-hosts", "rmi", "tls-verify"),
}
_ALIASES = {"net": "network", "health-cmd": "healthcheck", "pull": "pull-policy"}
_LISTS = {
    *("device", "group-add", "security-opt", "ulimit", "log-opt", "cap-add", "cap-drop", "add-host", "label", "tmpfs"),
    *(
        "env-file",
        "dns",
        "sysctl",
        "link",
        "expose",
        "volumes-from",
        "attach",
        "annotation",
        "network-alias",
        "label-file",
    ),
}
_SINGLE = {
    *(
        "name",
        "hostname",
        "restart",
        "runtime",
        "shm-size",
        "ipc",
        "network",
        "user",
        "workdir",
        "memory",
        "cpuset-cpus",
    ),
    *(
        "cpuset-mems",
        "entrypoint",
        "pull-policy",
        "healthcheck",
        "cpus",
        "pid",
        "platform",
        "log-driver",
        "memory-swap",
    ),
    *("uts", "userns", "cgroupns", "cgroup-parent", "cidfile", "cpu-shares", "memory-reservation", "oom-score-adj"),
    *(
        "memory-swappiness",
        "pids-limit",
        "stop-signal",
        "stop-timeout",
        "storage-opt",
        "gpus",
        "env",
        "volume",
        "mount",
    ),
    *("publish", "isolation", "mac-address", "ip", "kernel-memory", "blkio-weight", "cpu-period", "cpu-quota", "pod"),
    *("health-interval", "health-timeout", "health-retries", "health-start-period", "systemd", "arch", "authfile"),
}
_KNOWN = _SWITCHES | _LISTS | _SINGLE | set(_ALIASES)
_ENGINE_IMAGE = re.compile(r"vllm|sglang|sgl-|sgl/|/sgl", re.IGNORECASE)
_IMAGE = re.compile(r"[\w.${}:/@?-]+")
_RUN_CLUSTER = re.compile(r"(?:.*/)?run_cluster\.sh")


def find_run(words: Sequence[Word]) -> int:
    """Return where the options of a `docker run` (or podman, nerdctl) begin, or -1."""
    for at, word in enumerate(words[:40]):
        if word.rpartition("/")[2] in CLIENTS:
            for verb in range(at + 1, min(len(words), at + 8)):
                if words[verb] in ("run", "create"):
                    return verb + 1
                if words[verb] in ("compose", "exec", "stop", "rm", "logs", "pull", "build", "ps", "inspect", "swarm"):
                    return -1
            return -1
    return -1


def read_run(words: list[Word], begin: int) -> Container:
    """Return the container of `docker run` words, whose options begin at an index."""
    head = list(words[:begin])
    names = [word.rpartition("/")[2] for word in head]
    client = next(name for name in names if name in CLIENTS)
    box = Container("podman" if client.startswith("podman") else "docker", line=words[0].line)
    if "sudo" in names:
        box.options["sudo"] = True
    if client in ("nerdctl", "nvidia-docker"):
        box.options["client"] = client
    if client == "nvidia-docker":
        box.ask_gpus(["all"])
    box.words += words
    _options(box, words, begin)
    return box


def read_compose_run(words: list[Word]) -> Container | None:
    """Return the container of `docker compose run [options] SERVICE [command]`, or None."""
    for at, word in enumerate(words[:12]):
        name = word.rpartition("/")[2]
        if (name == "compose" and at and words[at - 1].rpartition("/")[2] in CLIENTS) or name == "docker-compose":
            begin = next((place + 1 for place in range(at + 1, min(len(words), at + 12)) if words[place] == "run"), 0)
            break
    else:
        return None
    if not begin:
        return None
    box = Container("compose", line=words[0].line, asks_for_gpu=True)
    box.words += words
    _options(box, words, begin)
    box.options["service"], box.image = box.image, None
    return box


def read_trimmed(words: list[Word]) -> Container | None:
    """Return the container of a docker line without its head (`-e A=1 IMAGE ...`, `IMAGE --model ...`), or None."""
    begin = 0
    if words and words[0] == "run" and len(words) > 1 and words[1].startswith("-"):
        begin = 1
    box = Container("docker", line=words[0].line if words else 0)
    box.words += words
    for word in words[begin:]:
        if not word.startswith("-"):
            break
        name = _long_name(word)
        if name is None or name == "mount" or name not in _KNOWN:
            break
    _options(box, words, begin)
    if not box.image or not looks_like_image(box.image):
        return None
    if begin == 0 and words[0].startswith("-") and _long_name(words[0]) not in _KNOWN:
        return None
    box.findings.append(Finding("partial-command", line=box.line))
    return box


def read_run_cluster(words: list[Word]) -> Container | None:
    """Return the container of vLLM's `run_cluster.sh IMAGE HEAD_ADDRESS --head|--worker CACHE_DIR [docker options]`.

    Source: examples/online_serving/run_cluster.sh of the vLLM repository.
    """
    at = next((i for i, word in enumerate(words[:8]) if _RUN_CLUSTER.fullmatch(word)), -1)
    if at < 0 or len(words) < at + 4:
        return None
    box = Container("docker", image=words[at + 1], line=words[0].line)
    box.words += words
    box.options["wrapper"] = "run_cluster.sh"
    if "sudo" in words[:at]:
        box.options["sudo"] = True
    box.options["ray"] = words[at + 3].lstrip("-")
    rest = at + 4
    if rest < len(words) and not words[rest].startswith("-"):
        box.options["cache_dir"] = str(words[rest])
        rest += 1
    _options(box, words, rest)
    box.image = words[at + 1]
    # The container runs Ray; a server starts in it later.
    box.asks_for_gpu = box.entrypoint = True
    return box


def looks_like_image(text: str) -> bool:
    """Return whether a word is an image of one of the engines."""
    if text.startswith(("/", ".", "~")):
        return False
    name = text.partition("@")[0]
    repository = name.rpartition("/")[2].partition(":")[0]
    if (
        not _IMAGE.fullmatch(text)
        or not _ENGINE_IMAGE.search(name)
        or (repository in ("vllm", "sglang") and "/" not in name)
    ):
        return ":" in name and bool(_ENGINE_IMAGE.search(name)) and bool(_IMAGE.fullmatch(text))
    return True


def _long_name(word: str) -> str | None:
    """The long name of an option word, `-itd` by its last letter; None when it is no docker option."""
    if word.startswith("--"):
        name = word[2:].partition("=")[0]
        return _ALIASES.get(name, name)
    return _SHORT.get(word[1:2])


def _options(box: Container, words: list[Word], at: int) -> None:
    """Read options up to the image, then the image and the command."""
    while at < len(words):
        word = words[at]
        at += 1
        if word.glued and word.startswith("-"):
            box.findings.append(Finding("glued-flags", word, word.line))
        if word == "--":
            continue
        if not word.startswith("-") or word == "-":
            if not word.strip() or _is_hole(word, words, at):
                if word.names:
                    box.findings.append(Finding("unresolved-variable-may-hold-flags", ",".join(word.names), word.line))
                continue
            if word.glued:
                box.findings.append(Finding("glued-flags", word, word.line))
            box.image = str(word)
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _ALIASES.get(name, name)
            if name in _SWITCHES:
                _put(box, name, not equals or value.lower() in ("true", "1"), word)
            elif equals:
                _put(box, name, value, word)
            elif at < len(words):
                _put(box, name, str(words[at]), words[at])
                at += 1
            continue
        letters = word[1:]
        for place, letter in enumerate(letters):
            name = _SHORT.get(letter, letter)
            if name in _SWITCHES:
                _put(box, name, True, word)
                continue
            rest = letters[place + 1 :].removeprefix("=")
            if rest:
                _put(box, name, rest, word)
            elif at < len(words):
                _put(box, name, str(words[at]), words[at])
                at += 1
            break
    entry = box.options.get("entrypoint")
    box.argv = list(words[at:])
    if isinstance(entry, str):
        box.entrypoint = True
        parts = [Word("".join(p.text for p in w.parts)) for s in lex(entry, script=False).statements for w in s.words]
        box.argv = [*parts, *box.argv]


def _is_hole(word: Word, words: list[Word], at: int) -> bool:
    """Whether an unknown variable where the image is due holds options: an image still follows."""
    if not word.hole:
        return False
    following = words[at] if at < len(words) else ""
    if not following.startswith("-"):
        return looks_like_image(following)
    name = _long_name(following)
    return name in _KNOWN and any(looks_like_image(later) for later in words[at : at + 200])


def _put(box: Container, name: str, value: Any, word: Word) -> None:
    match name:
        case "env":
            key, equals, text = str(value).partition("=")
            box.env[key] = text if equals else None
        case "volume":
            box.volumes.append(value)
        case "publish":
            box.ports.append(value)
        case "mount":
            _mount(box, value)
        case "gpus":
            gpus, count = gpu_request(value)
            box.asks_for_gpu = True
            box.gpu_count = count
            if gpus is not None:
                box.ask_gpus([gpus] if isinstance(gpus, str) else gpus)
        case "device":
            box.options.setdefault("device", []).append(value)
            _device(box, value)
        case "env-file":
            box.options.setdefault("env_file", []).append(value)
            box.findings.append(Finding("env-file-not-read", value, word.line))
        case _ if name in _LISTS:
            box.options.setdefault(name.replace("-", "_"), []).append(value)
        case _:
            box.options[name.replace("-", "_")] = value
            if name == "restart" and value != "no":
                box.findings.append(Finding("restart-policy", str(value), word.line))


def _device(box: Container, value: str) -> None:
    kind, equals, device = value.partition("=")
    if kind in ("nvidia.com/gpu", "amd.com/gpu") and equals:
        box.ask_gpus([device] if device != "all" else ["all"])
    elif kind.partition(":")[0] == "/dev/kfd":
        box.ask_gpus(["all"])
    elif value.startswith("/dev/nvidia"):
        box.asks_for_gpu = True


def _mount(box: Container, text: str) -> None:
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    source = fields.get("source", fields.get("src", ""))
    target = fields.get("target", fields.get("destination", fields.get("dst", "")))
    if fields.get("type", "volume") in ("bind", "volume") and target:
        flags = [key for key in ("readonly", "ro") if key in fields and fields[key] not in ("false", "0")]
        box.volumes.append(f"{source}:{target}" + (":ro" if flags else "") if source else target)
    else:
        box.options.setdefault("mount", []).append(text)
