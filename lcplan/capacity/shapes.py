"""Kinds of cache that a layer keeps, as shapes over all ranks; engines turn them into bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of `heads` KV heads. `window` > 0: sliding window; `chunk` > 0: chunked local attention."""

    heads: int
    key: int
    value: int
    window: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): one vector per token.

    `index` > 0: with a sparse indexer of that dim, which keeps one entry per `pool` tokens.
    """

    rank: int
    rope: int
    index: int = 0
    pool: int = 1


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state per sequence: `channels` x (`kernel` - 1) of convolution and `elements` of the recurrence."""

    kind: str  # gdn, kda, mamba2 or conv
    channels: int
    kernel: int
    elements: int
    dtype: str = ""  # of the recurrence; empty: the model's own


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek-V4: keys compressed by `ratio` (0: window only), with a sparse indexer where the ratio is 4."""

    ratio: int
    dim: int
    rope: int
    index: int
    window: int


Cache = Attention | Latent | State | Compressed


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts: how many, how many per token, the width of each, shared width, and the layers that have them."""

    experts: int
    active: int
    width: int
    shared: int
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Model:
    """What the arithmetic needs of a config.json.

    `layers` holds per layer the caches it keeps (an empty tuple: none); `draft` those of the layers that multi-token
    prediction adds. `text` is the part of the config that describes the text model, with the family's defaults.
    """

    architecture: str
    family: str
    traits: Mapping[str, Any]
    layers: tuple[tuple[Cache, ...], ...]
    draft: tuple[tuple[Cache, ...], ...]
    hidden: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    context: int
    moe: Moe | None
    text: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def multimodal(self) -> bool:
        """Whether the model has an encoder besides the text model."""
        return any(isinstance(self.config.get(k), Mapping) for k in ("vision_config", "audio_config", "thinker_config"))

    @property
    def latent(self) -> bool:
        """Whether attention is latent (MLA) in any layer."""
        return any(isinstance(c, Latent) for layer in self.layers for c in layer)

    @property
    def hybrid(self) -> bool:
        """Whether any layer keeps a recurrent state."""
        return any(isinstance(c, State) for layer in self.layers for c in layer)


@dataclass(frozen=True, slots=True)
class Unknown:
    """A model that cannot be predicted: the architecture's name and why."""

    architecture: str
    why: str
