"""`needle`: is a fact found again at every depth of a very long prompt? One cold prompt a depth, in turn."""

from __future__ import annotations

import random
import re
from typing import Any

from lcplan.workload.exchange import Record
from lcplan.workload.job import BadMessage
from lcplan.workload.measurement import Measurement
from lcplan.workload.parts import append_needles
from lcplan.workload.prompts import SALT_TOKENS, Prompt, of_ids, salted
from lcplan.workload.segment import Findings, Segment

_CITIES = ("Lisbon", "Oslo", "Cairo", "Lima", "Hanoi", "Quito", "Accra", "Turin", "Perth", "Osaka")
_PROSE = (
    "The river bends twice before it reaches the old mill, and in dry summers the stones show. ",
    "Most of the shops along the harbour close early, so the evenings there are quiet. ",
    "She kept the letters in a wooden box and read them again every winter. ",
    "A long train of wagons passed, loaded with timber from the northern forests. ",
    "Nobody in the village could say who had planted the row of pear trees. ",
    "The clock in the hall runs slow, but the family has grown used to it. ",
    "Rain came in the night and washed the chalk marks off the playground. ",
    "The committee met on Tuesday and put off the decision once more. ",
    "Bread was baked twice a week in the oven behind the chapel. ",
    "From the top of the hill one can see three lakes and the edge of the plain. ",
    "The printer had set the title page in the wrong type, and it stayed that way. ",
    "Fishermen mended their nets on the wall while the boats dried in the sun. ",
)
_MAX_ANSWER = 2000


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, depths, output}`."""
    length, output, depths = m.cell.count("prompt"), m.cell.count("output"), m.cell.numbers("depths")
    if not all(0.0 <= depth <= 1.0 for depth in depths):
        raise BadMessage(f"{m.cell.name}: a depth lies between 0 and 1, got {depths}")
    segments: list[Segment] = []
    for at, depth in enumerate(depths):
        label = f"depth {at}"
        planted = plant(m, label)
        prompt = await haystack(m, label, length, depth, planted)
        request = m.request(prompt, output, label=label, forced=False, keep_text=True, depth=depth)
        m.progress(f"depth {depth:g}, {at + 1} of {len(depths)}")
        segment = await m.run_plan([[request]])
        row = log_row(m, segment.records[0], planted, depth)
        append_needles(m.job, [row])
        segment.needles = (int(row["ok"]), 1)
        segments.append(segment)
    return Findings(segments)


class Needle:
    """A fact and the question for it: a random seven-digit code of a place."""

    def __init__(self, city: str, code: str) -> None:
        self.code = code
        self.sentence = f"\nThe secret number of {city} is {code}.\n"
        self.question = f"\nQuestion: What is the secret number of {city}?\nAnswer: The secret number of {city} is"


def plant(m: Measurement, label: str) -> Needle:
    """Return the needle of a label: random, the same when a measurement is resumed."""
    chance = random.Random(m.identity.salt(f"needle {label}"))
    return Needle(chance.choice(_CITIES), str(chance.randrange(1_000_000, 10_000_000)))


async def haystack(m: Measurement, label: str, length: int, depth: float, needle: Needle) -> Prompt:
    """Return a prompt of exactly `length` tokens with the needle at `depth` (0 start, 1 end) and the question last.

    The filler is prose rather than random ids: a model should fail for the length, not for the noise. Raises
    BadMessage when needle and question do not fit, CannotMeasure without a tokenizer.
    """
    sentence, question = await m.tokenize(needle.sentence), await m.tokenize(needle.question)
    room = length - SALT_TOKENS - len(sentence) - len(question)
    if room < 0:
        raise BadMessage(f"{m.cell.name}: {length} tokens are too few for a needle and its question")
    salt, before = m.identity.salt(label), round(room * depth)
    opening = salted(salt, SALT_TOKENS, m.ids) + await prose(m, salt, before)
    return opening + of_ids(sentence) + await prose(m, salt[::-1], room - before) + of_ids(question)


async def prose(m: Measurement, seed: bytes, tokens: int) -> Prompt:
    """Return exactly `tokens` ids of sentences in an order that the seed decides, the last one cut."""
    sentences = [of_ids(await m.tokenize(text)) for text in _PROSE]
    chance, chosen, left = random.Random(seed), [], tokens
    while left > 0:
        sentence = chance.choice(sentences)
        chosen.append(sentence.text if sentence.tokens <= left else sentence.cut(left).text)
        left -= sentence.tokens
    return Prompt(b",".join(chosen), tokens)


def found(code: str, answer: str) -> bool:
    """Return whether an answer holds the code as a number of its own, with or without separators between its digits."""
    plain = re.sub(r"(?<=\d)[,_\u202f\u00a0 ](?=\d)", "", answer)
    return any(re.search(rf"(?<!\d){code}(?!\d)", text) for text in (answer, plain))


def log_row(m: Measurement, record: Record, needle: Needle, depth: float) -> dict[str, Any]:
    """Return a row of `niah.log`."""
    return {
        "depth": depth,
        "prompt_tokens": record.prompt_tokens,
        "ok": found(needle.code, record.text),
        "latency_s": record.e2e_s,
        "answer": record.text[:_MAX_ANSWER],
        "cell": m.cell.name,
        "attempt": m.identity.attempt,
        "code": needle.code,
        "turn": record.request.turn,
        "error": record.error,
        "simulated": record.simulated,
    }
