"""Which samples count: warm-up and contaminated ones are kept apart, and when there are enough."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from magnitude_tune.bench.series import MAX_ATTEMPTS, Series
from magnitude_tune.engines.values import Sample

NEIGHBOUR = ("while other processes kept 2.0 of 2 cores busy",)


def series_of(*taken: float | tuple[float, Sequence[str]]) -> Series:
    """A series of rates; a pair is a contaminated sample."""
    series = Series("tg")
    for item in taken:
        rate, doubts = item if isinstance(item, tuple) else (item, ())
        series.add(Sample(128, 128 / rate), tuple(doubts))
    return series


def rates(series: Series) -> list[float]:
    """The rates in use."""
    return [round(sample.rate, 6) for sample in series.used]


def test_three_close_samples_are_enough() -> None:
    """Three samples whose interval is within a tenth end a series; two do not."""
    assert series_of(40.0, 41.0, 40.5).done
    assert not series_of(40.0, 41.0).done


def test_wide_samples_go_on_until_the_most_attempts() -> None:
    """Samples that spread widely are never enough before the last attempt."""
    wide = [20.0, 60.0, 40.0] * MAX_ATTEMPTS
    assert not series_of(*wide[: MAX_ATTEMPTS - 1]).done
    assert series_of(*wide[:MAX_ATTEMPTS]).done


def test_b37_warm_up_is_dropped_and_kept_apart() -> None:
    """B37: The cold first sample is no part of the figures, and two warm ones are not yet enough."""
    series = series_of(50.9, 69.5, 70.0)
    assert rates(series) == [69.5, 70.0]
    assert [(left.reason, round(left.sample.rate, 6)) for left in series.left_out] == [("warm-up", 50.9)]
    assert not series.done
    assert series_of(50.9, 69.5, 70.0, 69.8).done


def test_a_contaminated_sample_is_repeated_and_left_out() -> None:
    """One disturbed sample among quiet ones is never averaged in, and one more quiet one is taken."""
    series = series_of(40.0, (5.7, NEIGHBOUR), 41.0)
    assert not series.done
    series.add(Sample(128, 128 / 40.5), ())
    assert series.done
    assert rates(series) == [40.0, 41.0, 40.5]
    assert [left.reason for left in series.left_out] == ["disturbed"]
    assert series.notes == ()


def test_where_the_machine_is_never_quiet_the_samples_are_marked() -> None:
    """Six disturbed samples are used and marked with the reason; three are repeated first."""
    disturbed = [(rate, NEIGHBOUR) for rate in (20.0, 20.5, 20.2, 20.1, 20.3, 20.4)]
    assert not series_of(*disturbed[:3]).done
    series = series_of(*disturbed)
    assert series.done
    assert len(series.used) == 6
    assert series.notes == ("6 of 6 tg samples were taken while other processes kept 2.0 of 2 cores busy",)


@pytest.mark.parametrize("taken", [(), (40.0,), (40.0, (5.0, NEIGHBOUR), 41.0, 12.0, (3.0, NEIGHBOUR), 41.5)])
def test_every_sample_is_kept_somewhere(taken: tuple[float | tuple[float, Sequence[str]], ...]) -> None:
    """Used and left out together are all that was taken."""
    series = series_of(*taken)
    assert len(series.used) + len(series.left_out) == len(series) == len(taken)
