"""The sequence cap: how many sequences one engine rank runs at once, whatever its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lcplan.base.layout import Layout
from lcplan.capacity.flags import NEWEST, integer, numbers
from lcplan.capacity.gpus import gpu


def sequence_cap(
    engine: str,
    version: str,
    gpu_name: str,
    layout: Layout,
    flags: Mapping[str, Any],
    *,
    pool_tokens: int | None = None,
    context: int | None = None,
) -> tuple[int | None, str]:
    """Return the cap of one engine rank and where it comes from ("--max-num-seqs", a default); None when not known.

    vLLM's default (arg_utils.py): 1,024 on GPUs of 70 GiB and more except A100, else 256; before 0.8 always 256.
    SGLang without --max-running-requests derives the cap from its pool: max(2048, min(4096, pool / context x 512)), at
    most half the pool's tokens (seen in 0.5.17).
    """
    if engine == "vllm":
        given = integer(flags, "max-num-seqs", 0)
        if given:
            return given, "--max-num-seqs"
        card = gpu(gpu_name)
        if card is None:
            return None, "unknown GPU"
        large = card.memory >= 70 and "A100" not in card.name and (numbers(version) or NEWEST) >= (0, 8)
        return (1024 if large else 256), f"vLLM's default for {card.name}"
    if engine == "sglang":
        given = integer(flags, "max-running-requests", 0)
        if given:  # with DP attention the ranks share it
            return max(1, given // layout.dp) if flags.get("enable-dp-attention") else given, "--max-running-requests"
        if pool_tokens and context:
            derived = max(2048, min(4096, int(pool_tokens / context * 512)))
            return min(derived, max(1, pool_tokens // 2)), "SGLang's default for the pool"
    return None, "unknown"
