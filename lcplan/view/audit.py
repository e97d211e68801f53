"""What `audit` found, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcplan.view.runs import figures_text, table

if TYPE_CHECKING:
    from lcplan.audit.coverage import Coverage
    from lcplan.audit.doc import Checked
    from lcplan.audit.verify import Verified
    from lcplan.audit.why import Answer, Chain


def verified_text(done: Verified) -> str:
    """Return what was hashed and whether all of it is what was sealed."""
    local = f", {done.local} large ones kept elsewhere" if done.local else ""
    counted = f"{_count(done.runs, 'run')}, {_count(done.files, 'file')}, {done.bytes / 1e6:,.1f} MB hashed{local}"
    if not done.findings:
        return f"{counted}: all is as it was sealed"
    return f"{counted}: {_count(len(done.findings), 'finding')}"


def why_text(answer: Answer) -> str:
    """Return the chains of an answer, best first; a cmd.sh is printed once."""
    shown: set[str] = set()
    parts = []
    for number, chain in enumerate(answer.chains, 1):
        head = f"[{number} of {answer.matches}] " if answer.matches > 1 else ""
        parts.append("\n".join([head + _head(chain), *_links(chain, chain.ref.run not in shown)]))
        shown.add(chain.ref.run)
    left = answer.matches - len(answer.chains)
    if left:
        parts.append(f"and {left} more; --limit {answer.matches} shows all")
    return "\n\n".join(parts)


def checked_text(checked: Checked) -> str:
    """Return how many numbers and quotations lead to records and hold."""
    counted = f"{_count(checked.numbers, 'number')} and {_count(checked.quotations, 'quotation')} checked"
    fixed = f", {checked.fixed} rewritten" if checked.fixed else ""
    return f"{counted}{fixed}: {_count(len(checked.findings), 'finding') if checked.findings else 'all right'}"


def coverage_text(coverage: Coverage) -> str:
    """Return the fates of all planned cells: counts, then every cell that is not done."""
    total = sum(coverage.counts.values())
    counts = ", ".join(f"{count} {fate}" for fate, count in coverage.counts.items()) or "nothing is planned"
    kind = "simulated records" if coverage.simulated else "records"
    rows = [[f.fate, f.launch, f.cell, f.run or "-", f.reason] for f in coverage.fates if f.fate != "done"]
    return f"{_count(total, 'planned cell')} in {kind}: {counts}" + ("\n\n" + table(rows) if rows else "")


def _head(chain: Chain) -> str:
    if chain.recorded is not None:
        return f"{chain.recorded}  {chain.ref}"
    return str(chain.ref)


def _links(chain: Chain, with_script: bool) -> list[str]:
    run = chain.predicate
    standing = chain.standing
    reason = standing.retracted or standing.provisional or standing.reason
    engine, image, plan = run.get("engine") or {}, run.get("image") or {}, run.get("plan") or {}
    rows = [("standing", standing.word + (f" ({reason})" if reason and standing.word != "published" else ""))]
    if run.get("adopted"):
        rows.append(("adopted", f"from an older campaign; unknown: {'; '.join(run.get('unknown') or ['nothing'])}"))
    for number, row in chain.rows:
        kept = {key: value for key, value in row.items() if value is not None and key not in ("run", "fingerprint")}
        rows.append((f"points.parquet, row {number}", ", ".join(f"{k}={_plain(v)}" for k, v in kept.items())))
    if chain.cell is not None:
        rows.append(("cell", f"{chain.cell['cell']}, {chain.cell['status']}: {figures_text(chain.cell)}"))
        rows.append(("fingerprint", str(chain.cell["fingerprint"])))
    else:
        rows += [("cell", f"{c['cell']}, {c['status']}: {figures_text(c)}") for c in run["cells"]]
    rows.append(("run", f"{chain.ref.run}{' (simulated)' if standing.simulated else ''}"))
    rows += [("recipe", f"{place}  {text}".rstrip()) for place, text in chain.recipe]
    commit = f", commit {plan['commit']}{' (dirty)' if plan.get('dirty') else ''}" if plan.get("commit") else ""
    rows.append(("plan", f"{plan.get('file') or 'no file'}, id {plan.get('id') or 'unknown'}{commit}"))
    rows.append(("image", _image(image)))
    version = engine.get("served_version") or engine.get("version") or "unknown version"
    choices = ", ".join(f"{key}={value}" for key, value in (engine.get("choices") or {}).items())
    rows.append(("engine", f"{engine.get('kind', 'unknown')} {version}{': ' + choices if choices else ''}"))
    lines = [f"  {name:<11}  {text}" for name, text in rows]
    if with_script:
        lines += ["  cmd.sh", *(f"    {line}".rstrip() for line in chain.script.splitlines())]
    return lines


def _image(image: dict[str, object]) -> str:
    known = [f"{key} {image[key]}" for key in ("id", "digest") if image.get(key)]
    return ", ".join([str(image.get("declared") or "none"), *known])


def _plain(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
