"""`lcplan capacity`: what fits on the stacks of recipes, or from a model's config.json and an engine's flags."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from lcplan.base.diagnostics import Diagnostic, fail, has_errors, warning
from lcplan.base.layout import Layout, parse_layout
from lcplan.base.units import parse_gib
from lcplan.capacity.cap import sequence_cap
from lcplan.capacity.fit import fit
from lcplan.capacity.predict import Launch, Prediction, predict
from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Var
from lcplan.cli.output import show, show_errors, show_json, variables
from lcplan.view.capacity import prediction_text, tables_text

Paths = Annotated[list[Path] | None, typer.Argument(metavar="[RECIPES]...", help="Recipes; `recipes` by default.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A model's config.json, or its folder.")]
Engine = Annotated[str, typer.Option("--engine", help="vllm or sglang.")]
Version = Annotated[str, typer.Option("--engine-version", help="The engine's version; the newest known by default.")]
Gpu = Annotated[str, typer.Option("--gpu", help="GPU model, such as H200.")]
Memory = Annotated[
    str, typer.Option("--gpu-memory", metavar="SIZE", help="Its memory as CUDA sees it, such as 139.8GiB.")
]
LayoutText = Annotated[str, typer.Option("--layout", help="tp2, tep4, dp4, tp8dcp8, ...")]
Args = Annotated[str, typer.Option("--args", help="The engine's own arguments, as one text.")]
KvMemory = Annotated[str, typer.Option("--kv-memory", metavar="SIZE", help="A rank's KV memory, such as 95.44GiB.")]


def register(app: typer.Typer) -> None:
    """Add the command `capacity`."""
    app.command("capacity", help="What fits: tables for recipes, or a calculation from a model's config.json.")(
        _capacity
    )


def _capacity(
    paths: Paths = None,
    config: Config = None,
    engine: Engine = "vllm",
    engine_version: Version = "",
    gpu: Gpu = "",
    gpu_memory: Memory = "",
    layout: LayoutText = "tp1",
    args: Args = "",
    kv_memory: KvMemory = "",
    var: Var = None,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    if config is None:
        _tables(paths or [Path("recipes")], variables(var), state, as_json)
    elif paths:
        raise typer.BadParameter("give recipes or --config, not both")
    else:
        _calculate(config, engine, engine_version, gpu, gpu_memory, layout, args, kv_memory, as_json)


def _tables(paths: list[Path], given: dict[str, str], state: Path, as_json: bool) -> None:
    from lcplan.apply.capacity import tables
    from lcplan.recipe.load import load

    made, problems = tables(load(paths, given), state)
    show_errors(problems)
    if as_json:
        show_json(made)
    else:
        show(tables_text(made, max(120, shutil.get_terminal_size((160, 24)).columns)))


def _calculate(
    config: Path, engine: str, engine_version: str, gpu: str, gpu_memory: str, layout: str, args: str, kv_memory: str,
    as_json: bool,
) -> None:  # fmt: skip
    spread = _layout(layout)
    flags, problems = _flags(engine, engine_version, args)
    show_errors(problems)
    if has_errors(problems):
        raise typer.Exit(1)
    launch = Launch(engine, engine_version, gpu, spread, flags, _size("--gpu-memory", gpu_memory))
    made = predict(_config(config), launch, _size("--kv-memory", kv_memory))
    show_errors(made.diagnostics)
    fits = _fits(made, launch)
    if as_json:
        show_json({**made.as_json(), "fits": {str(length): count for length, count in fits.items()}})
    else:
        show(prediction_text(made, fits, shutil.get_terminal_size((120, 24)).columns))


def _fits(made: Prediction, launch: Launch) -> dict[int, int | None]:
    """What fits over all engine ranks, at powers of two up to the context."""
    if made.pool_tokens is None or made.max_model_len is None:
        return {}
    cap, source = sequence_cap(
        launch.engine,
        launch.version,
        launch.gpu,
        launch.layout,
        launch.flags,
        pool_tokens=made.pool_tokens,
        context=made.max_model_len,
    )
    lengths = [size for power in range(12, 21) if (size := 2**power) <= made.max_model_len]
    return {
        length: fit(
            made.pool_tokens,
            made.engines,
            length,
            cap,
            cap_source=source,
            pool_source="predicted",
            printed_concurrency=made.concurrency,
            max_model_len=made.max_model_len,
            law=made.cost,
        ).effective
        for length in dict.fromkeys([*lengths, made.max_model_len])
    }


def _config(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        loaded = json.loads(file.read_bytes())
    except OSError as wrong:
        raise fail("config-unreadable", f"{file}: {wrong.strerror}", "give the model's config.json") from None
    except ValueError as wrong:
        raise fail("config-unreadable", f"{file} is no JSON: {wrong}", "give the model's config.json") from None
    if not isinstance(loaded, dict):
        raise fail("config-unreadable", f"{file} holds no JSON object", "give the model's config.json")
    return loaded


def _flags(engine: str, version: str, args: str) -> tuple[dict[str, Any], list[Diagnostic]]:
    from lcplan.engine.catalogue import load

    try:
        tokens = shlex.split(args)
    except ValueError as wrong:
        raise fail("bad-arguments", f"--args: {wrong}") from None
    catalogue = load(engine, version or None)
    parsed = catalogue.parse(tokens)
    if catalogue.exact:
        return parsed.flags, parsed.problems
    # Another version's table stands in: what it does not know may well exist.
    return parsed.flags, [warning(p.code, p.message, p.hint, p.source) for p in parsed.problems]


def _layout(text: str) -> Layout:
    try:
        return parse_layout(text)
    except ValueError as wrong:
        raise fail("bad-layout", str(wrong)) from None


def _size(option: str, text: str) -> float | None:
    try:
        return parse_gib(text) if text else None
    except ValueError as wrong:
        raise fail("bad-size", f"{option}: {wrong}") from None
