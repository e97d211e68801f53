"""Values of secrets: known only from the environment, kept in nothing that is written.

Engines may print what they were given (SGLang logs its API key with its other arguments), so their logs are masked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_SHORTEST = 4
"""Shorter values are no secrets, and would be found everywhere."""
_BLOCK = 1 << 20


def secret_values(envs: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the values that `{"from_env": NAME}` stands for in environments, the longest first."""
    names = {value["from_env"] for env in envs for value in env.values() if isinstance(value, Mapping)}
    found = {os.environ[name] for name in names if len(os.environ.get(name, "")) >= _SHORTEST}
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def api_key(env: Mapping[str, Any]) -> str:
    """Return the key that a server with this environment asks of its clients, "" when it asks for none.

    vLLM guards /v1 with it, the command line's own flag would show it to everybody:
    https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html
    """
    given = env.get("VLLM_API_KEY", "")
    return os.environ.get(given["from_env"], "") if isinstance(given, Mapping) else str(given)


def mask(text: str, secrets: Iterable[str]) -> str:
    """Return a text without the values of secrets."""
    for value in secrets:
        text = text.replace(value, "***")
    return text


def mask_logs(folder: Path, secrets: Iterable[str]) -> None:
    """Overwrite secrets in the logs of a folder with asterisks. Raises OSError.

    Nothing moves and a file without them is not opened for writing: a server may go on with its log.
    """
    for value in (one.encode() for one in secrets):
        for path in sorted(folder.glob("*.log")):
            places = list(_found(path, value))
            if places:
                with path.open("r+b") as file:
                    for at in places:
                        file.seek(at)
                        file.write(b"*" * len(value))


def _found(path: Path, value: bytes) -> Iterator[int]:
    """Yield where a value stands in a file."""
    with path.open("rb") as file:
        start, text = 0, b""
        while block := file.read(_BLOCK):
            text += block
            at = text.find(value)
            while at >= 0:
                yield start + at
                at = text.find(value, at + len(value))
            kept = min(len(text), len(value) - 1)
            start, text = start + len(text) - kept, text[len(text) - kept :] if kept else b""
