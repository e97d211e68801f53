"""The simulator's tokenizer: reversible, tiny, made up. Ids below 1000 are special, as in most real vocabularies.

- 1000 + b is the byte b (1000..1255), so any text can be written; digits are always one token each (1048..1057).
- 2000 + n is the n-th word of `WORDS`, with its leading blank.
- Every other id is filler: it decodes to a made-up word and is never made by `encode`.

`decode(encode(a) + encode(b)) == a + b` for all texts, which is what planting a needle between filler ids relies on.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence

SPECIAL = 1000
BYTES = 1000
FIRST_WORD = 2000
_TEXT = """
the of and to in a is that for it as was with be by on not he his but at are this have from or had an they which one
you were her all she there would their we him been has when who will more no if out so said what up its about into
than them can only other new some could time these two may then do first any my now such like our over man me even
most made after also did many before must through back years where much your way well down should because each just
those people how too little state good very make world still own see men work long get here between both life being
under never day same another know while last might us great old year off come since against go came right used take
three states himself few house use during without again place around however small found thought went say part secret
code number section answer question text note key value token context document paragraph asks gives means
"""
WORDS = tuple(f" {word}" for word in _TEXT.split())
_IDS = {word: FIRST_WORD + at for at, word in enumerate(WORDS)}
_PIECE = re.compile(
    "(?:" + "|".join(sorted(map(re.escape, WORDS), key=len, reverse=True)) + r")(?![^\W\d_])|.", re.DOTALL
)


def encode(text: str) -> list[int]:
    """Return the ids of a text."""
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        word = _IDS.get(piece)
        if word is None:
            ids.extend(BYTES + byte for byte in piece.encode("utf-8", "surrogatepass"))
        else:
            ids.append(word)
    return ids


def decode(ids: Iterable[int]) -> str:
    """Return the text of ids; incomplete UTF-8 gives replacement characters, special ids give nothing."""
    return b"".join(map(_bytes, ids)).decode("utf-8", "replace")


def texts(ids: Sequence[int]) -> list[str]:
    """Return the text that each id adds to a stream: "" while a character is not complete, as real engines send it."""
    out: list[str] = []
    held = b""
    for token in ids:
        held += _bytes(token)
        try:
            out.append(held.decode())
            held = b""
        except UnicodeDecodeError:
            out.append("" if len(held) < 4 else held.decode("utf-8", "replace"))
            held = held if len(held) < 4 else b""
    return out


def pack(ids: Sequence[int]) -> bytes:
    """Return ids as 4-byte little-endian words. Raises OverflowError or TypeError for what is no token id."""
    packed = array("I", ids)
    return packed.tobytes()


def unpack(packed: bytes) -> list[int]:
    """Return the ids of packed words."""
    out = array("I")
    out.frombytes(packed)
    return out.tolist()


def _bytes(token: int) -> bytes:
    if BYTES <= token < BYTES + 256:
        return bytes((token - BYTES,))
    if token < SPECIAL:
        return b""
    if FIRST_WORD <= token < FIRST_WORD + len(WORDS):
        return WORDS[token - FIRST_WORD].encode()
    return f" w{chr(97 + token % 26)}{chr(97 + token // 26 % 26)}{chr(97 + token // 676 % 26)}".encode()
