"""Expansion of shell variables from what the text itself sets. Unknown ones stay as text and are named."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping

from lcplan.engine.importer.shell import RawWord, closing
from lcplan.engine.importer.words import Value, Word

Variables = dict[str, "Value | list[Word]"]

_BRACED = re.compile(r"([A-Za-z_]\w*|[0-9@*]+)(\[[@*]\]|\[\d+\])?(.*)", re.DOTALL)
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_TRIM = re.compile(r"(##?|%%?)(.*)", re.DOTALL)
_SWAP = re.compile(r"(//?)((?:\\.|[^/])+)/?(.*)", re.DOTALL)
_PIECES = re.compile(r"(?:\$\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)|\$\([^()]*\)|\$\{[^{}]*\}|\{\{[^{}]*\}\}|`[^`]*`|\S)+")
_NAME = re.compile(r"[A-Za-z_]\w*")
_UP_TO_EXPANSION = re.compile(r"[^$`]+|.", re.DOTALL)
# Values longer than this are no launch; without a limit `A=$A$A` would grow without end.
LONGEST = 1 << 15
MOST_NAMES = 200
_MOST_WORDS = 10_000
_MOST_TEXT = 1 << 18
_DEPTH = 8
_MANY = ("$@", "${@}")


def expand(word: RawWord, variables: Variables) -> list[Word]:
    """Return the words that a raw word stands for, as a shell would split them."""
    if len(word.parts) == 1 and not word.parts[0].expansion:
        return [Word(word.parts[0].text, word.line, glued=word.glued)]
    parts = [part for part in word.parts if part.text or not part.quoted]
    hole = (
        len(parts) == 1
        and parts[0].expansion
        and (not parts[0].quoted or parts[0].text in _MANY or "[@]" in parts[0].text)
    )
    done: list[Word] = []
    text, names, defaulted, begun = "", [], False, False  # type: str, list[str], bool, bool

    def close() -> None:
        nonlocal text, names, defaulted, begun
        if begun:
            glued = word.glued and not done
            done.append(Word(text, word.line, names, hole=hole and bool(names), defaulted=defaulted, glued=glued))
        text, names, defaulted, begun = "", [], False, False

    for part in word.parts:
        if not part.expansion:
            text, begun = text + part.text, True
            continue
        value = _resolve(part.text, variables, 0)
        if isinstance(value, list):
            for at, item in enumerate(value):
                if at:
                    close()
                text, begun, defaulted = text + item, True, defaulted or item.defaulted
                names += item.names
            continue
        defaulted = defaulted or value.defaulted
        names += value.names
        whole = part.quoted or bool(value.names and value.text == part.text)
        pieces = [value.text] if whole else _split(value.text)
        for at, piece in enumerate(pieces):
            if at:
                close()
                names += value.names if piece else ()
            text += piece
            begun = begun or part.quoted or bool(piece)
        if len(text) > LONGEST or len(done) > _MOST_WORDS or len(names) > MOST_NAMES:
            text = text[:LONGEST]
            break
    close()
    return done


def _split(text: str) -> list[str]:
    """Split at blanks, but not inside an expansion that stays as text; a blank at an end gives an empty piece."""
    if not text.strip():
        return ["", ""] if text else [""]
    pieces = _PIECES.findall(text)
    return [*([""] if text[0].isspace() else []), *pieces, *([""] if text[-1].isspace() else [])]


def value_of(word: RawWord, variables: Variables) -> Value:
    """Return a raw word as one text, as in an assignment: nothing is split."""
    text, names, defaulted = "", [], False  # type: str, list[str], bool
    for part in word.parts:
        if not part.expansion:
            text += part.text
            continue
        value = _resolve(part.text, variables, 0)
        if isinstance(value, list):
            value = Value(" ".join(value), tuple(n for item in value for n in item.names))
        text += value.text
        names += value.names
        defaulted = defaulted or value.defaulted
        if len(text) > LONGEST or len(names) > MOST_NAMES:
            break
    if len(text) > LONGEST:
        return Value("".join(part.text for part in word.parts)[:LONGEST], tuple(dict.fromkeys(names)))
    return Value(text, tuple(dict.fromkeys(names)), defaulted)


def interpolate(text: str, variables: Variables, depth: int = 0, *, commands: bool = True) -> Value:
    """Return a text with its `$A` and `${A:-b}` replaced. Without `commands`, `$$` is a dollar, `$(...)` plain text."""
    if "$" not in text and "`" not in text:
        return Value(text)
    out, names, defaulted, at, size = [], [], False, 0, 0  # type: list[str], list[str], bool, int, int
    while at < len(text):
        char = text[at]
        end = -1
        if not commands and text.startswith("$$", at):
            out.append("$")
            at += 2
            continue
        if char == "$" or (char == "`" and commands):
            plain_text = (
                not commands and text[at + 1 : at + 2] not in ("{", "_") and not text[at + 1 : at + 2].isalpha()
            )
            end = -1 if plain_text else closing(text, at)
        if end < 0:
            found = _UP_TO_EXPANSION.match(text, at)
            assert found is not None
            out.append(found[0])
            at = found.end()
            continue
        value = _resolve(text[at:end], variables, depth)
        if isinstance(value, list):
            value = Value(" ".join(value), tuple(n for item in value for n in item.names))
        out.append(value.text)
        names += value.names
        defaulted = defaulted or value.defaulted
        at = end
        size += len(value.text)
        if size > LONGEST or len(names) > MOST_NAMES:
            break
    return Value("".join(out)[:LONGEST], tuple(dict.fromkeys(names)), defaulted)


def _resolve(raw: str, variables: Variables, depth: int) -> Value | list[Word]:
    if raw[0] == "`":
        return Value(raw, (raw,))
    if raw[0] == "{":
        return Value(raw, (raw.strip("{}- "),))
    if raw.startswith("$((") and raw.endswith("))"):
        return _arithmetic(raw, variables, depth)
    if raw.startswith("$("):
        return Value(raw, (raw,))
    if raw.startswith("${"):
        return _braced(raw, variables, depth)
    name = raw[1:]
    if not _NAME.match(name):
        return Value(raw, (raw,))
    known = variables.get(name)
    if isinstance(known, list):
        return Value(str(known[0]), known[0].names) if known else Value("")
    return Value(raw, (name,)) if known is None else known


def _braced(raw: str, variables: Variables, depth: int) -> Value | list[Word]:
    found = _BRACED.fullmatch(raw[2:-1])
    if found is None or depth > _DEPTH:
        inner = _NAME.search(raw)
        return Value(raw, (inner[0],) if inner else (raw,))
    name, index, rest = found[1], found[2], found[3]
    shown = name if _NAME.match(name) else f"${name}"
    known = variables.get(name)
    if isinstance(known, list):
        if index in ("[@]", "[*]") and not rest:
            return known
        at = int(index[1:-1]) if index and index[1:-1].isdigit() and len(index) < 8 else 0
        known = Value(str(known[at]), known[at].names) if at < len(known) else None
    if not rest:
        return Value(raw, (shown,)) if known is None else known
    default = _DEFAULT.fullmatch(rest)
    if default:
        return _defaulted(raw, shown, known, default, variables, depth)
    if known is None or known.names:
        return Value(raw, known.names if known else (shown,))
    return _edited(known.text, rest) or Value(raw, (shown,))


def _defaulted(
    raw: str, name: str, known: Value | None, found: re.Match[str], variables: Variables, depth: int
) -> Value:
    colon, kind, other = found[1], found[2], found[3]
    is_set = known is not None and (known.text != "" or not colon)
    if kind == "+":
        return interpolate(other, variables, depth + 1) if is_set else Value(raw, (name,))
    if known is not None and is_set:
        return known
    if kind == "?":
        return Value(raw, (name,))
    value = interpolate(_unquoted(other), variables, depth + 1)
    value = Value(value.text, value.names, defaulted=True)
    if kind == "=" and _NAME.fullmatch(name):
        variables[name] = value
    return value


def _edited(text: str, rest: str) -> Value | None:
    """Apply `${A##*/}`, `${A%.x}`, `${A/x/y}`, `${A,,}`, `${A^^}`; None for anything else."""
    if rest in (",,", "^^"):
        return Value(text.lower() if rest == ",," else text.upper())
    trim = _TRIM.fullmatch(rest)
    if trim and len(text) <= 1024:
        matches = re.compile(fnmatch.translate(trim[2])).match
        cuts = range(len(text) + 1)
        front = trim[1][0] == "#"
        longest = len(trim[1]) == 2
        order = cuts if front != longest else reversed(cuts)
        for cut in order:
            if matches(text[:cut] if front else text[cut:]):
                return Value(text[cut:] if front else text[:cut])
        return Value(text)
    swap = _SWAP.fullmatch(rest)
    if swap and not re.search(r"[*?\[$]", swap[2]):
        plain = re.sub(r"\\(.)", r"\1", swap[2])
        return Value(text.replace(plain, swap[3], -1 if swap[1] == "//" else 1))
    return None


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _arithmetic(raw: str, variables: Variables, depth: int) -> Value:
    """Sums and products of known integers; anything else stays as text."""
    inner = interpolate(raw[3:-2], variables, depth + 1) if depth <= _DEPTH else Value(raw[3:-2], (raw,))
    names: list[str] = list(inner.names)

    def known(found: re.Match[str]) -> str:
        value = variables.get(found[0])
        if isinstance(value, Value) and not value.names and value.text.isdecimal():
            return value.text
        names.append(found[0])
        return found[0]

    bare = re.sub(
        r"\$\{?[A-Za-z_]\w*\}?|(?<![\w$])[A-Za-z_]\w*", lambda m: known(m) if m[0][0] != "$" else m[0], inner.text
    )
    if not names and len(bare) <= 80:
        try:
            return Value(str(_number(ast.parse(bare.strip(), mode="eval").body)))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return Value(raw, tuple(dict.fromkeys(names)) or (raw,))


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_number(left), _number(right))
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=right) if _number(right) > 0 <= _number(left):
            return _number(left) // _number(right)
    raise ValueError("not a sum or product of integers")


def words_of(parts: list[RawWord], variables: Variables) -> list[Word]:
    """Return all words of a command after expansion; no more than make sense."""
    done: list[Word] = []
    size = 0
    for raw in parts:
        words = expand(raw, variables)
        done += words
        size += sum(map(len, words))
        if size > _MOST_TEXT or len(done) > 4 * _MOST_WORDS:
            break
    return done
