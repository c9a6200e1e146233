"""What samples say: median, its interval, spread. Stable or not is decided here, once for everybody."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final

__all__ = ["MAX_VARIATION", "MIN_SAMPLES", "SIGMA_90", "Summary", "differ", "summarise", "summarise_sum", "variation"]

MIN_SAMPLES: Final = 3
"""Fewer samples than this carry no verdict and are no calibration."""

MAX_VARIATION: Final = 0.10
"""Samples that spread more than this (coefficient of variation) carry no verdict and are no calibration."""

SIGMA_90: Final = 1.6449
"""Half the width, in standard deviations, of the middle 90 % of a normal distribution."""

_COVERAGE: Final = 0.90
# Student's t at 95 %, for 2, 3 and 4 samples. Even the whole range of so few holds the median less than 90 % of the
# time (1 - 2^(1-n)), so no choice among them can.
_T_95: Final = {2: 6.314, 3: 2.920, 4: 2.353}
_WIDEST_LOG: Final = 50.0


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of `n` samples with its 90 % interval, in the samples' unit; one sample has no width.

    `variation` is the coefficient of variation of the samples: standard deviation over mean.
    """

    median: float
    low: float
    high: float
    n: int
    variation: float

    @property
    def stable(self) -> bool:
        """Whether there are enough samples, and near enough to each other, for a verdict."""
        return self.n >= MIN_SAMPLES and self.variation <= MAX_VARIATION

    @property
    def half_width(self) -> float:
        """The larger distance from the median to an end of the interval, as a fraction of the median."""
        if not self.median:
            return 0.0
        return max(self.high - self.median, self.median - self.low) / abs(self.median)


def variation(samples: Sequence[float]) -> float:
    """Coefficient of variation: the sample standard deviation over the mean; 0 below two samples."""
    if len(samples) < 2:
        return 0.0
    mean = fmean(samples)
    return stdev(samples) / abs(mean) if mean else 0.0


def summarise(samples: Sequence[float]) -> Summary:
    """Median and interval of one series of positive values; the same samples always give the same interval.

    From five samples on, interpolated order statistics (Hettmansperger and Sheather 1986), which need no shape of the
    distribution; below, Student's t on the logarithms. A percentile bootstrap of three samples would hold the true
    median 75 % of the time.

    Raises:
        ValueError: there are no samples, or one is not above 0.
    """
    return summarise_sum(samples)


def summarise_sum(*groups: Sequence[float]) -> Summary:
    """The sum of the groups' medians (a turn is reading plus writing), with the interval of that sum.

    The groups vary on their own, so the distances of the ends add as squares (Zou and Donner 2008). `n` is the
    smallest group's size and `variation` the largest group's.

    Raises:
        ValueError: a group has no samples, or one is not above 0.
    """
    if not groups or not all(groups) or min(min(group) for group in groups) <= 0:
        raise ValueError("a median needs at least one sample, and samples above 0")
    middles = [median(group) for group in groups]
    ends = [_interval(group) for group in groups]
    total = sum(middles)
    below = math.hypot(*(middle - low for middle, (low, _) in zip(middles, ends, strict=True)))
    above = math.hypot(*(high - middle for middle, (_, high) in zip(middles, ends, strict=True)))
    low, high = ends[0] if len(ends) == 1 else (total - below, total + above)
    return Summary(
        median=total,
        low=low,
        high=high,
        n=min(len(group) for group in groups),
        variation=max(variation(group) for group in groups),
    )


def differ(one: Summary, other: Summary) -> bool:
    """Whether two medians differ by more than chance: the 90 % interval of their difference does not hold 0.

    The interval is put together from both of theirs (Zou and Donner 2008). Summaries of too few samples never differ.
    """
    lower, upper = (one, other) if one.median <= other.median else (other, one)
    if min(one.n, other.n) < MIN_SAMPLES:
        return False
    return upper.median - lower.median > math.hypot(upper.median - upper.low, lower.high - lower.median)


def _interval(samples: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(samples)
    middle = median(ordered)
    low, high = _by_logarithms(ordered) if len(ordered) < 5 else _by_order(ordered)
    return min(low, middle), max(high, middle)


def _by_logarithms(samples: Sequence[float]) -> tuple[float, float]:
    logarithms = [math.log(sample) for sample in samples]
    n = len(logarithms)
    if n == 1:
        return samples[0], samples[0]
    # The bound keeps samples that have nothing in common from overflowing.
    half = min(_T_95[n] * stdev(logarithms) / math.sqrt(n), _WIDEST_LOG)
    return math.exp(fmean(logarithms) - half), math.exp(fmean(logarithms) + half)


def _by_order(ordered: Sequence[float]) -> tuple[float, float]:
    """The d-th sample from either end, moved towards the next one as far as the coverage allows."""
    n = len(ordered)
    depth, coverage = 1, 1 - 2 * 0.5**n
    while (inner := coverage - 2 * math.comb(n, depth) * 0.5**n) >= _COVERAGE:
        depth, coverage = depth + 1, inner
    over = (coverage - _COVERAGE) / (coverage - inner)
    inward = (n - depth) * over / (depth + (n - 2 * depth) * over)
    low = (1 - inward) * ordered[depth - 1] + inward * ordered[depth]
    high = (1 - inward) * ordered[n - depth] + inward * ordered[n - depth - 1]
    return low, high
