"""Reads lists of GPUs: `nvidia-smi --query-gpu=... --format=csv`, `nvidia-smi -L`, `rocm-smi --showtoponuma`.

Also short statements such as `node0: GPUs 0,1 cores 0-71`. Format of the CSV: `nvidia-smi --help-query-gpu`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from lcplan.base.diagnostics import Diagnostic, Source, warning
from lcplan.node.cpulist import parse_cpus, shorten
from lcplan.node.text import Line

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Fa-f-]{4,}")
_BUS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_SIZE = re.compile(r"(\d{1,9})(?: *MiB)?")
_LISTED = re.compile(r"^\s*GPU (\d{1,4}): ([^(]*)\(UUID: ([^)\s]{1,80})\)")
_INSTANCE = re.compile(r"^\s*MIG .*\(UUID: MIG-")
_ROCM = re.compile(
    r"^\s*GPU\[(\d{1,4})\]\s*:\s*\(Topology\)\s*Numa (Node|Affinity)\s*:\s*(-?\d{1,5})\s*$", re.IGNORECASE
)
_FACT = re.compile(
    r"^\s*node\s?(\d{1,5}):\s*GPUs?\s+(\d[\d,-]*)(?:\s+(?:cores|cpus)\s+(\d[\d,-]*))?\s*$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What a list says of one GPU; empty or None = not said. `bus_id` is normal form, such as 0000:1b:00.0."""

    index: int
    source: Source
    uuid: str = ""
    name: str = ""
    memory_gib: float | None = None
    bus_id: str = ""
    numa: tuple[int, ...] = ()
    cpus: str = ""
    mig: bool = False


def read_inventory(lines: list[Line]) -> tuple[list[GpuRecord], list[Diagnostic]]:
    """Return what all lists of a text say, several records of one GPU included, and what is wrong with them."""
    records, found = _read_csv(lines)
    for line in lines:
        listed = _LISTED.match(line.text)
        if listed:
            records.append(GpuRecord(int(listed[1]), line.source, listed[3], _model(listed[2])))
        elif _INSTANCE.match(line.text) and records:
            records[-1] = replace(records[-1], mig=True)
        if rocm := _ROCM.match(line.text):
            nodes = (int(rocm[3]),) if int(rocm[3]) >= 0 and rocm[2].lower() == "node" else ()
            records.append(GpuRecord(int(rocm[1]), line.source, numa=nodes))
        elif fact := _FACT.match(line.text):
            records += _stated(fact, line.source, found)
    return records, found


def normal_bus_id(text: str) -> str:
    """Return a PCI address as sysfs writes it (0000:1b:00.0), or "" when the text holds none."""
    found = _BUS.search(text)
    return f"{(found[1] or '0')[-4:]:0>4}:{found[2]}:{found[3]}.{found[4]}".lower() if found else ""


def _read_csv(lines: list[Line]) -> tuple[list[GpuRecord], list[Diagnostic]]:
    records: list[GpuRecord] = []
    found: list[Diagnostic] = []
    columns: list[str] = []
    for line in lines:
        fields = [part.strip() for part in line.text.split(",")]
        names = [part.split("[")[0].strip() for part in fields]
        if {"index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id"} & set(names):
            columns = names
        elif columns and len(fields) == len(columns):
            records += _record(dict(zip(columns, fields, strict=True)), line.source)
        elif columns and len(fields) > 1 and _UUID.search(line.text):
            message = f"a line of {len(fields)} fields under a header of {len(columns)}: '{shorten(line.text)}'"
            found.append(warning("incomplete-table", message, "", line.source))
        elif not columns and len(fields) > 1 and (_UUID.search(line.text) or _BUS.search(line.text)):
            records += _record(_by_shape(fields), line.source)
        else:
            columns = []
    return records, found


def _record(fields: dict[str, str], source: Source) -> list[GpuRecord]:
    index = fields.get("index", "")
    if not re.fullmatch(r"\d{1,4}", index):
        return []
    size = _SIZE.fullmatch(fields.get("memory.total", ""))
    uuid = _UUID.search(fields.get("uuid") or fields.get("gpu_uuid") or "")
    return [
        GpuRecord(
            int(index),
            source,
            uuid[0] if uuid else "",
            _model(fields.get("name") or fields.get("gpu_name") or ""),
            round(int(size[1]) / 1024, 2) if size else None,
            normal_bus_id(fields.get("pci.bus_id") or fields.get("gpu_bus_id") or ""),
            mig=fields.get("mig.mode.current", "").lower() == "enabled",
        )
    ]


def _by_shape(fields: list[str]) -> dict[str, str]:
    """Tell the fields of `--format=csv,noheader` apart by what they look like: total memory is the largest size."""
    named: dict[str, str] = {}
    sizes = [field for field in fields if re.fullmatch(r"\d{1,9} *MiB", field)]
    for field in fields:
        if re.fullmatch(r"\d{1,4}", field):
            named.setdefault("index", field)
        elif _UUID.fullmatch(field):
            named.setdefault("uuid", field)
        elif _BUS.fullmatch(field):
            named.setdefault("pci.bus_id", field)
        elif re.match(r"[A-Za-z]", field) and field not in ("Enabled", "Disabled", "Default"):
            named.setdefault("name", field)
        elif field in ("Enabled", "Disabled"):
            named.setdefault("mig.mode.current", field)
    if sizes:
        named["memory.total"] = max(sizes, key=lambda size: int(size.split("M")[0]))
    return named


def _model(name: str) -> str:
    return "" if name.startswith("[") else re.sub(r"^NVIDIA\s+", "", name.strip())


def _stated(fact: re.Match[str], source: Source, found: list[Diagnostic]) -> list[GpuRecord]:
    try:
        gpus, cpus = sorted(parse_cpus(fact[2])), fact[3] or ""
        parse_cpus(cpus)
    except ValueError as wrong:
        found.append(warning("malformed-cpu-list", str(wrong), "", source))
        return []
    return [GpuRecord(gpu, source, numa=(int(fact[1]),), cpus=cpus) for gpu in gpus]
