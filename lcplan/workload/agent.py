"""`agent`: sessions that share a long history and re-send all of it, with their own turns and answers, every turn.

The prompt of turn t is the history, t new messages and the t - 1 answers before. An answer is re-sent as the server's
own tokens of its text, filled up or cut to the length it had. The plain metric names are those of the turns after
the first, where the history has been sent before; `first_turn_ttft_s` is the first one's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lcplan.workload.client import Script
from lcplan.workload.exchange import Record, Request
from lcplan.workload.measurement import Measurement
from lcplan.workload.prompts import Prompt, of_ids
from lcplan.workload.segment import Findings, Segment, summary
from lcplan.workload.validity import CannotMeasure


async def run(m: Measurement) -> Findings:
    """Measure `{history, turns, new, output, users}`."""
    turns, users = m.cell.count("turns"), m.cell.count("users")
    history = m.prompt("history", m.cell.count("history"))
    sessions = [_session(m, user, history, turns) for user in range(users)]
    segment = await m.run(sessions, turns * users)
    by_turn = [[r for r in segment.records if r.request.turn == turn] for turn in range(1, turns + 1)]
    details = [summary(records, m.cell) for records in by_turn if records]
    return Findings([segment], _samples(segment, by_turn), details)


def _session(m: Measurement, user: int, history: Prompt, turns: int) -> Script:
    new, output = m.cell.count("new"), m.cell.count("output")
    prompt, turn = history, 0

    async def script(record: Record | None) -> Request | None:
        nonlocal prompt, turn
        if turn == turns or (record is not None and record.error):
            return None
        if record is not None:
            prompt = prompt + await _answer(m, record, output)
        turn += 1
        label = f"user {user} turn {turn}"
        prompt = prompt + m.prompt(label, new)
        fresh = new + (history.tokens if user == 0 and turn == 1 else 0)  # the others find the history sent already
        facts: dict[str, Any] = {"user": user, "turn": turn, "new_tokens": fresh, "last": turn == turns}
        return m.request(prompt, output, label=label, keep_text=True, **facts)

    return script


async def _answer(m: Measurement, record: Record, output: int) -> Prompt:
    """Return the tokens of an answer as a client that keeps text re-sends them, exactly as many as were generated."""
    label = f"user {record.request.user} answer {record.request.turn}"
    try:
        ids = await m.ids_of(record.text) if record.text else []
    except CannotMeasure:
        ids = []
    kept = of_ids(ids[:output])
    return kept + m.prompt(label, output - kept.tokens)


def _samples(segment: Segment, by_turn: list[list[Record]]) -> dict[str, Iterable[float | None]]:
    first = [r.ttft_s for r in by_turn[0] if not r.error]
    later = [r for records in by_turn[1:] for r in records if not r.error]
    samples: dict[str, Iterable[float | None]] = {"first_turn_ttft_s": first}
    if later:
        samples["ttft_s"] = [r.ttft_s for r in later]
        samples["e2e_s"] = [r.e2e_s for r in later]
    return samples
