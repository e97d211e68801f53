"""The benchmark that measures a sweep: `vllm bench serve`, installed or in the image of an engine.

The command has two holes beside those of an engine, filled when it is run: the folder of the run, which a container
mounts at the same path, and the user, who must own the results.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from lcplan.plan.model import Cell, Launch
from lcplan.recipe.load import Recipes
from lcplan.recipe.pins import pinned_image

RUN_FOLDER, USER = "@RUN_FOLDER@", "@USER@"
_INSTALLED = ["vllm", "bench", "serve"]


def bench(recipes: Recipes, launch: Launch, cell: Cell) -> list[str]:
    """Return the words in front of the benchmark's flags: the command, image or engine that the sweep names.

    Without one it is that of the stack's engine if this is vLLM, else of the first vLLM engine declared: in its image
    where the launch runs in containers, else as installed.
    """
    engines: Mapping[str, Mapping[str, Any]] = recipes.data["engines"]
    said = cell.definition.get("bench")
    if said is None:
        image = _default_image(engines, launch) if launch.runtime == "docker" else None
    elif isinstance(said, str) and said in engines:
        image = pinned_image(engines[said])
    elif isinstance(said, str) and _is_image(said):
        image = said
    else:
        return shlex.split(said) if isinstance(said, str) else list(said)
    return _INSTALLED if image is None else _contained(image, launch.docker.get("volumes") or ())


def fill(words: list[str], folder: str, user: str) -> list[str]:
    """Return a command with its holes filled."""
    return [word.replace(RUN_FOLDER, folder).replace(USER, user) for word in words]


def _default_image(engines: Mapping[str, Mapping[str, Any]], launch: Launch) -> str | None:
    if launch.kind == "vllm":
        return launch.image
    return next((pinned_image(one) for one in engines.values() if one["kind"] == "vllm"), None)


def _is_image(text: str) -> bool:
    return ":" in text and not any(letter.isspace() for letter in text)


def _contained(image: str, volumes: Any) -> list[str]:
    """Return a `docker run` on the host's network, without GPUs, that ends with its client and leaves nothing."""
    mounts = [word for volume in (f"{RUN_FOLDER}:{RUN_FOLDER}", *volumes) for word in ("--volume", volume)]
    # Caches need a home that any user may write to.
    options = ["--rm", "--init", "--network", "host", "--user", USER, "--env", "HOME=/tmp", "--env", "USER=lcplan"]
    return ["docker", "run", *options, *mounts, "--entrypoint", "vllm", image, "bench", "serve"]
