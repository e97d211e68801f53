"""What `audit doc` looks at in a Markdown file: links, prose, tables, fences and directives, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from markdown_it.token import Token

SCHEME = "lcplan:"
_DIRECTIVE = re.compile(r"<!--\s*lcplan:\s*(.*?)\s*-->", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A place in the file, line and column from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Prose:
    """Text as a reader sees it, without code and without what links to records show, and where its parts stand."""

    text: str = ""
    parts: list[tuple[int, Spot]] = field(default_factory=list)

    def add(self, text: str, spot: Spot) -> None:
        """Append text that stands at a spot."""
        self.parts.append((len(self.text), spot))
        self.text += text

    def spot(self, offset: int) -> Spot:
        """Return where the character at an offset stands."""
        start, spot = max((part for part in self.parts if part[0] <= offset), default=(0, Spot(1, 1)))
        return Spot(spot.line, spot.column + offset - start)


@dataclass(slots=True)
class Link:
    """A link to a record: its target without the scheme, and the text that it shows."""

    target: str
    shown: Prose = field(default_factory=Prose)


@dataclass(slots=True)
class Inline:
    """A stretch of text: prose and the links in it."""

    spot: Spot
    prose: Prose
    links: list[Link]

    @property
    def text(self) -> str:
        """All that a reader sees, the text of links included."""
        return self.prose.text.replace(_LINKED, "") + "".join(link.shown.text for link in self.links)


@dataclass(slots=True)
class Table:
    """A table; every cell is a stretch of text."""

    line: int
    header: list[Inline] = field(default_factory=list)
    rows: list[list[Inline]] = field(default_factory=list)


@dataclass(slots=True)
class Fence:
    """A fenced block: what follows the backticks, and the text."""

    line: int
    info: str
    text: str


@dataclass(slots=True)
class Directive:
    """A comment `<!-- lcplan: ... -->` that stands by itself."""

    line: int
    text: str


Piece = Inline | Table | Fence | Directive
_LINKED = "\x00"


def pieces(text: str) -> list[Piece]:
    """Return what a Markdown text (CommonMark with tables) holds, in order."""
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return list(_pieces(tokens, lines))


def _pieces(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[Piece]:
    table: Table | None = None
    cursor = _Cursor(lines)
    for token in tokens:
        start = token.map[0] if token.map else 0
        if token.type == "table_open":
            table = Table(start + 1)
        elif token.type == "table_close" and table:
            yield table
            table = None
        elif token.type == "tr_open" and table:
            table.rows.append([])
            cursor.move(start)
        elif token.type in ("td_close", "th_close"):
            cursor.past("|")
        elif token.type == "thead_close" and table:
            table.header = table.rows.pop()
        elif token.type == "inline":
            if not table:
                cursor.move(start)
            inline = _inline(token.children or [], cursor)
            if table:
                table.rows[-1].append(inline)
            else:
                yield inline
        elif token.type == "fence":
            yield Fence(start + 1, token.info.strip(), token.content)
        elif token.type == "html_block":
            yield from (Directive(start + 1, found[1]) for found in _DIRECTIVE.finditer(token.content))


class _Cursor:
    """Where in the source the text of tokens stands: markdown-it knows lines of blocks, not columns of words."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._line = self._column = 0

    @property
    def spot(self) -> Spot:
        return Spot(self._line + 1, self._column + 1)

    def move(self, line: int) -> None:
        self._line, self._column = line, 0

    def find(self, text: str) -> Spot:
        """Return where a text begins, at or after the cursor in this line, and go behind it."""
        found = self._rest.find(text)
        if found < 0:  # written with escapes or entities
            return self.spot
        self._column += found
        spot = self.spot
        self._column += len(text)
        return spot

    def past(self, sign: str) -> None:
        found = re.search(rf"(?<!\\){re.escape(sign)}", self._rest)
        self._column += found.end() if found else 0

    def past_target(self) -> None:
        """Go behind the target of a link whose text was just read."""
        found = re.match(r"[*_`~]*\](?:\(<[^>]*>[^)]*\)|\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\])?", self._rest)
        self._column += found.end() if found else 0

    @property
    def _rest(self) -> str:
        return self._lines[self._line][self._column :] if self._line < len(self._lines) else ""


def _inline(children: Sequence[Token], cursor: _Cursor) -> Inline:
    inline = Inline(cursor.spot, Prose(), [])
    link: Link | None = None
    for child in children:
        if child.type == "link_open":
            target = unquote(str(child.attrs.get("href", "")))
            link = Link(target.removeprefix(SCHEME)) if target.startswith(SCHEME) else None
        elif child.type == "link_close":
            if link:
                inline.links.append(link)
                inline.prose.add(_LINKED, cursor.spot)
            cursor.past_target()
            link = None
        elif child.type in ("softbreak", "hardbreak"):
            (link.shown if link else inline.prose).add(" ", cursor.spot)
            cursor.move(cursor.spot.line)
        elif child.type == "code_inline":
            spot = cursor.find(child.content)
            if link:
                link.shown.add(child.content, spot)
            else:
                inline.prose.add(_LINKED, spot)
        elif child.type == "text":
            (link.shown if link else inline.prose).add(child.content, cursor.find(child.content))
    return inline
