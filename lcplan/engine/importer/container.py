"""A container as any front end describes it: image, environment, mounts, ports, GPUs, and the words it runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.words import Word

_VARIABLE = re.compile(r"\$\{[^}]*\}|\$\([^)]*\)|\{\{[^{}]*\}\}")
_LONGEST = 1024
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_DEVICE = re.compile(r"(?:^|,)\"?device=([^=]*?)(?:,[a-z]+=.*)?$")
# These reach the engine as its list of GPUs, whatever the container was given.
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(slots=True)
class Container:
    """What a command or a YAML entry says of a container. Form `bare` and `args` have no container but share the shape.

    `argv` is what runs after the image's entrypoint, or instead of it when `entrypoint` is set. `gpus`: device names in
    order, "all", or None; `gpu_count`: a number given without names. `words`: all that may hold unknown variables.
    """

    form: str
    image: str | None = None
    argv: list[Word] = field(default_factory=list)
    entrypoint: bool = False
    env: dict[str, str | None] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    gpus: list[str] | str | None = None
    gpu_count: int | None = None
    asks_for_gpu: bool = False
    words: list[Word] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    line: int = 0

    def ask_gpus(self, devices: Iterable[str]) -> None:
        """Add named devices, or "all"."""
        self.asks_for_gpu = True
        for device in devices:
            if device == "all":
                self.gpus = "all"
            elif self.gpus != "all":
                self.gpus = [*(self.gpus or ()), device]


@dataclass(frozen=True, slots=True)
class Image:
    """An image reference: `name[:tag][@digest]`."""

    name: str
    tag: str | None = None
    digest: str | None = None

    @property
    def text(self) -> str:
        """The reference as one text."""
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    def findings(self, line: int) -> list[Finding]:
        """Return what is odd about the reference."""
        if _IMAGE_ID.fullmatch(self.name) and not self.tag:
            return [Finding("image-by-id", self.name, line)]
        out = []
        unknown = "$" in (self.name + (self.tag or "")) or "{{" in (self.name + (self.tag or ""))
        if self.tag and not self.digest and not re.search(r"\d+\.\d+", self.tag) and "$" not in self.tag:
            if "{{" not in self.tag:
                out.append(Finding("moving-tag", self.tag, line))
        elif not self.tag and not self.digest and not unknown:
            out.append(Finding("no-tag", self.name, line))
        if ("/" not in self.name and not unknown) or re.match(r"(?:localhost|127\.0\.0\.1)(?::\d+)?/", self.name):
            out.append(Finding("local-image", self.name, line))
        return out


def split_image(text: str) -> Image:
    """Return the parts of an image reference; a colon inside `${A:?b}` or before the last slash begins no tag."""
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(found[0])
        return f"\0{len(held) - 1}\0"

    def release(part: str) -> str:
        return re.sub("\0(\\d+)\0", lambda m: held[int(m[1])], part)

    if _IMAGE_ID.fullmatch(text) or len(text) > _LONGEST:
        return Image(text)
    plain = _VARIABLE.sub(hold, text.replace("\0", ""))
    plain, at, digest = plain.partition("@")
    folder, slash, last = plain.rpartition("/")
    last, colon, tag = last.partition(":")
    return Image(
        release(folder + slash + last), release(tag) if colon and tag else None, digest if at and digest else None
    )


def gpu_request(value: str) -> tuple[list[str] | str | None, int | None]:
    """Return (devices or "all" or None, count) of a docker `--gpus` value, `"device=0,1"` with or without quotes."""
    text = value.replace("'", "").strip()
    found = _DEVICE.search(text)
    if found:
        return device_list(found[1].replace('"', "")), None
    for item in text.replace('"', "").split(","):
        name, _, number = item.rpartition("=")
        if name in ("", "count"):
            if number in ("all", "-1"):
                return "all", None
            if number.isdecimal():
                return None, int(number)
    return None, None


def device_list(text: str) -> list[str] | str:
    """Return the devices of `0,1,2`, or "all"."""
    return "all" if text.strip() == "all" else [item.strip() for item in text.split(",") if item.strip()]


def visible_gpus(box: Container) -> tuple[list[str] | str | None, int | None, Finding | None]:
    """Return (gpus, count, error): CUDA_VISIBLE_DEVICES and its kin choose among what was asked for."""
    asked = box.gpus
    for name in ("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES"):
        text = box.env.get(name)
        if text and text not in ("none", "void") and not isinstance(asked, list):
            asked = device_list(text) if text != "all" or asked is None else asked
    chosen = next((text for name in _VISIBLE if (text := box.env.get(name))), None)
    error = None
    gpus = asked
    if chosen and chosen not in ("-1", "all", "NoDevFiles"):
        wanted = device_list(chosen)
        if not isinstance(asked, list) or box.form == "bare":
            gpus = wanted
        elif all(item.isdecimal() for item in wanted):
            inside = [int(item) for item in wanted]
            if max(inside, default=0) < len(asked):
                gpus = [asked[item] for item in inside]
            else:
                error = Finding("gpus-not-in-container", chosen, box.line)
    return gpus, len(gpus) if isinstance(gpus, list) else box.gpu_count if gpus is None else None, error
