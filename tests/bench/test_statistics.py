"""Median, interval, spread, drift and warm-up: the values of the field reports, and properties."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.bench.statistics import drift, warm_up_count
from magnitude_tune.observations.statistics import summarise, summarise_sum, variation

rates = st.lists(st.floats(min_value=0.1, max_value=1e5), min_size=1, max_size=20)


def test_b67_a_run_that_heats_up_states_its_drift_and_sustained_rate() -> None:
    """The report's samples fall by 14.4 % and end at 17.8 tokens/s: heat or a power limit is suspected."""
    seen = drift([21.09, 18.93, 18.78, 17.46, 18.05])
    assert seen.fraction == pytest.approx(0.144, abs=5e-4)
    assert seen.sustained == pytest.approx(17.8, abs=0.05)
    assert seen.peak == 21.09
    assert seen.suspect


@pytest.mark.parametrize(
    "steady",
    [
        [20.0, 20.1, 19.9, 20.0, 20.1],
        [20.0, 20.1, 19.9, 20.0, 20.1, 20.0, 17.0],
        [20.0, 17.0],
        [17.0, 18.0, 19.0, 20.0, 21.0],
    ],
    ids=["steady", "one slow sample at the end", "too few to tell", "rising"],
)
def test_no_heat_is_suspected_without_a_lasting_fall(steady: list[float]) -> None:
    """A steady, a rising or a short series, or a single slow sample, is no decline."""
    assert not drift(steady).suspect


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([5300.0, 35100.0, 35300.0], 1),
        ([50.9, 69.5, 70.0], 1),
        ([30.0, 50.0, 69.5, 70.0], 2),
        ([69.5, 70.0, 50.9], 0),
        ([69.0, 70.0, 69.5], 0),
        ([50.0, 70.0], 0),
        ([], 0),
    ],
)
def test_b37_the_cold_first_run_is_warm_up(samples: list[float], expected: int) -> None:
    """Leading samples far below every later one are warm-up; a slow one later, or one of two, is not."""
    assert warm_up_count(samples) == expected


def test_b37_the_spread_of_a_cold_run_is_unstable() -> None:
    """Left in, the cold sample of the report spreads the series by two thirds, and there is no verdict."""
    summary = summarise([5300.0, 35100.0, 35300.0])
    assert summary.variation == pytest.approx(17262 / 25233, rel=1e-3)
    assert not summary.stable
    assert summary.median == 35100.0


@pytest.mark.parametrize(("samples", "stable"), [([90.0, 100.0, 110.0], True), ([88.0, 100.0, 112.0], False)])
def test_stable_ends_at_a_tenth(samples: list[float], stable: bool) -> None:
    """A coefficient of variation of 10 % is stable, 12 % is not."""
    assert summarise(samples).stable is stable


def test_two_samples_are_never_stable() -> None:
    """Agreement of two samples is no verdict."""
    assert not summarise([100.0, 100.0]).stable


@settings(deadline=None, max_examples=50)
@given(rates)
def test_the_interval_holds_the_median_and_stays_among_the_samples(samples: list[float]) -> None:
    """low <= median <= high, all within the samples' range, and the same again for the same samples."""
    summary = summarise(samples)
    assert min(samples) <= summary.low <= summary.median <= summary.high <= max(samples)
    assert summary.median == median(samples)
    assert summarise(samples) == summary


@settings(deadline=None, max_examples=50)
@given(rates)
def test_the_interval_scales_with_the_samples(samples: list[float]) -> None:
    """Twice the rates give twice the interval: no unit is built in."""
    once, twice = summarise(samples), summarise([2 * rate for rate in samples])
    assert twice.low == pytest.approx(2 * once.low)
    assert twice.high == pytest.approx(2 * once.high)
    assert twice.variation == pytest.approx(once.variation)


def test_the_interval_narrows_with_more_samples() -> None:
    """The same spread, seen four times as often, is known better."""
    few = [95.0, 98.0, 100.0, 102.0, 105.0]
    assert summarise(few * 4).half_width < summarise(few).half_width


def test_a_sum_of_medians_is_narrower_than_the_sum_of_the_ends() -> None:
    """A turn's interval allows for errors that do not fall together."""
    reading, writing = [2.0, 2.2, 2.4, 2.1, 2.3], [3.0, 3.4, 3.2, 3.1, 3.3]
    turn = summarise_sum(reading, writing)
    first, second = summarise(reading), summarise(writing)
    assert turn.median == pytest.approx(first.median + second.median)
    assert first.low + second.low < turn.low < turn.median < turn.high < first.high + second.high


@pytest.mark.parametrize("groups", [(), ([],), ([1.0], [])])
def test_nothing_has_no_median(groups: tuple[list[float], ...]) -> None:
    """An empty series is an error, not a zero."""
    with pytest.raises(ValueError, match="sample"):
        summarise_sum(*groups)


def test_variation_of_one_sample_is_zero() -> None:
    """A single sample has no spread to speak of."""
    assert variation([3.0]) == 0.0
