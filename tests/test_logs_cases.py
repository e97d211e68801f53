"""Every case of startup.json and startup_more.json, through the library and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lcplan.cli import engine_parse
from lcplan.engine.logs import FAILURES, LogReader, classify_exit, last_error, parse_log

CASES = Path(__file__).parent / "cases"
ALL = [
    case for name in ("startup", "startup_more") for case in json.loads((CASES / f"{name}.json").read_text())["cases"]
]
NULL_IS_CHECKED = {"failure", "ready", "tp", "pp", "dp"}
GIB = 0.005


def differences(expected: dict[str, Any], facts: dict[str, Any]) -> list[str]:
    """Return what differs, by the rules in the `fields` of startup.json."""
    found = []
    for key, want in expected.items():
        got = facts[key]
        if want is None:
            right = key not in NULL_IS_CHECKED or got is None
        elif key == "kv_tokens":
            right = got == want
        elif isinstance(want, list):
            right = not want or (
                len(got) == len(want) and all(equal(key, *pair) for pair in zip(want, got, strict=True))
            )
        elif isinstance(want, dict):
            right = all(equal(name, value, got.get(name)) for name, value in want.items())
        else:
            right = equal(key, want, got)
        if not right:
            found.append(f"{key}: expected {want}, got {got}")
    return found


def equal(name: str, want: object, got: object) -> bool:
    if (
        isinstance(want, (int, float))
        and not isinstance(want, bool)
        and (name.endswith("_gib") or isinstance(want, float))
    ):
        return isinstance(got, (int, float)) and abs(got - want) <= GIB
    return type(want) is type(got) and want == got


@pytest.mark.parametrize("case", ALL, ids=[case["id"] for case in ALL])
def test_case(case: dict[str, Any]) -> None:
    facts = parse_log(case["text"])
    assert differences(case["expected"], facts.as_json()) == []
    assert set(case["expected"]) <= set(facts.as_json())
    assert facts.failure is None or facts.failure in FAILURES


@pytest.mark.parametrize("case", ALL, ids=[case["id"] for case in ALL])
def test_the_named_engine_reads_the_same(case: dict[str, Any]) -> None:
    kind = case["engine"].split("-")[0]
    if kind in ("vllm", "sglang"):
        assert differences(case["expected"], parse_log(case["text"], kind).as_json()) == []


@pytest.mark.parametrize("case", ALL, ids=[case["id"] for case in ALL])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunks_make_no_difference(case: dict[str, Any], size: int) -> None:
    raw, reader = case["text"].encode(), LogReader()
    for at in range(0, len(raw), size):
        reader.feed(raw[at : at + size])
        if at % 5 == 0:
            reader.facts()
    assert reader.facts() == parse_log(case["text"])


@pytest.mark.parametrize("case", ALL, ids=[case["id"] for case in ALL])
@pytest.mark.parametrize("prefix", ["serve-1  | ", "2026-03-04T05:06:07.123Z ", "[pod/serve-0/engine] "])
def test_prefixes_of_other_tools_make_no_difference(case: dict[str, Any], prefix: str) -> None:
    lines = case["text"].replace("\r\n", "\n").split("\n")
    text = "\n".join(f"{prefix}{line}" if line.strip() else line for line in lines)
    assert differences(case["expected"], parse_log(text).as_json()) == []


def app() -> typer.Typer:
    made = typer.Typer()
    made.callback()(lambda: None)
    engine_parse.register(made)
    return made


def test_command_line_reads_standard_input_and_files(tmp_path: Path) -> None:
    case = next(case for case in ALL if case["expected"]["failure"] == "kv_too_small")
    piped = CliRunner().invoke(app(), ["engine", "parse", "-", "--json"], input=case["text"])
    assert piped.exit_code == 0
    assert differences(case["expected"], json.loads(piped.stdout)) == []
    file = tmp_path / "server.log"
    file.write_text(case["text"])
    text = CliRunner().invoke(app(), ["engine", "parse", str(file), "--engine", "vllm"])
    assert text.exit_code == 0
    assert "kv_too_small" in text.stdout


def test_command_line_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app(), ["engine", "parse", str(tmp_path / "none.log")])
    assert missing.exit_code == 1
    assert "file-unreadable" in missing.stderr
    other = CliRunner().invoke(app(), ["engine", "parse", "-", "--engine", "vlm"], input="")
    assert other.exit_code == 1
    assert "unknown-engine" in other.stderr


def test_any_server_by_generic_errors_only() -> None:
    oom = parse_log("loading\nRuntimeError: CUDA out of memory\n", "openai")
    assert (oom.failure, oom.ready, oom.engine) == ("oom", False, "openai")
    assert parse_log("OSError: [Errno 98] Address already in use", "openai").failure == "port_in_use"
    assert parse_log("Traceback (most recent call last):\nKeyError: 'x'", "openai").failure == "unknown_error"
    assert parse_log("GPU KV cache size: 10 tokens", "openai").kv_tokens == ()
    assert parse_log("INFO:     Application startup complete.", "openai").ready is True


def test_failures_have_a_sentence_and_a_hint() -> None:
    text = (
        "ValueError: To serve at least one request with the model's max seq len (131072), "
        "(16.0 GiB KV cache is needed, which is larger than the available KV cache memory (6.26 GiB). "
        "Based on the available memory, the estimated maximum model length is 51312."
    )
    failure = classify_exit(parse_log(text), 1)
    assert failure is not None
    assert failure.kind == "kv_too_small"
    assert "16.0 GiB needed, 6.26 GiB available" in failure.sentence
    assert "51,312" in failure.hint
    for case in ALL:
        facts = parse_log(case["text"])
        told = classify_exit(facts, None)
        assert (told.kind if told else None) == facts.failure
        assert told is None or (told.sentence and told.hint)


def test_exit_codes_where_the_log_is_silent() -> None:
    silent = parse_log("")
    assert classify_exit(silent, 0) is None
    assert classify_exit(silent, None) is None
    kinds = {code: getattr(classify_exit(silent, code), "kind", None) for code in (-9, 137, 2, 1)}
    assert kinds == {-9: "worker_died", 137: "worker_died", 2: "bad_flag", 1: "unknown_error"}
    assert (
        classify_exit(parse_log("INFO 11-29 17:06:31 [a.py:1] [shutdown] API server: shutdown triggered"), -15) is None
    )


def test_last_error_is_the_cause() -> None:
    text = "[2026-01-15 10:00:00] Received sigquit from a child process.\nRuntimeError: CUDA out of memory."
    assert last_error(text) == "RuntimeError: CUDA out of memory."
    assert last_error("all is well") is None
