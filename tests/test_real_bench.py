"""The real `vllm bench serve`, where it is installed: LCPLAN_BENCH names the `vllm` that has it.

A whole campaign with a sweep, and a server that refuses some requests: the tool exits with 0 all the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import REPO, campaign, lcplan
from tests.sim_kit import FLASH, serving
from tests.workload_kit import cell, delay_server, job, measure

TOOL = os.environ.get("LCPLAN_BENCH", "")
needs_tool = pytest.mark.skipif(not TOOL, reason="LCPLAN_BENCH names no `vllm`")
RECIPE = """\
lcplan: 1
engines: {{vllm: {{version: 0.31.0}}}}
models: {{m: {{path: {model}, context: 32K}}}}
nodes:
  n: {{gpu: {{model: H200, memory: 141GiB, count: 1}}, quads: {{a: {{gpus: [0], ports: {port}-{last}}}}}}}
stacks: {{s: {{model: m, engine: vllm, layout: tp1, context: 32K}}}}
workloads:
  w: {{kind: sweep, prompt: 1K, users: 2, output: 32, requests: {{per_user: 1}}, bench: [{tool}, bench, serve]}}
experiments: {{e: {{stacks: [s], workloads: [w]}}}}
"""


@needs_tool
def test_a_sweep_of_a_campaign(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "bin/vllm"
    engine.parent.mkdir()
    engine.write_text(f'#!/bin/sh\nexec {sys.executable} {REPO}/tests/unmarked_sim.py vllm "$@"\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPO))
    model = tokenizer(tmp_path / "model")
    campaign(tmp_path / "recipes", RECIPE.format(model=model, tool=TOOL, port=port, last=port + 9))
    for words in (["plan", "recipes", "--runtime", "process"], ["apply", "--yes"]):
        ran = lcplan(*words, cwd=tmp_path)
        assert ran.code == 0, ran.err + ran.out
    [run] = json.loads(lcplan("runs", "list", "--json", cwd=tmp_path).out)
    [found] = run["cells"]
    assert (found["status"], run["simulated"]) == ("done", False), found
    said = json.loads((tmp_path / "state/runs" / run["run"] / "bench/w.json").read_text())
    assert found["metrics"]["completed"]["value"] == said["completed"] == 2
    assert found["metrics"]["ttft_s"]["value"] * 1e3 == pytest.approx(said["median_ttft_ms"])
    assert found["metrics"]["tpot_ms"]["value"] == pytest.approx(said["median_tpot_ms"])


@needs_tool
def test_its_failures_are_counted(tmp_path: Path) -> None:
    sweep = {"kind": "sweep", "prompt": 1000, "users": 2, "output": 8, "requests": {"per_user": 2}}
    command = [TOOL, "bench", "serve"]
    with delay_server(ttft_s=0.01, fail_every=3) as url:
        message = job(url, tmp_path, tokenizer=str(tokenizer(tmp_path / "model")))
        [result] = measure(message, cell(sweep, bench=command))
    assert (result["status"], result["reason"]) == ("invalid", "request-failed"), result["sentence"]


def test_a_stamp_of_the_simulator_is_an_event_of_its_own(tmp_path: Path) -> None:
    with serving(FLASH, tmp_path) as sim:
        ask = {"model": sim.name, "prompt": [5000] * 64, "max_tokens": 4, "stream": True}
        text = sim.ask("POST", "/v1/completions", ask).text
    events = text.split("\n\n")
    assert sum(event.startswith("data: {") for event in events) == 4
    assert all("\n" not in event for event in events)


def tokenizer(folder: Path) -> Path:
    """Write a tokenizer with a token for each printable byte, which is how the simulator counts most text."""
    folder.mkdir()
    special = ["<s>", "</s>"]
    letters = [*special, *map(chr, range(33, 127)), "\u0120"]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    made: dict[str, Any] = {"version": "1.0", "pre_tokenizer": level, "decoder": level}
    made["added_tokens"] = [{"id": at, "content": name, **flags} for at, name in enumerate(special)]
    made["model"] = {"type": "BPE", "vocab": {letter: at for at, letter in enumerate(letters)}, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps(made))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder
