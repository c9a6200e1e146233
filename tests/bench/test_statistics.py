"""Median, interval, spread, drift and warm-up: the values of the field reports, and properties."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.bench.statistics import drift, warm_up_count
from magnitude_tune.observations.statistics import Summary, differ, summarise, summarise_sum, variation

rates = st.lists(st.floats(min_value=0.1, max_value=1e5), min_size=1, max_size=20)


def test_b67_a_run_that_heats_up_states_its_drift_and_sustained_rate() -> None:
    """B67: The report's samples fall by 14.4 % and end at 17.8 tokens/s: heat or a power limit is suspected."""
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
    """B37: Leading samples far below every later one are warm-up; a slow one later, or one of two, is not."""
    assert warm_up_count(samples) == expected


def test_b37_the_spread_of_a_cold_run_is_unstable() -> None:
    """B37: Left in, the cold sample of the report spreads the series by two thirds, and there is no verdict."""
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
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    """0 < low <= median <= high, from five samples on within their range, and the same again for the same samples."""
    summary = summarise(samples)
    assert 0 < summary.low <= summary.median * (1 + 1e-12)
    assert summary.median <= summary.high * (1 + 1e-12)
    if len(samples) >= 5:
        assert min(samples) * (1 - 1e-12) <= summary.low
        assert summary.high <= max(samples) * (1 + 1e-12)
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


def seeded(seed: int) -> random.Random:
    """Simulated runs are the same each time."""
    return random.Random(seed)  # noqa: S311


def lognormal(generator: random.Random) -> float:
    """A rate that spreads by 8 % around 100."""
    return 100 * math.exp(generator.gauss(0, 0.08))


def with_stalls(generator: random.Random) -> float:
    """One sample in ten is a third slower: the median is a little below that of the rest."""
    return 100 * math.exp(generator.gauss(0, 0.05)) * (0.7 if generator.random() < 0.1 else 1.0)


@pytest.mark.parametrize("draw", [lognormal, with_stalls])
@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 12, 20])
def test_the_interval_covers_the_true_median_nine_times_in_ten(draw: Callable[[random.Random], float], n: int) -> None:
    """Of 1500 simulated runs 87 to 95 % hold the true median, from three samples on; no bootstrap of three does."""
    generator = seeded(20240229)
    true = median(draw(generator) for _ in range(40_001))
    summaries = [summarise([draw(generator) for _ in range(n)]) for _ in range(1500)]
    covered = sum(summary.low <= true <= summary.high for summary in summaries) / len(summaries)
    assert 0.87 <= covered <= 0.95


def test_stopping_early_does_not_undo_the_coverage() -> None:
    """Runs that stop as soon as their interval is within a tenth still hold the true median 85 % of the time."""
    generator = seeded(20240301)
    covered = 0
    for _ in range(1500):
        samples = [lognormal(generator) for _ in range(3)]
        while summarise(samples).half_width > 0.10 and len(samples) < 20:
            samples.append(lognormal(generator))
        summary = summarise(samples)
        covered += summary.low <= 100 <= summary.high
    assert covered / 1500 >= 0.85


def test_equal_machines_differ_at_most_one_time_in_ten() -> None:
    """Two series of the same machine are told apart by chance in at most a tenth of all comparisons."""
    generator = seeded(20240302)
    pairs = [tuple(summarise([lognormal(generator) for _ in range(5)]) for _ in range(2)) for _ in range(1500)]
    assert sum(differ(one, other) for one, other in pairs) / 1500 <= 0.10


def test_far_medians_differ_and_few_samples_never_do() -> None:
    """Medians apart by more than their widths differ in either order; with two samples nothing is decided."""
    fast, slow = summarise([10.0, 10.1, 9.9, 10.0]), summarise([12.0, 12.1, 11.9, 12.0])
    assert differ(fast, slow)
    assert differ(slow, fast)
    assert not differ(fast, Summary(median=12.0, low=11.9, high=12.1, n=2, variation=0.0))
    assert not differ(fast, fast)


def test_variation_of_one_sample_is_zero() -> None:
    """A single sample has no spread to speak of."""
    assert variation([3.0]) == 0.0
