"""A Bayesian linear update in closed form: few features, rows with their own variance, a normal prior around zero.

With a prior N(0, V) on the weights and rows y = x . w + e, e ~ N(0, s), the posterior has the precision
V^-1 + sum x x' / s and the mean precision^-1 * sum x y / s (Bishop 2006, 3.3). Rows far off what the others say are
held back as Huber's estimator does (1964), so one wild row moves little; what rows are off by, beyond what their
variance allows, widens everything (the inverse gamma prior of the variance, with the shipped one as four rows).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["Posterior", "Row", "update"]

_HUBER: Final = 1.345
"""Standard deviations from which a row is held back: 95 % as efficient as least squares where nothing is wrong."""

_PRIOR_ROWS: Final = 4.0
_WIDEST_LOG: Final = 9.0
"""Rows further off than e^9 say nothing about the machine."""

_LEAST_VARIANCE: Final = 1e-6
_LARGEST_FEATURE: Final = 1e3
_MOST_STEPS: Final = 200
_CLOSE: Final = 1e-12


class Row(NamedTuple):
    """One measurement: features of its setting, the logarithm of measured over predicted, and that one's variance."""

    features: tuple[float, ...]
    log_ratio: float
    variance: float


class Posterior(NamedTuple):
    """What rows say about the weights.

    `covariance` already holds the scale; `own_variance` is what a setting keeps to itself, whatever the others say.
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    own_variance: float

    def shift(self, features: Sequence[float]) -> float:
        """What to add to the logarithm of the predicted rate."""
        return _dot(self.mean, features)

    def variance(self, features: Sequence[float]) -> float:
        """Variance of the logarithm of measured over refined, for a setting with those features."""
        known = sum(one * _dot(row, features) for one, row in zip(features, self.covariance, strict=True) if one)
        return max(known, 0.0) + self.own_variance


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    total = 0.0
    for a, b in zip(one, other, strict=True):
        total += a * b
    return total


def update(rows: Sequence[Row], prior: Sequence[float], own_variance: float) -> Posterior:
    """The posterior after all rows, in whatever order they come.

    Rows with values that cannot be (not finite, negative variances, huge features) are left out.

    Args:
        prior: variance of each weight before any row; 0 keeps it at zero.
        own_variance: part of each row's variance that is the setting's own: it stays for other settings.
    """
    # Sorted: sums of floats depend on their order, and the same rows must give the same plan.
    usable = sorted(row for row in rows if _is_possible(row) and len(row.features) == len(prior))
    active = [k for k, variance in enumerate(prior) if variance > 0 and any(row.features[k] for row in usable)]
    picked = [
        Row(
            tuple(row.features[k] for k in active),
            max(-_WIDEST_LOG, min(_WIDEST_LOG, row.log_ratio)),
            max(row.variance, _LEAST_VARIANCE),
        )
        for row in usable
    ]
    mean, covariance = _fitted(picked, [prior[k] for k in active])
    scale = _scale(picked, mean)
    spread = [[0.0] * len(prior) for _ in prior]
    for k, variance in enumerate(prior):
        spread[k][k] = variance
    for i, k in enumerate(active):
        for j, other in enumerate(active):
            spread[k][other] = covariance[i][j] * scale
    whole = [0.0] * len(prior)
    for i, k in enumerate(active):
        whole[k] = mean[i]
    return Posterior(tuple(whole), tuple(map(tuple, spread)), own_variance * scale)


def _is_possible(row: Row) -> bool:
    """Whether a row can be of this world: NaN fails every comparison."""
    return (
        all(abs(value) <= _LARGEST_FEATURE for value in row.features)
        and abs(row.log_ratio) < math.inf
        and 0 <= row.variance < math.inf
    )


def _fitted(rows: Sequence[Row], prior: Sequence[float]) -> tuple[list[float], list[list[float]]]:
    """Mean and covariance with wild rows held back: solved anew with each row's weight until none moves."""
    weights = [1.0] * len(rows)
    mean: list[float] = [0.0] * len(prior)
    covariance: list[list[float]] = []
    for _ in range(_MOST_STEPS):
        mean, covariance = _solved(rows, weights, prior)
        again = [min(1.0, _HUBER / max(_off(row, mean), _CLOSE)) for row in rows]
        if all(abs(one - other) < _CLOSE for one, other in zip(again, weights, strict=True)):
            break
        weights = again
    return mean, covariance


def _off(row: Row, mean: Sequence[float]) -> float:
    """How many of its standard deviations a row lies off."""
    return abs(row.log_ratio - _dot(mean, row.features)) / math.sqrt(row.variance)


def _scale(rows: Sequence[Row], mean: Sequence[float]) -> float:
    """How much wider than allowed for the rows lie around the mean, in variance; 1 where they agree."""
    off = [_off(row, mean) for row in rows]
    squares = sum(each**2 if each <= _HUBER else _HUBER * (2 * each - _HUBER) for each in off)
    return max(1.0, (_PRIOR_ROWS + squares) / (_PRIOR_ROWS + len(rows)))


def _solved(
    rows: Sequence[Row], weights: Sequence[float], prior: Sequence[float]
) -> tuple[list[float], list[list[float]]]:
    n = len(prior)
    precision = [[0.0] * n for _ in range(n)]
    right = [0.0] * n
    for k in range(n):
        precision[k][k] = 1.0 / prior[k]
    for row, weight in zip(rows, weights, strict=True):
        strength = weight / row.variance
        for i, one in enumerate(row.features):
            if one:
                right[i] += strength * one * row.log_ratio
                for j, other in enumerate(row.features):
                    precision[i][j] += strength * one * other
    covariance = _inverse(precision)
    return [_dot(line, right) for line in covariance], covariance


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]]:
    """Of a symmetric positive definite matrix, by Gauss and Jordan; such need no pivoting."""
    n = len(matrix)
    work = [[*row, *(1.0 if i == k else 0.0 for k in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = work[i][i]
        work[i] = [value / pivot for value in work[i]]
        for k in range(n):
            factor = work[k][i]
            if k != i and factor:
                work[k] = [value - factor * own for value, own in zip(work[k], work[i], strict=True)]
    return [row[n:] for row in work]
