"""What samples say: median, its bootstrap interval, spread. Stable or not is decided here, once for everybody."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Final

__all__ = ["MAX_VARIATION", "MIN_SAMPLES", "Summary", "summarise", "summarise_sum", "variation"]

MIN_SAMPLES: Final = 3
"""Fewer samples than this carry no verdict and are no calibration."""

MAX_VARIATION: Final = 0.10
"""Samples that spread more than this (coefficient of variation) carry no verdict and are no calibration."""

_RESAMPLES = 1000
_SEED = 20160229
_TAIL = 0.05


@dataclass(frozen=True, slots=True)
class Summary:
    """The median of `n` samples with its 90 % bootstrap interval, in the samples' unit.

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
    """Median and interval of one series; the same samples always give the same interval.

    Raises:
        ValueError: there are no samples.
    """
    return summarise_sum(samples)


def summarise_sum(*groups: Sequence[float]) -> Summary:
    """The sum of the groups' medians (a turn is reading plus writing), with the interval of that sum.

    Percentile bootstrap (Efron 1979): each group is resampled on its own, `n` is the smallest group's size and
    `variation` the largest group's.

    Raises:
        ValueError: a group has no samples.
    """
    if not groups or not all(groups):
        raise ValueError("a median needs at least one sample")
    # Statistics, not secrets: a fixed seed makes the interval a function of the samples.
    generator = random.Random(_SEED)  # noqa: S311
    sums = sorted(sum(median(generator.choices(group, k=len(group))) for group in groups) for _ in range(_RESAMPLES))
    cut = int(_TAIL * _RESAMPLES)
    middle = sum(median(group) for group in groups)
    return Summary(
        median=middle,
        low=min(middle, sums[cut]),
        high=max(middle, sums[-1 - cut]),
        n=min(len(group) for group in groups),
        variation=max(variation(group) for group in groups),
    )
