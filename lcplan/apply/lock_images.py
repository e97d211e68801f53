"""The use case `lock`: the digest that each declared image has now, kept beside the recipes; and tags that moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, fail, warning
from lcplan.base.files import write_atomic
from lcplan.plan.model import Launch
from lcplan.recipe import pins
from lcplan.recipe.load import Recipes, load

_LOOK_LIMIT_S = 2
"""Seconds that a plan may wait for a registry, for all images at once."""


@dataclass(frozen=True)
class Locked:
    """A written lock: its file, the digest of every image, and the digests that it had before."""

    file: Path
    images: dict[str, str]
    before: dict[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the shape that `--json` prints."""
        return {"file": str(self.file), "images": self.images, "before": self.before}


def lock_images(paths: Sequence[Path], variables: Mapping[str, str]) -> Locked:
    """Ask what the images of all engines are now and write `lcplan.lock.json` beside the recipes.

    The registry is asked through the Docker engine; where it does not answer, the engine's own copy counts. Raises
    LcplanError with every image that can't be found; then nothing is written.
    """
    recipes = load(paths, variables)
    wanted = sorted({e["image"] for e in recipes.data["engines"].values() if e.get("image") and "@" not in e["image"]})
    if not wanted:
        raise fail("no-image", "no engine declares an image by tag, so there is nothing to lock")
    images: dict[str, str] = {}
    problems: list[Diagnostic] = []
    with ThreadPoolExecutor(len(wanted)) as pool:
        for image, answer in zip(wanted, pool.map(_ask, wanted), strict=True):
            if isinstance(answer, LcplanError):
                problems += answer.diagnostics
            else:
                images[image] = answer
    if problems:
        raise LcplanError(*dict.fromkeys(problems))
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    file = folder / pins.NAME
    before = {e["image"]: e["pinned"] for e in recipes.data["engines"].values() if e.get("pinned")}
    write_atomic(file, pins.lock_text(images))
    return Locked(file, images, before)


def moved_tags(recipes: Recipes, launches: Iterable[Launch]) -> list[Diagnostic]:
    """Return a warning for each locked image of a docker launch whose tag points elsewhere now.

    Nothing is asked, and nothing said, when no Docker engine answers at once.
    """
    engines = recipes.data["engines"]
    used = {one.engine for one in launches if one.runtime == "docker" and one.action in ("+", "-/+", "~")}
    pinned = {engines[name]["image"]: engines[name]["pinned"] for name in sorted(used) if engines[name].get("pinned")}
    if not pinned:
        return []
    from lcplan.runtime import docker_engine

    if not docker_engine.answers():
        return []
    found = []
    with ThreadPoolExecutor(len(pinned)) as pool:
        for image, now in zip(pinned, pool.map(_look, pinned), strict=True):
            if now is not None and now != pinned[image]:
                found.append(_moved(recipes, image, pinned[image], now))
    return found


def _ask(image: str) -> str | LcplanError:
    from lcplan.runtime import docker_engine, docker_image

    try:
        api = docker_engine.connect()
        try:
            return docker_image.registry_digest(api, image)
        except LcplanError as problem:
            return docker_image.local_digest(api, image) or problem
    except LcplanError as problem:
        return problem


def _look(image: str) -> str | None:
    from lcplan.runtime import docker_engine, docker_image

    try:
        api = docker_engine.connect(timeout_s=_LOOK_LIMIT_S)
        try:
            return docker_image.registry_digest(api, image)
        except LcplanError:
            return docker_image.local_digest(api, image)
    except LcplanError:
        return None


def _moved(recipes: Recipes, image: str, locked: str, now: str) -> Diagnostic:
    name = next(name for name, engine in recipes.data["engines"].items() if engine.get("image") == image)
    place: Source = recipes.place("engines", name, "image")
    return warning("tag-moved", f"the tag {image} is locked at {locked[:19]}, it points to {now[:19]} now",
                   "the locked image is used; `lcplan lock` takes the new one, which makes its records stale",
                   place)  # fmt: skip
