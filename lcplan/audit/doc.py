"""Published documents against the records: every linked number, bound table and quoted command is looked up again.

[58.6 s](lcplan:RUN/CELL#ttft_s)           a figure; `.p90`, `.min`, `.max` after the metric
[1.9 ×](<lcplan:=A/x#ttft_s / B/x#ttft_s>)  a derived value
<!-- lcplan: RUN/grid.users={1} | - | ttft_s | ttft_s.p90 -->
                                           above a table: what a row names, then what each column shows;
                                           `{1}` or `{Users}` is the row's text in that column
```sh lcplan:RUN                           a quotation of the run's cmd.sh
<!-- lcplan: off -->, <!-- lcplan: on -->  numbers between are nobody's measurements (for `strict`)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lcplan.audit import expression, figures, quote
from lcplan.audit.figures import Quantity, Shown
from lcplan.audit.gates import Standing, standing
from lcplan.audit.markdown import Directive, Fence, Inline, Prose, Spot, Table, pieces
from lcplan.audit.refs import Records, Ref, parse
from lcplan.audit.scripts import scripts
from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, error, fail
from lcplan.base.files import write_atomic
from lcplan.base.units import parse_tokens
from lcplan.record.index import Index, opened

_EMPTY = "-"
_TAG = re.compile(r"lcplan:(?P<named>[\w.-]+)|(?P<plain>[\w.-]+__[\w.-]+__\d{4}-\d{6})(?![\w-])")
"""A run in the info string of a fenced block: after the scheme, or a plain run id."""


@dataclass(slots=True)
class Checked:
    """What was checked: numbers and quotations that lead to records, findings, and how many values were rewritten."""

    numbers: int = 0
    quotations: int = 0
    fixed: int = 0
    findings: list[Diagnostic] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return what `audit doc --json` prints."""
        counts = {"numbers": self.numbers, "quotations": self.quotations, "fixed": self.fixed}
        return {"ok": not self.findings, **counts, "findings": [d.as_json() for d in self.findings]}


@dataclass(frozen=True, slots=True)
class Options:
    """`strict`: numbers with a unit that lead to no record are errors. `allow_simulated` lifts that reason alone."""

    strict: bool = False
    allow_simulated: bool = False
    fix: bool = False


def doc(root: Path, files: Sequence[Path], options: Options = Options()) -> Checked:
    """Return what is wrong with the numbers in Markdown files; with `fix`, right values replace wrong ones.

    Raises LcplanError `file-unreadable`.
    """
    checked = Checked()
    records = Records(root)
    with opened(root) as index:
        for file in files:
            _File(file, _text(file), records, index, options, checked).check()
    return checked


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as reason:
        raise fail("file-unreadable", f"{file} cannot be read: {reason}", source=Source(str(file))) from None


class _File:
    """One file being checked."""

    def __init__(
        self, file: Path, text: str, records: Records, index: Index, options: Options, checked: Checked
    ) -> None:
        self._file, self._text, self._records, self._index = file, text, records, index
        self._options, self._checked = options, checked
        self._standings: dict[tuple[str, str], Standing] = {}
        self._fixes: list[tuple[Spot, str, str]] = []

    def check(self) -> None:
        strict, binding = self._options.strict, None
        for piece in pieces(self._text):
            if isinstance(piece, Directive) and piece.text in ("off", "on"):
                strict = self._options.strict and piece.text == "on"
                continue
            if binding and not isinstance(piece, Table):
                self._add(Spot(binding.line, 1), "doc-bad-directive", "no table follows this comment")
            if isinstance(piece, Table):
                self._table(piece, binding, strict)
            elif isinstance(piece, Fence):
                self._fence(piece)
            elif isinstance(piece, Inline):
                self._inline(piece, strict)
            binding = piece if isinstance(piece, Directive) else None
        if self._fixes:
            self._write()

    def _inline(self, inline: Inline, strict: bool) -> None:
        for link in inline.links:
            self._figure(link.shown, link.target, "")
        if strict:
            for shown in figures.find(inline.prose.text):
                if _claims(shown):
                    self._untraced(inline.prose.spot(shown.start), shown)

    def _table(self, table: Table, binding: Directive | None, strict: bool) -> None:
        names = [cell.text.strip() for cell in table.header]
        units = [figures.header_unit(name) for name in names]
        row_ref, *columns = [part.strip() for part in binding.text.split("|")] if binding else [""]
        if len(columns) > len(names) and binding:
            sentence = f"this comment binds {len(columns)} columns of a table that has {len(names)}"
            self._add(Spot(binding.line, 1), "doc-bad-directive", sentence)
        for row in table.rows:
            texts = [cell.text.strip() for cell in row]
            for number, cell in enumerate(row):
                column = columns[number] if number < len(columns) else ""
                shown = figures.first(cell.prose.text)
                if column in ("", _EMPTY) or cell.links:
                    self._inline(cell, strict)
                    if strict and shown and not shown.unit and units[number] and not cell.links:
                        self._untraced(cell.prose.spot(shown.start), replace(shown, unit=units[number]))
                elif shown:
                    target = _filled(f"{row_ref}#{column}" if "#" not in column else column, names, texts)
                    self._figure(cell.prose, target, units[number])

    def _fence(self, fence: Fence) -> None:
        for tag in _TAG.finditer(fence.info):
            self._checked.quotations += 1
            self._quotation(fence, tag["named"] or tag["plain"])

    def _quotation(self, fence: Fence, run: str) -> None:
        spot = Spot(fence.line, 1)
        try:
            texts = scripts(self._records.root, run).values()
            wrongs = [quote.first_wrong(fence.text, text) for text in texts]
        except LcplanError as unknown:
            self._findings(spot, unknown)
        except ValueError as reason:
            self._add(spot, "doc-quote", f"this quotation is no shell text: {reason}")
        else:
            if why := self._records.retracted(run):
                self._add(spot, "doc-retracted", f"{run} was retracted: {why}")
            if not wrongs:
                self._add(spot, "doc-quote", f"run '{run}' has no cmd.sh")
            elif None not in wrongs:  # of a split layout any server's command may be quoted
                wrong = str(wrongs[0])
                place = Spot(fence.line + _line_with(wrong, fence.text), 1)
                sentence = f"cmd.sh of run '{run}' does not hold '{wrong}' there"
                self._add(place, "doc-quote", sentence, f"`lcplan audit why {run}` prints it")

    def _figure(self, prose: Prose, target: str, unit: str) -> None:
        """Check one shown figure, in a link or in a bound column whose header may name the unit."""
        shown = figures.first(prose.text)
        spot = prose.spot(shown.start if shown else 0)
        derived = target.startswith("=") or " " in target
        text = target.removeprefix("=")
        try:
            refs = expression.refs(text) if derived else [parse(text)]
            for ref in refs:
                _ = self._records.cell(ref) if ref.cell else self._records.run(ref.run)
            if not derived and not refs[0].metric:
                if shown and shown.unit:
                    self._add(spot, "doc-no-metric", f"the link names no metric for {_said(shown)}", "add #metric")
                return
            recorded = expression.evaluate(text, self._records.quantity) if derived else self._records.quantity(refs[0])
        except LcplanError as wrong:
            self._findings(spot, wrong)
            return
        if shown is None:
            self._add(spot, "doc-no-number", f"'{prose.text.strip()}' shows no number", f"recorded: {recorded}")
            return
        self._checked.numbers += 1
        for ref in dict.fromkeys(refs):
            self._standing(spot, ref)
        self._compare(spot, shown, replace(shown, unit=shown.unit or unit), recorded)

    def _compare(self, spot: Spot, written: Shown, shown: Shown, recorded: Quantity) -> None:
        verdict = figures.compare(shown, recorded)
        if verdict == "right":
            return
        right = figures.render(recorded, shown)
        if verdict == "wrong-unit":
            sentence = f"shows {_said(shown)}, recorded in {recorded.unit or 'no unit'}: {recorded}"
            self._add(spot, "doc-wrong-unit", sentence)
            return
        if self._options.fix and self._at(spot, written.text):
            self._fixes.append((spot, written.text, right))
            return
        right = f"{right} {shown.unit or recorded.unit or ''}".strip()
        reason = "is more precise than the record" if verdict == "over-precise" else "is not what was recorded"
        self._add(spot, f"doc-{verdict}", f"{_said(shown)} {reason}, {recorded}; right: {right}")

    def _standing(self, spot: Spot, ref: Ref) -> None:
        """Add an error for every reason why a cell, or a run, may not be published."""
        key = (ref.run, ref.cell)
        if key not in self._standings:
            cell = self._records.cell(ref) if ref.cell else None
            self._standings[key] = standing(self._records, self._index, ref.run, cell)
        found = self._standings[key]
        name = f"{ref.run}/{ref.cell}" if ref.cell else ref.run
        if found.retracted:
            self._add(spot, "doc-retracted", f"{name} was retracted: {found.retracted}")
        if ref.cell and found.status != "done":
            why = f": {found.reason}" if found.reason else ""
            code = "doc-invalid" if found.status == "invalid" else "doc-not-measured"
            self._add(spot, code, f"{name} is {found.status}{why}")
        if found.simulated and not self._options.allow_simulated:
            self._add(
                spot, "doc-simulated", f"{name} is simulated: it is no measurement", "--allow-simulated lifts this"
            )
        if found.provisional and not found.retracted:
            self._add(spot, "doc-provisional", f"{name} is provisional: {found.provisional}")

    def _untraced(self, spot: Spot, shown: Shown) -> None:
        hint = f"link it, [{_said(shown)}](lcplan:RUN/CELL#metric), or put it between `lcplan: off` and `lcplan: on`"
        self._add(spot, "doc-untraced", f"{_said(shown)} leads to no record", hint)

    def _findings(self, spot: Spot, wrong: LcplanError) -> None:
        for diagnostic in wrong.diagnostics:
            self._add(spot, f"doc-{diagnostic.code}", diagnostic.message, diagnostic.hint)

    def _add(self, spot: Spot, code: str, message: str, hint: str = "") -> None:
        self._checked.findings.append(error(code, message, hint, Source(str(self._file), spot.line, spot.column)))

    def _at(self, spot: Spot, text: str) -> bool:
        line = self._text.split("\n")[spot.line - 1]
        return line[spot.column - 1 :].startswith(text)

    def _write(self) -> None:
        lines = self._text.split("\n")
        for spot, wrong, right in sorted(self._fixes, reverse=True):
            line, column = lines[spot.line - 1], spot.column - 1
            lines[spot.line - 1] = line[:column] + right + line[column + len(wrong) :]
        write_atomic(self._file, "\n".join(lines), mode=self._file.stat().st_mode & 0o777)
        self._checked.fixed += len(self._fixes)


def _filled(template: str, names: Sequence[str], texts: Sequence[str]) -> str:
    """Return a reference with the row's texts in place of `{1}` and `{Header}`; counts become plain integers."""
    columns = {str(number): text for number, text in enumerate(texts, 1)} | dict(zip(names, texts, strict=False))
    return re.sub(r"\{([^{}]+)\}", lambda found: _count(columns.get(found[1], found[0])), template)


def _count(text: str) -> str:
    plain = re.sub(r"(?<=\d)[,_\u00a0\u2009\u202f](?=\d{3})", "", text)
    try:
        return str(parse_tokens(plain))
    except ValueError:
        return text


def _claims(shown: Shown) -> bool:
    """Whether a number in prose reads as a measurement: it has a unit, or its digits are grouped. `8 x` is a count."""
    if shown.unit in ("x", "\u00d7", "times"):
        return bool(shown.decimals)
    return bool(shown.unit) or shown.grouped


def _said(shown: Shown) -> str:
    return f"{shown.text} {shown.unit}".strip()


def _line_with(words: str, text: str) -> int:
    """Return in which line (from 1) of a quotation its first wrong words stand."""
    first = words.split()[0] if words.split() else words
    return next((n for n, line in enumerate(text.split("\n"), 1) if first in line), 1)
