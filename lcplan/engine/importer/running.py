"""A running container, by `docker inspect` -> the same shape as a written one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lcplan.base.diagnostics import fail
from lcplan.engine.importer.container import Container
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.imported import Imported
from lcplan.engine.importer.read import read_container
from lcplan.engine.importer.words import Word

_SHM_DEFAULT = 64 << 20


def read_running(name: str) -> Imported:
    """Return what a container of the local Docker (or DOCKER_HOST) runs. Raises LcplanError when it can't be asked."""
    import docker
    from docker.errors import DockerException, NotFound

    try:
        client = docker.from_env()
        found = client.containers.get(name)
        try:
            image = client.images.get(found.attrs["Image"]).attrs
        except NotFound:
            image = {}
    except NotFound:
        raise fail("container-not-found", f"there is no container '{name}'") from None
    except DockerException as wrong:
        raise fail("docker-unreachable", f"Docker does not answer: {wrong}", "is DOCKER_HOST right?") from None
    return read_container(from_inspect(found.attrs, image))


def from_inspect(container: Mapping[str, Any], image: Mapping[str, Any]) -> Container:
    """Return the container of an inspect document; what its image sets by itself is left out of the environment.

    Format: Docker Engine API, ContainerInspect and ImageInspect.
    """
    config, host = _map(container.get("Config")), _map(container.get("HostConfig"))
    box = Container("docker", image=config.get("Image"), entrypoint=True)
    box.argv = [Word(str(word)) for key in ("Entrypoint", "Cmd") for word in config.get(key) or ()]
    own = set(_map(image.get("Config")).get("Env") or ())
    for item in config.get("Env") or ():
        key, equals, value = str(item).partition("=")
        if item not in own and equals:
            box.env[key] = value
    box.volumes = [str(bind) for bind in host.get("Binds") or ()]
    for mount in host.get("Mounts") or ():
        mode = ":ro" if mount.get("ReadOnly") else ""
        box.volumes.append(f"{mount.get('Source', '')}:{mount.get('Target', '')}{mode}")
    for inner, outer in (host.get("PortBindings") or {}).items():
        box.ports += [f"{entry.get('HostPort', '')}:{inner.removesuffix('/tcp')}" for entry in outer or ()]
    _options(box, container, config, host)
    for request in host.get("DeviceRequests") or ():
        devices, count = request.get("DeviceIDs"), request.get("Count")
        box.asks_for_gpu = True
        if devices:
            box.ask_gpus([str(device) for device in devices])
        elif count == -1:
            box.ask_gpus(["all"])
        else:
            box.gpu_count = count
    return box


def _options(box: Container, container: Mapping[str, Any], config: Mapping[str, Any], host: Mapping[str, Any]) -> None:
    name = str(container.get("Name", "")).lstrip("/")
    stated = {
        "name": name,
        "ipc": host.get("IpcMode"),
        "network": host.get("NetworkMode"),
        "user": config.get("User"),
        "cpuset_cpus": host.get("CpusetCpus"),
        "cpuset_mems": host.get("CpusetMems"),
        "cap_add": host.get("CapAdd"),
        "security_opt": host.get("SecurityOpt"),
        "privileged": host.get("Privileged"),
        "ulimit": [f"{limit['Name']}={limit['Soft']}" for limit in host.get("Ulimits") or ()],
        "device": [str(device.get("PathOnHost")) for device in host.get("Devices") or ()],
    }
    box.options.update({key: value for key, value in stated.items() if value and value not in ("private", "default")})
    if host.get("ShmSize", _SHM_DEFAULT) != _SHM_DEFAULT:
        box.options["shm_size"] = str(host["ShmSize"])
    policy = str(_map(host.get("RestartPolicy")).get("Name") or "no")
    if policy != "no":
        box.options["restart"] = policy
        box.findings.append(Finding("restart-policy", policy))
    if host.get("Runtime") not in (None, "runc"):
        box.options["runtime"] = host["Runtime"]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
