"""Rendering a server, importing the script and rendering the recipe gives the same server again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lcplan.base.diagnostics import has_errors
from lcplan.base.layout import parse_layout
from lcplan.engine import get
from lcplan.engine.base import ServerSpec
from lcplan.engine.importer import read
from lcplan.engine.importer.recipe import to_recipe
from lcplan.engine.shell import ContainerSpec, render_script
from lcplan.plan.desired import server_spec
from lcplan.recipe.expand import resolve_stack
from lcplan.recipe.load import load

# Any text without control characters, and pieces that shells, docker and YAML read in their own way.
nasty = st.one_of(
    st.sampled_from(
        [*"'\"\\$`!#&|;<>(){}[]*?~ =%@:,", "$HOME", "$(id)", "`id`", "${A:-b}", "a b", "'\"'", "\\\n", "a\nb", "no",
         "null", "1e3", "0x10", "…", "—x", "“q”", "{{ a }}", "@RUN_ID@", "# c", "--x", "-", "a,b", "key=value", "<a>"]
    ),
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=12),
)  # fmt: skip
names = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,11}(/[A-Za-z][A-Za-z0-9._-]{0,11})?", fullmatch=True)
scalars = st.one_of(st.booleans(), st.integers(-5, 10**9), nasty)
objects = st.dictionaries(nasty, st.one_of(scalars, st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=3)

VLLM: dict[str, st.SearchStrategy[Any]] = {
    "max-num-seqs": st.integers(1, 4096),
    "gpu-memory-utilization": st.sampled_from([0.9, 0.85, 0.5, 1.0]),
    "max-num-batched-tokens": st.integers(1, 10**6),
    "kv-cache-dtype": st.sampled_from(["fp8", "auto"]),
    "enable-prefix-caching": st.booleans(),
    "trust-remote-code": st.just(True),
    "chat-template": nasty,
    "reasoning-parser": names,
    "seed": st.integers(0, 2**31),
    "hf-overrides": objects,
    "kv-transfer-config": st.just({"kv_connector": "NixlConnector", "kv_role": "kv_both"}),
    "allowed-origins": st.lists(nasty, min_size=1, max_size=3),
}
SGLANG: dict[str, st.SearchStrategy[Any]] = {
    "max-running-requests": st.integers(1, 4096),
    "mem-fraction-static": st.sampled_from([0.9, 0.85, 0.5]),
    "chunked-prefill-size": st.integers(-1, 10**6),
    "attention-backend": st.just("fa3"),
    "disable-radix-cache": st.just(True),
    "chat-template": nasty,
    "json-model-override-args": objects,
    "cuda-graph-bs": st.lists(st.integers(1, 512), min_size=1, max_size=4),
}
LAYOUTS = ["tp1", "tp4", "tep8", "dp4ep4", "tp2pp2", "tp8dcp4"]


@st.composite
def specs(draw: st.DrawFn) -> ServerSpec:
    kind, version = draw(st.sampled_from([("vllm", "0.31.0"), ("sglang", "0.5.21")]))
    flags = VLLM if kind == "vllm" else SGLANG
    chosen = draw(st.lists(st.sampled_from(sorted(flags)), unique=True))
    args = {name: draw(flags[name]) for name in chosen}
    context = draw(st.one_of(st.none(), st.integers(1, 10**7)))
    layout = parse_layout(draw(st.sampled_from(LAYOUTS)))
    return ServerSpec(kind, version, draw(names), None, context, layout, args)


variables = st.dictionaries(st.sampled_from(["NCCL_DEBUG", "LC_A", "LC_B", "_x1"]), nasty)


def again(text: str, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The argv and environment of the recipe that a script's import gives."""
    imported = read(text)
    assert not imported.failed and not imported.unresolved, (imported.unresolved, imported.findings)
    recipe = to_recipe(imported, "cmd.sh")
    assert not has_errors(recipe.diagnostics), recipe.diagnostics
    (folder / "stack.yaml").write_text(recipe.text, encoding="utf-8")
    recipes = load([folder])
    (name,) = recipes.data["stacks"]
    stack = resolve_stack(recipes.data, name, None)
    spec = server_spec(recipes, stack)
    return get(spec.kind).argv(spec, port=1, served_name="x"), dict(stack.get("env", {}))


def flags(spec_argv: list[str]) -> list[str]:
    return sorted("\0".join(group) for group in _groups(spec_argv))


def _groups(argv: list[str]) -> list[list[str]]:
    out: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            out.append([])
        out[-1].append(word)
    return out


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs(), variables, st.booleans())
def test_render_import_render_is_the_identity(spec: ServerSpec, env: dict[str, str], docker: bool) -> None:
    argv = get(spec.kind).argv(spec, port=1, served_name="x")
    tag = f"v{spec.version}"
    image = f"vllm/vllm-openai:{tag}" if spec.kind == "vllm" else f"lmsysorg/sglang:{tag}"
    box = ContainerSpec(image, "lc-a", gpus=("0", "1"), ipc="host", network="host", volumes=("/a b:/c:ro",))
    text = render_script(argv, env, container=box if docker else None)
    with tempfile.TemporaryDirectory() as folder:
        got, kept = again(text, Path(folder))
    assert flags(got) == flags(argv)
    assert kept == env
