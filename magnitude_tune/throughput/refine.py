"""What measurements here say: the measured setting as measured, every other one refined by what they have in common.

The logarithm of measured over shipped prediction is taken apart into a few things that settings share: how fast the
host and the devices really are, what is special about this model and this build of the engine, and how much each
doubling of threads, of the batch, or of the context counts beyond what physics says. The prior is the shipped
prediction with its interval, so one run moves what it saw and little else, and a few runs sharpen every other
prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from magnitude_tune.request import Settings
from magnitude_tune.throughput.coefficients import DoubtCoefficients
from magnitude_tune.throughput.posterior import Posterior, Row, update
from magnitude_tune.throughput.values import Evidence

__all__ = [
    "FEATURES",
    "Calibration",
    "Features",
    "Place",
    "Quantity",
    "Rate",
    "Refined",
    "calibrate",
    "exact_key",
    "features_of",
    "rows_of_evidence",
]

Rate = tuple[float, float, float]
"""A median rate with its 90 % interval, tokens/second."""

Quantity = Literal["tg", "pp"]
Features = tuple[float, ...]

FEATURES: Final = ("host", "device", "model", "build", "threads", "crowding", "ubatch", "flash_attn", "depth", "rpc")
"""What settings share, in the order of a row's features."""

_MODEL, _BUILD = FEATURES.index("model"), FEATURES.index("build")
_MODEL_PART: Final = 0.2
_BUILD_PART: Final = 0.05
"""Parts of the shipped variance that are this model's and this build's own; the rest is the machine's. Stated."""

_SLOPES: Final[Mapping[str, Mapping[Quantity, float]]] = {
    "threads": {"tg": 0.25, "pp": 0.25},
    "crowding": {"tg": 0.60, "pp": 0.40},
    "ubatch": {"tg": 0.0, "pp": 0.10},
    "flash_attn": {"tg": 0.15, "pp": 0.30},
    "depth": {"tg": 0.10, "pp": 0.10},
    "rpc": {"tg": 0.30, "pp": 0.30},
}
"""Standard deviations of what physics misses: per doubling, of attention without flash, of work over RPC. Stated."""

_THREADS_PART: Final = 0.2
"""Most of the shipped variance on the host that one doubling of threads may hold. Stated."""

_OWN_PART: Final = 0.5
"""Part of the residual that no feature explains: the setting's own."""

_SIGMA_90: Final = 1.6449
"""Standard deviations on either side of the middle that hold 90 % of a normal distribution."""

_WIDEST_LOG: Final = 9.0
_UBATCH_HERE: Final = 512
_DEPTH_HERE: Final = 1024


class Place(NamedTuple):
    """Where a setting does its work. `host_share`: of the predicted time. `cores`: usable ones."""

    host_share: float
    cores: int
    over_rpc: bool


def features_of(settings: Settings, quantity: Quantity, place: Place, n_threads: int, depth: int = 0) -> Features:
    """The features of one setting, as `FEATURES` names them, for this model and build.

    Work at all usable cores, in batches of 512, with flash attention, at depth 0 has no features but where it is done.
    """
    host = place.host_share
    doublings = math.log2(max(n_threads, 1) / max(place.cores, 1))
    batch = 0.0 if quantity == "tg" else math.log2(max(min(settings.n_ubatch, 8192), 1) / _UBATCH_HERE)
    return (
        host,
        1.0 - host,
        1.0,
        1.0,
        host * min(doublings, 0.0),
        host * max(doublings, 0.0),
        batch,
        0.0 if settings.flash_attn else 1.0,
        math.log2(1.0 + max(depth, 0) / _DEPTH_HERE),
        1.0 - host if place.over_rpc else 0.0,
    )


class Refined(NamedTuple):
    """One quantity's measurements: exact settings as measured, and what they say about every other."""

    exact: dict[tuple[object, ...], Rate]
    posterior: Posterior

    def shift(self, features: Features) -> float:
        """What to add to the logarithm of the shipped rate."""
        return self.posterior.shift(features)

    def factor_90(self, features: Features) -> float:
        """Half-width of the 90 % interval as a factor, for a setting that was not measured itself."""
        return math.exp(min(_SIGMA_90 * math.sqrt(self.posterior.variance(features)), _WIDEST_LOG))


class Calibration(NamedTuple):
    """All measurements of this model, machine and engine; `ready` holds seconds by setting.

    A quantity that was not measured is None: its predictions stay as shipped. `rows` are what this model's runs gave,
    by quantity, for other models on this machine to learn from.
    """

    tg: Refined | None = None
    pp: Refined | None = None
    ready: Mapping[tuple[object, ...], tuple[float, ...]] = {}
    n_runs: int = 0


class Estimate(NamedTuple):
    """What is predicted without measurements: a rate, and the features of a setting.

    `doubts` are logarithms of the half-widths of the shipped 90 % interval, of work on the host and on devices.
    """

    rate: Callable[[Evidence, Quantity], float]
    features: Callable[[Evidence, Quantity], Features]
    doubts: Callable[[Quantity], tuple[float, float]]


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
    evidence: Sequence[Evidence],
    predicted: Estimate,
    coefficients: DoubtCoefficients,
    others: Mapping[Quantity, Sequence[Sequence[Row]]] | None = None,
) -> Calibration:
    """Turn stored measurements into exact rates and one posterior for `tg` and one for `pp`.

    Args:
        evidence: runs of this model, machine and engine; those of other builds count less and are never exact.
        predicted: what is predicted without them.
        others: rows that other models' runs gave on this machine, a group for each model.
    """
    ready: dict[tuple[object, ...], tuple[float, ...]] = {}
    for item in evidence:
        if item.ready_seconds is not None and 0 < item.ready_seconds < math.inf and item.same_build:
            key = exact_key(item.settings, "ready", 0)
            ready[key] = (*ready.get(key, ()), item.ready_seconds)
    found = others or {}
    return Calibration(
        tg=_refined(evidence, "tg", predicted, coefficients, found.get("tg", ())),
        pp=_refined(evidence, "pp", predicted, coefficients, found.get("pp", ())),
        ready=ready,
        n_runs=len(evidence),
    )


def rows_of_evidence(
    evidence: Sequence[Evidence], quantity: Quantity, predicted: Estimate, coefficients: DoubtCoefficients
) -> tuple[Row, ...]:
    """One row for each setting that was measured; several runs of one setting are joined, and surer."""
    again = (math.log(coefficients.rerun_factor_90) / _SIGMA_90) ** 2
    own = _own_variance(quantity, coefficients)
    rows = []
    for runs in _by_setting(evidence, quantity).values():
        middle, low, high = _joined([rate for _, rate in runs])
        item = runs[0][0]
        spread = min(math.log(high / low), 2 * _WIDEST_LOG) / (2 * _SIGMA_90)
        rate = predicted.rate(item, quantity)
        if rate > 0:
            features = predicted.features(item, quantity)
            rows.append(Row(features, math.log(middle / rate), own + again / len(runs) + spread**2))
    return tuple(rows)


def _refined(
    evidence: Sequence[Evidence],
    quantity: Quantity,
    predicted: Estimate,
    coefficients: DoubtCoefficients,
    others: Iterable[Sequence[Row]],
) -> Refined | None:
    here = [item for item in evidence if item.same_build]
    prior = _prior(quantity, predicted.doubts(quantity))
    rows = list(rows_of_evidence(here, quantity, predicted, coefficients))
    older = rows_of_evidence([item for item in evidence if not item.same_build], quantity, predicted, coefficients)
    rows += _of_another(older, _BUILD, prior)
    for group in others:
        rows += _of_another(group, _MODEL, prior)
    if not rows:
        return None
    exact = {key: _joined([rate for _, rate in runs]) for key, runs in _by_setting(here, quantity, exact=True).items()}
    return Refined(exact, update(rows, prior, _own_variance(quantity, coefficients)))


def _prior(quantity: Quantity, doubts: tuple[float, float]) -> tuple[float, ...]:
    """Variances by feature: the shipped interval's, shared out, and the slopes'."""
    host, device = ((doubt / _SIGMA_90) ** 2 for doubt in doubts)
    shared = min(variance for variance in (host, device) if variance > 0) if host + device > 0 else 0.0
    named = {
        "host": max(host - (_MODEL_PART + _BUILD_PART) * shared, 0.0),
        "device": max(device - (_MODEL_PART + _BUILD_PART) * shared, 0.0),
        "model": _MODEL_PART * shared,
        "build": _BUILD_PART * shared,
    }
    slopes = {name: stated[quantity] ** 2 for name, stated in _SLOPES.items()}
    # Of a machine that is well known, so is how it takes threads.
    slopes["threads"] = min(slopes["threads"], _THREADS_PART * host)
    return tuple(named[name] if name in named else slopes[name] for name in FEATURES)


def _of_another(rows: Sequence[Row], column: int, prior: Sequence[float]) -> list[Row]:
    """Rows of another model or build: what is their own is doubt here, and more of them do not take it away."""
    more = prior[column] * max(len(rows), 1)
    return [
        row._replace(
            features=tuple(0.0 if k == column else value for k, value in enumerate(row.features)),
            variance=row.variance + more,
        )
        for row in rows
        if len(row.features) == len(prior)
    ]


def _own_variance(quantity: Quantity, coefficients: DoubtCoefficients) -> float:
    residual = coefficients.tg_residual if quantity == "tg" else coefficients.pp_residual
    return (_OWN_PART * residual) ** 2


def _by_setting(
    evidence: Iterable[Evidence], quantity: Quantity, *, exact: bool = False
) -> dict[tuple[object, ...], list[tuple[Evidence, Rate]]]:
    """Usable rates by setting and depth; `exact` leaves out those at a depth, for which no plan asks."""
    grouped: dict[tuple[object, ...], list[tuple[Evidence, Rate]]] = {}
    for item in evidence:
        rate = item.tg if quantity == "tg" else item.pp
        if rate is None or not _usable(rate) or (exact and item.depth):
            continue
        threads = item.settings.n_threads if quantity == "tg" else item.settings.n_threads_batch
        key = exact_key(item.settings, quantity, threads)
        grouped.setdefault(key if exact else (*key, item.depth), []).append((item, rate))
    return grouped


def _usable(rate: Rate) -> bool:
    middle, low, high = rate
    return math.isfinite(high) and 0 < low <= middle <= high


def _joined(rates: Sequence[Rate]) -> Rate:
    """Several measurements of one setting: the geometric median, and an interval that holds all of theirs."""
    if len(rates) == 1:
        return rates[0]
    from statistics import median  # its import costs what `resolve` without measurements need not pay

    middle = math.exp(median(math.log(value) for value, _, _ in rates))
    return middle, min(low for _, low, _ in rates), max(high for _, _, high in rates)
