"""The simulator's image without a registry: busybox and the two wrappers; Python and lcplan come as volumes."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TAG = "lcplan-sim:test"
_BIN = "/opt/lcplan-sim/bin"
ENVIRONMENT = {
    "PATH": f"{_BIN}:/usr/local/bin:/usr/bin:/bin",
    "LCPLAN_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def build(tag: str = TAG, note: str = "") -> str:
    """Make the image, unless the engine has it, and return its id; a different `note` makes a different image."""
    root = root_tar(note)
    content = hashlib.sha256(root + repr(ENVIRONMENT).encode()).hexdigest()
    known = subprocess.run(["docker", "inspect", "--format", "{{.Config.Labels.content}} {{.Id}}", tag],
                           capture_output=True, text=True, check=False).stdout.split()  # fmt: skip
    if known[:1] == [content]:
        return known[1]
    changes = [*(f"ENV {k}={v}" for k, v in ENVIRONMENT.items()), f"LABEL content={content}"]
    command = ["docker", "import", *(f"--change={one}" for one in changes), "-", tag]
    made = subprocess.run(command, input=root, capture_output=True, check=True)
    return made.stdout.decode().strip()


def volumes() -> list[str]:
    """Return the read-only volumes with which the image runs on this machine."""
    wanted = [Path(p) for p in ("/usr", "/lib", "/lib64", "/etc/ld.so.cache")]
    wanted += [Path(sys.prefix), Path(sys.base_prefix), ROOT]
    paths = [p for p in dict.fromkeys(wanted) if p.exists()]
    # A folder inside another volume is there already.
    outer = [p for p in paths if not any(p != q and p.is_relative_to(q) for q in paths)]
    return [f"{p}:{p}:ro" for p in outer]


def root_tar(note: str = "") -> bytes:
    """Return the image's files: busybox as sh, the wrappers, empty folders for what programs expect."""
    busybox = shutil.which("busybox")
    if busybox is None:
        raise RuntimeError("busybox is not installed (Debian: busybox-static)")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "tmp", "etc", "opt/lcplan-sim/bin"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        _file(tar, "bin/busybox", Path(busybox).read_bytes())
        for name in ("sh", "sleep", "cat", "echo"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        for name in ("vllm", "python3"):
            _file(tar, f"{_BIN.lstrip('/')}/{name}", (ROOT / "docker" / name).read_bytes())
        _file(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
        _file(tar, "etc/note", note.encode())
    return out.getvalue()


def _file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755
    tar.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    print(build())
