"""Two containers compared in all that matters: what is run, as whom, on which hardware, with which limits.

Documents have the shape of `docker inspect`. What the daemon fills in (ids, times, paths, addresses) does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lcplan.runtime.docker_command import Body


def as_inspect(name: str, body: Body, image: Mapping[str, Any]) -> Body:
    """Return what `docker inspect` must show of a container made by an API request from an image.

    `image` is the inspection of the image, whose own settings stand below those of the request.
    """
    below = image.get("Config") or {}
    config = {key: value for key, value in body.items() if key != "HostConfig"}
    env = {**_variables(below.get("Env")), **_variables(config.get("Env"))}
    config["Env"] = [f"{key}={value}" for key, value in env.items()]
    config["Labels"] = {**(below.get("Labels") or {}), **(config.get("Labels") or {})}
    config["ExposedPorts"] = {**(below.get("ExposedPorts") or {}), **(config.get("ExposedPorts") or {})}
    for key in ("User", "WorkingDir", "StopSignal"):
        config[key] = config.get(key) or below.get(key)
    return {"Name": f"/{name}", "Image": image["Id"], "Config": config, "HostConfig": body["HostConfig"]}


def inspect_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return one line `field: in a, in b` for each difference that matters, [] when the containers are equal.

    Values of variables are never shown, since a secret may be among them: only their names.
    """
    return list(_differences(a, b))


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for path, normal in _FIELDS.items():
        left, right = normal(_at(a, path)), normal(_at(b, path))
        if left == right:
            continue
        if path == "Config.Env":
            names = sorted(name for name in {*left, *right} if left.get(name) != right.get(name))
            yield f"{path}: {', '.join(names)}"
        else:
            yield f"{path}: {left}, {right}"


def _at(document: Mapping[str, Any], path: str) -> Any:
    found: Any = document
    for key in path.split("."):
        found = (found or {}).get(key)
    return found


def _variables(env: Any) -> dict[str, str]:
    return dict(word.partition("=")[::2] for word in env or ())


def _or(default: Any) -> Callable[[Any], Any]:
    return lambda value: value or default


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _capabilities(value: Any) -> list[str]:
    return sorted(str(name).removeprefix("CAP_") for name in value or ())


def _devices(value: Any) -> list[Any]:
    return sorted(
        [one.get("Driver") or "", one.get("Count") or 0, one.get("DeviceIDs") or [], one.get("Capabilities") or []]
        for one in value or ()
    )


def _ports(value: Any) -> dict[str, list[tuple[str, str]]]:
    return {
        port: sorted((b.get("HostIp") or "", b.get("HostPort") or "") for b in bindings or ())
        for port, bindings in (value or {}).items()
    }


def _ulimits(value: Any) -> list[tuple[str, int, int]]:
    return sorted((one["Name"], one["Soft"], one["Hard"]) for one in value or ())


def _restart(value: Any) -> tuple[str, int]:
    policy = value or {}
    return policy.get("Name") or "no", policy.get("MaximumRetryCount") or 0


def _log(value: Any) -> tuple[str, dict[str, str]]:
    config = value or {}
    return config.get("Type") or "json-file", dict(config.get("Config") or {})


def _network(value: Any) -> str:
    return "bridge" if value in (None, "", "default") else str(value)


_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "Name": _or(""),
    "Image": _or(""),
    "Config.Entrypoint": _words,
    "Config.Cmd": _words,
    "Config.Env": _variables,
    "Config.Labels": _or({}),
    "Config.User": _or(""),
    "Config.WorkingDir": _or(""),
    "Config.StopSignal": _or("SIGTERM"),
    "Config.StopTimeout": _or(None),
    "Config.ExposedPorts": lambda value: sorted(value or ()),
    "HostConfig.NetworkMode": _network,
    "HostConfig.PortBindings": _ports,
    "HostConfig.IpcMode": _or("private"),
    "HostConfig.ShmSize": _or(64 * 1024 * 1024),
    "HostConfig.CpusetCpus": _or(""),
    "HostConfig.CpusetMems": _or(""),
    "HostConfig.CapAdd": _capabilities,
    "HostConfig.Ulimits": _ulimits,
    "HostConfig.DeviceRequests": _devices,
    "HostConfig.Binds": lambda value: sorted(value or ()),
    "HostConfig.Init": bool,
    "HostConfig.RestartPolicy": _restart,
    "HostConfig.LogConfig": _log,
    "HostConfig.Privileged": bool,
    "HostConfig.AutoRemove": bool,
}
"""What matters of a container, each field with the function that gives equal values to equal meanings."""
