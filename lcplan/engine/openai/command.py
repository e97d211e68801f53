"""Any OpenAI-compatible server: its declared command, with the holes `{port}`, `{run_id}` and `{model}`."""

from __future__ import annotations

from typing import Any

from lcplan.engine.base import ServerSpec


class OpenAI:
    """A server of which nothing is known but its command."""

    kind = "openai"
    default_port = 8000

    def argv(self, spec: ServerSpec, *, port: int, served_name: str, host: str = "0.0.0.0") -> list[str]:
        """Return the declared command with its holes filled. `{run_id}` is the served name."""
        filled = {"{port}": str(port), "{run_id}": served_name, "{model}": spec.model_path}
        return [_fill(word, filled) for word in spec.command or ()]

    def environment(self, spec: ServerSpec, *, port: int) -> dict[str, str]:
        """Return no variables."""
        return {}

    def identity(self, spec: ServerSpec) -> dict[str, Any]:
        """Return the model, context and layout as declared, and the command with its holes."""
        found: dict[str, Any] = {"model": spec.model_path, "command": list(spec.command or ())}
        found["layout"] = spec.layout.canonical
        if spec.context is not None:
            found["context"] = spec.context
        return found

    def sequence_cap(self, spec: ServerSpec, gpu_memory_gib: float | None) -> tuple[int | None, str]:
        """Return no cap: it is not known."""
        return None, "not known for an OpenAI-compatible server"

    def label(self, spec: ServerSpec, moe: bool | None = None) -> str:
        """Return the declared layout."""
        return spec.layout.text


ENGINE = OpenAI()


def stand_in(model: str, context: int | None, port: int, served_name: str) -> list[str]:
    """Return what a rehearsal runs in place of a server of which only the command is known: vLLM as it comes."""
    limit = [] if context is None else ["--max-model-len", str(context)]
    return ["vllm", "serve", model, "--port", str(port), "--served-model-name", served_name, *limit]


def _fill(word: str, filled: dict[str, str]) -> str:
    for hole, value in filled.items():
        word = word.replace(hole, value)
    return word
