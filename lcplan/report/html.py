"""Small pieces of HTML. Text is escaped here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def tag(name: str, *inner: str, **attributes: str | None) -> str:
    """Return an element. `inner` is HTML already; attributes are text; `class_` is class, None leaves one out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{shown}>{''.join(inner)}</{name}>"


def text(value: object) -> str:
    """Return text as HTML."""
    return escape(str(value))


def link(href: str, shown: object, title: str | None = None) -> str:
    """Return a link with text."""
    return tag("a", text(shown), href=href, title=title)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return a table whose cells are HTML, in a box that scrolls sideways on a small screen."""
    head = tag("thead", tag("tr", *(tag("th", text(name), scope="col") for name in header))) if header else ""
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    named = tag("caption", caption) if caption else ""
    return tag("div", tag("table", named, head, body), class_="wide", tabindex="0")
