"""An import -> a recipe (engines, models, stacks), and the proof that the recipe starts the same server."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML

from lcplan.base.diagnostics import Diagnostic, error, has_errors, warning
from lcplan.base.layout import parse_layout
from lcplan.engine import catalogue as catalogues
from lcplan.engine import get
from lcplan.engine.base import ServerSpec
from lcplan.engine.importer.arguments import FIELDS, SECRET_FLAGS
from lcplan.engine.importer.imported import Imported
from lcplan.engine.importer.result import is_secret

_PLACEMENT = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
# Flags that lcplan sets itself at launch.
_OURS = {"host", "port", "served-model-name", "model", "model-path"}
_LAYOUT = {"tp", "dp", "pp", "ep", "dcp"}
_SIZES = {name for fields in FIELDS.values() for name, key in fields.items() if key in _LAYOUT}
# Container options that lcplan decides (name, GPUs, restarts, ...) or that change nothing for the engine.
_HANDLED = {
    *("name", "service", "detach", "rm", "interactive", "tty", "restart", "sudo", "client", "numactl", "command"),
    *(
        "ipc",
        "network",
        "shm_size",
        "ulimit",
        "ulimits",
        "user",
        "entrypoint",
        "shell_wrapper",
        "pull_policy",
        "runtime",
    ),
    *(
        "device",
        "log_opt",
        "log_driver",
        "cpuset_cpus",
        "cpuset_mems",
        "healthcheck",
        "init",
        "hostname",
        "publish_all",
    ),
}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc|dev)\d+)?)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)[^}]*\}|\$([A-Za-z_]\w*)|\$([1-9])|\$\{")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of an import: its data, the YAML text, and what is to be said (an error: do not use it)."""

    data: dict[str, Any]
    text: str
    diagnostics: list[Diagnostic] = field(default_factory=list)


def to_recipe(imported: Imported, source: str) -> Recipe:
    """Return the recipe of a served import. Unless the engine's arguments hold unknowns it is proven: rendering
    it gives the same flags, else an error names those that differ."""
    maker = _Maker(imported)
    data = maker.make()
    text = _yaml(data, [f"Imported from {source}.", *maker.notes])
    problems = list(maker.problems)
    unknown = _unknown(imported)
    if unknown:
        hint = f"not known: {', '.join(unknown)}"
        problems.append(warning("recipe-not-proven", "the command is not known whole, so the recipe is unproven", hint))
    elif not has_errors(problems):
        stack = (maker.version, maker.layout, maker.context, maker.args)
        problems += prove(imported, *stack)
    return Recipe(data, text, problems)


def prove(
    imported: Imported, version: str | None, layout: str, context: int | None, args: Mapping[str, Any]
) -> list[Diagnostic]:
    """Render a stack and compare its flags with those of the import; returns an error that names what differs."""
    kind = imported.engine or ""
    model = str(imported.model)
    spec = ServerSpec(kind, version, model, None, context, parse_layout(layout), args)
    catalogue = catalogues.load(kind, version)
    rendered = get(kind).argv(spec, port=1, served_name="x")
    skip = 3 if kind == "vllm" else 5
    ours = _comparable(catalogue.parse(rendered[skip:]).flags)
    theirs = _comparable(catalogue.parse(imported.tokens).flags)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    identity = get(kind).identity(spec)
    if identity.get("model") != model:
        differing.insert(0, "model")
    if not differing:
        return []
    flags = ", ".join(f"--{name}" for name in differing)
    hint = "; ".join(f"--{n}: was {theirs.get(n)!r}, would be {ours.get(n)!r}"[:160] for n in differing[:3])
    return [error("import-not-proven", f"the recipe would not start the same server: {flags}", hint)]


class _Maker:
    def __init__(self, imported: Imported) -> None:
        self.imported = imported
        self.kind = imported.engine or ""
        self.notes: list[str] = []
        self.problems: list[Diagnostic] = []
        self.variables: dict[str, dict[str, str]] = {}
        found = _VERSION.search(imported.tag or "")
        self.version = found[1] if found else None
        self.catalogue = catalogues.load(self.kind, self.version)
        self.args: dict[str, Any] = {}
        self.layout = "tp1"
        self.context: int | None = None
        self.name = _safe(imported.served_model_name, imported.model)

    def make(self) -> dict[str, Any]:
        """Return the recipe's data in the order people read it."""
        imported = self.imported
        self.layout = self.layout_text()
        self.arguments()
        engine: dict[str, Any] = {}
        if imported.image:
            tag = f":{imported.tag}" if imported.tag else ""
            engine["image"] = self.text(imported.image + tag + (f"@{imported.digest}" if imported.digest else ""))
        if self.version:
            engine["version"] = self.version
        model: dict[str, Any] = {"path": self.text(str(imported.model))}
        stack: dict[str, Any] = {"model": self.name, "engine": self.kind, "layout": self.layout}
        if self.context is not None:
            stack["context"] = self.context
        elif isinstance(imported.max_model_len, str) and "$" in imported.max_model_len:
            stack["context"] = self.text(imported.max_model_len, "tokens")
        if self.args:
            stack["args"] = {name: self.value(value) for name, value in self.args.items()}
        env = self.environment()
        if env:
            stack["env"] = env
        if imported.form not in ("bare", "args"):
            stack["docker"] = self.docker()
        else:
            engine["runtime"] = "process"
        data: dict[str, Any] = {"lcplan": 1}
        if self.variables:
            data["variables"] = self.variables
        data["engines"] = {self.kind: engine}
        data["models"] = {self.name: model}
        data["stacks"] = {self.name: stack}
        return data

    def layout_text(self) -> str:
        imported = self.imported
        sizes = {key: getattr(imported, key) for key in ("tp", "dp", "pp", "ep", "dcp")}
        known = {key: size for key, size in sizes.items() if isinstance(size, int) and not isinstance(size, bool)}
        tp, dp, pp, ep, dcp = (known.get(key, 1) for key in ("tp", "dp", "pp", "ep", "dcp"))
        for key, size in sizes.items():
            if isinstance(size, str):
                return f"{key}{self.text(size)}"
        if self.kind == "sglang" and dp > 1:
            if imported.flags.get("enable-dp-attention") is not True:
                hint = "run one server for each replica, or add --enable-dp-attention"
                self.problems.append(error("layout-not-expressible", "plain data-parallel replicas of SGLang", hint))
            elif tp % dp:
                self.problems.append(error("layout-not-expressible", f"tp {tp} is not divisible by dp {dp}"))
            else:
                tp //= dp
        if imported.ep is True:
            ep = tp * dp
        if ep == tp and tp > 1 and dp == 1:
            parts = [f"tep{tp}"]
        else:
            parts = [f"{name}{size}" for name, size in (("tp", tp), ("dp", dp), ("ep", ep)) if size > 1]
        parts += [f"{name}{size}" for name, size in (("pp", pp), ("dcp", dcp)) if size > 1]
        try:
            return parse_layout("".join(parts) or "tp1").text
        except ValueError as fault:
            self.problems.append(error("layout-not-expressible", str(fault)))
            return "tp1"

    def arguments(self) -> None:
        imported = self.imported
        context = imported.max_model_len
        self.context = context if isinstance(context, int) and context > 0 else None
        for name, key in FIELDS[self.kind].items():
            if key in ("max_num_seqs", "gpu_mem_util", "kv_cache_dtype", "nnodes", "node_rank"):
                self.put(name, getattr(imported, key))
        if self.context is None and not (isinstance(context, str) and "$" in context):
            self.put("max-model-len" if self.kind == "vllm" else "context-length", context)
        if imported.ep is True and self.layout in ("tp1",):
            self.put("enable-expert-parallel", True)
        for name, value in imported.flags.items():
            if name in _OURS or (name == "enable-dp-attention" and imported.dp and imported.dp != 1):
                continue
            if name in SECRET_FLAGS:
                hint = "set VLLM_API_KEY on the node" if (self.kind, name) == ("vllm", "api-key") else "add it by hand"
                self.problems.append(warning("secret-left-out", f"--{name} is a secret and not in the recipe", hint))
                continue
            self.put(name, value)

    def put(self, name: str, value: Any) -> None:
        if value is None:
            return
        match = self.catalogue.match(f"--{name}")
        if match is None:
            self.args[name] = value
            return
        flag, negated = match
        if negated and value is True:
            self.args[flag.name] = False
            return
        if isinstance(value, (dict, list)) and flag.kind not in ("json", "list"):
            value = json.dumps(value)
        if isinstance(value, str) and "$" not in value:
            with suppress(ValueError):
                value = self.catalogue.typed(flag, value)
        if value is not None:
            self.args[flag.name] = value

    def environment(self) -> dict[str, Any]:
        env: dict[str, Any] = {}
        if self.kind == "vllm" and "api-key" in self.imported.flags:
            env["VLLM_API_KEY"] = {"from_env": "VLLM_API_KEY"}
        for name, value in self.imported.env.items():
            if name in _PLACEMENT:
                self.notes.append(f"{name}={value} is left out: the quad decides.")
                continue
            alone = _VARIABLE.fullmatch(value) if value else None
            if value is None or is_secret(name):
                env[name] = {"from_env": name}
            elif alone and (alone[1] or alone[2]) in self.imported.unresolved:
                env[name] = {"from_env": alone[1] or alone[2]}
            else:
                env[name] = self.text(value)
        return env

    def docker(self) -> dict[str, Any]:
        options = self.imported.container
        out: dict[str, Any] = {key: options[key] for key in ("ipc",) if isinstance(options.get(key), str)}
        # Ports are lcplan's: it picks one of the quad and the engine listens on it.
        out["network"] = options.get("network") if isinstance(options.get("network"), str) else "host"
        for key in ("shm_size", "user"):
            if options.get(key) is not None:
                out[key] = str(options[key])
        limits = _ulimits(options)
        if limits:
            out["ulimits"] = limits
        if self.imported.volumes:
            out["volumes"] = [self.text(volume) for volume in self.imported.volumes]
        dropped = sorted(key for key in options if key not in _HANDLED)
        if dropped:
            self.notes.append(f"Left out, because a recipe has no word for it: {', '.join(dropped)}.")
        return out

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(inner) for key, inner in value.items()}
        return [self.value(inner) for inner in value] if isinstance(value, list) else value

    def text(self, text: str, kind: str = "text") -> str:
        """Unknown shell variables become variables of the recipe, to be given with --var."""

        def name(found: re.Match[str]) -> str:
            if (found[1] or found[2] or f"${found[3]}") not in self.imported.unresolved:
                return found[0].replace("${", "$${")
            variable = found[1] or found[2] or f"arg{found[3]}"
            self.variables.setdefault(variable, {"type": kind})
            return "${" + variable + "}"

        return _VARIABLE.sub(name, text)


def _unknown(imported: Imported) -> list[str]:
    """The unknown variables that the engine's arguments depend on."""
    texts = [*imported.tokens, str(imported.model)]
    held = [f.about for f in imported.findings if f.code in ("unresolved-variable-may-hold-flags", "elided-arguments")]
    named = [
        name
        for name in imported.unresolved
        if any(name in text for text in texts if "$" in text or "{{" in text or "`" in text)
    ]
    return list(dict.fromkeys([*named, *held]))


def _comparable(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags without what lcplan sets, sizes of 1, secrets and what is off anyway; JSON in texts as JSON."""
    out: dict[str, Any] = {}
    for name, value in flags.items():
        if name in _OURS or name in SECRET_FLAGS or value is None or (name in _SIZES and value in (1, "1")):
            continue
        if isinstance(value, str) and value[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        out[name] = value
    return out


def _ulimits(options: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    stated = options.get("ulimits")
    for name, value in stated.items() if isinstance(stated, dict) else ():
        if isinstance(value, dict):
            soft, hard = value.get("soft"), value.get("hard")
            value = soft if soft == hard else f"{soft}:{hard}"
        out[str(name)] = value
    for item in options.get("ulimit", []):
        name, _, value = str(item).partition("=")
        out[name] = int(value) if value.lstrip("-").isdecimal() and len(value) < 20 else value
    return out


def _safe(*candidates: Any) -> str:
    """A name for model and stack: the served name, else the last part of the model's path."""
    for candidate in candidates:
        text = candidate[0] if isinstance(candidate, list) and candidate else candidate
        if isinstance(text, str) and "$" not in text:
            name = re.sub(r"[^a-z0-9.]+", "_", text.rstrip("/").rpartition("/")[2].lower()).strip("_.")
            name = re.sub(r"_{2,}", "_", re.sub(r"\.{2,}", ".", name))
            if name:
                return name
    return "imported"


def _yaml(data: dict[str, Any], notes: list[str]) -> str:
    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    out = io.StringIO()
    yaml.dump(data, out)
    return "".join(f"# {note}\n" for note in notes) + out.getvalue()
