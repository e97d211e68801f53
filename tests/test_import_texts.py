"""Any text gives a result or diagnostics; recipes made of imports are proven; a running container is read alike."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lcplan.cli.import_ import register
from lcplan.engine.importer import read
from lcplan.engine.importer.read import LIMIT, read_container
from lcplan.engine.importer.recipe import prove, to_recipe
from lcplan.engine.importer.running import from_inspect
from lcplan.recipe.load import load

CASES = Path(__file__).parent / "cases"
TEXTS = [case["text"] for case in json.loads((CASES / "launch.json").read_text())["cases"]]
PIECES = [
    *("vllm serve ", "docker run ", "--gpus all ", "-e A=", "$(", "${", "}", ")", "'", '"', "\\\n", "\n", "`"),
    *(
        "<<E\n",
        "E\n",
        "A=(",
        "bash -c ",
        "--model ",
        "a/b ",
        "vllm/vllm-openai:v0.9.0 ",
        "--tp=",
        "{{",
        "}}",
        "# ",
        "|",
        "&",
        ";",
    ),
    *(
        "for i in ",
        "do ",
        "done\n",
        "image: ",
        "args: [",
        "services:\n",
        "  x:\n",
        "    command: >\n",
        "- ",
        "*a",
        "&a ",
        "<<: ",
    ),
    *("--x.y=", "…"),
]
soup = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=40).map("".join)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), soup))
def test_any_text_is_read(text: str) -> None:
    imported = read(text)
    json.dumps(imported.as_json("x"))
    if not imported.failed and imported.model is not None:
        to_recipe(imported, "x")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TEXTS), st.data())
def test_a_damaged_case_is_read(text: str, data: st.DataObject) -> None:
    cut, more = data.draw(st.integers(0, len(text))), data.draw(st.sampled_from(PIECES))
    skip = data.draw(st.integers(0, 20))
    json.dumps(read(text[:cut] + more + text[cut + skip :]).as_json("x"))


@pytest.mark.parametrize(
    "unit",
    [
        "$(",
        "${a",
        "`",
        '"',
        "<<A\n",
        "\n",
        "--max-num-se 1 ",
        "{{ ",
        "'[",
        "x--a-b ",
        "$A$A",
        "bash -c '",
        "- a: b\n",
        "[",
        "a:",
    ],
)
@pytest.mark.parametrize("head", ["vllm serve x ", "image: ", "docker run vllm/"])
def test_a_megabyte_takes_less_than_a_second(head: str, unit: str) -> None:
    text = head + unit * (1_000_000 // len(unit))
    begin = time.process_time()
    read(text)
    assert time.process_time() - begin < 1.0


def test_expansions_do_not_multiply() -> None:
    lines = [
        "A=" + "x " * 9000,
        "B=" + "$A" * 2000,
        *["echo $A$A$B ${A/x/y}"] * 3000,
        "C=($A)",
        *['C+=("${C[@]}")'] * 99,
    ]
    begin = time.process_time()
    read("\n".join([*lines, "vllm serve x $A"]))
    assert time.process_time() - begin < 2.0


def test_a_text_too_large_is_refused_at_once() -> None:
    imported = read("vllm serve x\n" * LIMIT)
    assert imported.failed and imported.findings[0].code == "text-too-large"


def test_a_launch_in_a_long_history_is_found() -> None:
    lines = [
        f"python train_{n}.py data/{n} > logs/{n}.log" if n % 40 == 0 else f"ls -l runs/{n}" for n in range(20_000)
    ]
    imported = read("\n".join([*lines, "vllm serve a/b --max-num-seqs 8", *lines]))
    assert (imported.engine, imported.model, imported.line) == ("vllm", "a/b", 20_001)


def test_of_long_yaml_the_documents_that_name_an_engine_are_read() -> None:
    other = "---\nkind: ConfigMap\ndata:\n" + "".join(f"  key{n}: {n}\n" for n in range(9000))
    mine = "---\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.9.1\n    args: [--model, a/b]\n"
    imported = read(other + mine + other)
    assert (imported.form, imported.model, imported.line) == ("k8s", "a/b", 9008)
    bare = read("---\nimage: vllm/x:1.0\nargs:\n" + "- a\n" * 40_000)
    assert bare.failed and "yaml-read-in-part" in {finding.code for finding in bare.findings}


def test_every_served_case_without_unknowns_is_proven(tmp_path: Path) -> None:
    proven = 0
    for text in TEXTS:
        imported = read(text)
        if imported.failed or imported.model is None or imported.unresolved:
            continue
        recipe = to_recipe(imported, "x")
        codes = [d.code for d in recipe.diagnostics if d.severity == "error"]
        assert codes in ([], ["layout-not-expressible"]), (text, recipe.diagnostics)
        if not codes:
            (tmp_path / "stack.yaml").write_text(recipe.text)
            load([tmp_path])
            proven += 1
    assert proven > 30


def test_a_recipe_that_would_start_another_server_names_the_flag() -> None:
    imported = read("vllm serve a/b --max-num-seqs 8 --tensor-parallel-size 2")
    (problem,) = prove(imported, None, "tp2", None, {"max-num-seqs": 9})
    assert problem.code == "import-not-proven" and "--max-num-seqs" in problem.message


def app() -> typer.Typer:
    made = typer.Typer()
    register(made)
    made.callback()(lambda: None)
    return made


def test_a_secret_is_written_nowhere(tmp_path: Path) -> None:
    text = "docker run --gpus all -e HF_TOKEN=made-up-value -e U=x:made-up-value vllm/vllm-openai:v0.9.1 --model a/b"
    source, target = tmp_path / "run.sh", tmp_path / "out" / "stack.yaml"
    source.write_text(f"{text} --api-key made-up-value --seed 3")
    result = CliRunner().invoke(app(), ["import", str(source), "-o", str(target)])
    assert result.exit_code == 0, result.stderr
    assert "made-up-value" not in result.stdout + result.stderr + target.read_text()
    assert "from_env: HF_TOKEN" in target.read_text()
    assert "secret-literal" in result.stderr
    again = CliRunner().invoke(app(), ["import", str(source), "-o", str(target)])
    assert again.exit_code == 0
    target.write_text("mine")
    assert CliRunner().invoke(app(), ["import", str(source), "-o", str(target)]).exit_code == 1


@pytest.mark.parametrize("arguments", [["import"], ["import", "/nowhere/x"], ["import", "x", "--container", "y"]])
def test_a_wrong_call_is_an_error_with_a_sentence(arguments: list[str]) -> None:
    result = CliRunner().invoke(app(), arguments)
    assert result.exit_code == 1 and "error[" in result.stderr


def test_a_running_container_is_read_like_a_command() -> None:
    image = {"Config": {"Env": ["PATH=/bin"]}}
    container: dict[str, Any] = {
        "Name": "/lc-a",
        "Config": {
            "Image": "vllm/vllm-openai:v0.9.1",
            "Entrypoint": ["vllm", "serve"],
            "Cmd": ["a/b", "--tensor-parallel-size", "2"],
            "Env": ["PATH=/bin", "HF_TOKEN=made-up-value", "X=1"],
        },
        "HostConfig": {
            "Binds": ["/data:/data:ro"],
            "IpcMode": "host",
            "NetworkMode": "bridge",
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "9000"}]},
            "DeviceRequests": [{"DeviceIDs": ["4", "5"], "Count": 0}],
            "RestartPolicy": {"Name": "always"},
        },
    }
    imported = read_container(from_inspect(container, image))
    assert (imported.engine, imported.model, imported.tp, imported.gpus) == ("vllm", "a/b", 2, ["4", "5"])
    assert imported.env == {"HF_TOKEN": "<secret>", "X": "1"}
    assert imported.ports == ["9000:8000"] and imported.volumes == ["/data:/data:ro"]
    assert "restart-policy" in {finding.code for finding in imported.findings}
