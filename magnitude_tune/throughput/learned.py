"""The learned correction: what a small regression adds to the logarithm of the physics' rate, and how far it is off.

Terms are products of features (`family:ada*moe`), each with its coefficient. The 90 % interval is a multiple of a
spread, which is known for families of devices that training saw and wide for others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.throughput.features import ModelTraits, features

__all__ = [
    "AS_STATED",
    "OTHER",
    "Correction",
    "Gains",
    "Learned",
    "Scale",
    "Term",
    "corrected",
    "scaled",
]

OTHER: Final = "other"
"""Spread of devices whose family training did not see."""
_REFERENCE_BANDWIDTH: Final = 500e9
_REFERENCE_FLOPS: Final = 50e12
"""Where exponents of rates below 1 leave a rate as it is."""
_WIDEST_GAIN: Final = 3.0
_WIDEST_DOUBT: Final = 4.0


class Term(NamedTuple):
    """One coefficient and the features whose product it multiplies."""

    coefficient: float
    factors: tuple[str, ...]


class Correction(NamedTuple):
    """What is learned about one quantity.

    Args:
        terms: their sum is added to the logarithm of the rate.
        spreads: typical size of log(measured / predicted) on unseen devices, by word, and for `OTHER`.
        multiple: the 90 % interval is exp(+- multiple * spread).
    """

    terms: tuple[Term, ...]
    spreads: Mapping[str, float]
    multiple: float


class Scale(NamedTuple):
    """Exponents of the data sheet's rates: twice the bandwidth gives 2 ** `bandwidth` of the rate."""

    bandwidth: float
    flops: float


class Gains(NamedTuple):
    """Factors on the rates of tg and pp, and logarithms of their 90 % factors; a doubt of 0: the kind's own holds."""

    tg: float = 1.0
    pp: float = 1.0
    tg_doubt: float = 0.0
    pp_doubt: float = 0.0


AS_STATED: Final = Gains()


class Learned(NamedTuple):
    """Corrections of `tg` and `pp`, exponents by kind of device, and the numbers' ranges in training."""

    tg: Correction
    pp: Correction
    scales: Mapping[str, Scale]
    ranges: tuple[tuple[float, float], ...]


def scaled(learned: Learned | None, kind: str, rates: tuple[float, float]) -> tuple[float, float]:
    """Bandwidth and peak of a device, raised to the exponents that hold for its kind."""
    scale = learned.scales.get(kind) if learned is not None else None
    if scale is None:
        return rates
    bandwidth, flops = rates
    return (
        _REFERENCE_BANDWIDTH * (bandwidth / _REFERENCE_BANDWIDTH) ** scale.bandwidth,
        _REFERENCE_FLOPS * (flops / _REFERENCE_FLOPS) ** scale.flops,
    )


def corrected(learned: Learned | None, words: frozenset[str], model: ModelTraits) -> Gains:
    """What training says about a model on a device with these words; `AS_STATED` for kinds that it did not see."""
    if learned is None or not any(f"kind:{kind}" in words for kind in learned.scales):
        return AS_STATED
    known = features(words, model)
    strange = _strangeness(model, learned.ranges)
    tg, pp = learned.tg, learned.pp
    return Gains(
        tg=_gain(tg.terms, known),
        pp=_gain(pp.terms, known),
        tg_doubt=min(tg.multiple * strange * _spread(tg.spreads, words), _WIDEST_DOUBT),
        pp_doubt=min(pp.multiple * strange * _spread(pp.spreads, words), _WIDEST_DOUBT),
    )


def _gain(terms: tuple[Term, ...], known: Mapping[str, float]) -> float:
    total = 0.0
    for coefficient, factors in terms:
        for name in factors:
            coefficient *= known.get(name, 0.0)  # noqa: PLW2901 - a product grows in place
        total += coefficient
    return math.exp(min(max(total, -_WIDEST_GAIN), _WIDEST_GAIN))


def _strangeness(model: ModelTraits, ranges: tuple[tuple[float, float], ...]) -> float:
    """1 for a model like those of training, growing with the distance of its numbers from theirs."""
    beyond = 1.0
    for value, (low, high) in zip(model.numbers, ranges, strict=True):
        distance = max(low - value, value - high, 0.0)
        beyond += distance * distance
    return math.sqrt(beyond)


def _spread(spreads: Mapping[str, float], words: frozenset[str]) -> float:
    """The widest that holds for any of the words, or that of strangers where training saw none of its family."""
    known = [spread for word, spread in spreads.items() if word in words]
    return max(known) if any(word.startswith("family:") and word in spreads for word in words) else spreads[OTHER]
