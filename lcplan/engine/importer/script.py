"""A shell script -> the commands in it, each with its words after expansion and the environment it would run with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lcplan.engine.importer.expand import LONGEST, MOST_NAMES, Variables, value_of, words_of
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.shell import Budget, RawWord, Statement, lex
from lcplan.engine.importer.words import Value, Word

# Characters that all commands of a script may have after expansion: more than any text of launches needs.
EXPANSIONS = 1 << 21
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARE = {"export", "declare", "typeset", "local", "readonly"}
# Keywords that may stand before a command on the same line.
_LEADING = {"then", "do", "else", "{", "!", "time", "&", "elif", "if", "while", "until"}
_SEQUENCE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})\}")
_SEQ = re.compile(r"\$\(\s*seq\s+(?:(\d{1,6})\s+)?(\d{1,6})\s*\)")
_COUNTED = re.compile(r"\(*\s*\w+\s*=\s*(\d{1,6})\s*;\s*\w+\s*(<=?)\s*(\d{1,6})\s*;")


@dataclass(slots=True)
class Command:
    """One command: its words, the assignments written before it, and what was exported until then.

    `loop` is the number of rounds of the loop it stands in (0: a loop of unknown length, None: none); `before` and
    `after` are the operators around it; `documents` are its here-documents.
    """

    words: list[Word]
    line: int
    env: dict[str, Value] = field(default_factory=dict)
    exported: dict[str, Value] = field(default_factory=dict)
    loop: int | None = None
    before: str = "\n"
    after: str = "\n"
    documents: list[tuple[str, bool]] = field(default_factory=list)


@dataclass(slots=True)
class Script:
    """The commands of a script, its comments, its variables at the end, and what was odd about it."""

    commands: list[Command]
    comments: list[tuple[int, str]]
    variables: Variables
    findings: list[Finding]


def read_script(text: str, variables: Variables | None = None, budget: Budget | None = None) -> Script:
    """Return the commands of a shell text; `variables` are those known before it begins. Lists are not inherited."""
    budget = budget or Budget()
    lexed = lex(text, budget=budget)
    known: Variables = {name: value for name, value in (variables or {}).items() if isinstance(value, Value)}
    reader = _Reader(known, list(lexed.findings))
    left = EXPANSIONS
    for statement in lexed.statements:
        reader.statement(statement)
        left -= reader.expanded
        if left < 0:
            reader.findings.append(Finding("read-in-part", str(statement.line), statement.line))
            break
    return Script(reader.commands, lexed.comments, reader.variables, reader.findings)


class _Reader:
    def __init__(self, variables: Variables, findings: list[Finding]) -> None:
        self.variables = variables
        self.findings = findings
        self.commands: list[Command] = []
        self.exported: dict[str, None] = {}
        self.loops: list[int] = []
        self.conditions = 0
        self.expanded = 0

    def words(self, raw: list[RawWord]) -> list[Word]:
        """The words after expansion. What that cost, in characters, stands in `expanded`."""
        found = words_of(raw, self.variables)
        self.expanded += sum(map(len, found)) + 8 * len(found)
        return found

    def statement(self, statement: Statement) -> None:
        self.expanded = 0
        words = statement.words
        while words and words[0].literal in _LEADING:
            if words[0].literal in ("if", "while", "until", "elif"):
                if words[0].literal == "if":
                    self.conditions += 1
                elif words[0].literal != "elif":
                    self.loops.append(0)
                words = words[1:]
                break
            words = words[1:]
        head = words[0].literal if words else None
        match head:
            case "for" | "select":
                self.loop(words)
                return
            case "case":
                self.conditions += 1
                return
            case "done":
                if self.loops:
                    self.loops.pop()
                words = words[1:]
            case "fi" | "esac":
                self.conditions = max(0, self.conditions - 1)
                words = words[1:]
            case "unset":
                for word in words[1:]:
                    self.variables.pop(word.literal or "", None)
                    self.exported.pop(word.literal or "", None)
                return
        declares = head in _DECLARE
        assignments: list[tuple[str, str, RawWord]] = []
        rest = words[1:] if declares else words
        while rest and (found := _assignment(rest[0])):
            assignments.append(found)
            rest = rest[1:]
            while declares and rest and not _assignment(rest[0]):
                if head == "export" and rest[0].literal:
                    self.exported[rest[0].literal] = None
                rest = rest[1:]
        if declares and not assignments:
            self.declared(head or "", rest)
            return
        if declares or not rest:
            self.assign(assignments, statement, export=head == "export")
            if not statement.documents:
                return
        env = {} if declares else {name: self.value(name, plus, word) for name, plus, word in assignments}
        if rest and rest[0].literal == ":":
            self.words(rest)
            return
        self.commands.append(
            Command(
                self.words(rest),
                statement.line,
                env,
                {name: known for name in self.exported if isinstance(known := self.variables.get(name), Value)},
                self.loops[-1] if self.loops else None,
                statement.before,
                statement.after,
                statement.documents,
            )
        )

    def declared(self, head: str, rest: list[RawWord]) -> None:
        """`export A B`, `declare -x A=1` (options before the names)."""
        names = [word for word in rest if not (word.literal or "").startswith("-")]
        options = "".join(word.literal or "" for word in rest if word not in names)
        for word in names:
            found = _assignment(word)
            if found:
                self.assign([found], None, export=head == "export" or "x" in options)
            elif word.literal and (head == "export" or "x" in options):
                self.exported[word.literal] = None

    def assign(self, assignments: list[tuple[str, str, RawWord]], statement: Statement | None, *, export: bool) -> None:
        conditional = self.conditions > 0 or (statement is not None and statement.before in ("&&", "||"))
        for name, plus, word in assignments:
            if export:
                self.exported[name] = None
            if conditional:
                self.findings.append(Finding("conditional-assignment", name, word.line))
                if name in self.variables:
                    continue
            if word.array is not None:
                items = self.words(word.array)
                before = self.variables.get(name)
                if plus and isinstance(before, list):
                    before += items
                else:
                    self.variables[name] = items
            else:
                self.variables[name] = self.value(name, plus, word)

    def value(self, name: str, plus: str, word: RawWord) -> Value:
        if word.array is not None:
            return Value(" ".join(self.words(word.array))[:LONGEST])
        value = value_of(_without_name(word), self.variables)
        before = self.variables.get(name)
        self.expanded += len(value.text)
        if plus and isinstance(before, Value):
            names = tuple(dict.fromkeys(before.names + value.names))[:MOST_NAMES]
            return Value((before.text + value.text)[:LONGEST], names, before.defaulted or value.defaulted)
        return value

    def loop(self, words: list[RawWord]) -> None:
        text = " ".join("".join(part.text for part in word.parts) for word in words)
        counted = _COUNTED.search(text)
        if counted:
            self.loops.append(max(0, int(counted[3]) - int(counted[1]) + (counted[2] == "<=")))
            return
        self.loops.append(_rounds(words, self.variables))
        if len(words) > 1 and words[1].literal:
            self.variables.pop(words[1].literal, None)


def _rounds(words: list[RawWord], variables: Variables) -> int:
    """The rounds of `for X in ...`; 0 when the text does not say."""
    if len(words) < 4 or words[2].literal != "in":
        return 0
    count = 0
    for word in words_of(words[3:], variables):
        sequence, seq = _SEQUENCE.fullmatch(word), _SEQ.fullmatch(word)
        if sequence:
            count += abs(int(sequence[2]) - int(sequence[1])) + 1
        elif seq:
            count += int(seq[2]) - int(seq[1] or 1) + 1
        elif word.names:
            return 0
        else:
            count += 1
    return max(0, count)


def _assignment(word: RawWord) -> tuple[str, str, RawWord] | None:
    if not word.parts or word.parts[0].quoted or word.parts[0].expansion:
        return None
    found = _ASSIGNMENT.match(word.parts[0].text)
    return (found[1], found[2], word) if found else None


def _without_name(word: RawWord) -> RawWord:
    first, rest = word.parts[0], word.parts[1:]
    tail = first.text.partition("=")[2]
    return RawWord([type(first)(tail), *rest], word.line)
