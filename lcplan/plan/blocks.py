"""Repeats in randomised blocks: each block has every repeated launch once, so that drift meets all of them alike.

The order within a block is drawn from what the launches are, so that equal recipes give equal plans everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from lcplan.plan.model import Launch


def drawn(launches: Sequence[Launch]) -> Callable[[Launch], tuple[int, str]]:
    """Return the sort key of launches: the block of a repeated one, and its place in it by the draw.

    Launches that are not repeated stay as declared, before the first block.
    """
    repeated = {one.digest for one in launches if one.repeat > 1}
    seed = "".join(sorted(repeated))

    def key(one: Launch) -> tuple[int, str]:
        if one.digest not in repeated:
            return 0, ""
        return one.repeat, hashlib.sha256(f"{seed}:{one.digest}:{one.repeat}".encode()).hexdigest()

    return key


def block_count(launches: Sequence[Launch]) -> int:
    """Return how many blocks there are, 0 without repeats."""
    most = max((one.repeat for one in launches), default=1)
    return most if most > 1 else 0
