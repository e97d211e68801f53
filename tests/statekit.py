"""States with sealed runs, made quickly through the public doors of lcplan.record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest, digest_bytes
from lcplan.record import manifest, recipes_kept, state

RECIPE = b"""lcplan: 1
stacks:
  glm53_flash:
    model: glm53_flash
    engine: vllm
    layout: tp4
    context: 1M
"""
CMD = """#!/bin/sh
# run: {run}
exec vllm serve /mnt/data/models/GLM-5.3-Flash \\
  --host 127.0.0.1 --port 8000 \\
  --served-model-name {run} \\
  --tensor-parallel-size 4 \\
  --max-model-len 1048576 \\
  --gpu-memory-utilization 0.92 \\
  --max-num-seqs 64
"""
RUN = "glm53_flash__tp4_a__1024k__vllm__1010-000210"


def metric(value: float, unit: str, **others: Any) -> dict[str, Any]:
    """Return one metric as a manifest holds it."""
    return {"value": value, "unit": unit, "n": 1, **others}


METRICS = {
    "ttft_s": metric(58.612, "s", p90=61.2, min=57.9, max=61.3),
    "prefill_tokens_per_s": metric(17053.6, "tokens/s"),
    "tpot_ms": metric(11.25, "ms"),
    "needles_found": metric(3, "needles"),
    "needles_asked": metric(3, "needles"),
}


def cell(name: str = "needle", status: str = "done", **others: Any) -> dict[str, Any]:
    """Return one cell as a manifest holds it; `metrics` and every other key can be given."""
    return {
        "cell": name,
        "fingerprint": digest(name),
        "workload": name.split(".")[0],
        "experiments": ["million"],
        "status": status,
        "reason": "",
        "metrics": METRICS if status == "done" else {},
        **others,
    }


def seal(root: Path, run: str = RUN, *, cells: Sequence[Mapping[str, Any]] = (), **others: Any) -> dict[str, Any]:
    """Seal one run (by default with one needle cell) and return its statement. Other keys overlay the predicate."""
    staging = root / "staging" / run
    staging.mkdir(parents=True)
    cmd = CMD.format(run=run)
    (staging / "cmd.sh").write_text(cmd)
    (staging / "server.log").write_text("INFO: Application startup complete.\n")
    recipe = recipes_kept.keep(root, RECIPE)
    predicate = {
        "run": run,
        "simulated": False,
        "lineage": "5" * 32,
        "fingerprint": digest(run.rsplit("__", 1)[0]),
        "plan": {"id": "p" * 64, "file": "plans/plan.json"},
        "recipe": [{"file": "recipes/stacks.yaml", "line": 3, "hash": recipe}],
        "argv": [word for word in cmd.split() if word not in ("#!/bin/sh", "\\")][3:],
        "argv_template_sha256": digest_bytes(b"template"),
        "env": ["HF_TOKEN"],
        "image": {"declared": "vllm/vllm-openai:v0.31.0", "id": "sha256:1", "digest": "sha256:" + "a" * 64},
        "engine": {"kind": "vllm", "version": "0.31.0", "choices": {"attention_backend": "FLASHINFER_MLA"}},
        "model": {"path": "/mnt/data/models/GLM-5.3-Flash", "fingerprint": "f" * 64},
        "stack": "glm53_flash",
        "variant": None,
        "layout": "tp4",
        "quad": "a",
        "context": 1048576,
        "runtime": "docker",
        "experiments": ["million"],
        "gates": {"million": {"needle": "all"}},
        "policy": {"gates": "required"},
        "capacity": {"predicted": {"pool_tokens": 11_200_000}, "logged": {"pool_tokens": 11_304_766}, "law": None},
        "times": {"started": "2026-10-10T00:02:10+00:00", "ended": "2026-10-10T00:42:10+00:00"},
        "cells": [dict(c) for c in cells] or [cell()],
        **others,
    }
    return manifest.seal(root, staging, predicate)


def saved(root: Path) -> state.State:
    """Save and return the state that the sealed runs make."""
    found, _ = state.rebuild(root)
    state.save(root, found)
    return found
