"""`audit why`, `audit coverage`, `runs ...` and `state ...` through the command line and the functions behind it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lcplan.audit.coverage import coverage
from lcplan.audit.diff import diff
from lcplan.audit.gates import standing
from lcplan.audit.refs import Records
from lcplan.audit.why import why
from lcplan.base.diagnostics import LcplanError
from lcplan.cli import run as lcplan
from lcplan.record import index, ledger, manifest, state
from tests import statekit

RUN = statekit.RUN
OTHER = RUN.replace("000210", "000211")


def refs(root: Path, query: str) -> list[str]:
    return [str(chain.ref) for chain in why(root, query).chains]


def test_a_number_leads_to_every_value_that_rounds_to_it_best_first(tmp_path: Path) -> None:
    near = {"ttft_s": statekit.metric(58.59, "s"), "e2e_ms": statekit.metric(58600, "ms")}
    statekit.seal(tmp_path, "far")
    statekit.seal(tmp_path, "near", cells=[statekit.cell(metrics=near)], gates={}, policy={}, fingerprint="n")
    statekit.seal(tmp_path, "sim", cells=[statekit.cell(metrics=near)], simulated=True)
    statekit.seal(tmp_path, "gone", cells=[statekit.cell(metrics=near)])
    ledger.append(tmp_path, "retracted", "gone", why="wrong")
    assert refs(tmp_path, "58.6 s") == [
        "near/needle#e2e_ms", "near/needle#ttft_s", "far/needle#ttft_s",
        "sim/needle#e2e_ms", "sim/needle#ttft_s", "gone/needle#e2e_ms", "gone/needle#ttft_s",
    ]  # fmt: skip
    assert refs(tmp_path, "58.6") == [
        "near/needle#ttft_s",
        "far/needle#ttft_s",
        "sim/needle#ttft_s",
        "gone/needle#ttft_s",
    ]
    assert refs(tmp_path, "58,612 ms") == ["far/needle#ttft_s"]
    assert refs(tmp_path, "58.6 tokens/s") == []
    answer = why(tmp_path, "58.6 s", limit=2)
    assert (answer.matches, len(answer.chains)) == (7, 2)


def test_figures_of_the_whole_run_and_their_units(tmp_path: Path) -> None:
    statekit.seal(tmp_path)
    assert refs(tmp_path, "11,304,766") == [f"{RUN}#capacity.logged.pool_tokens"]
    assert refs(tmp_path, "11304766 tokens") == [f"{RUN}#capacity.logged.pool_tokens"]
    assert refs(tmp_path, "17,054 tokens/s") == [f"{RUN}/needle#prefill_tokens_per_s"]
    assert refs(tmp_path, "61.2 s") == [f"{RUN}/needle#ttft_s.p90"]


def test_a_chain_leads_from_the_value_to_the_image(tmp_path: Path) -> None:
    statekit.seal(tmp_path)
    (chain,) = why(tmp_path, f"{RUN}/needle#ttft_s").chains
    shown = chain.as_json()
    assert (shown["value"], shown["unit"], shown["standing"]) == (58.612, "s", "published")
    assert shown["cmd"] == (tmp_path / "runs" / RUN / "cmd.sh").read_text()
    assert shown["recipe"] == [{"place": "recipes/stacks.yaml:3", "text": "glm53_flash:"}]
    assert shown["plan"]["id"] == "p" * 64
    assert shown["image"]["digest"].startswith("sha256:")
    assert shown["engine"]["choices"] == {"attention_backend": "FLASHINFER_MLA"}


def test_the_rows_behind_a_cell_are_read(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    staging = tmp_path / "staging" / "r"
    staging.mkdir(parents=True)
    parquet.write_table(pa.table({"cell": ["grid", "needle"], "ttft_s": [7.1, 58.612]}), staging / "points.parquet")
    manifest.seal(tmp_path, staging, {"run": "r", "simulated": False, "cells": [statekit.cell()]})
    (chain,) = why(tmp_path, "r/needle").chains
    assert chain.rows == ((1, {"cell": "needle", "ttft_s": 58.612}),)


@pytest.mark.parametrize(
    ("query", "code"),
    [("nope", "unknown-run"), (f"{RUN}/nope", "unknown-cell"), (f"{RUN}/needle#nope", "unknown-metric")],
)
def test_what_is_not_there_is_said(tmp_path: Path, query: str, code: str) -> None:
    statekit.seal(tmp_path)
    with pytest.raises(LcplanError) as caught:
        why(tmp_path, query)
    assert caught.value.diagnostics[0].code == code


def test_the_index_follows_the_ledger_and_survives_damage(tmp_path: Path) -> None:
    statekit.seal(tmp_path, "a")
    assert len(refs(tmp_path, "58.6 s")) == 1
    statekit.seal(tmp_path, "b")
    assert len(refs(tmp_path, "58.6 s")) == 2
    (tmp_path / "index.sqlite").write_bytes(b"no database at all" * 100)
    assert len(refs(tmp_path, "58.6 s")) == 2
    ledger.path(tmp_path).unlink()
    assert refs(tmp_path, "58.6 s") == []


def test_the_index_is_made_in_memory_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statekit.seal(tmp_path)
    connect = index.sqlite3.connect

    def read_only(name: str, **options: Any) -> Any:
        return connect("file:/nowhere?mode=ro" if name != ":memory:" else name, uri=True, **options)

    monkeypatch.setattr(index.sqlite3, "connect", read_only)
    assert len(refs(tmp_path, "58.6 s")) == 1
    assert not (tmp_path / "index.sqlite").exists()


def test_gates_look_at_all_records_of_a_launch(tmp_path: Path) -> None:
    missed = {**statekit.METRICS, "needles_found": statekit.metric(2, "needles")}
    other = statekit.cell("grid.users=4")
    statekit.seal(tmp_path, "first", cells=[other], fingerprint="l")
    statekit.seal(tmp_path, "second", cells=[statekit.cell(metrics=missed)], fingerprint="l")

    def word(run: str) -> tuple[str, str]:
        records = Records(tmp_path)
        with index.opened(tmp_path) as opened:
            found = standing(records, opened, run, records.run(run)["cells"][0])
        return found.word, found.provisional

    assert word("first") == ("provisional", "gate 'needle: all' of experiment 'million': needle found 2 of 3")
    statekit.seal(tmp_path, "third", fingerprint="l")
    assert word("first") == ("published", "")
    statekit.seal(tmp_path, "ungated", cells=[statekit.cell(experiments=["scaling"])], fingerprint="u")
    assert word("ungated")[0] == "provisional"
    statekit.seal(tmp_path, "free", cells=[statekit.cell(experiments=["scaling"])], fingerprint="f", policy={})
    assert word("free") == ("published", "")
    statekit.seal(tmp_path, "rehearsed", fingerprint="l", simulated=True)
    assert word("rehearsed")[0] == "simulated"
    statekit.seal(tmp_path, "alone", cells=[other], fingerprint="m")
    assert "has no record yet" in word("alone")[1]


def test_coverage_names_the_fate_of_every_planned_cell(tmp_path: Path) -> None:
    names = ["needle", "failed", "lost", "blocked", "withdrawn"]
    cells = [statekit.cell("needle"), statekit.cell("failed", "failed", sentence="the server died")]
    statekit.seal(tmp_path, "r", cells=cells)
    statekit.seal(tmp_path, "x", cells=[statekit.cell("withdrawn")])
    ledger.append(tmp_path, "retracted", "x", why="wrong")
    statekit.saved(tmp_path)
    planned = [{**statekit.cell(name), "launch": "l", "action": "+", "reason": ""} for name in names]
    planned[3] |= {"action": "!", "reason": "needs docker"}
    found = coverage(tmp_path, {"cells": planned})
    assert [(f.fate, f.reason, f.run) for f in found.fates] == [
        ("done", "", "r"),
        ("failed", "the server died", "r"),
        ("not_run", "no record", ""),
        ("blocked", "needs docker", ""),
        ("retracted", "wrong", "x"),
    ]
    assert list(found.counts) == ["done", "blocked", "failed", "not_run", "retracted"]


def test_a_difference_is_told_once_and_in_words(tmp_path: Path) -> None:
    statekit.seal(tmp_path, RUN)
    first = manifest.read(tmp_path, RUN)["predicate"]
    argv = [OTHER if word == RUN else word for word in first["argv"]]
    argv[argv.index("64")] = "128"
    argv[argv.index("8000")] = "8100"
    argv += ["--enforce-eager"]
    engine = {**first["engine"], "choices": {"attention_backend": "FLASH_ATTN"}}
    faster = {**statekit.METRICS, "ttft_s": statekit.metric(52.7508, "s")}
    statekit.seal(tmp_path, OTHER, argv=argv, engine=engine, cells=[statekit.cell(metrics=faster)])
    assert [d.sentence for d in diff(tmp_path, RUN, OTHER)] == [
        "argv.--enforce-eager: only in B, set",
        "argv.--max-num-seqs: 64 -> 128 (+100.0%)",
        "engine.choices.attention_backend: FLASHINFER_MLA -> FLASH_ATTN",
        "results.needle.ttft_s: 58.612 -> 52.7508 (-10.0%)",
    ]
    assert diff(tmp_path, RUN, RUN) == []


class Cli:
    """The command line on one state."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = lcplan([*words, "--state", str(self.root)])
        out, err = self.capsys.readouterr()
        return code, out, err

    def json(self, *words: str) -> Any:
        code, out, _ = self(*words, "--json")
        assert code == 0
        return json.loads(out)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    statekit.seal(
        tmp_path / "state", axes={}, cells=[statekit.cell(), statekit.cell("grid.users=4", axes={"users": 4})]
    )
    statekit.seal(
        tmp_path / "state", OTHER, stack="dsv4", cells=[statekit.cell("sweep", "invalid", reason="cache-hits")]
    )
    statekit.saved(tmp_path / "state")
    return Cli(tmp_path / "state", capsys)


def test_runs_list_and_show(cli: Cli) -> None:
    listed = cli.json("runs", "list")
    assert [(r["run"], r["simulated"], r["status"], len(r["cells"])) for r in listed] == [
        (RUN, False, "done", 2),
        (OTHER, False, "invalid", 1),
    ]
    assert listed[0]["cells"][0]["metrics"]["ttft_s"]["value"] == 58.612
    assert cli.json("runs", "show", RUN) == listed[0]
    assert [len(r["cells"]) for r in cli.json("runs", "list", "users>=4")] == [1]
    assert RUN in cli("runs", "list")[1]
    assert "58.612 s" in cli("runs", "show", RUN)[1]
    code, _, err = cli("runs", "list", "users>=8")
    assert code == 1
    assert "error[selector-matches-nothing]" in err
    assert cli("runs", "show", "nope")[0] == 1


def test_invalid_rows(cli: Cli) -> None:
    assert cli("runs", "invalid", "--csv")[1] == f"run,cell,status,reason,sentence\n{OTHER},sweep,invalid,cache-hits,\n"
    assert cli.json("runs", "invalid")[0]["cell"] == "sweep"
    assert "cache-hits" in cli("runs", "invalid")[1]


def test_runs_diff(cli: Cli) -> None:
    assert "stack: glm53_flash -> dsv4" in cli("runs", "diff", RUN, OTHER)[1]
    assert cli.json("runs", "diff", RUN, OTHER)["differences"][0]["section"]


def test_retracting_takes_the_cells_out_of_the_state_and_of_publication(cli: Cli) -> None:
    code, _, err = cli("runs", "retract", RUN, "--why", " ")
    assert (code, "error[no-reason]" in err) == (1, True)
    assert cli("runs", "retract", RUN, "--why", "wrong model")[0] == 0
    loaded, _ = state.load(cli.root)
    assert loaded is not None
    assert {r.status for r in loaded.real.cells.values() if r.run == RUN} == {"retracted"}
    assert loaded.real.serial == 2
    assert cli.json("runs", "show", RUN)["standing"] == "retracted"
    assert cli("runs", "retract", RUN, "--why", "again")[0] == 1
    assert cli("audit", "verify")[0] == 0


def test_state_show_and_rebuild(cli: Cli) -> None:
    shown = cli.json("state", "show")
    assert shown["real"]["statuses"] == {"done": 2, "invalid": 1}
    assert "serial 2" in cli("state", "show")[1]
    state.path(cli.root).write_text("{")
    code, _, err = cli("state", "show")
    assert (code, "warning[state-rebuilt]" in err) == (0, True)
    assert cli("state", "rebuild")[0] == 0
    assert cli("state", "show")[2] == ""
    assert cli.json("state", "show") == shown


def test_audit_verbs(cli: Cli, tmp_path: Path) -> None:
    assert "all is as it was sealed" in cli("audit", "verify")[1]
    assert cli.json("audit", "verify")["ok"] is True
    code, out, _ = cli("audit", "why", "58.6 s")
    assert code == 0
    assert "exec vllm serve" in out
    assert "recipes/stacks.yaml:3  glm53_flash:" in out
    assert cli.json("audit", "why", "58.6 s")["chains"][0]["run"] == RUN
    code, out, err = cli("audit", "why", "59.6 s")
    assert (code, out, "error[no-such-number]" in err) == (1, "", True)
    text = tmp_path / "doc.md"
    text.write_text(f"[58.7 s](lcplan:{RUN}/needle#ttft_s)\n")
    code, _, err = cli("audit", "doc", str(text))
    assert code == 1
    assert f"{text}:1:2: error[doc-wrong-value]: 58.7 s is not what was recorded, 58.612 s; right: 58.6 s" in err
    assert cli("audit", "doc", "--fix", str(text))[0] == 0
    assert cli.json("audit", "doc", str(text))["numbers"] == 1
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"cells": [statekit.cell(), statekit.cell("never")]}))
    assert cli.json("audit", "coverage", str(plan))["counts"] == {"done": 1, "not_run": 1}
    assert "1 done, 1 not_run" in cli("audit", "coverage", str(plan))[1]
    plan.write_text("{")
    assert cli("audit", "coverage", str(plan))[0] == 1
    (cli.root / "runs" / RUN / "extra").write_text("")
    code, _, err = cli("audit", "verify")
    assert (code, "error[file-extra]" in err) == (1, True)


def test_a_number_is_found_among_many_in_no_time(tmp_path: Path) -> None:
    """The index of many figures is made by hand, as if ten thousand runs had been sealed; only the lookup is timed."""
    statekit.seal(tmp_path)
    refs(tmp_path, "58.6 s")
    connection = index.sqlite3.connect(tmp_path / "index.sqlite")
    others = ((100 + n / 7, str(100 + n / 7), f"r{n // 20}", "c", "ttft_s", "s", "done") for n in range(200_000))
    connection.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)", others)
    connection.commit()
    connection.close()
    before = time.perf_counter()
    found = refs(tmp_path, "58.6 s")
    assert time.perf_counter() - before < 0.2
    assert found == [f"{RUN}/needle#ttft_s"]
