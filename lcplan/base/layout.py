"""Layouts: how a model is spread over GPUs (`tp4`, `tep4`, `dp4`, `tp8dcp8`, `pp2`, `pd_1p1d`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PART = re.compile(r"(tep|tp|dp|pp|ep|dcp)(\d+)")
_PD = re.compile(r"^pd_(\d+)p(\d+)d$")


@dataclass(frozen=True, slots=True)
class Layout:
    """A parallel layout. `ep` is the expert-parallel size (1 = experts are not spread over ranks).

    `text` is the short string used in run ids. A `pd_NpMd` layout has `prefill` and `decode` counts of servers and no
    sizes of its own: those come from the roles.
    """

    text: str
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    dcp: int = 1
    prefill: int = 0
    decode: int = 0

    @property
    def canonical(self) -> str:
        """The text in one spelling: `tp4ep4` is `tep4`, `dp2tp2` is `tp2dp2`, sizes of 1 are left out."""
        if self.split:
            return self.text
        spread = self.tp == self.ep > 1
        sizes = {"tep" if spread else "tp": self.tp, "dp": self.dp, "pp": self.pp, "ep": 1 if spread else self.ep,
                 "dcp": self.dcp}  # fmt: skip
        return "".join(f"{part}{size}" for part, size in sizes.items() if size > 1) or "tp1"

    @property
    def gpus(self) -> int:
        """GPUs of one server: tp x dp x pp (DCP and EP reuse the same GPUs). 0 for a `pd` layout."""
        return 0 if self.split else self.tp * self.dp * self.pp

    @property
    def engines(self) -> int:
        """Engine ranks: schedulers with a KV pool of their own."""
        return self.dp

    @property
    def split(self) -> bool:
        """Whether prefill and decode run on servers of their own."""
        return bool(self.prefill or self.decode)


def parse_layout(value: str | Mapping[str, int]) -> Layout:
    """Return the layout of a short string or a `{tp, dp, pp, ep, dcp}` mapping. Raises ValueError with a sentence."""
    if isinstance(value, Mapping):
        unknown = set(value) - {"tp", "dp", "pp", "ep", "dcp"}
        if unknown:
            raise ValueError(f"unknown part of a layout: {sorted(unknown)[0]!r}; known: tp, dp, pp, ep, dcp")
        if not value:
            raise ValueError("an empty layout; write for example {tp: 4}")
        value = "".join(f"{part}{value[part]}" for part in ("tp", "dp", "pp", "ep", "dcp") if part in value)
    text = str(value).strip()
    pd = _PD.match(text)
    if pd:
        if int(pd[1]) < 1 or int(pd[2]) < 1:
            raise ValueError(f"'{text}': at least one prefill and one decode server are needed")
        return Layout(text, prefill=int(pd[1]), decode=int(pd[2]))
    sizes: dict[str, int] = {}
    at = 0
    for found in _PART.finditer(text):
        if found.start() != at:
            break
        at = found.end()
        name, size = found[1], int(found[2])
        names = ("tp", "ep") if name == "tep" else (name,)
        for part in names:
            if part in sizes:
                raise ValueError(f"'{text}' names {part} twice")
            if size < 1:
                raise ValueError(f"'{text}': {part} must be at least 1")
            sizes[part] = size
    if at != len(text) or not sizes:
        raise ValueError(f"'{text}' is no layout; examples: tp4, tep4, dp4, tp8dcp8, pp2, pd_1p1d")
    if sizes.get("tp", 1) % sizes.get("dcp", 1):
        raise ValueError(f"'{text}': tp must be divisible by dcp")
    return Layout(text, **sizes)
