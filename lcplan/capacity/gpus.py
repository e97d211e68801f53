"""GPU memory as CUDA reports it, which is what engines take their share of: less than the nominal size."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU model. `memory` is GiB as CUDA sees it, `capability` the compute capability (0 for other vendors)."""

    name: str
    memory: float
    capability: float
    known: bool = True


# The memory figures are those that engines or PyTorch print on such a GPU ("GPU 0 has a total capacity of 79.19 GiB").
_TABLE = (
    ("H200", r"\bgh200.*144|\bh200", 139.80, 9.0),
    ("GH200", r"\bgh200", 94.50, 9.0),
    ("H100 NVL", r"h100.*(nvl|94)", 93.10, 9.0),
    ("H100", r"\bh[18]00", 79.19, 9.0),
    ("H20 141GB", r"\bh20.*(141|3e)", 139.80, 9.0),
    ("H20", r"\bh20\b", 95.58, 9.0),
    ("B300", r"\bg?b300", 267.68, 10.3),
    ("GB200", r"\bgb200", 184.31, 10.0),
    ("B200", r"\bb200", 178.35, 10.0),
    ("A100 40GB", r"\ba[18]00.*40", 39.49, 8.0),
    ("A100", r"\ba[18]00", 79.15, 8.0),
    ("L40S", r"\bl40s?", 44.42, 8.9),
    ("L20", r"\bl20\b", 44.52, 8.9),
    ("L4", r"\bl4\b", 22.03, 8.9),
    ("A40", r"\ba40\b", 44.43, 8.6),
    ("A30", r"\ba30\b", 23.60, 8.0),
    ("A10G", r"\ba10g?\b", 22.06, 8.6),
    ("RTX PRO 6000", r"pro ?6000", 94.97, 12.0),
    ("RTX 6000 Ada", r"6000 ada", 47.50, 8.9),
    ("RTX A6000", r"a6000", 47.53, 8.6),
    ("RTX 5090", r"5090", 31.36, 12.0),
    ("RTX 4090", r"4090", 23.52, 8.9),
    ("RTX 3090", r"3090", 23.58, 8.6),
    ("GB10", r"\bgb10\b|spark", 121.60, 12.1),
    ("V100 32GB", r"v100.*32", 31.73, 7.0),
    ("V100", r"v100", 15.77, 7.0),
    ("T4", r"\bt4\b", 14.56, 7.5),
    ("MI300X", r"mi300x", 191.98, 0),
    ("MI325X", r"mi325x", 255.98, 0),
    ("MI355X", r"mi355x", 287.98, 0),
)
_NOMINAL = 0.985  # CUDA's figure over the nominal size, median of the table; used for GPUs that it does not name
_LIKE = (0.9, 1.15)  # a stated size over CUDA's figure that means the same memory


def gpu(name: str, memory_gib: float | None = None) -> Gpu | None:
    """Return the GPU that a name means, with `memory_gib` (as CUDA sees it) in place of the table's figure when given.

    A GPU that is not in the table but says its size (`80GB`, `94.97 GiB`) is estimated; else None.
    """
    text = re.sub(r"^\s*\d+ ?x ?", "", name.lower().replace("_", " ").replace("-", " "))
    size = re.search(r"(\d+(?:\.\d+)?) ?gi?b", text)
    stated = float(size[1]) if size else 0.0
    for known, pattern, memory, capability in _TABLE:
        if re.search(pattern, text):
            other = stated and not known.startswith("GH") and not _LIKE[0] < stated / memory < _LIKE[1]
            if other and not memory_gib:  # a variant with more memory, such as an RTX 4090 of 48 GB
                return Gpu(name, stated * _NOMINAL, capability, known=False)
            return Gpu(known, memory_gib or memory, capability)
    if memory_gib or stated:
        return Gpu(name, memory_gib or stated * _NOMINAL, 9.0, known=False)
    return None
