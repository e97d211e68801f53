"""A launch as a container: the one `docker run` command, its cmd.sh, and the API request that means the same.

The request is read back from the command's own words, so that what is executed and what is kept can't differ.
API: https://docs.docker.com/engine/api/v1.41/#operation/ContainerCreate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lcplan.engine.shell import ContainerSpec, render_script
from lcplan.runtime.base import Start

LABEL_RUN, LABEL_LINEAGE = "lcplan.run", "lcplan.lineage"
LABEL_FINGERPRINT, LABEL_STATE, LABEL_ROLE = "lcplan.fingerprint", "lcplan.state", "lcplan.role"
LOG_OPTIONS = {"max-size": "50m", "max-file": "4"}
"""Limits of the daemon's log of one container: 200 MB."""

Body = dict[str, Any]


def container_spec(start: Start) -> ContainerSpec:
    """Return the container of a launch: bound to its GPUs and CPUs, labelled, with a bounded log.

    Memory is bound to the quad's NUMA nodes when `bind_memory` is declared. Without the host's network the server's
    port is published. A measured server is never restarted, one that stays up is until it is stopped.
    """
    box = start.container
    assert box is not None
    declared = box.options
    network = declared.get("network")
    extra = ["--log-driver", "json-file"]
    extra += ["--user", declared["user"]] if declared.get("user") else []
    extra += ["--stop-timeout", str(declared["stop_grace_s"])] if declared.get("stop_grace_s") else []
    bound = declared.get("bind_memory") and box.numa
    return ContainerSpec(
        image=box.image,
        name=start.name,
        gpus=tuple(start.gpus),
        labels={
            LABEL_RUN: start.run,
            LABEL_LINEAGE: start.lineage,
            LABEL_FINGERPRINT: box.fingerprint,
            LABEL_STATE: start.state,
            **({LABEL_ROLE: start.role} if start.role else {}),
        },
        ipc=declared.get("ipc"),
        shm_size=declared.get("shm_size"),
        network=network,
        ports=() if network == "host" else (f"{start.port}:{start.port}",),
        volumes=tuple(declared.get("volumes") or ()),
        cpuset_cpus=start.cpus,
        cpuset_mems=",".join(map(str, box.numa)) if bound else None,
        ulimits=tuple(f"{name}={limit}" for name, limit in (declared.get("ulimits") or {}).items()),
        log_opts=LOG_OPTIONS,
        restart="unless-stopped" if box.stays_up else "no",
        extra=tuple(extra),
    )


def container_script(start: Start) -> str:
    """Return cmd.sh as one `docker run`; the values of secrets come from the environment of whoever runs it."""
    spec = container_spec(start)
    return render_script(start.argv, start.env, secrets=list(start.secrets), header=list(start.header), container=spec)


def container_request(words: Sequence[str], secrets: Mapping[str, str]) -> tuple[str, Body]:
    """Return name and body of the API request that a `docker run` command means.

    `secrets` has the values of `-e NAME`. Raises ValueError for an option that lcplan does not write.
    """
    if list(words[:2]) != ["docker", "run"]:
        raise ValueError("the command is no `docker run`")
    request = _Request(dict(secrets))
    at = 2
    while at < len(words) and words[at].startswith("-"):
        option = words[at]
        if option in _SWITCHES:
            _SWITCHES[option](request)
            at += 1
        elif option in _OPTIONS and at + 1 < len(words):
            _OPTIONS[option](request, words[at + 1])
            at += 2
        else:
            raise ValueError(f"the option {option} is not one that lcplan writes")
    if at >= len(words):
        raise ValueError("the command names no image")
    request.body["Image"] = words[at]
    request.body["Cmd"] = list(words[at + 1 :])
    return request.name, request.body


class _Request:
    """The API request that grows option by option."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self.secrets = secrets
        self.name = ""
        self.host: Body = {}
        self.body: Body = {"HostConfig": self.host, "Env": [], "Labels": {}}

    def log(self) -> Body:
        made: Body = self.host.setdefault("LogConfig", {"Type": "json-file", "Config": {}})
        return made

    def env(self, word: str) -> None:
        name, given, _ = word.partition("=")
        if not given and name not in self.secrets:
            raise ValueError(f"no value of {name} is at hand")
        self.body["Env"].append(word if given else f"{name}={self.secrets[name]}")

    def label(self, word: str) -> None:
        name, _, value = word.partition("=")
        self.body["Labels"][name] = value

    def gpus(self, word: str) -> None:
        asked: Body = {"Capabilities": [["gpu"]]}
        devices = word.strip('"')
        self.host["DeviceRequests"] = [
            {**asked, "Count": -1} if devices == "all" else {**asked, "DeviceIDs": devices.split("=", 1)[1].split(",")}
        ]

    def publish(self, word: str) -> None:
        *address, host, inside = word.rsplit(":", 2)
        port = inside if "/" in inside else f"{inside}/tcp"
        self.body.setdefault("ExposedPorts", {})[port] = {}
        binding = {"HostIp": address[0] if address else "", "HostPort": host}
        self.host.setdefault("PortBindings", {}).setdefault(port, []).append(binding)

    def ulimit(self, word: str) -> None:
        name, _, limits = word.partition("=")
        soft, _, hard = limits.partition(":")
        self.host.setdefault("Ulimits", []).append({"Name": name, "Soft": int(soft), "Hard": int(hard or soft)})

    def log_option(self, word: str) -> None:
        name, _, value = word.partition("=")
        self.log()["Config"][name] = value


def _bytes(word: str) -> int:
    from docker.utils import parse_bytes

    return int(parse_bytes(word))


_SWITCHES: Mapping[str, Callable[[_Request], None]] = {
    "--init": lambda r: r.host.update(Init=True),
    "--detach": lambda r: None,
}
_OPTIONS: Mapping[str, Callable[[_Request, str], None]] = {
    "--name": lambda r, w: setattr(r, "name", w),
    "--gpus": _Request.gpus,
    "--cpuset-cpus": lambda r, w: r.host.update(CpusetCpus=w),
    "--cpuset-mems": lambda r, w: r.host.update(CpusetMems=w),
    "--cap-add": lambda r, w: r.host.setdefault("CapAdd", []).append(w),
    "--ipc": lambda r, w: r.host.update(IpcMode=w),
    "--shm-size": lambda r, w: r.host.update(ShmSize=_bytes(w)),
    "--network": lambda r, w: r.host.update(NetworkMode=w),
    "--restart": lambda r, w: r.host.update(RestartPolicy={"Name": w, "MaximumRetryCount": 0}),
    "--log-driver": lambda r, w: r.log().update(Type=w),
    "--user": lambda r, w: r.body.update(User=w),
    "--stop-timeout": lambda r, w: r.body.update(StopTimeout=int(w)),
    "--entrypoint": lambda r, w: r.body.update(Entrypoint=[w]),
    "-p": _Request.publish,
    "-v": lambda r, w: r.host.setdefault("Binds", []).append(w),
    "--ulimit": _Request.ulimit,
    "--log-opt": _Request.log_option,
    "--label": _Request.label,
    "-e": _Request.env,
}
