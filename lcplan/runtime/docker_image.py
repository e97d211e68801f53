"""Images: found or pulled, and pinned to what they are by id and repository digest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import LcplanError, fail

if TYPE_CHECKING:
    from docker import APIClient

    from lcplan.runtime.base import Image

_HINTS = (
    (("unauthorized", "denied", "authentication"), "the registry wants a login (`docker login`), or the name is wrong"),
    (("not found", "manifest unknown", "does not exist"), "the registry has no such image; check name and tag"),
    (("no space left",), "the engine's disk is full; `docker system df` shows what takes it"),
)


def resolve(api: APIClient, declared: str, cancelled: Callable[[], bool]) -> Image:
    """Return id and digest of an image, which is pulled when the engine does not have it.

    Raises LcplanError `image_pull` when it can't be had, or when `cancelled` says so meanwhile.
    """
    from docker.errors import APIError, ImageNotFound

    try:
        found = api.inspect_image(declared)
    except ImageNotFound:
        _pull(api, declared, cancelled)
        try:
            found = api.inspect_image(declared)
        except APIError as problem:
            raise _failed(declared, str(problem.explanation or problem)) from problem
    except APIError as problem:
        raise _failed(declared, str(problem.explanation or problem)) from problem
    return {"declared": declared, "id": str(found["Id"]), "digest": digest_of(declared, found)}


def digest_of(declared: str, image: dict[str, Any]) -> str | None:
    """Return `sha256:...` of an image's manifest in the repository it is declared from; None for a local image."""
    wanted = repository(declared)
    for one in image.get("RepoDigests") or ():
        name, _, digest = one.partition("@")
        if repository(name) == wanted:
            return str(digest)
    return None


def repository(reference: str) -> str:
    """Return the full repository of an image reference: registry and path, without tag and digest."""
    name = reference.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    name = head + slash + tail.partition(":")[0]
    first = name.partition("/")[0]
    if "/" not in name:
        return f"docker.io/library/{name}"
    if "." in first or ":" in first or first == "localhost":
        return name
    return f"docker.io/{name}"


def registry_digest(api: APIClient, declared: str) -> str:
    """Return the digest that a tag has in its registry now. Raises LcplanError `image_pull`."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        told = api.inspect_distribution(declared.partition("@")[0])
    except (DockerException, RequestException) as problem:
        raise _failed(declared, str(getattr(problem, "explanation", None) or problem)) from problem
    return str(told["Descriptor"]["digest"])


def local_digest(api: APIClient, declared: str) -> str | None:
    """Return the digest of the engine's own copy of an image, None when it has none from a registry."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        return digest_of(declared, api.inspect_image(declared))
    except (DockerException, RequestException):
        return None


def _pull(api: APIClient, declared: str, cancelled: Callable[[], bool]) -> None:
    from docker.errors import DockerException
    from docker.utils import parse_repository_tag
    from requests.exceptions import RequestException

    name, tag = parse_repository_tag(declared)
    try:
        for event in api.pull(name, tag=tag or "latest", stream=True, decode=True):
            if event.get("error"):
                raise _failed(declared, str(event["error"]))
            if cancelled():
                raise _failed(declared, "it was stopped")
    except (DockerException, RequestException) as problem:
        raise _failed(declared, str(getattr(problem, "explanation", None) or problem)) from problem


def _failed(declared: str, reason: str) -> LcplanError:
    low = reason.lower()
    hint = next((hint for words, hint in _HINTS if any(word in low for word in words)),
                f"`docker pull {declared}` on the node shows more")  # fmt: skip
    return fail("image_pull", f"the image {declared} is not on the engine and can't be pulled: {reason[:300]}", hint)
