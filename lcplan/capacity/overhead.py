"""What of a GPU's share is neither weights nor pool in vLLM: activations of the profile run, communication, graphs.

The terms are the tensors that the profile run holds at its peak, written from the engine's code; a few coefficients are
fitted to real starts by `python tests/accuracy.py --fit` and stand in overhead.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lcplan.capacity.flags import Vllm
from lcplan.capacity.shapes import Model
from lcplan.capacity.weights import dense_width, scheme_of

GIB = 2**30
Terms = dict[str, float]


@dataclass(frozen=True, slots=True)
class Overhead:
    """GiB on one rank by part. The true sum lies between `low` and `high` GiB around it in nine of ten starts."""

    activations: float
    communication: float
    graphs: float
    other: float
    low: float
    high: float

    @property
    def total(self) -> float:
        """The sum of the parts in GiB."""
        return self.activations + self.communication + self.graphs + self.other


def overhead(model: Model, given: Vllm, *, last: bool, layers: int) -> Overhead:
    """Return what vLLM keeps besides weights and pool on a rank of a stage with so many layers; `last` samples."""
    table = constants()
    coefficients = table["coefficients"]
    present = dominant(model, given, coefficients, last=last, layers=layers)
    amounts = {name: coefficients[name] * value for name, value in present.items()}
    low, high = _error(given, present)
    parts = {"communication": ("tp", "fused"), "graphs": ("graphs",), "other": ("base",)}
    sums = {part: sum(amounts.pop(name, 0.0) for name in names) for part, names in parts.items()}
    return Overhead(activations=sum(amounts.values()), low=low, high=high, **sums)


def dominant(model: Model, given: Vllm, coefficients: Terms, *, last: bool, layers: int) -> Terms:
    """Return the terms of the phase with the higher peak: the forward pass or sampling."""
    phases = terms(model, given, last=last, layers=layers)
    return max(phases, key=lambda phase: sum(coefficients[name] * value for name, value in phase.items()))


def terms(model: Model, given: Vllm, *, last: bool, layers: int) -> list[Terms]:
    """Return the terms of each phase of the profile run, in GiB (`base`, `tp`, ... are 1 where they apply)."""
    tokens = given.batched_tokens
    hidden = tokens * model.hidden * 2 / GIB
    common: Terms = {"base": 1.0}
    if given.tp > 1:
        common["tp"] = 1.0
        if not given.eager and given.gpu is not None and given.gpu.capability >= 9:
            common["fused"] = 1.0  # workspace of the fused all-reduce
    if model.moe:
        width = model.moe.width / (1 if given.ep else given.tp * given.dp)
        rows = tokens * model.moe.active  # two workspaces, of the expert's input or output, whichever is wider
        common["moe"] = rows * (max(width, model.hidden) + max(2 * width, model.hidden)) * 2 / GIB
    if model.multimodal and not given.language_only:
        common["encoder"] = 1.0
    if model.latent:
        common["prompts"] = _latent_prompts(given) * int(model.text["kv_lora_rank"]) * 2 / GIB
    second = second_runner(model, given)
    if given.version >= (0, 21) and not given.eager and (not second or given.version >= (0, 28)):
        # The estimate is subtracted from 0.21 on; the second runner's was 0 until it became the only default.
        common["graphs"] = graphs(layers, moe=model.moe is not None)
    common["hidden"] = hidden
    forward = {**common, "compiled": 0.0 if given.eager else hidden}
    phases = [{**forward, **part} for part in _forward(model, given)]
    if last:
        logits = min(given.sequences, tokens) * model.vocab / GIB
        phases.append({**common, era(given.version, second): logits})
    return phases


def graphs(layers: int, *, moe: bool) -> float:
    """Return the engine's estimate of CUDA graph memory in GiB, which 0.21 and later subtract."""
    base, per_layer, with_experts = constants()["graphs"]
    return float(base + per_layer * layers + with_experts * moe)


def second_runner(model: Model, given: Vllm) -> bool:
    """Return whether vLLM's second model runner serves the model.

    It became the default for some dense models in 0.23, for all of them in 0.25 (seen in 0.25.1), then for the rest.
    """
    if given.version >= (0, 28):
        return True
    dense = not (model.moe or model.latent or model.hybrid)
    if given.version >= (0, 25):
        return dense
    plain = model.family in ("llama", "mistral", "qwen3") and not scheme_of(model.config, given.quantization).bits
    return given.version >= (0, 23) and dense and plain


def era(version: tuple[int, ...], second: bool) -> str:
    """Return the name of the sampler's cost per logit: it changed twice, and the second runner has its own."""
    if second:
        return "logits_runner2"
    return "logits" if version >= (0, 17) else "logits_before_0.17"


def _error(given: Vllm, present: Terms) -> tuple[float, float]:
    table = constants()
    measured = {tuple(v) for v in table["measured"]}
    low, high = table["error"]["known" if given.version[:2] in measured else "unknown"]
    if "fused" in present and given.version >= (0, 20):  # seen in 0.19 only
        reach = table["coefficients"]["fused"]
        low, high = min(low, -reach), max(high, reach)
    return low, high


@cache
def constants() -> dict[str, Any]:
    """Return overhead.json."""
    table: dict[str, Any] = json.loads((Path(__file__).parent / "overhead.json").read_text())
    return table


def _forward(model: Model, given: Vllm) -> list[Terms]:
    """The two peaks of a layer: its MLP, and latent attention."""
    tokens, text = given.batched_tokens, model.text
    width = dense_width(model)
    if model.moe and len(model.moe.layers) == len(model.layers):
        width = model.moe.shared
    mlp = {"mlp": tokens * 3 * width / given.tp * 2 / GIB}  # gate and up, and their product
    if not model.latent:
        return [mlp]
    heads = model.heads / given.tp
    nope, value = int(text.get("qk_nope_head_dim") or 0), int(text.get("v_head_dim") or 0)
    queries = tokens * heads * (nope + int(text["qk_rope_head_dim"]) + value) * 2 / GIB
    # Room for keys and values of the longest prompt chunk, expanded from the latents, beside queries and output.
    return [mlp, {"expanded": _latent_prompts(given) * heads * (nope + value) * 2 / GIB, "queries": queries}]


def _latent_prompts(given: Vllm) -> int:
    """Tokens of the workspace for chunked prompts of MLA (vllm/v1/attention/backends/mla/common.py)."""
    wanted = max(8 * given.max_model_len, 4 * given.sequences * given.block)
    return max(min(wanted, 64 * 1024), given.sequences * given.block)
