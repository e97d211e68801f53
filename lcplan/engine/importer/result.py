"""A container and the server in it -> the import's result: fields, GPUs, secrets, and what to say about them."""

from __future__ import annotations

import re
from typing import Any

from lcplan.engine.importer.arguments import SECRET, read_arguments
from lcplan.engine.importer.container import Container, split_image, visible_gpus
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.imported import Imported
from lcplan.engine.importer.program import Program
from lcplan.engine.importer.words import Word, unresolved
from lcplan.engine.vllm.removed import REMOVED_ENV

DEFAULT_PORTS = {"vllm": 8000, "sglang": 30000}
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|APIKEY)$|SECRET|PASSWORD", re.IGNORECASE)
_NO_SECRET = re.compile(r"-?\d*\.?\d+|true|false|yes|no|on|off", re.IGNORECASE)
_ROCM = re.compile(r"ROCM|^HIP_|^HSA_|^ROCR_|AITER")
# Access tokens by their shape, whatever the variable that holds them is called.
_TOKEN = r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|nvapi-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,})"
_CONTAINERS = {"docker", "podman", "compose", "k8s"}


def imported(
    box: Container | None, program: Program | None, findings: list[Finding], engine: str | None = None
) -> Imported:
    """Return the result for a container and its server; no engine: a refusal that still says what could be read."""
    out = Imported(engine=engine, findings=list(findings))
    if box is None:
        out.findings += [Finding("unsupported-engine"), Finding("not-a-serving-command")]
        return out
    out.form, out.line = box.form, box.line
    out.findings += box.findings
    _image(out, box)
    if program is not None:
        _merge(box, program)
        out.findings += program.findings
    out.volumes, out.ports, out.container = box.volumes, box.ports, box.options
    out.gpus, out.gpu_count, error = visible_gpus(box)
    if error:
        out.findings.append(error)
    secrets = _env(out, box)
    if engine is None:
        out.findings += [Finding("unsupported-engine", line=box.line), Finding("not-a-serving-command", line=box.line)]
    elif program is None:
        out.findings.append(Finding("not-a-serving-command", line=box.line))
    else:
        secrets |= _served(out, engine, program)
    _network(out, box)
    if box.form in _CONTAINERS and not box.asks_for_gpu and not box.env.get("NVIDIA_VISIBLE_DEVICES"):
        out.findings.append(Finding("no-gpu-requested", line=box.line))
    words = _words(box, program)
    out.unresolved = unresolved(words)
    if box.form == "k8s":
        # `$(NAME)` in a script is Kubernetes' before it is the shell's.
        own = {f"$({name})": name for name in unresolved(box.words)}
        out.unresolved = list(dict.fromkeys(own.get(name, name) for name in out.unresolved))
    if any(word.defaulted for word in words):
        out.findings.append(Finding("defaults-taken-from-shell-expansion", line=box.line))
    out.findings = list(dict.fromkeys(out.findings))
    _hide(out, secrets)
    return out


def is_secret(name: str) -> bool:
    """Return whether an environment variable's name marks a secret."""
    return bool(_SECRET.search(name))


def _image(out: Imported, box: Container) -> None:
    if not box.image:
        return
    image = split_image(box.image)
    out.image, out.tag, out.digest = image.name, image.tag, image.digest
    out.findings += image.findings(box.line)


def _merge(box: Container, program: Program) -> None:
    """Add what the command inside a container sets by itself; a bare command's exports are its environment."""
    exported = program.exported if box.form in ("bare", "args") else {}
    box.env.update({**exported, **program.env})
    for key, value in program.options.items():
        box.options.setdefault(key, value)


def _env(out: Imported, box: Container) -> set[str]:
    """Fill in the environment; returns the secrets whose values the text holds."""
    secrets: set[str] = set()
    for name, value in box.env.items():
        if is_secret(name) and not (value and _NO_SECRET.fullmatch(value)):
            out.findings.append(Finding("secret-env", name, box.line))
            if value and "$" not in value and "{{" not in value:
                if not re.fullmatch(r"<[^<>]*>|\*+|\.{3}|x{3,}", value):
                    out.findings.append(Finding("secret-literal", name, box.line))
                    secrets.add(value)
                value = SECRET
        if name in REMOVED_ENV:
            out.findings.append(Finding("env-removed-in-later-versions", name, box.line))
        out.env[name] = value
    devices = box.options.get("device", [])
    about_rocm = any(_ROCM.search(name) for name in box.env) or "rocm" in (out.image or "").lower()
    amd = any("/dev/kfd" in str(device) for device in devices) if isinstance(devices, list) else False
    if about_rocm or amd or "amd.com/gpu" in str(box.options.get("resources", "")):
        out.findings.append(Finding("rocm", line=box.line))
    return secrets


def _served(out: Imported, engine: str, program: Program) -> set[str]:
    """Fill in what the engine's arguments say; returns the secrets among them."""
    args = read_arguments(engine, program.args, positional=program.positional)
    for key, value in args.fields.items():
        setattr(out, key, value)
    out.flags, out.tokens = args.flags, args.tokens
    out.findings += args.findings
    if not program.openai:
        out.findings.append(Finding("not-openai-server", line=out.line))
    if out.model is None:
        out.findings.append(Finding("no-model", line=out.line))
    if out.listen_port is None:
        out.listen_port = DEFAULT_PORTS[engine]
    out.world_size = _world_size(out)
    return args.secrets


def _world_size(out: Imported) -> int | None:
    factors: list[Any] = [out.tp, out.pp]
    if not (out.engine == "sglang" and out.flags.get("enable-dp-attention") is True):
        factors.append(out.dp)
    size = 1
    for factor in factors:
        if factor is None:
            continue
        if isinstance(factor, bool) or not isinstance(factor, int):
            return None
        size *= factor
    return size if out.model is not None else None


def _network(out: Imported, box: Container) -> None:
    if not box.ports or (out.listen_port is None and out.engine is not None):
        return
    if box.options.get("network") == "host":
        if box.form != "k8s":
            out.findings.append(Finding("ports-ignored-with-host-network", line=box.line))
        return
    inner = [port.rpartition(":")[2].partition("/")[0] for port in box.ports]
    known = [port for port in inner if port.isdecimal()]
    if known and isinstance(out.listen_port, int) and str(out.listen_port) not in inner:
        out.findings.append(Finding("published-port-differs-from-listen-port", known[0], box.line))


def _hide(out: Imported, secrets: set[str]) -> None:
    """Make all texts plain ones, and take known secrets out wherever else they stand."""
    known = sorted(
        (re.escape(secret) for secret in secrets if len(secret) > 5 and "$" not in secret), key=len, reverse=True
    )
    pattern = re.compile("|".join([*known, _TOKEN]))

    def hidden(value: Any) -> Any:
        if isinstance(value, dict):
            return {hidden(key): hidden(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [hidden(inner) for inner in value]
        return pattern.sub(SECRET, str(value)) if isinstance(value, str) else value

    for name in (
        "image",
        "tag",
        "model",
        "served_model_name",
        "env",
        "volumes",
        "ports",
        "container",
        "flags",
        "tokens",
    ):
        setattr(out, name, hidden(getattr(out, name)))
    out.unresolved = hidden(out.unresolved)
    out.findings = [Finding(f.code, hidden(f.about), f.line) for f in out.findings]


def _words(box: Container, program: Program | None) -> list[Word]:
    """Everything that may hold unknown variables; a script inside counts by its own words, not as one argument."""
    if program is None:
        return box.words
    inner = {id(word) for word in box.argv}
    return [*(word for word in box.words if id(word) not in inner), *program.words]
