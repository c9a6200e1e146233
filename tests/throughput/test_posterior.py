"""Properties of the Bayesian update: order, agreement, contradiction, hostile rows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.throughput.posterior import Posterior, Row, update

PRIOR = (0.2, 0.04, 0.01)
OWN = 0.0025

finite = st.floats(-3.0, 3.0)
rows = st.builds(
    Row,
    features=st.tuples(st.floats(0.1, 2.0), finite, finite),
    log_ratio=finite,
    variance=st.floats(1e-4, 1.0),
)
# Off by less than their own noise: none of them is held back.
calm_rows = st.builds(
    Row,
    features=st.tuples(st.floats(0.1, 2.0), finite, finite),
    log_ratio=st.floats(-0.05, 0.05),
    variance=st.floats(0.01, 1.0),
)
anything = st.floats(allow_nan=True, allow_infinity=True)
hostile = st.builds(Row, features=st.tuples(anything, anything, anything), log_ratio=anything, variance=anything)
points = st.tuples(finite, finite, finite)


def agreeing(posterior: Posterior, features: tuple[float, ...], variance: float) -> Row:
    """A row that says exactly what the posterior says already."""
    return Row(features, posterior.shift(features), variance)


def test_one_row_is_the_textbook_update() -> None:
    """One weight with prior variance v and one row of variance s: mean y v / (v + s), variance v s / (v + s)."""
    posterior = update([Row((1.0,), 0.5, 0.01)], (0.2,), 0.0)
    assert posterior.mean[0] == pytest.approx(0.5 * 0.2 / 0.21)
    assert posterior.variance((1.0,)) == pytest.approx(0.2 * 0.01 / 0.21)


def test_without_rows_the_prior_stands() -> None:
    """Nothing measured: no shift, and the prior's variance beside the setting's own."""
    posterior = update([], PRIOR, OWN)
    assert posterior.mean == (0.0, 0.0, 0.0)
    assert posterior.variance((1.0, 2.0, 0.0)) == pytest.approx(0.2 + 4 * 0.04 + OWN)


@given(st.lists(rows, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_matter(found: list[Row], random: object) -> None:
    """The same rows in another order give the very same posterior."""
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert update(shuffled, PRIOR, OWN) == update(found, PRIOR, OWN)


@given(st.lists(calm_rows, max_size=5), calm_rows, points)
def test_a_row_that_agrees_never_widens(found: list[Row], more: Row, point: tuple[float, ...]) -> None:
    """Beside calm rows, one more that says what is known already moves nothing and leaves no variance larger."""
    before = update(found, PRIOR, OWN)
    after = update([*found, agreeing(before, more.features, more.variance)], PRIOR, OWN)
    assert after.shift(point) == pytest.approx(before.shift(point), abs=1e-4)
    assert after.variance(point) <= before.variance(point) * (1 + 1e-4)


@given(st.floats(0.3, 2.0), st.integers(1, 4))
def test_contradiction_widens(apart: float, pairs: int) -> None:
    """Rows of one setting that are far apart leave more doubt than as many that agree."""
    same = [Row((1.0, 0.0, 0.0), 0.0, 0.005)] * (2 * pairs)
    torn = [Row((1.0, 0.0, 0.0), sign * apart, 0.005) for sign in (1, -1)] * pairs
    point = (1.0, 0.0, 0.0)
    assert update(torn, PRIOR, OWN).variance(point) > update(same, PRIOR, OWN).variance(point)


@given(st.integers(3, 8), st.floats(1.0, 5.0))
def test_one_wild_row_moves_little(calm: int, wild: float) -> None:
    """Beside three or more rows that agree, one far off moves the mean by less than their own spread."""
    known = [Row((1.0, 0.0, 0.0), 0.0, 0.01)] * calm
    posterior = update([*known, Row((1.0, 0.0, 0.0), wild, 0.01)], PRIOR, OWN)
    assert abs(posterior.mean[0]) < math.sqrt(0.01)


@given(st.lists(st.one_of(rows, hostile), max_size=6), points)
def test_hostile_rows_leave_it_finite(found: list[Row], point: tuple[float, ...]) -> None:
    """NaN, infinities and huge values never reach a prediction."""
    posterior = update(found, PRIOR, OWN)
    assert math.isfinite(posterior.shift(point))
    assert math.isfinite(posterior.variance(point))
    assert posterior.variance(point) >= OWN * (1 - 1e-9)


def test_a_feature_without_prior_variance_stays_out() -> None:
    """A weight with prior variance 0 is never moved."""
    posterior = update([Row((1.0, 1.0), 1.0, 0.01)], (0.2, 0.0), OWN)
    assert posterior.mean[1] == 0.0
    assert posterior.variance((0.0, 1.0)) == pytest.approx(OWN)
