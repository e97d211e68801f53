"""cmd.sh: what is written is what runs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcplan.engine.shell import ContainerSpec, docker_argv, read_script, render_script

SHELLCHECK = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
NASTY = [
    "", " ", "plain", "it's", '"', "$HOME", "${x:-y}", "`id`", "$(id)", "a\nb", "\n", "\\", "a\\", "#no", "a#b", "*",
    "~", "!x", "tab\there", "ümläut", "’quoted“", "-", "--", "--a=b c", ";", "&&", "|", '{"a": {"b": [1, 2]}}',
    "\r", "a=b", "trailing\\\n", "'\"'\"'", "@RUN_ID@", "\u00a0", ">f", "[x]", "{a,b}", "%s", "\x7f",
]  # fmt: skip
BOX = ContainerSpec(
    image="vllm/vllm-openai:v0.31.0",
    name="@RUN_ID@",
    gpus=("GPU-a", "GPU-b"),
    labels={"lcplan.run": "@RUN_ID@"},
    ipc="host",
    network="host",
    volumes=("/m:/m:ro",),
    cpuset_cpus="0-47,96-143",
    cpuset_mems="0",
    ulimits=("memlock=-1",),
    log_opts={"max-size": "100m"},
)
words = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))


@given(st.lists(words, min_size=1, max_size=8), st.dictionaries(st.sampled_from(["A", "B_1"]), words))
def test_a_script_reads_back_as_the_same_argv_and_environment(argv: list[str], env: dict[str, str]) -> None:
    argv = ["serve", *argv]
    *exports, command = read_script(render_script(argv, env, header=["it's\nme"]))
    assert command == argv
    assert exports == [["export", f"{name}={value}"] for name, value in env.items()]


@given(st.lists(words, max_size=6), st.dictionaries(st.sampled_from(["A", "B_1"]), words))
def test_the_docker_form_reads_back_as_docker_argv(argv: list[str], env: dict[str, str]) -> None:
    argv = ["vllm", *argv]
    script = render_script(argv, env, secrets=["HF_TOKEN"], container=BOX)
    assert read_script(script) == [docker_argv(argv, env, ["HF_TOKEN"], BOX)]


@settings(max_examples=8, deadline=None)
@given(st.lists(words, min_size=1, max_size=30))
def test_bash_runs_exactly_the_argv(argv: list[str]) -> None:
    script = render_script(["printf", "%s\\0", *argv], {"A": argv[0]})
    out = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert out.stdout.decode().split("\0")[:-1] == argv


@pytest.mark.parametrize("container", [None, BOX])
def test_bash_and_shellcheck_accept_nasty_words(container: ContainerSpec | None, tmp_path: Path) -> None:
    file = tmp_path / "cmd.sh"
    env = {f"V{number}": word for number, word in enumerate(NASTY)}
    file.write_text(render_script(["vllm", "serve", *NASTY], env, secrets=["HF_TOKEN"], container=container))
    assert subprocess.run(["bash", "-n", file], capture_output=True, text=True).stderr == ""
    checked = subprocess.run([SHELLCHECK, file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_secrets_stand_by_name_only() -> None:
    bare = render_script(["vllm", "serve", "m"], {}, secrets=["HF_TOKEN"])
    assert "export HF_TOKEN\n" in bare
    assert "-e HF_TOKEN \\\n" in render_script(["vllm", "serve", "m"], {}, secrets=["HF_TOKEN"], container=BOX)
    out = subprocess.run(
        ["bash", "-c", bare], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert "HF_TOKEN: is needed from the environment" in out.stderr


def test_docker_options() -> None:
    argv = docker_argv(["vllm", "serve", "m"], {"A": "1"}, [], BOX)
    text = " ".join(argv)
    assert '--gpus "device=GPU-a,GPU-b" --cpuset-cpus 0-47,96-143 --cpuset-mems 0 --cap-add SYS_NICE --ipc host' in text
    assert text.endswith("--entrypoint vllm vllm/vllm-openai:v0.31.0 serve m")
    wrapped = docker_argv(["vllm", "serve", "m"], {}, [], BOX, ["numactl", "--membind=0"])
    assert " ".join(wrapped).endswith("--entrypoint numactl vllm/vllm-openai:v0.31.0 --membind=0 vllm serve m")


def test_what_no_command_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        render_script(["a\0b"], {})
    with pytest.raises(ValueError, match="no name"):
        render_script(["a"], {"A-B": "1"})
