"""Docker compose services -> containers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lcplan.engine.importer.container import Container, device_list, gpu_request
from lcplan.engine.importer.expand import interpolate
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.shell import lex
from lcplan.engine.importer.words import Word
from lcplan.engine.importer.yaml_text import Scalar, number, without_comments

_KEYS = {
    *("container_name", "environment", "deploy", "shm_size", "network_mode", "restart", "runtime", "build", "ulimits"),
    *("env_file", "entrypoint", "privileged", "healthcheck", "depends_on", "devices", "gpus", "networks", "ipc"),
}
_RENAMED = {
    "container_name": "name",
    "network_mode": "network",
    "mem_limit": "memory",
    "working_dir": "workdir",
    "cpuset": "cpuset_cpus",
    "stdin_open": "interactive",
}
_KEPT = {
    *("restart", "runtime", "shm_size", "ipc", "user", "privileged", "cap_add", "cap_drop", "devices", "group_add"),
    *("security_opt", "ulimits", "hostname", "pull_policy", "init", "tty", "pid", "platform", "cpus", "profiles"),
}


def is_compose(data: Any) -> bool:
    """Return whether a YAML value is a compose file, a service or a mapping of services."""
    return any(True for _ in services(data))


def services(data: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield (name, service) of a compose file or of a part of one."""
    if not isinstance(data, dict):
        return
    inner = data.get("services")
    if isinstance(inner, dict):
        for name, service in inner.items():
            if isinstance(service, dict):
                yield name, _extended(service, inner, {str(name)})
    elif _is_service(data):
        yield None, data
    else:
        for name, service in data.items():
            if isinstance(service, dict) and _is_service(service):
                yield name, service


def read_service(name: str | None, service: dict[str, Any]) -> Container:
    """Return the container of one compose service."""
    box = Container("compose")
    reader = _Reader(box)
    if name:
        box.options["service"] = name
    image = service.get("image")
    if isinstance(image, Scalar):
        box.image, box.line = str(reader.word(image)), image.line
    for key, value in service.items():
        if key in _KEPT or key in _RENAMED:
            box.options[_RENAMED.get(key, "device" if key == "devices" else key)] = reader.plain(value)
    restart = box.options.get("restart")
    if isinstance(restart, str) and restart != "no":
        box.findings.append(Finding("restart-policy", restart, box.line))
    reader.environment(service.get("environment"))
    box.volumes = [text for item in _items(service.get("volumes")) if (text := reader.volume(item))]
    box.ports = [text for item in _items(service.get("ports")) if (text := reader.port(item))]
    if isinstance(other := _get(service.get("extends"), "file"), str):
        box.findings.append(Finding("included-file-not-read", other, box.line))
    files = service.get("env_file")
    for item in [files] if isinstance(files, Scalar) else _items(files):
        path = str(item.get("path", "")) if isinstance(item, dict) else str(item)
        box.options.setdefault("env_file", []).append(path)
        box.findings.append(Finding("env-file-not-read", path, box.line))
    reader.gpus(service)
    reader.health(service.get("healthcheck"))
    entrypoint, command = service.get("entrypoint"), service.get("command")
    if entrypoint:
        box.entrypoint = True
        box.options["entrypoint"] = reader.plain(entrypoint)
    box.argv = [*reader.argv(entrypoint), *reader.argv(command)]
    return box


class _Reader:
    def __init__(self, box: Container) -> None:
        self.box = box

    def word(self, scalar: Any) -> Word:
        """A scalar after compose's interpolation."""
        line = scalar.line if isinstance(scalar, Scalar) else self.box.line
        value = interpolate(str(scalar), {}, commands=False)
        word = Word(value.text, line, value.names, defaulted=value.defaulted)
        self.box.words.append(word)
        return word

    def plain(self, value: Any) -> Any:
        if isinstance(value, Scalar):
            word = self.word(value)
            return number(Scalar(word, plain=value.plain))
        if isinstance(value, dict):
            return {str(key): self.plain(inner) for key, inner in value.items()}
        return [self.plain(inner) for inner in value] if isinstance(value, list) else value

    def argv(self, value: Any) -> list[Word]:
        if isinstance(value, list):
            return [self.word(item) for item in value if isinstance(item, Scalar)]
        if not isinstance(value, Scalar):
            return []
        text, commented = without_comments(value)
        if commented:
            self.box.findings.append(Finding("commented-out-command-ignored", line=value.line))
        interpolated = interpolate(text, {}, commands=False)
        self.box.words.append(Word("", value.line, interpolated.names, defaulted=interpolated.defaulted))
        lexed = lex(interpolated.text, script=False)
        self.box.findings += lexed.findings
        out = []
        for statement in lexed.statements:
            for raw in statement.words:
                part = "".join(piece.text for piece in raw.parts)
                names = interpolate(part, {}, commands=False).names
                hole = len(raw.parts) == 1 and raw.parts[0].expansion and not raw.parts[0].quoted
                out.append(Word(part, value.line + raw.line - 1, names, hole=hole and bool(names), glued=raw.glued))
        return out

    def environment(self, value: Any) -> None:
        if isinstance(value, dict):
            for name, text in value.items():
                self.box.env[str(name)] = None if text is None else str(self.word(text))
        for item in _items(value):
            name, equals, text = str(self.word(item)).partition("=")
            self.box.env[name] = text if equals else None

    def volume(self, item: Any) -> str:
        if not isinstance(item, dict):
            return str(self.word(item))
        if item.get("type") == "tmpfs" or "target" not in item:
            return ""
        source, target = str(self.word(item.get("source", ""))), str(self.word(item["target"]))
        mode = ":ro" if str(item.get("read_only", "")).lower() == "true" else ""
        return f"{source}:{target}{mode}" if source else target

    def port(self, item: Any) -> str:
        if not isinstance(item, dict):
            return str(self.word(item))
        parts = [str(self.word(item[key])) for key in ("host_ip", "published", "target") if item.get(key) is not None]
        return ":".join(parts)

    def gpus(self, service: dict[str, Any]) -> None:
        for device in _path(service, "deploy", "resources", "reservations", "devices"):
            kinds = [str(kind) for kind in _items(_get(device, "capabilities"))]
            driver = str(_get(device, "driver") or "")
            if "gpu" not in kinds and driver not in ("nvidia", "cdi", "amd"):
                continue
            self.box.asks_for_gpu = True
            ids, count = _get(device, "device_ids"), _get(device, "count")
            for item in [ids] if isinstance(ids, Scalar) else _items(ids):
                listed = device_list(str(self.word(item)).rpartition("=")[2])
                self.box.ask_gpus([listed] if isinstance(listed, str) else listed)
            if count is not None:
                self.counted(str(self.word(count)))
            elif ids is None:
                self.box.ask_gpus(["all"])
        short = service.get("gpus")
        if isinstance(short, Scalar):
            self.counted(str(self.word(short)))
        for device in _items(short):
            for item in _items(_get(device, "device_ids")):
                self.box.ask_gpus([str(self.word(item))])
            if _get(device, "count") is not None:
                self.counted(str(self.word(_get(device, "count"))))
        for item in self.box.options.get("device", []) if isinstance(self.box.options.get("device"), list) else []:
            kind, _, name = str(item).partition("=")
            if kind == "nvidia.com/gpu":
                self.box.ask_gpus([name])
            elif kind.startswith("/dev/kfd"):
                self.box.ask_gpus(["all"])

    def counted(self, text: str) -> None:
        gpus, count = gpu_request(text)
        self.box.asks_for_gpu = True
        if gpus == "all":
            self.box.ask_gpus(["all"])
        self.box.gpu_count = count

    def health(self, value: Any) -> None:
        test = _get(value, "test")
        if isinstance(test, Scalar):
            self.box.options["healthcheck"] = str(self.word(test))
        parts = [str(self.word(item)) for item in _items(test) if isinstance(item, Scalar)]
        if parts:
            self.box.options["healthcheck"] = " ".join(parts[parts[0] in ("CMD", "CMD-SHELL") :])


def _extended(service: dict[str, Any], known: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    """A service with what it extends in the same file: mappings and lists are joined, commands replaced.

    Source: the compose specification, 05-services.md, "extends".
    """
    extends = service.get("extends")
    name = str(_get(extends, "service") or "") if isinstance(extends, dict) else str(extends or "")
    base = known.get(name)
    if name in seen or not isinstance(base, dict) or _get(extends, "file"):
        return service
    return _joined(_extended(base, known, {*seen, name}), service)


def _joined(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        if key == "environment":
            out[key] = {**_pairs(below), **_pairs(value)}
        elif isinstance(below, dict) and isinstance(value, dict):
            out[key] = _joined(below, value)
        elif isinstance(below, list) and isinstance(value, list) and key not in ("command", "entrypoint"):
            out[key] = [*below, *(item for item in value if item not in below)]
        else:
            out[key] = value
    return out


def _pairs(value: Any) -> dict[str, Any]:
    """An environment in either form, as a mapping."""
    if isinstance(value, dict):
        return value
    pairs = [(item, *str(item).partition("=")) for item in _items(value) if isinstance(item, Scalar)]
    return {name: Scalar(text, item.line) if equals else None for item, name, equals, text in pairs}


def _is_service(data: dict[str, Any]) -> bool:
    if data.keys() & {"args", "apiVersion", "kind", "containers", "imagePullPolicy", "resources"}:
        return False
    if data.keys() & _KEYS:
        return True
    return isinstance(data.get("image"), Scalar) and "env" not in data and _old_style(data)


def _old_style(data: dict[str, Any]) -> bool:
    """Whether keys that compose and Kubernetes share are written as compose writes them."""
    shared = [data.get("ports"), data.get("volumes")]
    return isinstance(data.get("command"), Scalar) or any(
        isinstance(item, Scalar) and not re.match(r"name\b", item) for value in shared for item in _items(value)
    )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _path(value: Any, *keys: str) -> list[Any]:
    for key in keys:
        value = _get(value, key)
    return _items(value)
