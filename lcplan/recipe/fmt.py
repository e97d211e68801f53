"""The canonical form of a recipe file: width 120, two spaces, comments and quotes kept."""

from __future__ import annotations

import io
import re
from collections import Counter

from lcplan.recipe.yamltree import parse_tree

WIDTH = 120
_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*(\S*)")


def formatted(raw: bytes, shown: str) -> str:
    """Return the canonical text of a recipe file. Raises LcplanError when it is no safe YAML.

    Doing it twice gives the same text; the content is the same before and after.
    """
    from ruamel.yaml import YAML

    before = parse_tree(raw, shown).data
    if before is None:
        return raw.decode("utf-8-sig")
    yaml = YAML(typ="rt")
    yaml.width = WIDTH
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.explicit_start = False
    text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    out = io.StringIO()
    yaml.dump(yaml.load(text), out)
    made = "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n") + "\n"
    after = parse_tree(made.encode(), shown).data
    # A formatter that changes meaning, or loses a comment (inside brackets), is worse than none.
    return made if after == before and _comments(made) == _comments(text) else text


def _comments(text: str) -> Counter[str]:
    """Return what may be comments, by their first word: the rest of a text with a `#` in it may be folded."""
    return Counter(_COMMENT.findall(text))
