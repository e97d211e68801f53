"""The real benchmark tool: which command a plan gives to a sweep, and a result file that the tool wrote on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lcplan.plan.bench import fill
from lcplan.workload import bench, stats
from lcplan.workload.segment import Segment
from lcplan.workload.validity import Counters, Evidence, judge
from tests.kit import campaign, lcplan

REAL = Path(__file__).parent / "real" / "vllm-0.25.1-h200" / "llama8_tp1.bench.json"

RECIPE = """\
lcplan: 1
engines:
  sglang: {{version: 0.5.21{sglang}}}
  vllm: {{version: 0.31.0{vllm}}}
  other: {{kind: vllm, version: 0.25.1, image: "vllm/vllm-openai:v0.25.1"}}
defaults: {{docker: {{ipc: host, network: host, volumes: ["/models:/models:ro"]}}}}
models: {{m: {{path: /models/tiny, context: 32K}}}}
nodes: {{n: {{gpu: {{model: H200, memory: 141GiB, count: 4}}, quads: {{a: {{gpus: [0, 1, 2, 3], ports: 8000-8009}}}}}}}}
stacks: {{s: {{model: m, engine: {engine}, layout: tp1, context: 32K}}}}
workloads: {{w: {{kind: sweep, prompt: 1K, users: 2, output: 8, requests: {{per_user: 2}}{bench}}}}}
experiments: {{e: {{stacks: [s], workloads: [w]}}}}
"""
VLLM, SGLANG = ', image: "vllm/vllm-openai:v0.31.0"', ', image: "lmsysorg/sglang:v0.5.21"'
INSTALLED = "vllm bench serve"
CONTAINED = (
    "docker run --rm --init --network host --user @USER@ --env HOME=/tmp --env USER=lcplan "
    "--volume @RUN_FOLDER@:@RUN_FOLDER@ --volume /models:/models:ro --entrypoint vllm vllm/vllm-openai:{} bench serve"
)
DECIDED = [
    ({"engine": "vllm"}, INSTALLED),
    ({"engine": "vllm", "vllm": VLLM}, CONTAINED.format("v0.31.0")),
    ({"engine": "sglang", "vllm": VLLM}, INSTALLED),
    ({"engine": "sglang", "vllm": VLLM, "sglang": SGLANG}, CONTAINED.format("v0.31.0")),
    ({"engine": "vllm", "bench": ", bench: other"}, CONTAINED.format("v0.25.1")),
    ({"engine": "vllm", "bench": ", bench: vllm"}, INSTALLED),
    ({"engine": "vllm", "bench": ', bench: "vllm/vllm-openai:nightly"'}, CONTAINED.format("nightly")),
    ({"engine": "vllm", "vllm": VLLM, "bench": ", bench: [mine, serve]"}, "mine serve"),
    ({"engine": "vllm", "bench": ', bench: "/opt/my venv/vllm bench"'}, "/opt/my venv/vllm bench"),
]


@pytest.mark.parametrize(("facts", "command"), DECIDED)
def test_the_plan_says_what_measures_a_sweep(facts: dict[str, str], command: str, tmp_path: Path) -> None:
    campaign(tmp_path / "recipes", RECIPE.format(**{"vllm": "", "sglang": "", "bench": "", **facts}))
    ran = lcplan("plan", "recipes", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    [measure] = [one for one in json.loads(ran.out)["operations"] if one["op"] == "measure"]
    assert " ".join(measure["bench"]) == command


def test_a_rehearsal_needs_no_tool(tmp_path: Path) -> None:
    campaign(tmp_path / "recipes", RECIPE.format(engine="vllm", vllm="", sglang="", bench=""))
    ran = lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=tmp_path)
    assert not any("bench" in one for one in json.loads(ran.out)["operations"])


def test_holes_are_filled_when_it_runs() -> None:
    words = fill(["--user", "@USER@", "--volume", "@RUN_FOLDER@:@RUN_FOLDER@"], "/s/run 1", "10:20")
    assert words == ["--user", "10:20", "--volume", "/s/run 1:/s/run 1"]


def test_a_real_result_is_read_request_by_request() -> None:
    said: dict[str, Any] = json.loads(REAL.read_text())
    records = bench.read(said, bench.Point(1000, 64, 8, 32))
    assert [r.ttft_s for r in records] == pytest.approx(said["ttfts"])
    assert sum(r.output_tokens or 0 for r in records) == said["total_output_tokens"] == 32 * 64
    found = stats.metric("tpot_ms", [r.tpot_ms for r in records])
    assert found is not None and found["median"] == pytest.approx(said["median_tpot_ms"])
    e2e = stats.metric("e2e_s", [r.e2e_s for r in records])
    assert e2e is not None and e2e["p90"] * 1e3 == pytest.approx(said["p90_e2el_ms"])
    assert not judge(Evidence(records, Counters(), loose=True)).reason
    assert judge(Evidence(records, Counters())).reason == "prompt-length"
    whole = Segment(records, None, None, Counters()).total_tokens_per_s
    assert whole is not None and whole == pytest.approx(said["total_token_throughput"], rel=0.02)
