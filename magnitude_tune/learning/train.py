"""From tables to `throughput.json`: samples, the fit, its validation, and the document, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.cases import Models
from magnitude_tune.learning.evaluation import Figures, Score, figures, score_rows
from magnitude_tune.learning.regression import (
    CHOICES,
    Fitted,
    Sample,
    Validation,
    fit,
    fold_of,
    spread_at,
    spreads_of,
    term_names,
    validate,
)
from magnitude_tune.learning.table import KINDS, DeviceRow, Row, Rows, read_devices, read_rows
from magnitude_tune.throughput.coefficients import SCHEMA_VERSION, Coefficients, parse_coefficients
from magnitude_tune.throughput.features import NUMBERS, features
from magnitude_tune.throughput.learned import Correction, Learned, Scale
from magnitude_tune.throughput.refine import Quantity

__all__ = [
    "MOST_BYTES",
    "Trained",
    "document_text",
    "samples_of",
    "train",
    "usable",
    "without_correction",
]

MOST_BYTES: Final = 12_288
_QUANTITIES: Final[tuple[Quantity, ...]] = ("tg", "pp")
_PROMPTS: Final = (128, 4096)
_SCALES: Final = {
    "cpu": Scale(1.0, 1.0),
    "gpu": Scale(0.85, 0.9),
    "igpu": Scale(0.85, 0.9),
    "apple": Scale(1.0, 0.9),
}
"""Exponents, stated: wide memory and many units are filled less well. Chosen by cross-validation among 0.7 to 1."""
_FEWEST_DEVICES: Final = 5
_DIGITS: Final = 3
_LEAST: Final = 0.01
_NOTHING: Final = Correction((), {"other": 0.5}, 1.0)


class Trained(NamedTuple):
    """The document, and what the card says about it.

    `unseen`: figures by quantity where a row's device was not trained on; `unseen_cpus`: of tg on processors whose
    threads are known. `others`: what the whole fit gives on rows of kinds that are not trained on. `skipped`: rows that
    each rule dropped.
    """

    document: Mapping[str, Any]
    unseen: Mapping[str, Figures]
    unseen_cpus: Figures
    others: Mapping[str, Figures]
    skipped: Mapping[str, int]
    n_used: int
    n_devices: int


def train(table: Path, devices: Path, stated: Mapping[str, Any], where: str) -> Trained:
    """Fit both corrections on a table; `stated` is a document with the stated parts, from the file `where`.

    Raises:
        InputFileError: a file that cannot be read, is no such table, or has too few rows of tg or pp.
        MissingPartError: scikit-learn is not installed.
    """
    sheets = read_devices(devices)
    read = read_rows(table, sheets)
    base = without_correction(stated, where)
    models = Models(base, sheets)
    learned: dict[str, Any] = {}
    found: dict[str, list[Score]] = {}
    ranges: list[tuple[float, float]] = []
    for quantity in _QUANTITIES:
        rows = usable(read.rows, quantity)
        _check_enough(rows, quantity, table)
        samples = samples_of(rows, models)
        choice = CHOICES[quantity]
        names = term_names(samples, choice)
        fitted, checked = fit(samples, names, choice.penalty), validate(samples, names, choice.penalty)
        spreads, multiple = spreads_of(samples, checked)
        learned[quantity] = _correction(fitted, spreads, multiple)
        found[quantity] = _unseen(rows, samples, checked)
        ranges = ranges or _ranges(samples)
    learned["ranges"] = {name: {"low": low, "high": high} for name, (low, high) in zip(NUMBERS, ranges, strict=True)}
    return _trained(stated, learned, found, (read, sheets))


def _check_enough(rows: Sequence[Row], quantity: Quantity, table: Path) -> None:
    n_devices = len({row.device.name for row in rows})
    if n_devices < _FEWEST_DEVICES:
        raise InputFileError(
            f"too few devices to train on: {n_devices} with usable rows of {quantity}, {_FEWEST_DEVICES} are needed",
            where=str(table),
            hint="`magnitude-tune evaluate` on this table says which rows are left out, and why",
        )


def usable(rows: Sequence[Row], quantity: Quantity) -> list[Row]:
    """Rows to train on: everything on one device at depth 0, prompts of 128 to 4096 tokens.

    Generation on processors also learns from sweeps of threads; prompts are predicted worse with them.
    """
    low, high = _PROMPTS
    return [
        row
        for row in rows
        if row.quantity == quantity
        and (row.kind == quantity or (quantity == "tg" and row.kind == "threads" and row.device_kind == "cpu"))
        and (quantity == "tg" or low <= row.n_prompt <= high)
    ]


def samples_of(rows: Sequence[Row], models: Models) -> list[Sample]:
    """Features and log(measured / physics) of rows."""
    found = []
    for row in rows:
        model = models.model(row)
        words = model.words_of("" if row.device_kind == "cpu" else "D0")
        target = math.log(row.rate / models.interval(row).value)
        found.append(Sample(row.device.name, features(words, model.traits), target))
    return found


def without_correction(stated: Mapping[str, Any], where: str) -> Coefficients:
    """The stated parts of a document from the file `where`, with the exponents that training uses: physics alone."""
    coefficients = parse_coefficients(stated, where)
    learned = Learned(_NOTHING, _NOTHING, _SCALES, ((-100.0, 100.0),) * len(NUMBERS))
    return coefficients._replace(learned=learned)


def _correction(fitted: Fitted, spreads: Mapping[str, float], multiple: float) -> dict[str, Any]:
    terms = {name: round(value, _DIGITS) for name, value in fitted.terms.items() if abs(value) >= _LEAST}
    return {
        "terms": terms,
        "spreads": {word: round(value, _DIGITS) for word, value in spreads.items()},
        "multiple": round(multiple, _DIGITS),
    }


def _ranges(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    values = [[sample.features[name] for sample in samples] for name in NUMBERS]
    return [(round(min(each), 2), round(max(each), 2)) for each in values]


def _unseen(rows: Sequence[Row], samples: Sequence[Sample], checked: Validation) -> list[Score]:
    """Every row as predicted without its device, with the interval that the other folds' devices give it."""
    folds = fold_of([sample.device for sample in samples])
    scores: list[Score] = []
    for fold in sorted(set(folds.values())):
        out = frozenset(device for device, place in folds.items() if place == fold)
        spreads, multiple = spreads_of(samples, checked, out)
        for row, sample, residual in zip(rows, samples, checked.residuals, strict=True):
            if sample.device in out:
                value = row.rate * math.exp(-residual)
                factor = math.exp(multiple * spread_at(spreads, sample.features))
                scores.append(Score(row, value, value / factor, value * factor))
    return scores


def _trained(
    stated: Mapping[str, Any],
    learned: dict[str, Any],
    found: Mapping[str, list[Score]],
    tables: tuple[Rows, Mapping[str, DeviceRow]],
) -> Trained:
    read, sheets = tables
    used = [row for quantity in _QUANTITIES for row in usable(read.rows, quantity)]
    every = {quantity: figures(scores, quantity) for quantity, scores in found.items()}
    known = [
        score._replace(row=score.row._replace(kind="tg"))
        for score in found["tg"]
        if score.row.device_kind == "cpu" and score.row.n_threads is not None
    ]
    learned["scales"] = {kind: scale._asdict() for kind, scale in _SCALES.items()}
    n_devices = len({row.device.name for row in used})
    training = {
        "command": "magnitude-tune train",
        "rows": len(used),
        "devices": n_devices,
        "hash": hashlib.sha256(repr(sorted(map(repr, used))).encode()).hexdigest(),
        "unseen": {quantity: _metrics(each) for quantity, each in every.items()},
    }
    document = {**stated, "schema_version": SCHEMA_VERSION, "learned": learned, "training": training}
    scores = score_rows(read.rows, Models(parse_coefficients(document, "the trained coefficients"), sheets))
    return Trained(
        document=document,
        unseen=every,
        unseen_cpus=figures(known, "tg"),
        others={kind: figures(scores, kind) for kind in KINDS if kind not in _QUANTITIES},
        skipped=read.skipped,
        n_used=len(used),
        n_devices=n_devices,
    )


def _metrics(each: Figures) -> dict[str, object]:
    named = each._asdict()
    names = ("rows", "devices", "median_error", "within_25", "coverage_90", "median_width_90")
    return {name: round(value, _DIGITS) if isinstance(value := named[name], float) else value for name in names}


def document_text(document: Mapping[str, Any]) -> str:
    """The document as it is stored: two levels indented, what lies deeper on one line where it fits."""
    return _text(document, "") + "\n"


def _text(value: object, indent: str) -> str:
    flat = json.dumps(value, ensure_ascii=True, allow_nan=False)
    if not isinstance(value, dict) or len(flat) + len(indent) <= 118:
        return flat
    inner = indent + " "
    lines: list[str] = []
    for name, each in value.items():
        part = f"{json.dumps(name)}: {_text(each, inner)}"
        if lines and "\n" not in part and "\n" not in lines[-1] and len(inner) + len(lines[-1]) + len(part) <= 118:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    body = f",\n{inner}".join(lines)
    return f"{{\n{inner}{body}\n{indent}}}"
