"""`runs bundle` and `runs export`: what others can do with a run without the rest."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from lcplan.audit.bundle import bundle
from lcplan.audit.verify import verify
from lcplan.audit.why import why
from lcplan.record import ledger, manifest
from tests import kit, report_kit, statekit
from tests.kit import lcplan

RUN = statekit.RUN


@pytest.fixture
def root(tmp_path: Path) -> Path:
    statekit.seal(tmp_path / "state", "before")
    statekit.seal(tmp_path / "state")
    statekit.seal(tmp_path / "state", "after")
    statekit.saved(tmp_path / "state")
    return tmp_path / "state"


def test_a_bundle_verifies_and_answers_without_the_rest(root: Path, tmp_path: Path) -> None:
    ran = lcplan("runs", "bundle", RUN, "--state", str(root), "-o", str(tmp_path / "out/b"))
    assert ran.code == 0 and "not in it" in ran.out and "plan pppp" in ran.out
    state = tmp_path / "out/b/state"
    done = verify(state)
    assert (done.runs, done.findings) == (1, [])
    chain = why(state, f"{RUN}/needle#ttft_s").chains[0]
    assert chain.recipe == (("recipes/stacks.yaml:3", "glm53_flash:"),)
    assert (tmp_path / "out/b/recipes/stacks.yaml").read_bytes() == statekit.RECIPE
    text = (tmp_path / "out/b/README.md").read_text()
    assert f"bash state/runs/{RUN}/cmd.sh" in text and "HF_TOKEN" in text and "sha256:" + "a" * 64 in text


def test_its_ledger_is_that_of_the_run_and_names_its_origin(root: Path, tmp_path: Path) -> None:
    ledger.append(root, "retracted", RUN, why="wrong image")
    bundle(root, RUN, tmp_path / "b")
    assert [one.kind for one in ledger.read(tmp_path / "b/state")] == ["sealed", "retracted"]
    assert ledger.check(tmp_path / "b/state") == []
    there = ledger.path(root).read_text().splitlines()
    assert all(line in there for line in (tmp_path / "b/origin.jsonl").read_text().splitlines())
    assert ledger.retracted(tmp_path / "b/state") == {RUN: "wrong image"}


def test_a_changed_bundle_does_not_verify(root: Path, tmp_path: Path) -> None:
    bundle(root, RUN, tmp_path / "b")
    file = tmp_path / "b/state/runs" / RUN / "cmd.sh"
    file.chmod(0o644)
    file.write_text("exec something-else\n")
    assert [d.code for d in verify(tmp_path / "b/state").findings] == ["file-tampered"]


@pytest.mark.parametrize("name", ["b.tar", "b.tar.gz", "b.tgz"])
def test_an_archive_holds_the_same_files(root: Path, tmp_path: Path, name: str) -> None:
    made = bundle(root, RUN, tmp_path / name)
    bundle(root, RUN, tmp_path / "folder")
    with tarfile.open(tmp_path / name) as archive:
        packed = {one.name.removeprefix(f"{RUN}/") for one in archive.getmembers() if one.isfile()}
    assert packed == {str(f.relative_to(tmp_path / "folder")) for f in (tmp_path / "folder").rglob("*") if f.is_file()}
    assert made.files == len(packed)
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_nothing_is_overwritten_and_unknown_runs_are_named(root: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    ran = lcplan("runs", "bundle", RUN, "--state", str(root), "-o", str(tmp_path / "there"))
    assert ran.code == 1 and "error[file-exists]" in ran.err
    ran = lcplan("runs", "bundle", RUN + "x", "--state", str(root), "-o", str(tmp_path / "new"))
    assert ran.code == 1 and f"did you mean '{RUN}'?" in ran.err and not (tmp_path / "new").exists()


def test_a_rehearsed_run_is_replayed_from_its_bundle(tmp_path: Path, port: int) -> None:
    kit.campaign(tmp_path / "recipes", kit.small(port))
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).code == 0
    assert lcplan("apply", "--yes", "--sim-speed", "2000", cwd=tmp_path).code == 0
    run = manifest.list_runs(tmp_path / "state")[0]
    assert "not in it" not in lcplan("runs", "bundle", run, "-o", "b", cwd=tmp_path).out
    lines = (tmp_path / "b/README.md").read_text().splitlines()
    [planning] = [line.split() for line in lines if line.startswith("    lcplan plan")]
    assert lcplan(*planning[1:], cwd=tmp_path / "b").code == 0
    again = json.loads((tmp_path / "b/again.json").read_bytes())
    recorded = manifest.read(tmp_path / "state", run)["predicate"]["cells"]
    assert {c["fingerprint"] for c in again["cells"]} == {c["fingerprint"] for c in recorded}
    assert {c["action"] for c in again["cells"]} == {"+"}


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    report_kit.campaign(tmp_path / "state")
    return tmp_path


def exported(folder: Path, *words: str) -> list[dict[str, Any]]:
    ran = lcplan("runs", "export", *words, cwd=folder)
    assert ran.code == 0, ran.err
    return list(csv.DictReader(io.StringIO(ran.out)))


def test_every_number_is_exported_with_what_it_is_worth(campaign: Path) -> None:
    rows = exported(campaign)
    worth = {
        (row["run"], row["simulated"], row["provisional"], row["retracted"])
        for row in rows
        if row["cell"].startswith("chat") and row["run"] != "a"
    }
    assert worth == {
        ("b", "false", "true", "false"), ("gone", "false", "true", "true"), ("sim", "true", "true", "false"),
    }  # fmt: skip
    [invalid] = [row for row in rows if row["invalid"] == "true"]
    assert (invalid["cell"], invalid["metric"], invalid["value"]) == ("chat.prompt=1024.users=32", "", "")
    assert invalid["reason"] == "12 % of the prompt came from the cache"
    [ttft] = [row for row in rows if (row["run"], row["users"], row["metric"]) == ("a", "8", "ttft_s")]
    assert (ttft["value"], ttft["p90"], ttft["unit"], ttft["prompt"]) == ("4.0", "6.4", "s", "1024")
    assert {row["value"] for row in rows if row["metric"] == "capacity.logged.pool_tokens"} == {"11304766.0"}
    assert {row["run"] for row in exported(campaign, "stack=other")} == {"b"}


def test_parquet_holds_the_same_rows_with_types(campaign: Path) -> None:
    from pyarrow import parquet

    assert lcplan("runs", "export", "--format", "parquet", "-o", "out/n.parquet", cwd=campaign).code == 0
    table = parquet.ParquetFile(campaign / "out/n.parquet").read()
    assert table.num_rows == len(exported(campaign))
    assert [str(table.schema.field(name).type) for name in ("users", "value", "simulated")] == [
        "int64",
        "double",
        "bool",
    ]
    assert lcplan("runs", "export", "--format", "parquet", cwd=campaign).code == 1


def test_statements_are_the_sealed_ones(campaign: Path) -> None:
    ran = lcplan("runs", "export", "--format", "intoto", "-o", "s.jsonl", cwd=campaign)
    assert ran.code == 0
    statements = [json.loads(line) for line in (campaign / "s.jsonl").read_text().splitlines()]
    assert [one["predicate"]["run"] for one in statements] == ["a", "b", "gone", "sim"]
    assert statements[0] == manifest.read(campaign / "state", "a")
    assert statements[0]["_type"] == "https://in-toto.io/Statement/v1"


def test_a_crate_describes_the_files_that_are_there(campaign: Path) -> None:
    assert lcplan("runs", "export", "--format", "ro-crate", cwd=campaign).code == 0
    crate = json.loads((campaign / "state/ro-crate-metadata.json").read_bytes())
    entities = {one["@id"]: one for one in crate["@graph"]}
    assert entities["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    files = [one for one in crate["@graph"] if one["@type"] == "File"]
    assert files and all((campaign / "state" / one["@id"]).is_file() for one in files)
    assert all(part["@id"] in entities for one in crate["@graph"] for part in one.get("hasPart", []))
    assert entities["#a"]["object"] == {"@id": "runs/a/cmd.sh"}
    ran = lcplan("runs", "export", "--format", "ro-crate", "-o", "elsewhere", cwd=campaign)
    assert ran.code == 1 and "error[crate-elsewhere]" in ran.err
