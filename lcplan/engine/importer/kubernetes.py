"""Containers of Kubernetes objects (pods and whatever holds a pod template), whole or cut out of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lcplan.engine.importer.container import Container
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.words import Word
from lcplan.engine.importer.yaml_text import Scalar, number

_VARIABLE = re.compile(r"\$\$\(|\$\(([A-Za-z_][\w.-]*)\)")
_LOOSE = re.compile(r"\$\{([A-Za-z_]\w*)[^}]*\}|\{\{-?\s*([^{}]*?)\s*-?\}\}")
# A model of some size is not loaded earlier.
_LOAD_SECONDS = 300


def containers(data: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield (container, pod spec) in the order of the text; init containers are left out."""
    yield from _walk(data, {}, set(), 0)


def read_container(entry: dict[str, Any], pod: dict[str, Any]) -> Container:
    """Return the container of one entry of a pod's `containers`."""
    box = Container("k8s")
    reader = _Reader(box)
    reader.environment(entry)
    image = entry.get("image")
    if isinstance(image, Scalar):
        box.image, box.line = str(reader.word(image)), image.line
    if isinstance(entry.get("name"), Scalar):
        box.options["name"] = str(reader.word(entry["name"]))
    reader.pod(pod)
    if entry.get("imagePullPolicy"):
        box.options["pull_policy"] = str(entry["imagePullPolicy"])
    if entry.get("workingDir"):
        box.options["workdir"] = str(reader.word(entry["workingDir"]))
    security = _map(entry.get("securityContext"))
    if str(security.get("privileged", "")).lower() == "true":
        box.options["privileged"] = True
    if isinstance(added := _map(security.get("capabilities")).get("add"), list):
        box.options["cap_add"] = [str(item) for item in added]
    reader.volumes(entry, pod)
    box.ports = [
        str(reader.word(port["containerPort"])) for port in _maps(entry.get("ports")) if port.get("containerPort")
    ]
    reader.resources(entry)
    reader.probe(entry)
    command, args = _words(entry.get("command")), _words(entry.get("args"))
    if command:
        box.entrypoint = True
        box.options["command"] = [str(item) for item in command]
    box.argv = [reader.word(item) for item in [*command, *args]]
    return box


class _Reader:
    def __init__(self, box: Container) -> None:
        self.box = box

    def word(self, scalar: Any) -> Word:
        """A scalar after Kubernetes' own `$(NAME)` expansion."""
        line = scalar.line if isinstance(scalar, Scalar) else self.box.line
        names: list[str] = []

        def known(found: re.Match[str]) -> str:
            if not found[1]:
                return "$("
            value = self.box.env.get(found[1])
            if value is None:
                names.append(found[1])
                return found[0]
            return value

        text = _VARIABLE.sub(known, str(scalar))
        if "\n" not in text and len(text) < 400:
            names += [hit[1] or hit[2] for hit in _LOOSE.finditer(text) if hit[1] or hit[2]]
        word = Word(text, line, names)
        self.box.words.append(word)
        return word

    def environment(self, entry: dict[str, Any]) -> None:
        for item in _maps(entry.get("env")):
            name, value = item.get("name"), item.get("value")
            if name is None:
                continue
            outside = "valueFrom" in item or (value is None and "value" not in item)
            self.box.env[str(name)] = None if outside else str(self.word(value if value is not None else ""))
        for item in _maps(entry.get("envFrom")):
            source = _map(item.get("configMapRef") or item.get("secretRef"))
            self.box.findings.append(Finding("env-file-not-read", str(source.get("name", "")), self.box.line))

    def pod(self, pod: dict[str, Any]) -> None:
        if str(pod.get("hostIPC", "")).lower() == "true":
            self.box.options["ipc"] = "host"
        if str(pod.get("hostNetwork", "")).lower() == "true":
            self.box.options["network"] = "host"
        if pod.get("runtimeClassName"):
            self.box.options["runtime"] = str(pod["runtimeClassName"])
        if pod.get("hostname"):
            self.box.options["hostname"] = str(pod["hostname"])

    def volumes(self, entry: dict[str, Any], pod: dict[str, Any]) -> None:
        sources = {str(item.get("name")): item for item in _maps(pod.get("volumes"))}
        for mount in _maps(entry.get("volumeMounts")):
            name, target = str(mount.get("name", "")), str(self.word(mount.get("mountPath", "")))
            volume = sources.get(name, {})
            source = _map(volume.get("hostPath")).get("path", name)
            memory = _map(volume.get("emptyDir"))
            if target == "/dev/shm" and memory.get("sizeLimit"):
                self.box.options["shm_size"] = str(memory["sizeLimit"])
            mode = ":ro" if str(mount.get("readOnly", "")).lower() == "true" else ""
            self.box.volumes.append(f"{self.word(source)}:{target}{mode}")

    def resources(self, entry: dict[str, Any]) -> None:
        stated = _map(entry.get("resources"))
        limits = _map(stated.get("limits")) or _map(stated.get("requests"))
        wanted = {**_map(stated.get("requests")), **limits}
        for key, value in wanted.items():
            if key == "nvidia.com/gpu" or key.startswith("nvidia.com/mig"):
                self.box.asks_for_gpu = True
                text = str(self.word(value))
                self.box.gpu_count = int(text) if text.isdecimal() and len(text) < 9 else None
            elif key == "amd.com/gpu":
                self.box.asks_for_gpu = True
        others = {key: number(value) for key, value in limits.items() if key != "nvidia.com/gpu"}
        if others:
            self.box.options["resources"] = others

    def probe(self, entry: dict[str, Any]) -> None:
        probe = _map(entry.get("livenessProbe"))
        if not probe or entry.get("startupProbe"):
            return
        delay, period, failures = (
            int(text) if (text := str(probe.get(key, default))).isdecimal() and len(text) < 9 else default
            for key, default in (("initialDelaySeconds", 0), ("periodSeconds", 10), ("failureThreshold", 3))
        )
        if delay + period * failures < _LOAD_SECONDS:
            about = str(delay + period * failures)
            self.box.findings.append(Finding("liveness-probe-shorter-than-load", about, self.box.line))


def _walk(
    data: Any, pod: dict[str, Any], seen: set[int], depth: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    if depth > 20 or id(data) in seen or not isinstance(data, (dict, list)):
        return
    seen.add(id(data))
    if isinstance(data, list):
        for item in data:
            yield from _walk(item, pod, seen, depth + 1)
        return
    if "containers" in data:
        pod = data
    elif _is_container(data):
        yield data, pod
        return
    for key, value in data.items():
        if key not in ("initContainers", "metadata", "volumes", "env"):
            yield from _walk(value, pod, seen, depth + 1)


def _is_container(data: dict[str, Any]) -> bool:
    return isinstance(data.get("image"), Scalar) or bool(_words(data.get("args"))) or bool(_words(data.get("command")))


def _words(value: Any) -> list[Scalar]:
    if isinstance(value, Scalar):
        return [value]
    return [item for item in value if isinstance(item, Scalar)] if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _maps(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
