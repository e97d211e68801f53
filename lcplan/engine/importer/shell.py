"""Shell text -> statements of raw words. Nothing is evaluated here and nothing is ever executed.

The standard shlex drops what an import needs (which part was quoted, where a line was continued, what is a variable),
so this is a lexer of its own: one pass, linear in the length of the text, and any text is accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from lcplan.engine.importer.findings import Finding

_PIECE = re.compile(
    r"""
    (?P<template>\{\{[^{}\n]*\}\})
  | (?P<plain>(?:[^\s\\'"$`#;&|<>(){]+|\{(?!\{))+(?:\#[^\s\\'"$`#;&|<>()]*)*)
  | (?P<blank>[^\S\n]+)
  | (?P<continued>\\[^\S\n]*(?:\n|\Z))
  | (?P<newline>\n)
  | (?P<ansi>\$'(?:[^'\\]|\\.)*')
  | (?P<single>'[^']*')
  | (?P<escaped>\\.)
  | (?P<operator>&&|\|\||;;&?|;&|\|&|[;&|()])
  """,
    re.VERBOSE | re.DOTALL,
)
_REDIRECT = re.compile(r"(?:\d{0,3}|&)(?:<<<|<<-?|<>|<&|<|>>|>&|>\||>)")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n|;&\\\"']{0,60}(?<!\s)>")
_VARIABLE = re.compile(r"\$(?:env:)?[A-Za-z_]\w*|\$[0-9@*#?$!-]")
_IN_DOUBLE = re.compile(r'[^"\\$`]+')
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_PARENS = re.compile(r"\\.|'[^']*'|[()]", re.DOTALL)
_TICK = re.compile(r"\\.|`", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=")
_KEYWORDS = (
    "for|select|case|esac|if|then|elif|else|fi|while|until|do|done|time|in|function|export|declare|typeset|local|"
    "readonly|unset|eval"
)
_MATTERS = "vllm|sglang|docker|podman|nerdctl|run_cluster|serve|sgl"
# Lines of ordinary words that can hold no launch: no quoting, no operator, no assignment.
_DULL = re.compile(
    rf"""(?:[ \t]*+(?!(?:{_KEYWORDS})\b)(?![^\n]*(?:{_MATTERS}))[A-Za-z_./][^\s'"$`\\<>()\{{}};&|#=]*+"""
    rf"""(?:[ \t]++[^\s'"$`\\<>()\{{}};&|\#]++)*+[ \t]*+\n)++""",
    re.IGNORECASE,
)
# So many of them are kept, by their first words.
_DULL_KEPT = 8
# Words without quotes, expansions, operators and braces, as most are: read many at once.
_AT_ONCE = 4096
_PLAIN_WORDS = re.compile(r"(?:[^\s\\'\"$`#;&|<>(){]++(?=[ \t\n]|\Z)[ \t]*+)++")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
# An expansion that is longer is ordinary text.
_REACH = 1 << 16
# An opening quote or bracket that is never closed is ordinary text; looking for its end is given up after so many.
_PATIENCE = 4
# Reading one piece costs up to 10 microseconds and most texts need no more, so a text of any size costs 0.2 s at most.
_PIECES_READ = 20_000
# Plain words cost less than other pieces.
_CHEAP = 0.8


class Part(NamedTuple):
    """A piece of a raw word: literal text, or an expansion (`$A`, `${A:-b}`, `$(pwd)`) as written."""

    text: str
    quoted: bool = False
    expansion: bool = False


@dataclass(slots=True)
class RawWord:
    """A word before expansion. `array` holds the words of `NAME=(...)`."""

    parts: list[Part]
    line: int
    glued: bool = False
    array: list[RawWord] | None = None

    @property
    def literal(self) -> str | None:
        """The text, when the word is made of unquoted literal text alone."""
        if len(self.parts) != 1 or self.parts[0].quoted or self.parts[0].expansion:
            return None
        return self.parts[0].text


@dataclass(slots=True)
class Statement:
    """One simple command or keyword line: its words without redirections, the operator before and behind it, and the
    bodies of its here-documents (text, whether variables are expanded in it)."""

    words: list[RawWord]
    line: int
    before: str = "\n"
    after: str = "\n"
    documents: list[tuple[str, bool]] = field(default_factory=list)


@dataclass(slots=True)
class Lexed:
    """The statements of a text, its comments (line, text), and what was odd about it."""

    statements: list[Statement]
    comments: list[tuple[int, str]]
    findings: list[Finding]


@dataclass(slots=True)
class Budget:
    """How much work may still be done for one text, in pieces of shell."""

    left: float = _PIECES_READ


def lex(text: str, *, script: bool = True, budget: Budget | None = None) -> Lexed:
    """Return the statements of a shell text. Without `script`, newlines are blanks and `#`, `;`, `&` ordinary text.

    When the budget is spent the rest is not read, and a finding says so.
    """
    lexer = _Lexer(text, script, budget or Budget())
    lexer.run()
    return Lexed(lexer.statements, lexer.comments, lexer.findings)


class _Lexer:
    def __init__(self, text: str, script: bool, budget: Budget) -> None:
        self.text = text
        self.script = script
        self.budget = budget
        self.at = 0
        self.line = 1
        self.patience = _PATIENCE
        self.statements: list[Statement] = []
        self.comments: list[tuple[int, str]] = []
        self.findings: list[Finding] = []
        self.current = Statement([], 1)
        self.parts: list[Part] = []
        self.word_line = 1
        self.in_word = False
        self.glued = False
        self.array: RawWord | None = None
        self.skip_target = ""
        self.documents: list[tuple[Statement, str, bool, bool]] = []

    def run(self) -> None:
        text, end = self.text, len(self.text)
        while self.at < end:
            if self.budget.left <= 0:
                self.findings.append(Finding("read-in-part", str(self.line), self.line))
                break
            if not self.in_word and (
                (not self.current.words and self.script and self.array is None and self.dull()) or self.plain_words()
            ):
                continue
            self.budget.left -= 1
            char = text[self.at]
            if (char in "<>" or (not self.in_word and char in "&0123456789")) and self.redirect():
                continue
            if char == "#" and not self.in_word and self.script:
                self.comment()
                continue
            found = _PIECE.match(text, self.at)
            if found is None:
                self.special(char)
                continue
            start, self.at = self.at, found.end()
            piece = found[0]
            match found.lastgroup:
                case "plain":
                    self.add(Part(piece))
                case "template":
                    self.add(Part(piece, expansion=True))
                case "blank":
                    self.flush()
                case "continued":
                    self.continued(start, piece)
                case "newline":
                    self.newline()
                case "single":
                    self.add(Part(piece[1:-1], quoted=True))
                    self.line += piece.count("\n")
                case "ansi":
                    unescape = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), piece[2:-1], flags=re.DOTALL)
                    self.add(Part(unescape, quoted=True))
                    self.line += piece.count("\n")
                case "escaped":
                    self.add(Part(piece[1], quoted=True))
                case _:
                    self.operator(piece)
        self.flush()
        self.end_array()
        self.end("\n")

    def dull(self) -> bool:
        """Skip lines that can hold no launch."""
        if self.documents or (self.at and self.text[self.at - 1] != "\n"):
            return False
        found = _DULL.match(self.text, self.at)
        if not found:
            return False
        lines = found[0].split("\n")[:-1]
        if not self.statements and " -" in lines[0]:
            # A command whose head is missing may begin with the model.
            return False
        for place, line in enumerate(lines[:_DULL_KEPT]):
            at = self.line + place
            self.current.words.append(RawWord([Part(line.split(None, 1)[0])], at))
            self.current.line = at
            self.end("\n")
        self.at = found.end()
        self.line += len(lines)
        self.current.line = self.line
        return True

    def plain_words(self) -> bool:
        """Read the words up to the first that is more than plain text."""
        limit = self.at + _AT_ONCE
        found = None if self.skip_target else _PLAIN_WORDS.match(self.text, self.at, limit)
        if not found:
            return False
        end = found.end()
        if end == limit < len(self.text):
            # The last word may go on.
            end = 1 + max(self.text.rfind(" ", self.at, end), self.text.rfind("\t", self.at, end))
            if not end:
                return False
        line, glued = self.line, self.glued
        words = [RawWord([Part(text)], line) for text in self.text[self.at : end].split()]
        if not words:
            return False
        words[0].glued, self.glued = glued, False
        self.budget.left -= _CHEAP * len(words)
        if self.array is not None and self.array.array is not None:
            self.array.array += words
        else:
            if not self.current.words:
                self.current.line = line
            self.current.words += words
        self.at = end
        return True

    def add(self, part: Part) -> None:
        if not self.in_word:
            self.in_word = True
            self.word_line = self.line
        self.parts.append(part)

    def flush(self) -> None:
        if not self.in_word:
            return
        word = RawWord(self.parts, self.word_line, self.glued)
        self.parts, self.in_word, self.glued = [], False, False
        if self.skip_target:
            if self.skip_target in ("<<", "<<-"):
                name = "".join(part.text for part in word.parts)
                expands = not any(part.quoted for part in word.parts)
                self.documents.append((self.current, name, expands, self.skip_target == "<<-"))
            self.skip_target = ""
        elif self.array is not None and self.array.array is not None:
            self.array.array.append(word)
        else:
            if not self.current.words:
                self.current.line = word.line
            self.current.words.append(word)

    def end(self, operator: str) -> None:
        self.skip_target = ""
        if self.current.words or self.current.documents or operator not in ("\n", ";"):
            self.budget.left -= 1
            self.current.after = operator
            self.statements.append(self.current)
            self.current = Statement([], self.line, before=operator)

    def continued(self, start: int, piece: str) -> None:
        if len(piece) > 2 and piece.endswith("\n"):
            self.findings.append(Finding("whitespace-after-backslash", line=self.line))
        rest = self.text[self.at : self.at + 200].lstrip(" \t")
        if not rest or rest[0] == "\n":
            self.findings.append(Finding("trailing-backslash", line=self.line))
        glues = self.in_word and bool(rest) and self.text[self.at] not in " \t\n"
        self.line += 1
        self.flush()
        self.glued = glues

    def newline(self) -> None:
        self.flush()
        self.line += 1
        if self.array is not None or not self.script:
            return
        for statement, name, expands, tabs in self.documents:
            self.document(statement, name, expands, tabs)
        self.documents = []
        self.end("\n")

    def document(self, statement: Statement, name: str, expands: bool, tabs: bool) -> None:
        start = at = self.at
        while at < len(self.text):
            stop = self.text.find("\n", at)
            stop = len(self.text) if stop < 0 else stop
            line = self.text[at:stop].rstrip(" \t")
            if (line.lstrip("\t") if tabs else line) == name:
                self.at = stop
                break
            at = stop + 1
        else:
            self.at = at = len(self.text)
        body = self.text[start:at]
        self.line += body.count("\n")
        statement.documents.append((body, expands))

    def comment(self) -> None:
        stop = self.text.find("\n", self.at)
        stop = len(self.text) if stop < 0 else stop
        self.comments.append((self.line, self.text[self.at + 1 : stop].strip()))
        self.at = stop

    def redirect(self) -> bool:
        if self.text[self.at] == "<" and (placeholder := _PLACEHOLDER.match(self.text, self.at)):
            self.add(Part(placeholder[0]))
            self.at = placeholder.end()
            return True
        found = _REDIRECT.match(self.text, self.at) if self.script else None
        if found is None:
            if self.text[self.at] not in "<>":
                return False
            self.add(Part(self.text[self.at]))
            self.at += 1
            return True
        self.flush()
        self.at = found.end()
        self.skip_target = found[0].lstrip("0123456789&")
        return True

    def operator(self, operator: str) -> None:
        if not self.script:
            self.add(Part(operator))
            return
        if operator == "(" and self.array is None and len(self.parts) == 1:
            head = self.parts[0]
            if not head.quoted and _ARRAY.fullmatch(head.text):
                self.array = RawWord([head], self.word_line, array=[])
                self.parts, self.in_word = [], False
                return
        self.flush()
        if self.array is not None:
            if operator == ")":
                self.end_array()
            return
        self.end(operator)

    def end_array(self) -> None:
        if self.array is not None:
            self.current.words.append(self.array)
            self.array = None

    def special(self, char: str) -> None:
        """Read what no regular expression can: double quotes, expansions, or one character that means nothing."""
        if char == '"' and self.double():
            return
        if char in "$`" and self.expansion(quoted=False):
            return
        self.add(Part(char))
        self.at += 1

    def double(self) -> bool:
        start, kept, line, fresh = self.at, len(self.parts), self.line, self.in_word
        if self.patience <= 0:
            return False
        self.add(Part("", quoted=True))
        self.at += 1
        text, end = self.text, len(self.text)
        while self.at < end and self.budget.left > 0:
            self.budget.left -= 1
            char = text[self.at]
            if char == '"':
                self.at += 1
                return True
            if char == "\\":
                nxt = text[self.at + 1 : self.at + 2]
                if nxt == "\n":
                    self.line += 1
                else:
                    self.parts.append(Part(nxt if nxt in ("$", "`", '"', "\\") else "\\" + nxt, quoted=True))
                self.at += 2
            elif char in "$`":
                if not self.expansion(quoted=True):
                    self.parts.append(Part(char, quoted=True))
                    self.at += 1
            else:
                found = _IN_DOUBLE.match(text, self.at)
                assert found is not None
                self.parts.append(Part(found[0], quoted=True))
                self.line += found[0].count("\n")
                self.at = found.end()
        del self.parts[kept:]
        self.at, self.line, self.in_word = start, line, fresh
        self.patience -= 1
        return False

    def expansion(self, quoted: bool) -> bool:
        end = closing(self.text, self.at) if self.patience > 0 else -1
        if end < 0:
            found = _VARIABLE.match(self.text, self.at)
            if found is None:
                self.patience -= self.text[self.at : self.at + 2] in ("$(", "${") or self.text[self.at] == "`"
                return False
            end = found.end()
        raw = self.text[self.at : end]
        self.add(Part(raw, quoted=quoted, expansion=True))
        self.line += raw.count("\n")
        self.at = end
        return True


def closing(text: str, at: int) -> int:
    """Return where the expansion that starts at `$` or a backtick ends, or -1 when it starts none or is not closed."""
    if text[at] == "`":
        found = next((m for m in _TICK.finditer(text, at + 1, at + _REACH) if m[0] == "`"), None)
        return found.end() if found else -1
    opener = text[at + 1 : at + 2]
    if opener not in ("(", "{"):
        plain = _VARIABLE.match(text, at)
        return plain.end() if plain else -1
    pattern, close = (_PARENS, ")") if opener == "(" else (_BRACES, "}")
    depth = 0
    for hit in pattern.finditer(text, at + 1, at + _REACH):
        if hit[0] == opener:
            depth += 1
        elif hit[0] == close:
            depth -= 1
            if depth == 0:
                return hit.end()
    return -1
