"""What measurements here say: the measured setting as measured, every other one by a single factor.

One factor for pp and one for tg keep what physics orders: with the factor applied, more bandwidth, more threads or a
faster device still never make another setting slower. Only the measured settings themselves leave that order, because
there the measurement knows better; a choice between a measured setting and a predicted one compares a fact with an
estimate that the same fact has scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from magnitude_tune.request import Settings
from magnitude_tune.throughput.coefficients import DoubtCoefficients
from magnitude_tune.throughput.values import Evidence

__all__ = ["NO_MEASUREMENTS", "Calibration", "Measured", "Quantity", "Rate", "calibrate", "exact_key"]

Rate = tuple[float, float, float]
"""A median rate with its 90 % interval, tokens/second."""

Quantity = Literal["tg", "pp"]
Estimate = Callable[[Settings, Quantity], float]
"""Something known about a setting: its predicted rate, or the half-width of its interval."""

_SIGMA_90: Final = 1.6449
"""Standard deviations on either side of the middle that hold 90 % of a normal distribution."""


class Measured(NamedTuple):
    """One quantity's measurements: exact settings as measured, and the factor on every other prediction.

    `log_factor` is added to the logarithm of predicted rates; `sigma` is the doubt that stays, None without evidence.
    `places` are the sets of devices that were measured: elsewhere the factor is a guess and narrows nothing.
    """

    exact: dict[tuple[object, ...], Rate]
    log_factor: float
    sigma: float | None
    places: frozenset[tuple[str, ...]]

    def factor_90(self, shipped: float, settings: Settings) -> float:
        """Half-width of the 90 % interval as a factor, for a setting that was not measured itself."""
        if self.sigma is None or settings.devices not in self.places:
            return shipped
        return math.exp(_SIGMA_90 * self.sigma)


NO_MEASUREMENTS: Final = Measured({}, 0.0, None, frozenset())
"""Nothing measured: predictions stay as shipped."""


class Calibration(NamedTuple):
    """All measurements of this model, machine and engine; `ready` holds seconds by setting."""

    tg: Measured
    pp: Measured
    ready: dict[tuple[object, ...], tuple[float, ...]]
    n_runs: int


def exact_key(settings: Settings, quantity: str, n_threads: int) -> tuple[object, ...]:
    """What must be equal for a measurement to hold as it is: every setting that the quantity depends on.

    `cache_ram` and `ctx_checkpoints` change next to nothing measured here. The other phase's thread count does not
    count either: `tg` never sees n_threads_batch, nor `pp` n_threads. How the file was loaded is part of `ready` only,
    and a single token sees no batch.
    """
    batch = () if quantity == "tg" else (settings.n_batch, settings.n_ubatch)
    return (
        quantity,
        n_threads,
        settings.load_mode if quantity == "ready" else None,
        *batch,
        settings.n_gpu_layers,
        settings.n_ctx,
        settings.n_parallel,
        settings.kv_unified,
        settings.flash_attn,
        settings.type_k,
        settings.type_v,
        settings.repack,
        settings.n_cpu_moe,
        settings.devices,
        settings.tensor_split,
        settings.main_gpu,
    )


def calibrate(
    evidence: tuple[Evidence, ...],
    predicted: Estimate,
    shipped: Estimate,
    coefficients: DoubtCoefficients,
) -> Calibration:
    """Turn stored measurements into exact rates and one factor for `tg` and one for `pp`.

    `predicted` gives the uncorrected rate of a setting, `shipped` the half-width of its 90 % interval as a factor; both
    take `tg` or `pp`. The factor is the geometric median of measured/predicted over the measured settings. It is not
    drawn towards 1: else every plan that was not measured would look better than the one that was. The doubt that stays
    is that of the posterior of a normal prior on the logarithm; runs that contradict each other widen it.
    """
    tg = [(item.settings, item.tg) for item in evidence if item.tg is not None and _usable(item.tg)]
    pp = [(item.settings, item.pp) for item in evidence if item.pp is not None and _usable(item.pp)]
    ready: dict[tuple[object, ...], tuple[float, ...]] = {}
    for item in evidence:
        if item.ready_seconds is not None and 0 < item.ready_seconds < math.inf:
            key = exact_key(item.settings, "ready", 0)
            ready[key] = (*ready.get(key, ()), item.ready_seconds)
    return Calibration(
        tg=_measured(tg, "tg", predicted, shipped, coefficients),
        pp=_measured(pp, "pp", predicted, shipped, coefficients),
        ready=ready,
        n_runs=len(evidence),
    )


def _usable(rate: Rate) -> bool:
    return all(math.isfinite(value) and value > 0 for value in rate)


def _measured(
    runs: list[tuple[Settings, Rate]],
    quantity: Quantity,
    predicted: Estimate,
    shipped: Estimate,
    coefficients: DoubtCoefficients,
) -> Measured:
    grouped: dict[tuple[object, ...], list[tuple[Settings, Rate]]] = {}
    for settings, rate in runs:
        threads = settings.n_threads if quantity == "tg" else settings.n_threads_batch
        grouped.setdefault(exact_key(settings, quantity, threads), []).append((settings, rate))
    exact = {key: _joined(rate for _, rate in group) for key, group in grouped.items()}
    if not exact:
        return NO_MEASUREMENTS
    firsts = {key: group[0][0] for key, group in grouped.items()}
    ratios = [math.log(exact[key][0] / predicted(settings, quantity)) for key, settings in firsts.items()]
    prior = max(math.log(shipped(settings, quantity)) for settings in firsts.values()) / _SIGMA_90
    residual = coefficients.tg_residual if quantity == "tg" else coefficients.pp_residual
    from statistics import median  # its import costs what `resolve` without measurements need not pay

    middle = median(ratios)
    if len(ratios) > 1:
        residual = max(residual, math.sqrt(sum((ratio - middle) ** 2 for ratio in ratios) / (len(ratios) - 1)))
    return Measured(exact, middle, _doubt_left(len(ratios), prior, residual), _places(firsts.values()))


def _doubt_left(n: int, prior: float, residual: float) -> float:
    """The doubt about a setting that was not measured, after `n` that were: the factor's own and the residual's."""
    total = n * prior**2 + residual**2
    own = (prior * residual) ** 2 / total if total > 0 else 0.0
    return math.sqrt(own + residual**2)


def _places(settings: Iterable[Settings]) -> frozenset[tuple[str, ...]]:
    return frozenset(item.devices for item in settings)


def _joined(rates: Iterable[Rate]) -> Rate:
    """Several measurements of one setting: the geometric median, and an interval that holds all of theirs."""
    values = list(rates)
    from statistics import median

    middle = math.exp(median(math.log(value) for value, _, _ in values))
    return middle, min(low for _, low, _ in values), max(high for _, _, high in values)
