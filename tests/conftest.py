"""Tests never read or fill the user's own cache."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give every test a recipe cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield


@pytest.fixture
def port() -> int:
    """Return the first port of a block of twenty that is free now."""
    from lcplan.apply.demo import free_ports

    return free_ports()
