"""The words of a matrix of GPUs: headers, rows and their cells, also where blanks between them were lost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["self", "link", "peer", "list", "none", "junk"]

AFFINITIES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
"""The columns right of the devices, in the order in which every driver prints them."""

PEER_WORDS = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "DR", "U"})
"""Cells of `nvidia-smi topo -p2p`: its legend."""

_WORDS = re.compile(
    r"(?P<affinity>GPU\s*NUMA\s*ID|(?:CPU|NUMA)\s*Affinity)|(?P<label>(?:GPU|NIC)\d{1,4})"
    r"|(?P<name>[A-Za-z][\w.:-]*?(?=GPU\d|NIC\d|GPU\s*NUMA|CPU\s*Aff|NUMA\s*Aff|\s|$))|(?P<junk>\S+)"
)
_NAME = re.compile(r"[A-Za-z][\w.-]*\d[\w.-]*")
_CELL = re.compile(
    r"(?P<self>X(?!GMI))|(?P<link>NV\d{1,2}|NODE|SYS|SOC|PIX|PXB|PHB|XGMI|PCIE)|(?P<none>N/A)"
    r"|(?P<peer>CNS|GNS|TNS|NS|OK|DR|U(?![A-Za-z]))|(?P<list>\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*,?(?![\d-]))"
)
_LIST = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*")
_LOOSE_COMMA = re.compile(r"(\d{1,6}), (?=(\d{1,6}))")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a row; `glued` is whether the next one followed without a blank."""

    kind: Kind
    text: str
    glued: bool = False


def header_columns(text: str) -> tuple[list[str], list[str]] | None:
    """Return (devices, affinities) of the header of a matrix, or None when the text is not one.

    Devices are GPUs and network adapters of any name; whatever stands right of the affinities is no device.
    """
    devices: list[str] = []
    affinities: list[str] = []
    strange = False
    for word in _WORDS.finditer(text):
        if word["affinity"]:
            affinities.append(_affinity(word["affinity"]))
        elif word["label"] and not affinities:
            devices.append(word["label"])
        elif word["name"] and not affinities and (_NAME.fullmatch(word["name"]) and devices):
            devices.append(word["name"])
        elif not (affinities or word["name"] in ("CPU", "NUMA", "GPU", "Affinity", "ID")):
            strange = strange or bool(devices)
    if len(set(devices)) != len(devices) or (strange and not affinities):
        return None
    return (devices, affinities) if devices or affinities else None


def split_cells(text: str, usual: frozenset[str]) -> list[Cell]:
    """Return the cells of a row after its label; reading ends at the first junk, which is the last cell.

    `usual` are the NV# cells that stand apart somewhere in the text: they decide how `NV180-31` is cut.
    """
    cells: list[Cell] = []
    # a blank in a list is no blank between columns as long as the numbers ascend
    joined = _LOOSE_COMMA.sub(lambda m: f"{m[1]}," if int(m[1]) < int(m[2]) else m[0], text)
    for word in joined.split():
        at = 0
        while at < len(word):
            found = _CELL.match(word, at)
            if not found or found.lastgroup is None:
                return [*cells, Cell("junk", word[at:])]
            end = found.end()
            if found["link"] and word.startswith("NV", at):
                end = _end_of_nvlink(word, at, end, usual)
            kind: Kind = found.lastgroup  # type: ignore[assignment]
            cells.append(Cell(kind, word[at:end], glued=end < len(word)))
            at = end
    return cells


def split_affinities(cells: list[Cell], columns: list[str]) -> dict[str, str]:
    """Return the cells right of the links by column; what is missing, `N/A` or not told apart is left out.

    Columns are read from the right-hand end, but a range (`0-31`) with nothing before it is the CPU list.
    """
    texts = [cell.text for cell in cells if cell.kind in ("list", "none")]
    names = columns or list(AFFINITIES[: len(texts)])
    if len(texts) < len(names):
        texts = _unglue(cells, texts)
    if texts and names[0] == AFFINITIES[0] and len(texts) != len(names) and re.search(r"[-,]", texts[0]):
        pairs = list(zip(names, texts, strict=False))
    else:
        width = min(len(names), len(texts))
        pairs = list(zip(names[len(names) - width :], texts[len(texts) - width :], strict=True))
    return {name: text for name, text in pairs if text != "N/A"}


def _affinity(text: str) -> str:
    return next(name for name in AFFINITIES if name.replace(" ", "") == "".join(text.split()))


def _end_of_nvlink(word: str, at: int, end: int, usual: frozenset[str]) -> int:
    """Return where an NV# cell ends: at a width which leaves a readable rest and, of two such, a usual cell."""
    widths = [stop for stop in range(end, at + 2, -1) if stop == len(word) or _reads_on(word, stop)]
    return next((stop for stop in widths if word[at:stop] in usual), widths[0] if widths else end)


def _reads_on(word: str, at: int) -> bool:
    if not word[at].isdecimal():
        return word[at] != "-" and word[at] != ","
    found = _LIST.match(word, at)
    if not found:
        return False
    numbers = [part.split("-") for part in found[0].split(",")]
    return word[found.end() : found.end() + 1] != "-" and all(int(part[0]) <= int(part[-1]) for part in numbers)


def _unglue(cells: list[Cell], texts: list[str]) -> list[str]:
    """Give a lost NUMA column back: in `0-1510N/A` blanks were lost, so the list's last digit is the node.

    At the end of a row only where its ranges tell: `0-47,96-1430` is `0-47,96-143` and 0.
    """
    for cell in cells:
        told = cell.glued or (cell is cells[-1] and _cut_is_even(cell.text))
        if cell.kind == "list" and told and re.search(r"-\d{2,}$", cell.text):
            where = texts.index(cell.text)
            return [*texts[:where], cell.text[:-1], cell.text[-1], *texts[where + 1 :]]
    return texts


def _cut_is_even(text: str) -> bool:
    """Whether a list has several ranges that are of one length without the last digit, and not with it."""

    def lengths(part: str) -> set[int]:
        return {int(last) - int(first) for first, last in re.findall(r"(\d+)-(\d+)", part)}

    return text.count("-") > 1 and len(lengths(text[:-1])) == 1 < len(lengths(text))
