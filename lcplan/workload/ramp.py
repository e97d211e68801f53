"""`ramp`: conversations that grow turn by turn towards a million tokens; every turn asks for the needle of turn 1.

A turn re-sends the whole prompt of the turn before and adds new text, so only that text is new to the engine. All
conversations take a turn at the same time. The plain metric names are those of the last turn, `turn3_...` of a turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lcplan.workload import needle, resume
from lcplan.workload.exchange import Record
from lcplan.workload.job import BadMessage
from lcplan.workload.measurement import Measurement
from lcplan.workload.needle import Needle
from lcplan.workload.parts import append_needles
from lcplan.workload.prompts import SALT_TOKENS, Prompt, of_ids, salted
from lcplan.workload.segment import Findings, Segment, figures

_DEPTH = 0.5  # of turn 1


@dataclass(slots=True)
class Conversation:
    """What has been said so far, and the needle planted in its first turn."""

    number: int
    needle: Needle
    prompt: Prompt


async def run(m: Measurement) -> Findings:
    """Measure `{turns, output, conversations}`; goes on after the last turn that an earlier attempt has saved."""
    lengths, output = [int(n) for n in m.cell.numbers("turns")], m.cell.count("output")
    if lengths != sorted(set(lengths)):
        raise BadMessage(f"{m.cell.name}: each turn must be longer than the one before, got {lengths}")
    segments = resume.load(m, len(lengths))
    count = m.cell.count("conversations", 1)
    talks = [Conversation(c, needle.plant(m, f"conversation {c}"), Prompt(b"", 0)) for c in range(count)]
    for turn, length in enumerate(lengths, 1):
        for talk in talks:
            talk.prompt = await _grown(m, talk, turn, length)
        if turn > len(segments):
            m.progress(f"turn {turn} of {len(lengths)}, {length:,} tokens")
            segments.append(await _turn(m, talks, turn, length - (lengths[turn - 2] if turn > 1 else 0), output))
            resume.save(m, segments)
        if any(record.error for record in segments[turn - 1].records):
            break  # a conversation that lost a turn cannot grow
    return Findings(segments, _samples(segments))


async def _turn(m: Measurement, talks: list[Conversation], turn: int, new: int, output: int) -> Segment:
    requests = [
        m.request(
            talk.prompt, output, label=_label(talk, turn), user=talk.number, turn=turn, new_tokens=new, keep_text=True
        )
        for talk in talks
    ]
    segment = await m.run_plan([[request] for request in requests])
    by_user: dict[int, Record] = {record.request.user: record for record in segment.records}
    rows = [needle.log_row(m, by_user[talk.number], talk.needle, _DEPTH) for talk in talks]
    append_needles(m.job, rows)
    segment.needles = (sum(row["ok"] for row in rows), len(rows))
    return segment


async def _grown(m: Measurement, talk: Conversation, turn: int, length: int) -> Prompt:
    """Return the prompt of a turn: all of the turn before, new text up to exactly `length` tokens, the question."""
    if turn == 1:
        return await needle.haystack(m, _label(talk, 1), length, _DEPTH, talk.needle)
    question = await m.tokenize(talk.needle.question)
    room = length - talk.prompt.tokens - len(question)
    if room < SALT_TOKENS:
        raise BadMessage(f"{m.cell.name}: turn {turn} leaves no room for new text and the question")
    salt = m.identity.salt(_label(talk, turn))
    text = salted(salt, SALT_TOKENS, m.ids) + await needle.prose(m, salt, room - SALT_TOKENS)
    return talk.prompt + text + of_ids(question)


def _label(talk: Conversation, turn: int) -> str:
    return f"conversation {talk.number} turn {turn}"


def _samples(segments: list[Segment]) -> dict[str, Iterable[float | None]]:
    last = figures(segments[-1:])
    whole = (
        "sent",
        "completed",
        "needles_found",
        "needles_asked",
        "acceptance_rate_percent",
        "acceptance_length_tokens",
    )
    samples = {name: values for name, values in last.items() if name not in whole}
    for turn, segment in enumerate(segments, 1):
        of_turn = figures([segment])
        for name in ("ttft_s", "tpot_ms", "prefill_tokens_per_s", "hit_rate_percent", "kv_usage_percent"):
            samples[f"turn{turn}_{name}"] = of_turn[name]
    return samples
