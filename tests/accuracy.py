"""How good the predictions are: every usable case, its error, and whether the printed interval holds it.

python tests/accuracy.py            the table and the summary (Markdown)
python tests/accuracy.py --check    also the cross-validation: coefficients fitted without the model or version
python tests/accuracy.py --fit      fit the coefficients again and write lcplan/capacity/overhead.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lcplan.capacity.overhead as beside
from lcplan.base.layout import Layout
from lcplan.capacity import vllm
from lcplan.capacity.config import read
from lcplan.capacity.flags import vllm as settings
from lcplan.capacity.gpus import gpu
from lcplan.capacity.predict import Launch, Prediction, predict
from lcplan.capacity.shapes import Model
from lcplan.capacity.weights import Sharding, weights

HERE = Path(__file__).parent
CONSTANTS = Path(beside.__file__).with_name("overhead.json")
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One start of an engine: what decided it, and what was printed."""

    name: str
    model: str
    config: dict[str, Any]
    launch: Launch
    pool: int
    kv_memory: float | None
    weights: float | None
    graphs: float | None
    uses: frozenset[str]
    unstated: str  # why the record cannot decide its pool, "" when it can

    @property
    def shape(self) -> Model:
        """The model's shapes."""
        found = read(self.config)
        assert isinstance(found, Model), found
        return found


def cases() -> list[Case]:
    """Return every case whose model's shape is known, public ones and the real servers of tests/real."""
    return [*_public(), *_real()]


def from_memory(case: Case) -> Prediction:
    """Return the prediction from the printed KV memory."""
    return predict(case.config, case.launch, case.kv_memory)


def from_flags(case: Case) -> Prediction:
    """Return the prediction from config and flags alone."""
    return predict(case.config, case.launch)


def error(case: Case, prediction: Prediction) -> float:
    """Return the relative error of a prediction."""
    assert prediction.pool_tokens is not None, prediction
    return prediction.pool_tokens / case.pool - 1


def known_version(case: Case) -> bool:
    """Return whether the version is one that the coefficients were fitted to."""
    version = settings(case.shape, case.launch.version, None, case.launch.layout, {}).version
    return version[:2] in {tuple(v) for v in beside.constants()["measured"]}


def _public() -> Iterator[Case]:
    names = json.loads((HERE / "cases/model_shapes/index.json").read_text())
    for record in json.loads((HERE / "cases/capacity.json").read_text())["cases"]:
        file = names["models"].get(record["model"])
        if file is None or record["pool_tokens"] is None:
            continue
        flags = {name: value for name, value in record["flags"].items() if not name.startswith("no-")}
        flags |= {name.removeprefix("no-"): False for name in record["flags"] if name.startswith("no-")}
        sglang = record["engine"] == "sglang"
        given = {
            "mem-fraction-static" if sglang else "gpu-memory-utilization": record["mem_util"],
            "context-length" if sglang else "max-model-len": record["max_model_len"],
            "max-running-requests" if sglang else "max-num-seqs": record["max_num_seqs"],
            "kv-cache-dtype": record["kv_dtype"],
            "dtype": (record["dtype"] or "auto").removeprefix("torch."),
            "quantization": record["quantization"],
            "enable-expert-parallel": record["ep"] or None,
        }
        flags |= {name: value for name, value in given.items() if value is not None}
        layout = Layout("", tp=record["tp"] or 1, pp=record["pp"] or 1, dp=record["dp"] or 1, dcp=record["dcp"] or 1)
        yield Case(
            record["id"],
            record["model"],
            json.loads((HERE / f"cases/model_shapes/{file}.json").read_text()),
            Launch(record["engine"], record["version"], record["gpu"] or "", layout, flags, record["gpu_total_gib"]),
            record["pool_tokens"],
            record["kv_memory_gib"],
            record["weights_gib"],
            record["cudagraph_gib"],
            frozenset(record["usable_for"]),
            names["unstated"].get(record["id"], ""),
        )


def _real() -> Iterator[Case]:
    for record in json.loads((HERE / "real/capacity_h200.json").read_text())["records"]:
        if record["pool_tokens_per_engine"] is None:
            continue
        folder = HERE / "real/vllm-0.25.1-h200/models"
        sglang = record["engine"] == "sglang"
        flags: dict[str, Any] = {
            "mem-fraction-static" if sglang else "gpu-memory-utilization": record["mem_util"],
            "context-length" if sglang else "max-model-len": record["max_model_len"],
            "kv-cache-dtype": record["kv_cache_dtype"],
            "page-size" if sglang else "max-num-batched-tokens": record[
                "block_size" if sglang else "max_num_batched_tokens"
            ],
        }
        if record["max_num_seqs_given"]:
            flags["max-running-requests" if sglang else "max-num-seqs"] = record["max_num_seqs"]
        if record["mode"] == "eager":
            flags["disable-cuda-graph" if sglang else "enforce-eager"] = True
        yield Case(
            record["run"],
            record["model"],
            json.loads((folder / f"{record['model']}.config.json").read_text()),
            Launch(record["engine"], record["engine_version"], record["gpu"], Layout("", tp=record["tp"]), flags),
            record["pool_tokens_per_engine"],
            record["derived"]["pool_budget_gib"] if sglang else record["available_kv_gib"],
            record["weights_gib_per_rank"],
            None,
            frozenset({"tokens_from_kv_memory", "tokens_from_flags"}),
            "",
        )


# --- the fit ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One observation of what is neither weights nor pool, on one stage of one start."""

    case: Case
    version: tuple[int, ...]
    phases: list[beside.Terms]
    seen: float
    pool: float

    @property
    def start(self) -> tuple[Any, ...]:
        """What makes two observations the same start: repeats at other lengths count once."""
        return (
            self.case.model,
            self.case.launch.version,
            self.case.launch.gpu,
            self.case.launch.layout,
            self.phases == [],
        )


# Written from the engine's tensors, or seen directly and not fitted (tp: two starts that differ in it alone; base:
# printed as non-torch memory).
FIXED = {"mlp": 1.0, "expanded": 1.0, "queries": 1.0, "prompts": 1.0, "tp": 0.29, "base": 0.25}
PRIOR = {
    "fused": 1.5,
    "graphs": 1.0,
    "moe": 1.0,
    "encoder": 0.2,
    "hidden": 3.0,
    "compiled": 3.0,
    "logits": 14.0,
    "logits_runner2": 14.0,
    "logits_before_0.17": 14.0,
    **FIXED,
}


def rows(of: Iterable[Case]) -> list[Row]:
    """Return the observations of the vLLM cases that state all that decides them."""
    out = []
    for case in of:
        launch, model = case.launch, case.shape
        if launch.engine != "vllm" or "tokens_from_flags" not in case.uses or case.unstated:
            continue
        card = gpu(launch.gpu, launch.gpu_memory)
        if card is None or not card.known or (case.weights is None and case.kv_memory is None):
            continue
        given = settings(model, launch.version, card, launch.layout, launch.flags)
        pool = vllm.pool(model, given)
        stages = vllm.stages_of(len(model.layers), given.pp)
        for at, stage in enumerate(stages):
            last = at == len(stages) - 1
            blocks = case.pool / (pool.printed(10**6) / 10**6)
            kv = case.kv_memory if at == 0 and case.kv_memory else blocks * pool.stages[at] / GIB
            loaded = weights(
                model,
                stage,
                len(stages),
                Sharding(given.tp, given.tp),
                dtype=given.dtype,
                quantization=given.quantization,
            )
            seen = given.utilization * card.memory - kv - loaded
            phases = beside.terms(model, given, last=last, layers=len(stage))
            out.append(Row(case, given.version, phases, seen, kv))
    return out


def fit(observed: Sequence[Row]) -> dict[str, float]:
    """Return coefficients: least absolute relative error of the pool, drawn towards the prior where little is known."""
    names = [name for name in PRIOR if name not in FIXED]
    share: dict[tuple[Any, ...], int] = {}
    for row in observed:
        share[row.start] = share.get(row.start, 0) + 1
    found = dict(PRIOR)
    slack = np.ones(len(observed))
    for _ in range(30):
        left, right = [], []
        for row, loose in zip(observed, slack, strict=True):
            terms = max(row.phases, key=lambda phase: sum(found[n] * v for n, v in phase.items()))
            fixed = sum(PRIOR[name] * terms.get(name, 0.0) for name in FIXED)
            prior = sum(PRIOR[name] * terms.get(name, 0.0) for name in names)
            weight = 1 / np.sqrt(loose * share[row.start]) / max(row.pool, 10.0) ** 0.5
            left.append([weight * terms.get(name, 0.0) * PRIOR[name] for name in names])
            right.append(weight * (row.seen - fixed - prior))
        a, b = np.array(left), np.array(right)
        delta = np.linalg.solve(a.T @ a + 0.05 * np.eye(len(names)), a.T @ b)
        found |= {name: float(PRIOR[name] * (1 + d)) for name, d in zip(names, delta, strict=True)}
        slack = np.array([max(abs(_amount(row, found) - row.seen), 0.02) for row in observed])
    return found


def fit_graphs(of: Iterable[Case]) -> list[float]:
    """Return base, per layer and with experts of the memory that CUDA graphs take, by least squares."""
    seen = {}
    for case in of:
        if case.graphs and case.launch.engine == "vllm":
            layers = len(case.shape.layers) // case.launch.layout.pp
            seen[case.model, layers] = (1.0, float(layers), float(case.shape.moe is not None), case.graphs)
    table = np.array(list(seen.values()))
    return [round(float(x), 4) for x in np.linalg.lstsq(table[:, :3], table[:, 3], rcond=None)[0]]


def held_out(observed: Sequence[Row], key: Callable[[Row], Any]) -> dict[str, float]:
    """Return by case the relative error of its pool with coefficients fitted without any row of its kind."""
    out: dict[str, float] = {}
    for kind in dict.fromkeys(key(row) for row in observed):
        found = fit([row for row in observed if key(row) != kind])
        for row in observed:
            if key(row) == kind:
                off = (row.seen - _amount(row, found)) / row.pool
                out[row.case.name] = max(out.get(row.case.name, 0.0), off, key=abs)
    return out


def _amount(row: Row, found: dict[str, float]) -> float:
    return max(sum(found[name] * value for name, value in phase.items()) for phase in row.phases)


def _write(observed: Sequence[Row]) -> None:
    found = fit(observed)
    by_model = held_out(observed, lambda row: row.case.model)
    by_version = held_out(observed, lambda row: row.version[:2])
    table = {
        "about": [
            "Coefficients of lcplan/capacity/overhead.py, fitted to real starts by `python tests/accuracy.py --fit`.",
            "GiB per start (base, tp, fused, encoder), multiples of a tensor's size (hidden, compiled, moe and the",
            "terms of 1), bytes per logit (logits...). graphs: base, per layer, with experts.",
            "error: GiB below and above that hold 95 % of the errors of starts that the fit had not seen, for a",
            "measured version (model left out) and for another one (version left out).",
        ],
        "coefficients": {name: round(value, 4) for name, value in found.items()},
        "graphs": fit_graphs([row.case for row in observed]),
        "measured": sorted({row.version[:2] for row in observed}),
        "error": {"known": _range(observed, by_model), "unknown": _range(observed, by_version)},
    }
    CONSTANTS.write_text(json.dumps(table, indent=1) + "\n")
    beside.constants.cache_clear()


def _range(observed: Sequence[Row], errors: dict[str, float]) -> list[float]:
    # in GiB, not per pool: what is left over does not depend on how much the pool is
    pools = {row.case.name: row.pool for row in observed}
    sizes = sorted(abs(error) * pools[name] for name, error in errors.items())
    reach = round(sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))], 2)
    return [-reach, reach]


# --- the report -------------------------------------------------------------------------------------------------------


def report() -> str:
    """Return the table of all usable cases and the summary, as Markdown."""
    lines = ["| case | model | engine | layout | printed | from KV memory | from flags | interval holds it |"]
    lines.append("|---|---|---|---|---:|---:|---:|---|")
    memory: list[float] = []
    everything: dict[str, list[float]] = {"from KV memory": [], "from flags, vLLM": []}
    flags: dict[str, list[float]] = {"known version": [], "other version": []}
    held: list[bool] = []
    for case in cases():
        one = two = inside = "-"
        if "tokens_from_kv_memory" in case.uses and case.kv_memory:
            off = error(case, from_memory(case))
            one = f"{off:+.3%}"
            everything["from KV memory"].append(abs(off))
            if not case.unstated:
                memory.append(abs(off))
        if "tokens_from_flags" in case.uses and gpu(case.launch.gpu, case.launch.gpu_memory):
            whole = from_flags(case)
            off = error(case, whole)
            two, low, high = f"{off:+.2%}", *(whole.interval or (0, 0))
            inside = "yes" if low <= case.pool <= high else "no"
            if case.launch.engine == "vllm":
                everything["from flags, vLLM"].append(abs(off))
            if not case.unstated and case.launch.engine == "vllm":
                flags["known version" if known_version(case) else "other version"].append(abs(off))
                held.append(inside == "yes")
        if one == two == "-":
            continue
        layout = case.launch.layout
        spread = (
            "".join(f"{k}{v}" for k, v in (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp)) if v > 1) or "tp1"
        )
        note = f" ({case.unstated})" if case.unstated else ""
        engine = f"{case.launch.engine} {case.launch.version}"
        cells = (case.name, case.model + note, engine, spread, f"{case.pool:,}", one, two, inside)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| what | cases | median | 90th percentile | worst |", "|---|---:|---:|---:|---:|"]
    for name, errors in (("from KV memory", memory), *((f"from flags, {k}", v) for k, v in flags.items())):
        lines.append(_summary(name, errors))
    lines += [_summary(f"{name}, with the remarked ones", errors) for name, errors in everything.items()]
    lines.append(f"\nThe interval holds {sum(held)} of {len(held)} vLLM cases ({sum(held) / len(held):.0%}).")
    return "\n".join(lines)


def check() -> str:
    """Return the cross-validation as Markdown."""
    observed = rows(cases())
    lines = ["| left out of the fit | cases | median | 90th percentile | worst |", "|---|---:|---:|---:|---:|"]
    for name, key in (("the model", lambda row: row.case.model), ("the version", lambda row: row.version[:2])):
        errors = held_out(observed, key)
        lines.append(_summary(name, [abs(e) for e in errors.values()]))
    return "\n".join(lines)


def _summary(name: str, errors: list[float]) -> str:
    if not errors:
        return f"| {name} | 0 | - | - | - |"
    ranked = sorted(errors)
    ninth = ranked[min(len(ranked) - 1, int(0.9 * len(ranked)))]
    return f"| {name} | {len(ranked)} | {statistics.median(ranked):.2%} | {ninth:.2%} | {ranked[-1]:.2%} |"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fit", action="store_true")
    options.add_argument("--check", action="store_true")
    chosen = options.parse_args()
    if chosen.fit:
        _write(rows(cases()))
    print(report())
    if chosen.check:
        print("\n" + check())
