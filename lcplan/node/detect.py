"""Gathers what tools and files say of a machine: this one, or another whose outputs were saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lcplan.base.diagnostics import Diagnostic, Source, fail, warning
from lcplan.node.combine import read_topology
from lcplan.node.model import Topology

TOOLS: tuple[tuple[str, ...], ...] = (
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,pci.bus_id,mig.mode.current", "--format=csv"),
    ("rocm-smi", "--showtopotype", "--showtoponuma"),
    ("lscpu",),
    ("numactl", "-H"),
)
"""What is run to look at a machine; a tool that is not installed is passed over."""

MAX_BYTES = 16 << 20

_GPU_TOOLS = ("nvidia-smi", "rocm-smi")

_SYSFS = (
    "devices/system/node/node*/cpulist",
    "devices/system/node/node*/distance",
    "devices/system/cpu/online",
    "devices/system/cpu/cpu*/topology/physical_package_id",
)
_PCI = ("vendor", "class", "numa_node", "local_cpulist")


def observe(files: Sequence[str] = ()) -> Topology:
    """Return the topology in saved outputs, or of this machine when no file is given.

    A file may hold several tables; `-` is standard input; a folder is a copy of /sys or a set of saved outputs. Raises
    LcplanError for a file that can't be read.
    """
    return read_topology([text for file in files for text in _load(file)]) if files else detect()


def detect(sysfs: Path = Path("/sys"), deadline: float = 30.0) -> Topology:
    """Return the topology of this machine from its tools and /sys; each tool gets `deadline` seconds.

    A tool that fails or hangs is a warning of the topology; what the others say still counts.
    """
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        answers = list(pool.map(lambda command: _ask(command, deadline), TOOLS))
    texts = [(" ".join(command), text) for command, (text, _) in zip(TOOLS, answers, strict=True) if text]
    topology = read_topology([*texts, (str(sysfs), dump_sysfs(sysfs))])
    failed = [diagnostic for _, diagnostic in answers if diagnostic]
    if not any(text for command, (text, _) in zip(TOOLS, answers, strict=True) if command[0] in _GPU_TOOLS):
        hint = "install the driver's tools, or give saved outputs with --from"
        failed.append(warning("tool-missing", f"neither {' nor '.join(_GPU_TOOLS)} tells of GPUs", hint))
    return replace(topology, diagnostics=(*failed, *topology.diagnostics))


def dump_sysfs(root: Path) -> str:
    """Return the files of a /sys tree that tell its topology, as lines `path:content`; unreadable ones are left out."""
    paths = [path for pattern in _SYSFS for path in sorted(root.glob(pattern))]
    for device in sorted(root.glob("bus/pci/devices/*")):
        if _read(device / "vendor") == "0x10de":
            paths += [device / name for name in _PCI]
    return "\n".join(f"{path}:{text}" for path in paths if (text := _read(path)) is not None)


def _load(file: str) -> Iterator[tuple[str, str]]:
    if file == "-":
        yield "<stdin>", _decode(sys.stdin.buffer.read(MAX_BYTES))
        return
    path = Path(file)
    if path.is_dir():
        tree = next((root for root in (path, path / "sys") if (root / "devices/system").is_dir()), None)
        if tree:
            yield str(tree), dump_sysfs(tree)
        for inner in sorted(child for child in path.iterdir() if child.is_file()):
            yield from _load(str(inner))
        return
    try:
        if path.stat().st_size > MAX_BYTES:
            raise fail("file-unreadable", f"{file} is larger than {MAX_BYTES >> 20} MiB: no output of these tools")
        yield file, _decode(path.read_bytes())
    except OSError as wrong:
        raise fail("file-unreadable", f"{file}: {wrong.strerror}") from None


def _decode(data: bytes) -> str:
    """Return the text of a file; shells of Windows save UTF-16 with a byte order mark."""
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")


def _ask(command: tuple[str, ...], deadline: float) -> tuple[str, Diagnostic | None]:
    """Return what a tool prints, "" when it is not installed, and a warning when it fails or hangs."""
    name = Source(" ".join(command))
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError:
        return "", None
    try:
        out, err = process.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        # the whole group: a child of the tool may hold the pipe open for ever
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "", warning("tool-failed", f"no answer in {deadline:g} s", "a GPU or its driver may hang", name)
    text = _decode(out)
    if process.returncode:
        said = (_decode(err).strip() or text.strip()).splitlines()
        message = f"exit status {process.returncode}{': ' + said[-1] if said else ''}"
        return text, warning("tool-failed", message, "", name)
    return text, None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
