"""Full hashes of weights in the record, taken once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lcplan.apply import weights
from tests.kit import campaign, lcplan, small


def test_the_manifest_holds_the_hash_of_every_shard(tmp_path: Path, port: int) -> None:
    model = tmp_path / "model"
    model.mkdir()
    shards = {f"model-{i}.safetensors": bytes([i]) * 1000 for i in (1, 2)}
    for name, content in shards.items():
        (model / name).write_bytes(content)
    campaign(tmp_path / "recipes", small(port).replace("/models/tiny", str(model)))
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).code == 0
    ran = lcplan("apply", "--hash-weights", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    [file] = (tmp_path / "state" / "runs").glob("*/manifest.json")
    kept = json.loads(file.read_text())["predicate"]["model"]
    assert kept["weights"] == {name: hashlib.sha256(content).hexdigest() for name, content in shards.items()}
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out.startswith("No changes")


def test_a_shard_is_hashed_again_only_when_it_changed(tmp_path: Path) -> None:
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(b"one")
    first = weights.shard_hashes(tmp_path, lambda: False)
    assert weights.shard_hashes(tmp_path, lambda: True) == first
    shard.write_bytes(b"others")
    assert weights.shard_hashes(tmp_path, lambda: False) != first


def test_hashing_can_be_given_up(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    with pytest.raises(weights.Cancelled):
        weights.shard_hashes(tmp_path, lambda: True)
