"""Flag tables made from source, and the shipped ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lcplan.base.diagnostics import LcplanError
from lcplan.cli import engine_catalog
from lcplan.engine import catalog_tool, get
from lcplan.engine.catalog_source import Package
from lcplan.engine.catalogue import FOLDERS, Flag, load, versions
from tests.test_engine_command import argv, spec

VLLM = {
    "vllm/__init__.py": "",
    "vllm/config/__init__.py": "from .model import ModelConfig, Extra\n",
    "vllm/config/types.py": "Mode = Literal['b', 'a']\nNAMES = ['x', *['y']]\n",
    "vllm/config/model.py": """
from typing import TYPE_CHECKING
from vllm.config.types import Mode
if TYPE_CHECKING:
    from somewhere import Lazy
else:
    Lazy = Any
@config
class Extra:
    depth: int = 1
    width: float | None = None
@config
class ModelConfig:
    max_model_len: int = Field(default=None, gt=0)
    mode: Mode = 'a'
    free: str | Mode = 'a'
    on: bool | None = None
    share: float = 0.5
    budget: int | None = None
    names: list[str] = field(default_factory=list)
    extra: Extra | None = None
    maybe: bool | str | None = None
    lazy: dict | Lazy = field(default_factory=dict)
    backend: Mode = 'a'
""",
    "vllm/engine/arg_utils.py": """
from vllm.config import ModelConfig
def f():
    human_readable_int_args = {"budget"}
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group()
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--mode", "-m", **model_kwargs["mode"])
        group.add_argument("--free", **model_kwargs["free"])
        group.add_argument("--on", **{**model_kwargs["on"], "default": None})
        group.add_argument("--share", **model_kwargs["share"])
        group.add_argument("--budget", **model_kwargs["budget"])
        group.add_argument("--names", **model_kwargs["names"])
        group.add_argument("--extra", **model_kwargs["extra"])
        group.add_argument("--maybe", **model_kwargs["maybe"])
        group.add_argument("--lazy", **model_kwargs["lazy"])
        backend_kwargs = model_kwargs["backend"]
        backend_kwargs["type"] = lambda s: s.lower().replace("-", "_")
        group.add_argument("--backend", **backend_kwargs)
        return parser
""",
    "vllm/entrypoints/cli_args.py": """
@config
class FrontendArgs:
    port: int = 8000
    origins: list[str] = field(default_factory=lambda: ["*"])
    middleware: list[str] = field(default_factory=lambda: [])
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["origins"]["type"] = json.loads
        del frontend_kwargs["origins"]["nargs"]
        frontend_kwargs["middleware"]["action"] = "append"
        return frontend_kwargs
def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?")
    parser.add_argument("--headless", action="store_true", default=False)
    return parser
""",
}
EXPECTED = {
    "model_tag": {"kind": "positional"},
    "--headless": {"kind": "switch", "default": False},
    "--port": {"kind": "value", "type": "int", "default": 8000},
    "--origins": {"kind": "json", "type": "json", "default": ["*"]},
    "--middleware": {"kind": "list", "action": "_AppendAction", "default": []},
    "--max-model-len": {"type": "int(human|auto)", "default": None},
    "--mode": {"choices": ["a", "b"], "aliases": ["-m"], "default": "a"},
    "--free": {"suggested": ["a", "b"], "choices": None},
    "--on": {"kind": "bool-optional", "negative": ["--no-on"], "nullable": False},
    "--share": {"type": "float", "default": 0.5},
    "--budget": {"type": "int(human)", "nullable": True},
    "--names": {"kind": "list", "nargs": "+", "type": "str"},
    "--extra": {"kind": "json", "json_fields": [{"name": "depth"}, {"name": "width"}], "nullable": True},
    "--maybe": {"kind": "value", "nargs": "?", "bare_flag_value": True},
    "--lazy": {"kind": "json", "type": "str|json-object"},
    "--backend": {"choices": ["a", "b"], "note": "value lower-cased and '-'->'_' before choice check"},
}


def test_vllm_is_read_from_its_config_classes() -> None:
    made, problems = catalog_tool.table("vllm", "1.0", Package(VLLM))
    flags = {entry["flag"]: entry for entry in made["flags"]}
    assert list(flags) != [] and set(flags) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        assert {key: flags[name].get(key) for key in expected} == expected, name
    assert not problems
    assert json.loads(catalog_tool.text(made)) == made


def test_sglang_is_read_from_annotated_fields_and_from_calls() -> None:
    source = """
CHOICES = ["x", "y"]
def names():
    return list(CHOICES)
class ServerArgs:
    model_path: A[str, Arg(help="m", aliases=["--model"])]
    ep: A[int, Arg(help="e", cli_name="--ep-size", choices=[1, 2])] = 1
    flag: A[bool, "switch"] = False
    sizes: A[Optional[List[int]], Arg(help="s", nargs="*")] = None
    hidden: A[bool, Arg(no_cli=True)] = False
    config: A[Optional[dict], Arg(help="c", type_parser=json.loads)] = None
    length: A[Optional[int], Arg(help="l", type_parser=human_readable_int)] = None
    plain: int = 3
    @staticmethod
    def add_cli_args(parser):
        add_cli_args_from_dataclass(parser, ServerArgs)
        found = names()
        parser.add_argument("--parser", type=str, choices=["auto"] + found)
        parser.add_argument("--dynamic", type=str, choices=[c for c in found])
"""
    made, problems = catalog_tool.table("sglang", "1.0", Package({"sglang/srt/server_args.py": source}))
    flags = {entry["flag"]: entry for entry in made["flags"]}
    kinds = {name: (entry["kind"], entry["type"]) for name, entry in flags.items()}
    assert kinds == {
        "--model-path": ("value", "str"),
        "--ep-size": ("value", "int"),
        "--flag": ("switch", "bool"),
        "--sizes": ("list", "int"),
        "--config": ("json", "json"),
        "--length": ("value", "int(human)"),
        "--parser": ("value", "str"),
        "--dynamic": ("value", "str"),
    }
    assert (flags["--model-path"]["aliases"], flags["--ep-size"]["choices"]) == (["--model"], [1, 2])
    assert flags["--parser"]["choices"] == ["auto", "x", "y"]
    assert [problem.code for problem in problems] == ["catalogue-unread"]


def test_a_package_without_flags_or_reader_is_refused() -> None:
    with pytest.raises(LcplanError, match="declares no flags"):
        catalog_tool.table("vllm", "1.0", Package({}))
    with pytest.raises(LcplanError, match="has no reader"):
        catalog_tool.make("numpy==1.0")


def test_the_verb_writes_a_table(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_tool, "_installed", lambda kind, version: ("1.0", Package(VLLM)))
    app = typer.Typer()
    engine_catalog.register(app)
    file = tmp_path / "new" / "1.0.json"
    result = CliRunner().invoke(app, ["vllm==1.0", "-o", str(file)])
    assert result.exit_code == 0, result.output
    assert f"{file}: {len(EXPECTED)} flags of vllm 1.0" in result.output
    assert json.loads(file.read_text())["count"] == len(EXPECTED)


@pytest.mark.parametrize("kind", FOLDERS)
def test_shipped_tables_load(kind: str) -> None:
    for version in versions(kind):
        catalogue = load(kind, version)
        assert catalogue.exact
        found = [catalogue.find(f"--{name}") for name in catalogue.names()]
        assert [flag.name for flag in found if flag] == catalogue.names()


def _values(flag: Flag) -> st.SearchStrategy[Any]:
    words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
    if flag.kind in ("switch", "bool-optional"):
        return st.booleans()
    if flag.choices is not None:
        one: st.SearchStrategy[Any] = st.sampled_from([choice for choice in flag.choices if choice is not None])
    elif flag.type.startswith("int"):
        one = st.integers(0, 2**40)
    elif flag.type == "float":
        one = st.floats(0, 1, allow_nan=False)
    else:
        one = words
    if flag.kind == "json":
        keys = st.sampled_from(flag.json_fields) if flag.json_fields else words
        return st.dictionaries(keys, st.integers() | words | st.booleans(), max_size=3)
    return st.lists(one, min_size=1, max_size=3) if flag.kind == "list" else one


@given(st.data(), st.sampled_from(["vllm", "sglang"]))
def test_any_args_render_to_a_command_that_parses_back_to_their_identity(data: st.DataObject, kind: str) -> None:
    names = [name for name in load(kind, None).names() if name not in ("host", "port", "served-model-name", "config")]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    flags = [flag for name in chosen if (flag := load(kind, None).find(f"--{name}"))]
    args = {flag.name: data.draw(_values(flag), label=flag.name) for flag in flags}
    server = spec(kind, version=None, args=args)
    parsed = load(kind, None).parse(argv(server)[{"vllm": 3, "sglang": 5}[kind] :])
    assert not parsed.problems
    known = {key: value for key, value in parsed.flags.items() if key not in ("host", "port", "served-model-name")}
    identity = get(kind).identity(server)
    del identity["model"]
    known.pop("model", None)
    identity.pop("model", None)
    assert known == identity
