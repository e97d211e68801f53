"""The simulator's engine without a server: tokens, needles, pool, schedule, command lines."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.sim import faults, needle, tokens
from lcplan.sim.launch import Launch, StartFailure, read
from lcplan.sim.pool import Pool
from lcplan.sim.profiles import REQUEST_S
from lcplan.sim.rank import Rank, Sequence, spread, steps_for, sum_gains
from lcplan.sim.schedule import Engine
from tests.sim_kit import DSV4, FLASH, QWEN_DP, REAL

GLM = ["vllm", "serve", "/m/zai-org__GLM-5.3-FP8", "-tp", "8", "-dcp", "8", "--kv-cache-dtype", "fp8"]
MINIMAX = ["vllm", "serve", "/m/MiniMaxAI__MiniMax-M3-MXFP8", "-tp", "8", "--kv-cache-dtype", "fp8"]
SGLANG = ["python3", "-m", "sglang.launch_server"]
SLACK = 2.0  # a budget holds on an idle core; a busy machine may need twice as long


def ids(count: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    return [chance.randint(3000, 150_000) for _ in range(count)]


def engine(launch: Launch) -> Engine:
    gains = spread(launch.draft, launch.profile.acceptance)
    mixed = launch.kind == "vllm"
    ranks = [
        Rank(
            at,
            launch.speed,
            Pool(launch.pool, launch.page, caching=True),
            chunk=launch.chunk,
            cap=launch.max_seqs,
            mixed=mixed,
            gains=gains,
        )
        for at in range(launch.dp)
    ]
    return Engine(ranks, REQUEST_S)


def prompt(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(4 * count)


def served(target: Engine, *wanted: tuple[bytes, int]) -> list[list[tuple[float, int]]]:
    """Send requests at once; return the stamps of each."""
    sequences = [Sequence(text, len(text) // 4, output, target.now) for text, output in wanted]
    for sequence in sequences:
        target.submit(sequence)
    target.advance(1e9)
    return [sequence.pull() for sequence in sequences]


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_tokens_are_reversible_and_can_be_joined(first: str, second: str) -> None:
    joined = tokens.encode(first) + tokens.encode(second)
    expected = first + second
    assert tokens.decode(joined) == expected
    assert all(token >= tokens.SPECIAL for token in joined)


def test_a_stream_of_tokens_gives_the_same_text_and_some_empty_pieces() -> None:
    pieces = tokens.texts(tokens.encode("A café of the world"))
    assert "".join(pieces) == "A café of the world"
    assert "" in pieces


@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_needle_is_found_at_any_depth_among_others(depth: float) -> None:
    rest = ids(20_000)
    at = int(depth * len(rest))
    planted = tokens.encode("\nThe secret number of Oslo is 7654321.\n")
    decoy = tokens.encode("\nThe secret number of Lima is 1111111.\n")
    question = tokens.encode("\nQuestion: What is the secret number of Oslo?\nAnswer: The secret number of Oslo is")
    found = needle.find(tokens.pack([*rest[:at], *planted, *rest[at:], *decoy, *question]))
    assert found is not None
    assert found.code == "7654321"
    assert abs(found.depth - depth) < 0.02


def test_no_needle_in_plain_text_and_in_random_tokens() -> None:
    assert needle.find(tokens.pack(tokens.encode("Is it 1999 or the year after?"))) is None
    assert needle.find(tokens.pack(ids(50_000))) is None


def test_whole_pages_of_a_prefix_hit_but_never_the_last_token() -> None:
    # vLLM computes the last block again (6,000 tokens: 5,984 hit), SGLang the last token (5,999): seen on real servers.
    for page, expected in ((16, 5984), (1, 5999), (256, 5888)):
        pool = Pool(100_000, page, caching=True)
        text = prompt(6000, 1)
        node, hit = pool.admit(text, 6008) or pytest.fail("no room")
        assert hit == 0
        node, reserved = pool.commit(text, node, pool.room(6008))
        pool.release(node, reserved)
        assert pool.used == 0
        again = pool.admit(text, 6008)
        assert again is not None
        assert again[1] == expected


def test_a_full_pool_evicts_the_oldest_prefix_and_refuses_what_does_not_fit() -> None:
    pool = Pool(10_000, 16, caching=True)
    for seed in range(4):
        text = prompt(4000, seed)
        node, _ = pool.admit(text, 4000) or pytest.fail("no room")
        pool.release(*pool.commit(text, node, pool.room(4000)))
    assert pool.cached <= 10_000
    oldest, newest = pool.admit(prompt(4000, 0), 4000), pool.admit(prompt(4000, 3), 4000)
    assert oldest is not None and oldest[1] == 0
    assert newest is not None and newest[1] == 3984
    assert pool.admit(prompt(4000, 9), 4000) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=30))
def test_the_pools_accounts_balance(steps: list[tuple[int, int, bool]]) -> None:
    pool = Pool(400, 4, caching=True)
    held = []
    for seed, length, keep in steps:
        text = random.Random(seed).randbytes(4 * 40)[: 4 * length]
        got = pool.admit(text, length + 4)
        if got is None:
            continue
        node, hit = got
        node, reserved = pool.commit(text, node, pool.room(length + 4 - hit))
        held.append((node, reserved))
        if not keep:
            pool.release(*held.pop(0))
        assert 0 <= pool.locked <= pool.cached
        assert pool.held + pool.cached <= pool.capacity
    for node, reserved in held:
        pool.release(node, reserved)
    assert pool.used == 0


def test_the_speeds_are_those_of_the_published_figures() -> None:
    flash = engine(read(FLASH, {}))
    [stamps] = served(flash, (prompt(1_000_000, 1), 512))
    assert stamps[0][0] == pytest.approx(58.6, abs=0.05)
    assert (stamps[-1][0] - stamps[0][0]) / 511 == pytest.approx(7.0e-3, rel=0.01)
    qwen = engine(read(QWEN_DP, {}))
    [stamps] = served(qwen, (prompt(963_000, 1), 16))
    assert stamps[0][0] == pytest.approx(145.0, abs=0.1)


def test_the_second_of_two_long_prompts_waits_twice_as_long() -> None:
    first, second = served(engine(read(FLASH, {})), (prompt(1_000_000, 1), 64), (prompt(1_000_000, 2), 64))
    assert second[0][0] / first[0][0] == pytest.approx(2.0, rel=0.02)


def test_a_growing_conversation_costs_what_its_new_tokens_cost() -> None:
    target, text = engine(read(FLASH, {})), prompt(300_000, 1)
    [first] = served(target, (text[: 4 * 200_000], 16))
    [second] = served(target, (text[: 4 * 220_000], 16))
    [cold] = served(engine(read(FLASH, {})), (text[: 4 * 220_000], 16))
    assert second[0][0] < 0.2 * first[0][0]
    assert second[0][0] == pytest.approx(cold[0][0] - first[0][0] + REQUEST_S, rel=0.01)


def test_more_users_decode_slower_and_stamps_never_go_back() -> None:
    def pace(users: int) -> float:
        all_stamps = served(engine(read(FLASH, {})), *[(prompt(1000, seed), 256) for seed in range(users)])
        for stamps in all_stamps:
            times = [stamp for stamp, _ in stamps]
            assert times == sorted(times)
            assert sum(gain for _, gain in stamps) == 256
        return all_stamps[0][-1][0] - all_stamps[0][0][0]

    assert pace(1) < pace(8) < pace(32)


def test_the_sequence_cap_and_the_pool_make_requests_wait() -> None:
    capped = engine(read([*FLASH[:-1], "2"], {}))
    first, second, third = served(capped, *[(prompt(1000, seed), 256) for seed in range(3)])
    assert third[0][0] > max(first[-1][0], second[-1][0]) - 0.5
    small = engine(read([*FLASH, "--max-model-len", "4096"], {}, pool=4096))
    first, second = served(small, (prompt(3000, 1), 64), (prompt(3000, 2), 64))
    assert second[0][0] > first[-1][0]


def test_data_parallel_ranks_share_the_load() -> None:
    stamps = served(engine(read(QWEN_DP, {})), *[(prompt(100_000, seed), 8) for seed in range(4)])
    assert len({round(one[0][0], 6) for one in stamps}) == 1


def test_an_aborted_request_frees_its_place() -> None:
    target = engine(read(FLASH, {}))
    sequence = Sequence(prompt(1000, 1), 1000, 5000, 0.0)
    target.submit(sequence)
    target.advance(1.0)
    assert target.ranks[0].pool.used > 0
    target.abort(sequence)
    assert target.ranks[0].pool.used == 0
    assert not target.busy


def test_sglang_prefills_alone_while_vllm_mixes() -> None:
    def gap(argv: list[str]) -> float:
        target = engine(read(argv, {}))
        early = Sequence(prompt(1000, 1), 1000, 2000, 0.0)
        late = Sequence(prompt(100_000, 2), 100_000, 4, 1.0)
        target.submit(early)
        target.submit(late)
        target.advance(1e9)
        times = [stamp for stamp, _ in early.pull()]
        return max(b - a for a, b in pairwise(times))

    assert gap(DSV4) > 3.0  # the whole prefill of the late one
    assert gap(FLASH) < 1.0  # one chunk


@given(st.integers(0, 6), st.integers(0, 3000))
def test_drafted_tokens_come_in_patterns_that_add_up(draft: int, wanted: int) -> None:
    gains = spread(draft, (0.8, 0.6, 0.4))
    steps = steps_for(gains, wanted)
    assert sum_gains(gains, steps) >= wanted
    assert steps == 0 or sum_gains(gains, steps - 1) < wanted


@pytest.mark.parametrize(
    ("argv", "tokens_per_rank", "cap"),
    [
        (FLASH, 4_568_144, 64),
        ([*FLASH, "--kv-cache-dtype", "fp8"], 8_789_000, 64),
        (QWEN_DP, 11_304_766, 1024),
        (DSV4, 8_991_488, 64),
        (GLM, 5_662_310, 1024),
        (MINIMAX, 3_774_873, 1024),
    ],
)
def test_pools_and_caps(argv: list[str], tokens_per_rank: int, cap: int) -> None:
    launch = read(argv, {})
    assert launch.pool == pytest.approx(tokens_per_rank, rel=1e-3)
    assert launch.max_seqs == cap


@pytest.mark.parametrize("name", ["llama8", "qwen3moe"])
def test_an_unknown_model_is_sized_from_its_config(name: str, tmp_path: Path) -> None:
    runs = json.loads((REAL / "capacity_h200.json").read_text())["records"]
    real = next(run for run in runs if run["run"] == f"{name}_tp1")
    (tmp_path / "config.json").write_bytes((REAL / f"vllm-0.25.1-h200/models/{name}.config.json").read_bytes())
    launch = read(["vllm", "serve", str(tmp_path)], {})
    assert launch.pool == pytest.approx(real["pool_tokens_per_engine"], rel=0.05)
    assert launch.weights_gib == pytest.approx(real["weights_gib_per_rank"], rel=0.05)


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["vllm", "serve", "m", "--max-modle-len", "5"], "vllm: error: unrecognized arguments: --max-modle-len 5"),
        ([*SGLANG, "--model_path", "m"], "sglang serve: error: unrecognized arguments: --model_path m"),
        (["sglang", "serve", "--model-path", "m", "--x=5"], "sglang serve: error: unrecognized arguments: --x=5"),
        (
            ["vllm", "serve", "m", "--kv-cache-dtype", "fp9"],
            "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', ",
        ),
        (
            ["vllm", "serve", "m", "--max-num-seqs", "many"],
            "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        ),
        (["vllm", "serve", "m", "--enable-prefix-caching", "true"], "error: "),
    ],
)
def test_a_bad_command_line_is_refused_as_the_engine_does(argv: list[str], text: str) -> None:
    with pytest.raises(StartFailure) as refused:
        read(argv, {})
    assert refused.value.status == 2
    assert refused.value.text.startswith("usage: ")
    assert text in refused.value.text


def test_underscores_and_absolute_programs_are_read_as_the_engines_do() -> None:
    launch = read(
        ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", "--max_model_len", "4096"], {}
    )
    assert (launch.kind, launch.context) == ("vllm", 4096)
    assert read(["sglang", "serve", "--model-path", "m", "--tp", "2"], {}).tp == 2


def test_faults_are_checked_and_matched_by_name() -> None:
    told = json.dumps([{"match": "a*", "fault": "slow"}, {"match": "b*", "fault": "miss_needle", "depths": [0.5]}])
    assert faults.read(told, "abc").get("slow") == {"factor": 3.0}
    assert faults.read(told, "abc").get("miss_needle") is None
    assert faults.read(told, "b").misses(0.51, "1") and not faults.read(told, "b").misses(0.9, "1")
    for bad in (
        '{"a": 1}',
        '[{"fault": "no"}]',
        '[{"fault": "slow", "by": 2}]',
        '[{"fault": "die_at_start", "class": "x"}]',
    ):
        with pytest.raises(ValueError, match="fault"):
            faults.read(bad, "m")


def test_a_million_tokens_cost_milliseconds() -> None:
    body = json.dumps({"prompt": ids(1_000_000)})
    cpu = time.process_time()
    packed = tokens.pack(json.loads(body)["prompt"])
    needle.find(packed)
    served(engine(read(FLASH, {})), (packed, 1024))
    assert time.process_time() - cpu < 0.15 * SLACK
