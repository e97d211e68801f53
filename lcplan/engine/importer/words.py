"""Words of a command after expansion, and values of variables, with what could not be resolved in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class Word(str):
    """One argument of a command.

    `names`: variables whose value is not known and which stand in it as text. `hole`: the whole word is one unquoted
    expansion of an unknown variable, which may be no argument, one or several. `defaulted`: a default such as `${A:-b}`
    was taken. `glued`: no blank separated it from the word before.
    """

    line: int = 0
    names: tuple[str, ...] = ()
    hole: bool = False
    defaulted: bool = False
    glued: bool = False

    def __new__(
        cls,
        text: str,
        line: int = 0,
        names: Iterable[str] = (),
        *,
        hole: bool = False,
        defaulted: bool = False,
        glued: bool = False,
    ) -> Word:
        self = super().__new__(cls, text)
        self.line = line
        if names:
            self.names = tuple(names)
        if hole:
            self.hole = True
        if defaulted:
            self.defaulted = True
        if glued:
            self.glued = True
        return self

    def like(self, text: str) -> Word:
        """Return another text with the same marks."""
        return Word(text, self.line, self.names, defaulted=self.defaulted)


@dataclass(frozen=True, slots=True)
class Value:
    """The text of a variable, the unknown variables in it, and whether a default was taken."""

    text: str
    names: tuple[str, ...] = ()
    defaulted: bool = False


def unresolved(words: Iterable[str]) -> list[str]:
    """Return the unknown variables of some words, each once, in order."""
    return list(dict.fromkeys(name for word in words if isinstance(word, Word) for name in word.names))
