"""`import --results`: results of an older campaign, adopted as they are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lcplan.audit.adopt import adopt
from lcplan.audit.verify import verify
from lcplan.audit.why import why
from lcplan.record import ledger, manifest, state
from tests.kit import REPO, lcplan

RUN = "small__tp4_a__128k__vllm__fast__1010-000210"
EXAMPLE = REPO / "examples" / "legacy" / "results"
CMD = "vllm serve /models/small --tensor-parallel-size 4 --max-model-len 131072\n"
BENCH = {
    "num_prompts": 12, "max_concurrency": 4, "completed": 11, "total_input_tokens": 11264, "median_ttft_ms": 250.5,
    "p90_ttft_ms": 400.0, "median_tpot_ms": 8.0, "output_throughput": 900.25, "total_token_throughput": 2000.0,
}  # fmt: skip


def tree(folder: Path, run: str = RUN, **files: str) -> Path:
    """Write a legacy tree with one run; `_` in a name stands for its dot."""
    here = folder / "results" / "runs" / run
    here.mkdir(parents=True)
    for name, text in files.items():
        (here / name.replace("_", ".")).write_text(text)
    return folder / "results"


def adopted(folder: Path, results: Path, run: str = RUN) -> dict[str, Any]:
    runs, problems = adopt(folder / "state", results)
    assert (problems, [one.run for one in runs]) == ([], [run])
    return dict(manifest.read(folder / "state", run)["predicate"])


def needles(*rows: tuple[float, int, bool]) -> str:
    keys = ("depth", "prompt_tokens", "ok")
    return "".join(json.dumps({**dict(zip(keys, row, strict=True)), "latency_s": 2.0 + row[0]}) + "\n" for row in rows)


def test_the_example_answers_the_first_question_of_a_newcomer(tmp_path: Path) -> None:
    at = ("--state", str(tmp_path / "state"))
    before = {file: file.read_bytes() for file in EXAMPLE.rglob("*") if file.is_file()}
    ran = lcplan("import", "--results", str(EXAMPLE), *at)
    assert ran.code == 0 and "2 of 2 runs adopted" in ran.out
    ran = lcplan("audit", "why", "11,304,766", *at)
    assert ran.code == 0 and "qwen36_35b__dp4_b" in ran.out and "--data-parallel-size 4" in ran.out
    assert "from an older campaign; unknown: " in ran.out
    assert "glm53_flash__tp4_a__1024k__vllm__1010-000210" in lcplan("audit", "why", "58.6 s", *at).out
    assert verify(tmp_path / "state").findings == []
    assert before == {file: file.read_bytes() for file in EXAMPLE.rglob("*") if file.is_file()}


def test_what_the_files_say_is_recorded(tmp_path: Path) -> None:
    log = "INFO 10-10 00:02:40 [kv_cache_utils.py:2464] GPU KV cache size: 921,696 tokens\n"
    rows = needles((0.1, 100_000, True), (0.5, 100_003, True), (0.9, 99_999, False))
    results = tree(tmp_path, cmd_sh=CMD, niah_log=rows, server_log=log, point_json=json.dumps(BENCH))
    run = adopted(tmp_path, results)
    assert (run["stack"], run["layout"], run["quad"], run["variant"], run["context"]) == (
        "small", "tp4", "a", "fast", 131072,
    )  # fmt: skip
    assert (run["simulated"], run["adopted"], run["plan"]) == (False, True, {"id": None, "file": None})
    assert run["argv"] == ["/models/small", "--tensor-parallel-size", "4", "--max-model-len", "131072"]
    assert run["capacity"]["logged"]["pool_tokens"] == 921_696
    needle, bench = run["cells"]
    assert (needle["cell"], bench["cell"]) == ("needle", "bench.prompt=1024.users=4")
    figures = {name: metric["value"] for name, metric in needle["metrics"].items()}
    assert figures == {"needles_found": 2, "needles_asked": 3, "e2e_s": 2.5}
    figures = {name: metric["value"] for name, metric in bench["metrics"].items()}
    assert figures == {
        "ttft_s": 0.2505, "tpot_ms": 8.0, "user_tokens_per_s": 125.0, "output_tokens_per_s": 900.25,
        "total_tokens_per_s": 2000.0, "completed": 11, "sent": 12,
    }  # fmt: skip
    assert bench["metrics"]["ttft_s"]["p90"] == 0.4


def test_what_they_do_not_say_is_named_as_unknown(tmp_path: Path) -> None:
    run = adopted(tmp_path, tree(tmp_path, "odd-name", other_json="{}", broken_json="{", niah_log="text\n"), "odd-name")
    said = "; ".join(run["unknown"])
    for name in (
        "stack, layout, quad", "there is no cmd.sh", "there is no server.log", "1 lines of niah.log",
        "other.json, which is no result", "broken.json, which is no JSON", "no needle rows and no benchmark results",
        "recipe and plan", "whether prefix caches were cold",
    ):  # fmt: skip
        assert name in said
    assert run["stack"] is None and run["cells"] == []


@pytest.mark.parametrize(
    ("cmd", "rows", "standing"),
    [
        (CMD, needles((0.1, 1000, True)), "published"),
        (CMD, needles((0.1, 1000, False)), "provisional"),
        (CMD, "", "provisional"),
        (CMD.replace("\n", " ...\n"), needles((0.1, 1000, True)), "provisional"),
    ],
)
def test_only_a_known_command_and_found_needles_make_numbers_published(
    tmp_path: Path, cmd: str, rows: str, standing: str
) -> None:
    results = tree(tmp_path, cmd_sh=cmd, niah_log=rows, point_json=json.dumps(BENCH))
    adopt(tmp_path / "state", results)
    [chain] = why(tmp_path / "state", "900.25 tokens/s").chains
    assert chain.standing.word == standing


def test_cells_of_one_workload_have_names_of_their_own(tmp_path: Path) -> None:
    rows = needles((0.1, 1000, True), (0.1, 2000, True))
    bench = json.dumps(BENCH)
    run = adopted(tmp_path, tree(tmp_path, niah_log=rows, one_json=bench, two_json=bench))
    assert [one["cell"] for one in run["cells"]] == [
        "needle.prompt=1000", "needle.prompt=2000", "bench.prompt=1024.users=4", "bench.prompt=1024.users=4.r2",
    ]  # fmt: skip


def test_the_ledger_says_adopted_and_the_state_can_be_told_again(tmp_path: Path) -> None:
    adopted(tmp_path, tree(tmp_path, cmd_sh=CMD, niah_log=needles((0.1, 1000, True))))
    assert [one.kind for one in ledger.read(tmp_path / "state")] == ["adopted"]
    kept, warnings = state.load(tmp_path / "state")
    assert kept and not warnings and len(kept.real.cells) == 1
    assert state.rebuild(tmp_path / "state")[0].real.cells == kept.real.cells


def test_adopting_again_does_nothing_and_names_what_differs(tmp_path: Path) -> None:
    results = tree(tmp_path, cmd_sh=CMD)
    adopted(tmp_path, results)
    again, problems = adopt(tmp_path / "state", results)
    assert (problems, again[0].sealed_now) == ([], False)
    (results / "runs" / RUN / "cmd.sh").write_text("something else\n")
    again, problems = adopt(tmp_path / "state", results)
    assert [d.code for d in problems] == ["adopted-differs"] and not again[0].sealed_now
    assert len(ledger.read(tmp_path / "state")) == 1


def test_one_bad_run_keeps_no_other_from_being_adopted(tmp_path: Path) -> None:
    results = tree(tmp_path, cmd_sh=CMD)
    with_secret = "docker run -e HF_TOKEN=hf_abcdefghijklmnop vllm/vllm-openai:v0.31.0 /models/small\n"
    secret = tree(tmp_path / "x", "secret__tp1__4k__vllm__1010-000211", cmd_sh=with_secret)
    shutil.copytree(secret / "runs", results / "runs", dirs_exist_ok=True)
    link = results / "runs" / "linked__tp1__4k__vllm__1010-000212"
    link.mkdir()
    (link / "cmd.sh").symlink_to("/etc/hostname")
    (results / "runs" / "bad name").mkdir()
    ran = lcplan("import", "--results", str(results), "--state", str(tmp_path / "state"))
    assert ran.code == 1 and "1 of 1 runs adopted" in ran.out
    assert all(f"error[{code}]" in ran.err for code in ("literal-secret", "not-a-plain-file", "bad-name"))
    assert "hf_abcdefghijklmnop" not in ran.err + ran.out
    assert "hf_abcdefghijklmnop" not in "".join(f.read_text() for f in (tmp_path / "state").rglob("*.sh"))


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    ran = lcplan("import", "--results", str(tmp_path / "nowhere"), "--state", str(tmp_path / "state"))
    assert ran.code == 1 and "error[no-results]" in ran.err
    assert lcplan("import", "x.sh", "--results", str(tmp_path)).code == 1
