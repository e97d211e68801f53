"""Canonical JSON and hashes: equal content gives equal bytes on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def dumps(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, UTF-8 text, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """Return the sha256 (hex) of the canonical JSON of a value."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def digest_bytes(data: bytes) -> str:
    """Return the sha256 (hex) of bytes."""
    return hashlib.sha256(data).hexdigest()
