"""Reads what Linux says of CPUs and NUMA nodes: lscpu, `numactl -H`, and sysfs as a dump of `path:content` lines.

A dump is what `grep -r . PATH` prints, or `head`/`tail` of several files (`==> path <==`).
Formats: util-linux lscpu(1), numactl(8), https://docs.kernel.org/admin-guide/cputopology.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from lcplan.base.diagnostics import Diagnostic, Source, warning
from lcplan.node.cpulist import format_cpus, parse_cpus
from lcplan.node.inventory import normal_bus_id
from lcplan.node.text import Line


@dataclass(slots=True)
class CpuTable:
    """What one tool says. `nodes` maps NUMA node -> CPUs (empty = memory only), `announced` is the promised count."""

    tool: str
    source: Source
    nodes: dict[int, frozenset[int]] = field(default_factory=dict)
    sources: dict[int, Source] = field(default_factory=dict)
    size_mb: dict[int, int] = field(default_factory=dict)
    free_mb: dict[int, int] = field(default_factory=dict)
    distances: dict[int, list[int]] = field(default_factory=dict)
    announced: int | None = None
    sockets: int | None = None
    online: frozenset[int] | None = None
    packages: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device of a sysfs dump. `numa` is None when the kernel does not know it (-1).

    `is_gpu` is whether it is an NVIDIA display or 3D controller (vendor 10de, class 03xx).
    """

    source: Source
    numa: int | None
    cpus: str
    is_gpu: bool


def read_cpu_tables(lines: list[Line]) -> tuple[list[CpuTable], dict[str, PciDevice], list[Diagnostic]]:
    """Return the tables of a text (at most one per tool), PCI devices by normal bus id, and what is wrong with them."""
    found: list[Diagnostic] = []
    sysfs, devices = _read_sysfs(lines, found)
    tables = [_read_lscpu(lines, found), _read_numactl(lines, found), sysfs]
    for table in tables:
        if table and table.announced is not None and len(table.nodes) < table.announced and table.nodes:
            message = f"{table.tool} announces {table.announced} NUMA nodes and lists {len(table.nodes)}"
            found.append(warning("incomplete-table", message, "the table was cut", table.source))
    return [table for table in tables if table], devices, found


_LSCPU = re.compile(r"([^:\uff1a]{1,60})[:\uff1a]([\d,\s-]*)$")
# In most languages a key with NUMA and a number is a node's list, one with NUMA alone the count of nodes.
_NODE = re.compile(r"(?=.*NUMA)\D*(\d{1,5})\D*$")
_SOCKETS = {"Socket(s)", "Sockel", "Soquete(s)", "\u5ea7"}
_ONLINE = {"On-line CPU(s) list", "Liste der Online-CPU(s)", "\u5728\u7ebf CPU \u5217\u8868"}
_FIELD = re.compile(r'"field":\s*"([^"]*)"')
_DATA = re.compile(r'"data":\s*(?:"([^"]*)"|null)')


def _read_lscpu(lines: list[Line], found: list[Diagnostic]) -> CpuTable | None:
    table: CpuTable | None = None
    for text, source in _lscpu_fields(lines):
        match = _LSCPU.match(text.strip())
        key, value = (match[1].strip(), match[2].strip()) if match else ("", "")
        node = _NODE.match(key)
        if not (node or "NUMA" in key or key in _SOCKETS or key in _ONLINE) or key == "NUMA":
            continue
        table = table or CpuTable("lscpu", source)
        if node:
            _add_node(table, int(node[1]), value, source, found)
        elif key in _SOCKETS:
            table.sockets = _number(value)
        elif key in _ONLINE:
            table.online = _cpus(value, source, found)
        else:
            table.announced = _number(value)
    return table


def _lscpu_fields(lines: list[Line]) -> Iterator[tuple[str, Source]]:
    """Lines as they are, and fields of `lscpu --json` as such lines."""
    field = ""
    for line in lines:
        if named := _FIELD.search(line.text):
            field = named[1].rstrip(": ")
        if field and (data := _DATA.search(line.text)):
            yield f"{field}: {data[1] or ''}", line.source
            field = ""
        elif not named:
            yield line.text, line.source


_NUMACTL = re.compile(
    r"^\s*(?:available: (?P<count>\d{1,5}) nodes?\b|node (?P<node>\d{1,5}) (?P<what>cpus|size|free):(?P<value>.*))"
)
_DISTANCE = re.compile(r"^\s*(\d{1,5}):((?:\s+\d{1,5})+)\s*$")


def _read_numactl(lines: list[Line], found: list[Diagnostic]) -> CpuTable | None:
    table: CpuTable | None = None
    wrapped: tuple[int, Source] | None = None
    texts: dict[int, tuple[str, Source]] = {}
    for line in lines:
        match = _NUMACTL.match(line.text)
        if match:
            table = table or CpuTable("numactl", line.source)
            wrapped = None
            if match["count"]:
                table.announced = int(match["count"])
            elif match["what"] == "cpus":
                wrapped = (int(match["node"]), line.source)
                texts[int(match["node"])] = (match["value"], line.source)
            elif (number := _number(match["value"])) is not None:
                {"size": table.size_mb, "free": table.free_mb}[match["what"]][int(match["node"])] = number
        elif wrapped and line.text.replace(" ", "").replace("\t", "").isdecimal():
            texts[wrapped[0]] = (f"{texts[wrapped[0]][0]} {line.text}", wrapped[1])
        elif table and (row := _DISTANCE.match(line.text)):
            table.distances[int(row[1])] = [int(part) for part in row[2].split()]
        else:
            wrapped = None
    for node, (text, source) in texts.items():
        if table:
            _add_node(table, node, text, source, found)
    return table


_SYSFS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("node", re.compile(r"/node/node(\d{1,5})/cpulist$")),
    ("distance", re.compile(r"/node/node(\d{1,5})/distance$")),
    ("package", re.compile(r"/cpu/cpu(\d{1,5})/topology/physical_package_id$")),
    ("online", re.compile(r"/(cpu)/online$")),
    (
        "pci",
        re.compile(r"/([0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])/(?:numa_node|local_cpulist|vendor|class)$"),
    ),
)


def _read_sysfs(lines: list[Line], found: list[Diagnostic]) -> tuple[CpuTable | None, dict[str, PciDevice]]:
    table: CpuTable | None = None
    devices: dict[str, dict[str, tuple[str, Source]]] = {}
    for path, value, source in _sysfs_files(lines):
        kind, match = next(((kind, m) for kind, pattern in _SYSFS if (m := pattern.search(path))), ("", None))
        if match is None:
            continue
        table = table or CpuTable("sysfs", source)
        if kind == "node":
            _add_node(table, int(match[1]), value, source, found)
        elif kind == "distance":
            table.distances[int(match[1])] = [n for part in value.split() if (n := _number(part)) is not None]
        elif kind == "package" and (package := _number(value)) is not None:
            table.packages[int(match[1])] = package
        elif kind == "online":
            table.online = _cpus(value, source, found)
        elif kind == "pci":
            devices.setdefault(normal_bus_id(match[1]), {})[path.rsplit("/", 1)[1]] = (value, source)
    return table, {bus_id: _device(files, found) for bus_id, files in devices.items()}


def _device(files: dict[str, tuple[str, Source]], found: list[Diagnostic]) -> PciDevice:
    values = {name: value for name, (value, _) in files.items()}
    is_gpu = values.get("vendor") == "0x10de" and values.get("class", "").startswith("0x03")
    source = next(iter(files.values()))[1]
    cpus = _cpus(values.get("local_cpulist", ""), source, found) or frozenset()
    return PciDevice(source, _number(values.get("numa_node", "")), format_cpus(cpus), is_gpu)


def _sysfs_files(lines: list[Line]) -> list[tuple[str, str, Source]]:
    files: list[tuple[str, str, Source]] = []
    pending = ""
    for line in lines:
        text = line.text.strip()
        if text.startswith("==>") and text.endswith("<=="):
            pending = text[3:-3].strip()
        elif pending and text:
            files.append((pending, text, line.source))
            pending = ""
        elif "/" in text and (
            match := re.match(
                r"(\S*/(?:cpulist|distance|physical_package_id|online|numa_node|"
                r"local_cpulist|vendor|class)):(.*)$",
                text,
            )
        ):
            files.append((match[1], match[2].strip(), line.source))
    return files


def _add_node(table: CpuTable, node: int, text: str, source: Source, found: list[Diagnostic]) -> None:
    cpus = _cpus(text, source, found)
    if cpus is None:
        return
    if node in table.nodes and table.nodes[node] != cpus:
        message = f"{table.tool} gives NUMA node {node} two different CPU lists; the first counts"
        found.append(warning("contradictory-table", message, "", source, table.sources[node]))
        return
    table.nodes[node], table.sources[node] = cpus, source


def _cpus(text: str, source: Source, found: list[Diagnostic]) -> frozenset[int] | None:
    try:
        return parse_cpus(text)
    except ValueError as wrong:
        found.append(warning("malformed-cpu-list", str(wrong), "", source))
        return None


def _number(text: str) -> int | None:
    """Return the whole number that a text begins with, None for none or a negative one."""
    match = re.match(r"\s*(\d{1,12})", text)
    return int(match[1]) if match else None
