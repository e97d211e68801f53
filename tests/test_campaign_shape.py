"""The whole reference campaign, applied on the simulator: every cell, and the shape of the published figures.

Answers of the chat sweep are cut from 1K to 64 tokens, since they are most of the work and no figure below is about
them; LCPLAN_WHOLE_CAMPAIGN=1 applies the recipes as they stand.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lcplan.apply.demo import free_ports
from tests.kit import REPO, lcplan

Figures = Mapping[str, Mapping[str, Any]]
TURNS = range(1, 11)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the campaign has been applied."""
    folder = tmp_path_factory.mktemp("campaign")
    shutil.copytree(REPO / "recipes", folder / "recipes")
    port = free_ports()
    edit(folder / "recipes" / "node.yaml", {"8000-8099": f"{port}-{port + 9}", "8100-8199": f"{port + 10}-{port + 19}"})
    if not os.environ.get("LCPLAN_WHOLE_CAMPAIGN"):
        edit(folder / "recipes" / "experiments.yaml", {"output: 1K": "output: 64"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert lcplan("plan", "recipes", "--runtime", "sim", cwd=folder).code == 0
        ran = lcplan("apply", "--sim-speed", "2000", cwd=folder)
        assert ran.code == 0, ran.out[-3000:] + ran.err
        yield folder


def edit(path: Path, changes: Mapping[str, str]) -> None:
    text = path.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture(scope="module")
def cells(campaign: Path) -> dict[str, dict[str, Any]]:
    """The records of all cells, by stack, variant and name."""
    made = {}
    for path in (campaign / "state" / "runs").glob("*/manifest.json"):
        body = json.loads(path.read_text())["predicate"]
        stack = f"{body['stack']}+{body['variant']}" if body["variant"] else body["stack"]
        made |= {f"{stack}/{cell['cell']}": cell for cell in body["cells"]}
    return made


def figure(cells: Mapping[str, Any], cell: str, metric: str, statistic: str = "value") -> float:
    return float(cells[cell]["metrics"][metric][statistic])


def test_every_cell_of_the_campaign_is_measured(campaign: Path, cells: Mapping[str, Any]) -> None:
    assert len(cells) == 137
    assert {cell["status"] for cell in cells.values()} == {"done"}
    again = lcplan("plan", "recipes", "--runtime", "sim", cwd=campaign)
    assert again.out.startswith("No changes"), again.out
    assert lcplan("audit", "verify", cwd=campaign).code == 0


PUBLISHED = [
    ("glm53_flash/oneshot_1m", 58.6, 7.0),
    ("qwen36_35b/oneshot_1m", 145.0, 11.5),
]


@pytest.mark.parametrize(("cell", "ttft_s", "tpot_ms"), PUBLISHED)
def test_a_million_tokens_alone(cells: Mapping[str, Any], cell: str, ttft_s: float, tpot_ms: float) -> None:
    assert figure(cells, cell, "ttft_s") == pytest.approx(ttft_s, rel=0.005)
    assert figure(cells, cell, "tpot_ms") == pytest.approx(tpot_ms, rel=0.005)


RAMPS = ["glm53_flash", "qwen36_35b", "qwen38_flash_next", "dsv4_flash_fp8"]


@pytest.mark.parametrize("stack", RAMPS)
def test_a_turn_costs_what_its_new_tokens_cost(cells: Mapping[str, Any], stack: str) -> None:
    cell = f"{stack}/ramp_1m.conversations=1"
    turns = [figure(cells, cell, f"turn{turn}_ttft_s") for turn in TURNS]
    whole = figure(cells, f"{stack}/oneshot_1m", "ttft_s")
    assert sum(turns) == pytest.approx(whole, rel=0.2)
    assert turns[9] < 0.2 * whole  # 8 % of the tokens, the dearest ones
    assert turns[4] < turns[5] < turns[6] < turns[7] < turns[8]  # 128K new ones each, ever deeper


@pytest.mark.parametrize("stack", ["glm53", "glm53_flash", "minimax_m3", "qwen36_35b", "qwen38_flash_next"])
def test_the_cache_has_what_was_said_before(cells: Mapping[str, Any], stack: str) -> None:
    cell = f"{stack}/ramp_1m.conversations=1"
    assert figure(cells, cell, "turn1_hit_rate_percent") == 0
    assert figure(cells, cell, "turn10_hit_rate_percent") == pytest.approx(92, abs=0.5)


def test_one_of_two_conversations_waits_about_twice_as_long(cells: Mapping[str, Any]) -> None:
    cell = "glm53/ramp_1m.conversations=2"
    for turn in TURNS:
        first, second = (figure(cells, cell, f"turn{turn}_ttft_s", end) for end in ("min", "max"))
        assert second == pytest.approx(2 * first, rel=0.2)


def test_all_needles_are_found(cells: Mapping[str, Any]) -> None:
    asked = {name: cell["metrics"] for name, cell in cells.items() if "needles_asked" in cell["metrics"]}
    assert len(asked) == 5 + 7
    for name, metrics in asked.items():
        assert metrics["needles_found"]["value"] == metrics["needles_asked"]["value"], name


def test_users_share_an_engine(cells: Mapping[str, Any]) -> None:
    for stack in ("glm53_flash", "dsv4_flash_fp8"):
        speed = [figure(cells, f"{stack}/chat_sweep.prompt=8192.users={n}", "user_tokens_per_s") for n in (1, 8, 64)]
        total = [figure(cells, f"{stack}/chat_sweep.prompt=8192.users={n}", "output_tokens_per_s") for n in (1, 8, 64)]
        assert speed[0] > speed[1] > speed[2] and total[0] < total[1] < total[2]


def test_a_shared_history_is_prefilled_once(cells: Mapping[str, Any]) -> None:
    for stack in ("glm53_flash", "qwen38_flash_next", "qwen38_27b"):
        cell = f"{stack}/agent_200k.users=1"
        assert figure(cells, cell, "ttft_s") < figure(cells, cell, "first_turn_ttft_s") / 10


def test_speculative_decoding_accepts_tokens(cells: Mapping[str, Any]) -> None:
    cell = "chat_sweep.prompt=1024.users=1"
    assert 0 < figure(cells, f"glm53_flash+spec-mtp_k3/{cell}", "acceptance_rate_percent") <= 100
    fast, plain = (figure(cells, f"glm53_flash+spec-{v}/{cell}", "user_tokens_per_s") for v in ("mtp_k3", "nospec"))
    assert fast > 1.2 * plain


def test_more_users_than_fit_are_marked(cells: Mapping[str, Any]) -> None:
    crowded = cells["glm53_flash/chat_sweep.prompt=8192.users=128"]
    assert crowded["capacity"]["limited"] and crowded["marks"] == ["queued"] and crowded["queued"] > 0
    alone = cells["glm53_flash/chat_sweep.prompt=8192.users=1"]
    assert not alone["capacity"]["limited"] and alone["marks"] == []


def test_prefill_and_decode_on_servers_of_their_own(cells: Mapping[str, Any]) -> None:
    split = "glm53_flash_pd/chat_sweep.prompt=8192.users=8"
    assert figure(cells, split, "completed") == figure(cells, split, "sent") == 32
    shared = "glm53_flash/chat_sweep.prompt=8192.users=8"
    assert figure(cells, split, "tpot_ms") <= figure(cells, shared, "tpot_ms")
