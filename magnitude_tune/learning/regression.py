"""The fit: ridge on the logarithm of measured over physics, devices weighing alike, and intervals from unseen devices.

The only module that imports scikit-learn and numpy.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnitude_tune.errors import MissingPartError
from magnitude_tune.throughput.learned import OTHER

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = [
    "CHOICES",
    "FOLDS",
    "Choice",
    "Fitted",
    "Sample",
    "Validation",
    "fit",
    "fold_of",
    "spreads_of",
    "term_names",
    "validate",
]

FOLDS: Final = 10
_ROBUST_FROM: Final = 0.2
"""Residuals beyond this (in logarithm) count linearly, as Huber's loss has it."""
_STEPS: Final = 6
_LEVEL: Final = 0.9
_SHRINK_DEVICES: Final = 3.0
"""A family's spread counts its kind's as so many devices of its own."""
_FEWEST_DEVICES: Final = 2
_LEAST_SPREAD: Final = 0.02


class Sample(NamedTuple):
    """One measurement: features by name and log(measured / physics). `device` groups, `family` for strangers."""

    device: str
    features: Mapping[str, float]
    target: float


class Choice(NamedTuple):
    """What is chosen for a quantity by cross-validation over four assignments of folds.

    `family_slopes`: each family has its own slope over the model's size, and each kind its own share of a quantisation.
    """

    penalty: float
    family_slopes: bool


CHOICES: Final[Mapping[str, Choice]] = {"tg": Choice(1.0, True), "pp": Choice(0.6, False)}


class Fitted(NamedTuple):
    """Coefficients by term."""

    terms: Mapping[str, float]

    def predict(self, sample: Sample) -> float:
        """The correction of one sample, in logarithm."""
        return sum(value * product(name, sample.features) for name, value in self.terms.items())


class Validation(NamedTuple):
    """What grouped cross-validation says: residuals of each sample when its device was not trained on.

    `strangers`: when none of its family was.
    """

    residuals: tuple[float, ...]
    strangers: tuple[float, ...]


def product(name: str, features: Mapping[str, float]) -> float:
    """The value of a term: the product of its features, absent ones 0."""
    value = 1.0
    for factor in name.split("*"):
        value *= features.get(factor, 0.0)
    return value


def term_names(samples: Sequence[Sample], choice: Choice) -> tuple[str, ...]:
    """All terms that the samples can speak about: their words and numbers, and products of a few of them."""
    devices: defaultdict[str, set[str]] = defaultdict(set)
    for sample in samples:
        for name in sample.features:
            devices[name].add(sample.device)
    words = sorted(name for name in devices if ":" in name)
    numbers = sorted(name for name in devices if ":" not in name and name != "one")
    of = {
        subject: [word for word in words if word.startswith(subject)]
        for subject in ("kind", "backend", "family", "vendor", "quant", "is")
    }
    products = [f"{word}*{name}" for word in (*of["backend"], *of["kind"]) for name in ("moe", "size", "small")]
    products += [f"{backend}*{vendor}" for backend in of["backend"] for vendor in of["vendor"]]
    products += [f"{word}*{vendor}" for word in of["is"] for vendor in of["vendor"]]
    if choice.family_slopes:
        products += [f"{quant}*{kind}" for quant in of["quant"] for kind in of["kind"]]
        products += [f"{family}*size" for family in of["family"]]
    return _telling(("one", *numbers, *words, *products), samples)


def _telling(names: Sequence[str], samples: Sequence[Sample]) -> tuple[str, ...]:
    """Without terms that fewer than two devices have, and without those that say what an earlier one says."""
    seen: set[tuple[float, ...]] = set()
    kept = []
    for name in names:
        column = tuple(product(name, sample.features) for sample in samples)
        devices = {sample.device for sample, value in zip(samples, column, strict=True) if value}
        if len(devices) >= _FEWEST_DEVICES and column not in seen:
            seen.add(column)
            kept.append(name)
    return tuple(kept)


def fit(samples: Sequence[Sample], names: Sequence[str], penalty: float) -> Fitted:
    """Weighted ridge with Huber's loss; a device's samples weigh together as the square root of their number.

    Raises:
        MissingPartError: scikit-learn is not installed.
    """
    design, target, weights = _arrays(samples, names)
    return Fitted(dict(zip(names, (float(value) for value in _solve((design, target, weights), penalty)), strict=True)))


def _arrays(samples: Sequence[Sample], names: Sequence[str]) -> tuple[Array, Array, Array]:
    import numpy as np

    counts: defaultdict[str, int] = defaultdict(int)
    for sample in samples:
        counts[sample.device] += 1
    design = np.array([[product(name, sample.features) for name in names] for sample in samples], dtype=np.float64)
    target = np.array([sample.target for sample in samples], dtype=np.float64)
    weights = np.array([counts[sample.device] ** -0.5 for sample in samples], dtype=np.float64)
    return design, target, weights


def _solve(arrays: tuple[Array, Array, Array], penalty: float) -> Array:
    """Coefficients by iteratively reweighted ridge; the first column is the unpenalised intercept.

    On one thread: such small systems only wait for more, and sums in another order are other sums.
    """
    ridge = _ridge(penalty)
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        return _reweighted(ridge, *arrays)


def _reweighted(ridge: Any, design: Array, target: Array, weights: Array) -> Array:
    import numpy as np

    robust = np.ones_like(target)
    coefficients = np.zeros(design.shape[1])
    for _ in range(_STEPS):
        ridge.fit(design[:, 1:], target, sample_weight=weights * robust)
        coefficients = np.concatenate(([ridge.intercept_], ridge.coef_))
        off = np.abs(target - design @ coefficients)
        robust = 1.0 / np.maximum(off / _ROBUST_FROM, 1.0)
    return coefficients


def _ridge(penalty: float) -> Any:
    try:
        from sklearn.linear_model import Ridge
    except ImportError as error:
        raise MissingPartError(
            "training needs scikit-learn, which is not installed", hint="pip install 'magnitude-tune[train]'"
        ) from error
    return Ridge(alpha=penalty, solver="cholesky")


def fold_of(devices: Sequence[str]) -> dict[str, int]:
    """A fold for each device, by the hash of its name: the same whatever else is in the table's order."""
    ordered = sorted(set(devices), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return {name: place % FOLDS for place, name in enumerate(ordered)}


def validate(samples: Sequence[Sample], names: Sequence[str], penalty: float) -> Validation:
    """Residuals of every sample from fits without its device, and from fits without its whole family."""
    folds = fold_of([sample.device for sample in samples])
    families = [family_of(sample) for sample in samples]
    arrays = _arrays(samples, names)
    return Validation(
        residuals=_residuals(arrays, penalty, [folds[sample.device] for sample in samples]),
        strangers=_residuals(arrays, penalty, families),
    )


def family_of(sample: Sample) -> str:
    """The most particular family among a sample's words."""
    return max((name for name in sample.features if name.startswith("family:")), default="")


def _residuals(arrays: tuple[Array, Array, Array], penalty: float, groups: Sequence[str | int]) -> tuple[float, ...]:
    import numpy as np

    design, target, weights = arrays
    found = np.zeros_like(target)
    for group in sorted(set(groups), key=str):
        held = np.array([each == group for each in groups])
        if held.all():
            continue
        found[held] = target[held] - design[held] @ _solve((design[~held], target[~held], weights[~held]), penalty)
    return tuple(float(value) for value in found)


def spreads_of(
    samples: Sequence[Sample], validation: Validation, without: frozenset[str] = frozenset()
) -> tuple[dict[str, float], float]:
    """Spreads by family and kind, and the multiple of them that holds 90 % of unseen devices' samples.

    A spread is the mean over devices of each one's mean |residual|, drawn towards its kind's. The multiple is the
    quantile of |residual| / spread with every device weighing the same, at the level 0.9 * (1 + 1 / devices) that
    split-conformal intervals ask for. `without` leaves devices out, to see how the rest's intervals hold them.
    """
    kept = [i for i, sample in enumerate(samples) if sample.device not in without]
    off: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    strange: defaultdict[str, list[float]] = defaultdict(list)
    for i in kept:
        for word in ("", *(name for name in samples[i].features if name.startswith(("kind:", "family:")))):
            off[word][samples[i].device].append(abs(validation.residuals[i]))
        strange[samples[i].device].append(abs(validation.strangers[i]))
    every = _mean_over_devices(off.pop(""))
    kinds = {word: _shrunk(of, every) for word, of in off.items() if word.startswith("kind:")}
    spreads = {}
    for word, of in off.items():
        if word.startswith("family:"):
            kind = next(
                name for i in kept if word in samples[i].features for name in samples[i].features if name in kinds
            )
            spreads[word] = _shrunk(of, kinds[kind])
    spreads[OTHER] = max(_mean_over_devices(strange), *spreads.values())
    scores: defaultdict[str, list[float]] = defaultdict(list)
    for i in kept:
        scores[samples[i].device].append(abs(validation.residuals[i]) / spread_at(spreads, samples[i].features))
    return dict(sorted(spreads.items())), _quantile(scores)


def spread_at(spreads: Mapping[str, float], features: Mapping[str, float]) -> float:
    """The widest spread of a sample's families; that of strangers where none is known."""
    return max((value for word, value in spreads.items() if word in features), default=spreads[OTHER])


def _shrunk(of: Mapping[str, list[float]], towards: float) -> float:
    n = len(of)
    return max((_mean_over_devices(of) * n + _SHRINK_DEVICES * towards) / (n + _SHRINK_DEVICES), _LEAST_SPREAD)


def _mean_over_devices(of: Mapping[str, list[float]]) -> float:
    return math.fsum(math.fsum(values) / len(values) for values in of.values()) / max(len(of), 1)


def _quantile(scores: Mapping[str, list[float]]) -> float:
    level = min(1.0, _LEVEL * (1 + 1 / len(scores)))
    weighted = sorted((value, 1 / len(values) / len(scores)) for values in scores.values() for value in values)
    reached = 0.0
    for value, weight in weighted:
        reached += weight
        if reached >= level - 1e-12:
            return value
    return weighted[-1][0]
