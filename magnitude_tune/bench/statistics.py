"""What the order of samples says: warm-up at the start, decline towards the end. Spread is `observations`' matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

__all__ = ["Drift", "drift", "warm_up_count"]

_WARM_UP_GAP: Final = 0.9
"""A first sample below this part of every later one is warm-up: a slower clock, cold caches, code not yet paged in."""

_SUSPECT_DRIFT: Final = 0.10
_ENOUGH_FOR_DRIFT: Final = 5


@dataclass(frozen=True, slots=True)
class Drift:
    """How rates moved within a run.

    Args:
        fraction: the fall from the first sample to the last, over the first; negative where they rose.
        peak: the best rate.
        sustained: the mean rate of the last third.
        suspect: the fall is large and lasting enough to suspect heat or a power limit.
    """

    fraction: float
    peak: float
    sustained: float
    suspect: bool


def drift(rates: Sequence[float]) -> Drift:
    """How `rates` moved from the first sample to the last.

    A single slow last sample is no decline: the last third must also lie 10 % below the first third.

    Raises:
        ValueError: there are no rates.
    """
    if not rates:
        raise ValueError("drift needs at least one rate")
    third = math.ceil(len(rates) / 3)
    sustained = fmean(rates[-third:])
    fall = (rates[0] - rates[-1]) / rates[0] if rates[0] else 0.0
    lasting = sustained <= (1 - _SUSPECT_DRIFT) * fmean(rates[:third])
    return Drift(
        fraction=fall,
        peak=max(rates),
        sustained=sustained,
        suspect=len(rates) >= _ENOUGH_FOR_DRIFT and fall >= _SUSPECT_DRIFT and lasting,
    )


def warm_up_count(rates: Sequence[float]) -> int:
    """How many leading samples are warm-up: each slower by more than 10 % than every sample after it.

    Two samples at least always remain, since one alone cannot tell a warm-up from a lucky run.
    """
    count = 0
    while count + 2 < len(rates) and rates[count] < _WARM_UP_GAP * min(rates[count + 1 :]):
        count += 1
    return count
