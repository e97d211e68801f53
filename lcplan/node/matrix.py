"""Reads matrices of GPUs: `nvidia-smi topo -m`, `nvidia-smi topo -p2p`, the tables of `rocm-smi --showtopo`.

Format: what drivers 367 to 580 print; legend in `nvidia-smi topo -h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from lcplan.base.diagnostics import Diagnostic, Source, error, warning
from lcplan.node.cells import AFFINITIES, PEER_WORDS, Cell, header_columns, split_affinities, split_cells
from lcplan.node.cpulist import parse_cpus
from lcplan.node.model import LINK_RANK, Pair, link_class
from lcplan.node.text import Line

MAX_GPUS = 128
_WRAPPED = 8
"""Over how many lines the header of a wide table may be wrapped."""

_LABEL = re.compile(r"(?<![\w.])((?:GPU|NIC)\d{1,4})(?![\d.:\]])")
_HINT = re.compile(r"(?:GPU|NIC)\d|Affinity")
_NO_GPU = re.compile(r"No devices (?:were )?found", re.IGNORECASE)
_NV = re.compile(r"(?<!\w)NV\d{1,2}(?!\w)")


@dataclass(frozen=True, slots=True)
class Row:
    """The row of a GPU. `numa` is None when the table does not say it; `cpus` is a list as printed or empty."""

    gpu: int
    cpus: str
    numa: tuple[int, ...]
    source: Source


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of links: GPUs and adapters of the header, rows that were there, the cells of pairs of GPUs."""

    gpus: tuple[int, ...]
    nics: tuple[str, ...]
    rows: dict[int, Row]
    links: dict[Pair, str]
    source: Source


@dataclass(frozen=True, slots=True)
class PeerMatrix:
    """A peer-to-peer matrix: it says what may talk to what, nothing about where a GPU is."""

    gpus: tuple[int, ...]
    pairs: tuple[Pair, ...]
    source: Source


def read_matrices(lines: list[Line]) -> tuple[list[Matrix | PeerMatrix], list[Diagnostic]]:
    """Return all matrices of a text in order, and what is wrong with them. Other lines are passed over."""
    tables: list[Matrix | PeerMatrix] = []
    found: list[Diagnostic] = []
    for grid in _grids(lines):
        table, diagnostics = _read_grid(grid)
        found += diagnostics
        if table:
            tables.append(table)
    if not tables:
        none = next((line for line in lines if _NO_GPU.search(line.text)), None)
        if none:
            tables.append(Matrix((), (), {}, {}, none.source))
    return tables, found


@dataclass(slots=True)
class _Grid:
    """A matrix as its lines are collected."""

    source: Source
    header: str = ""
    devices: list[str] = field(default_factory=list)
    affinities: list[str] = field(default_factory=list)
    rows: list[tuple[str, list[Cell], Source]] = field(default_factory=list)


def _grids(lines: list[Line]) -> list[_Grid]:
    usual = frozenset(cell for line in lines for cell in _NV.findall(line.text))
    grids: list[_Grid] = []
    grid: _Grid | None = None
    open_row = False
    for line in lines:
        text = re.sub(r"[|>`*]", " ", line.text)
        row = _row(text, grid, usual)
        if row:
            if grid is None:
                grid = _Grid(line.source)
                grids.append(grid)
            grid.rows.append((*row, line.source))
            open_row = True
            continue
        if grid and grid.rows and open_row and _continues(text, grid, usual):
            continue
        open_row = False
        if grid and grid.header and not grid.rows and line.source.line <= grid.source.line + _WRAPPED:
            joined = header_columns(f"{grid.header} {text}")
            if joined:
                grid.header, (grid.devices, grid.affinities) = f"{grid.header} {text}", joined
                continue
        columns = header_columns(text) if _HINT.search(text) else None
        if columns and (columns[0] or columns[1]):
            grid = _Grid(line.source, text, *columns)
            grids.append(grid)
    return [grid for grid in grids if grid.devices or grid.rows]


def _row(text: str, grid: _Grid | None, usual: frozenset[str]) -> tuple[str, list[Cell]] | None:
    """Return (label, cells) when a line is a row: a label followed by a cell."""
    found = _LABEL.search(text)
    label, rest = (found[1], text[found.end() :]) if found else ("", "")
    if not found and grid:
        first, _, rest = text.strip().partition(" ") if " " in text.strip() else text.strip().partition("\t")
        label = first if first in grid.devices else ""
    if not label:
        return None
    glued = re.match(r"(?:X|NV\d|SYS|NODE|P[IXH][XB])", rest)
    if not (rest[:1].isspace() or glued):
        return None
    cells = split_cells(rest, usual)
    return (label, cells) if cells and cells[0].kind != "junk" else None


def _continues(text: str, grid: _Grid, usual: frozenset[str]) -> bool:
    """Append a line of cells to the last row when that row is not full."""
    label, cells, source = grid.rows[-1]
    more = split_cells(text, usual)
    wanted = len(grid.devices) + len(grid.affinities)
    if not more or any(cell.kind == "junk" for cell in more) or not label.startswith("GPU") or len(cells) >= wanted:
        return False
    grid.rows[-1] = (label, [*cells, *more], source)
    return True


def _read_grid(grid: _Grid) -> tuple[Matrix | PeerMatrix | None, list[Diagnostic]]:
    words = {cell.text for _, cells, _ in grid.rows for cell in cells if cell.kind in ("link", "peer")}
    links = {word for word in words if word not in PEER_WORDS}
    alone = any(cell.kind == "self" for _, cells, _ in grid.rows for cell in cells)
    if not (words or alone or grid.affinities):
        return None, []
    found: list[Diagnostic] = []
    if not grid.devices:
        grid.devices = list(dict.fromkeys(label for label, _, _ in grid.rows))
        found.append(
            warning(
                "incomplete-table",
                f"the header of the table is missing; its {len(grid.devices)} rows are taken for all there are",
                "save the whole output of `nvidia-smi topo -m`",
                grid.source,
            )
        )
    gpus = tuple(sorted({int(name[3:]) for name in grid.devices if re.fullmatch(r"GPU\d+", name)}))
    if len(gpus) > MAX_GPUS:
        return None, [error("too-many-gpus", f"a table of {len(gpus)} GPUs is not one machine", "", grid.source)]
    rows = _first_rows(grid, found)
    places = {label: _places(label, cells, grid.devices) for label, (cells, _) in rows.items()}
    if words and not links:
        oks = {(label, other) for label, cells in places.items() for other, cell in cells.items() if cell.text == "OK"}
        pairs = tuple((a, b) for a, b in _pairs(gpus) if {(f"GPU{a}", f"GPU{b}"), (f"GPU{b}", f"GPU{a}")} <= oks)
        return PeerMatrix(gpus, pairs, grid.source), found
    nics = tuple(name for name in grid.devices if not re.fullmatch(r"GPU\d+", name))
    known: dict[int, Row] = {}
    for label, (cells, source) in rows.items():
        if not label.startswith("GPU"):
            continue
        missing = [name for name in grid.devices if name.startswith("GPU") and name not in places[label]]
        if missing:
            found.append(
                warning("incomplete-table", f"the row of {label} has no cell for {', '.join(missing)}", "", source)
            )
        if not missing and int(label[3:]) in gpus:
            known[int(label[3:])] = _affinities(int(label[3:]), cells, grid.affinities, source, found)
    cells_of = _links(gpus, places, {label: source for label, (_, source) in rows.items()}, found)
    lost = [f"GPU{gpu}" for gpu in gpus if f"GPU{gpu}" not in rows]
    if lost:
        found.append(
            warning(
                "incomplete-table",
                f"the header names {len(gpus)} GPUs, the rows of {', '.join(lost)} are missing",
                "the table was cut: save the whole output of `nvidia-smi topo -m`",
                grid.source,
            )
        )
    return Matrix(gpus, nics, known, cells_of, grid.source), found


def _first_rows(grid: _Grid, found: list[Diagnostic]) -> dict[str, tuple[list[Cell], Source]]:
    rows: dict[str, tuple[list[Cell], Source]] = {}
    for label, cells, source in grid.rows:
        if label in rows:
            if [cell.text for cell in rows[label][0]] != [cell.text for cell in cells]:
                found.append(
                    warning("contradictory-table", f"two different rows of {label}; the first counts", "", source)
                )
        elif label not in grid.devices:
            found.append(
                warning("contradictory-table", f"a row of {label}, which the header does not name", "", source)
            )
        else:
            rows[label] = (cells, source)
    return rows


def _link_cells(cells: list[Cell]) -> list[Cell]:
    """Return the cells left of the affinities: all up to the last one that only a link can be.

    In tables of rocm-smi the diagonal is a number.
    """
    last = max((at for at, cell in enumerate(cells) if cell.kind in ("self", "link", "peer")), default=-1)
    if any(cell.text in ("XGMI", "PCIE") for cell in cells):
        return [cell for cell in cells if cell.kind != "junk"]
    return cells[: last + 1]


def _places(label: str, cells: list[Cell], devices: list[str]) -> dict[str, Cell]:
    """Return the cells of a row by column. In a short row only cells that the diagonal fixes are taken."""
    links = _link_cells(cells)
    own = devices.index(label)
    diagonal = next((at for at, cell in enumerate(links) if cell.kind == "self"), None)
    if len(links) == len(devices) or diagonal == own or (diagonal is None and len(links) <= own):
        return dict(zip(devices, links, strict=False))
    if diagonal is not None and len(links) - diagonal == len(devices) - own:
        return dict(zip(devices[own:], links[diagonal:], strict=False))
    return {}


def _affinities(gpu: int, cells: list[Cell], columns: list[str], source: Source, found: list[Diagnostic]) -> Row:
    values = split_affinities(cells[len(_link_cells(cells)) :], columns)
    lists: dict[str, frozenset[int]] = {}
    if values.get(AFFINITIES[0], "").endswith(","):
        values[AFFINITIES[0]] = values[AFFINITIES[0]].rstrip(",")
        hint = "nvidia-smi cuts long lists: give lscpu or numactl -H too"
        found.append(warning("incomplete-table", f"the CPU list of GPU{gpu} is cut", hint, source))
    for name in AFFINITIES[:2]:
        try:
            lists[name] = parse_cpus(values.get(name, ""))
        except ValueError as wrong:
            values.pop(name)
            found.append(warning("malformed-cpu-list", f"{name} of GPU{gpu}: {wrong}", "", source))
    if any(cell.kind == "junk" for cell in cells):
        found.append(warning("incomplete-table", f"the row of GPU{gpu} ends in something that is no cell", "", source))
    return Row(gpu, values.get(AFFINITIES[0], ""), tuple(sorted(lists.get(AFFINITIES[1], ()))), source)


def _links(
    gpus: tuple[int, ...], places: dict[str, dict[str, Cell]], sources: dict[str, Source], found: list[Diagnostic]
) -> dict[Pair, str]:
    """Return the cells of all pairs, from either row; where the two disagree the worse one counts."""
    links: dict[Pair, str] = {}
    for one, other in _pairs(gpus):
        names = f"GPU{one}", f"GPU{other}"
        both = [places.get(names[at], {}).get(names[1 - at]) for at in (0, 1)]
        cells = [cell.text for cell in both if cell and cell.kind == "link"]
        if not cells:
            continue
        links[one, other] = max(cells, key=_badness)
        if len(cells) == 2 and cells[0] != cells[1]:
            message = f"GPU{one} to GPU{other} is {cells[0]}, GPU{other} to GPU{one} is {cells[1]}"
            found.append(
                warning("contradictory-table", message, "the worse counts", sources[names[0]], sources[names[1]])
            )
    return links


def _badness(cell: str) -> tuple[int, int]:
    strength = int(cell[2:]) if cell.startswith("NV") and cell[2:].isdecimal() else 0
    return LINK_RANK.get(link_class(cell), 99), -strength


def _pairs(gpus: Iterable[int]) -> list[Pair]:
    ordered = sorted(gpus)
    return [(one, other) for at, one in enumerate(ordered) for other in ordered[at + 1 :]]
