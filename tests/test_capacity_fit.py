"""What fits: the vectors of the requirements, the least of three figures, the measured law."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcplan.capacity.fit import Law, Sample, fit, fit_law

M = 1048576


@pytest.mark.parametrize(
    ("pool", "engines", "length", "cap", "fits", "effective", "limit"),
    [
        (11_304_766, 4, M, 1024, 40, 40, "pool"),
        (5_400_000, 1, M, 8, 5, 5, "pool"),
        (3_900_000, 1, M, 16, 3, 3, "pool"),
        (11_304_766, 1, 9216, 64, 1226, 64, "cap"),
        (None, 4, M, 64, None, 256, "unknown"),
        (1000, 2, 2000, None, 0, 0, "pool"),
    ],
)
def test_fits(
    pool: int | None, engines: int, length: int, cap: int | None, fits: int | None, effective: int, limit: str
) -> None:
    got = fit(pool, engines, length, cap)
    assert (got.fits, got.effective, got.limit) == (fits, effective, limit)


def test_printed_concurrency_of_a_rank() -> None:
    got = fit(11_304_766, 4, M, printed_concurrency=10.78, max_model_len=M)
    assert got.fits == 40
    assert dict(got.figures) == {"formula": 40, "concurrency": 40}
    assert fit(None, 1, 4096, printed_concurrency=57.05, max_model_len=8192).fits == 114


def test_the_least_figure_counts() -> None:
    # Qwen3.6 of kv.md section 4: a short request takes six more blocks of 2,096 tokens, so 496 fit, not 1,226.
    law = Law(6 * 2096 * M / (507 * 2096), 2096 * M / (507 * 2096) / 2096)
    got = fit(11_304_766, 1, 9216, law=law)
    assert got.by == "law"
    assert 490 <= (got.fits or 0) <= 530
    assert got.limited(600)
    assert not got.limited(100)


@given(
    st.floats(0, 1e5),
    st.floats(0.01, 4),
    st.lists(st.tuples(st.integers(1, 64), st.integers(100, 10**6)), min_size=3, max_size=9),
)
def test_law_is_found_again(a: float, b: float, points: list[tuple[int, int]]) -> None:
    pool = 10**9
    law = fit_law(Sample(n, length, n * (a + b * length) / pool, pool) for n, length in points)
    assert law is not None
    for _, length in points:
        assert law.tokens(length) == pytest.approx(a + b * length, rel=0.05)


def test_law_of_nothing() -> None:
    assert fit_law([]) is None
    assert fit_law([Sample(0, 10, 0.5, 100)]) is None
    assert fit_law([Sample(2, 1000, 0.02, 100_000)]) == Law(0.0, 1.0)


@given(st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 10**7), st.integers(1, 2048))
def test_more_pool_never_fits_less(pool: int, more: int, engines: int, length: int, cap: int) -> None:
    one, two = fit(pool, engines, length, cap), fit(pool + more, engines, length, cap)
    assert (one.effective or 0) <= (two.effective or 0) <= cap * engines
