"""Scoring coefficients on a table: errors, intervals and orders by kind, every device weighing the same."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from magnitude_tune.learning.cases import Models
from magnitude_tune.learning.table import KINDS, Row, read_devices, read_rows
from magnitude_tune.throughput.coefficients import Coefficients

__all__ = ["Figures", "Score", "Scored", "evaluate", "evaluation_document", "figures", "score_rows"]

SCHEMA_VERSION: Final = 1
_DIGITS: Final = 6


class Score(NamedTuple):
    """One row with what was predicted: rates in tokens/second."""

    row: Row
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """|predicted / measured - 1|."""
        return abs(self.value / self.row.rate - 1)


class Figures(NamedTuple):
    """Figures of one kind, as fractions; None where there is nothing to say.

    Args:
        rows, devices: used.
        median_error, p90_error: of the devices' median errors, their median and 90th percentile.
        within_25: share of devices whose median error is at most 25 %.
        coverage_90: mean over devices of the share of rows inside the 90 % interval.
        median_width_90: median over devices of the median of (high - low) / predicted.
        rank_correlation: median of Spearman's over sweeps; `sweeps` of them.
    """

    rows: int = 0
    devices: int = 0
    median_error: float | None = None
    p90_error: float | None = None
    within_25: float | None = None
    coverage_90: float | None = None
    median_width_90: float | None = None
    rank_correlation: float | None = None
    sweeps: int = 0


class Scored(NamedTuple):
    """Figures of every kind, and how many rows each rule left out."""

    kinds: Mapping[str, Figures]
    skipped: Mapping[str, int]


def evaluate(table: Path, devices: Path, coefficients: Coefficients) -> Scored:
    """Score coefficients on a benchmark table with its devices' data sheets.

    Raises:
        InputFileError: one of the files cannot be read or is no such table.
    """
    sheets = read_devices(devices)
    read = read_rows(table, sheets)
    scores = score_rows(read.rows, Models(coefficients, sheets))
    return Scored({kind: figures(scores, kind) for kind in KINDS}, read.skipped)


def score_rows(rows: Sequence[Row], models: Models) -> tuple[Score, ...]:
    """Predict every row."""
    return tuple(Score(row, *models.interval(row)[:3]) for row in rows)


def figures(scores: Sequence[Score], kind: str) -> Figures:
    """The figures of the rows of one kind."""
    own = [score for score in scores if score.row.kind == kind]
    if not own:
        return Figures()
    by_device: defaultdict[str, list[Score]] = defaultdict(list)
    for score in own:
        by_device[score.row.device.name].append(score)
    groups = list(by_device.values())
    errors = sorted(median(score.error for score in group) for group in groups)
    inside = [sum(score.low <= score.row.rate <= score.high for score in group) / len(group) for group in groups]
    widths = [median((score.high - score.low) / score.value for score in group) for group in groups]
    orders = _orders(scores, kind)
    return Figures(
        rows=len(own),
        devices=len(groups),
        median_error=median(errors),
        p90_error=errors[math.ceil(0.9 * len(errors)) - 1],
        within_25=sum(error <= 0.25 for error in errors) / len(errors),
        coverage_90=math.fsum(inside) / len(inside),
        median_width_90=median(widths),
        rank_correlation=median(orders) if orders else None,
        sweeps=len(orders),
    )


def _orders(scores: Sequence[Score], kind: str) -> list[float]:
    """Spearman's correlation in every sweep that has rows of this kind.

    A sweep are the measurements of one source that differ in the swept setting only; the end of a sweep of offloaded
    layers, where all of them are, is a part of it although it is of another kind.
    """
    sweeps: defaultdict[tuple[object, ...], list[Score]] = defaultdict(list)
    for score in scores:
        if score.row.sweep[0]:
            sweeps[_sweep_key(score.row)].append(score)
    found = []
    for sweep in sweeps.values():
        if any(score.row.kind == kind for score in sweep):
            order = spearman(*_points(sweep))
            if order is not None:
                found.append(order)
    return found


def _points(sweep: Sequence[Score]) -> tuple[list[float], list[float]]:
    """Predicted and measured rates of each setting: all numbers of layers above the model's are the same one."""
    points: defaultdict[tuple[object, ...], list[Score]] = defaultdict(list)
    for score in sweep:
        row = score.row
        points[(row.n_gpu_layers, row.n_cpu_moe, row.n_threads, row.n_batch, row.n_ubatch, row.n_prompt)].append(score)
    groups = points.values()
    return (
        [median(score.value for score in group) for group in groups],
        [median(score.row.rate for score in group) for group in groups],
    )


def _sweep_key(row: Row) -> tuple[object, ...]:
    swept = row.sweep[0]
    return (
        row.device.name,
        row.backend,
        row.sweep,
        row.quantity,
        row.n_prompt if swept != "n_prompt" else None,
        row.depth,
        row.flash_attn,
        row.n_threads if swept != "threads" else None,
        (row.n_batch, row.n_ubatch) if swept not in ("n_batch", "n_ubatch") else None,
        row.n_gpu_layers if swept == "threads" else None,
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None where either is constant."""
    x, y = _ranks(one), _ranks(other)
    mean = (len(x) + 1) / 2
    across = math.fsum((a - mean) * (b - mean) for a, b in zip(x, y, strict=True))
    own = math.fsum((a - mean) ** 2 for a in x) * math.fsum((b - mean) ** 2 for b in y)
    return across / math.sqrt(own) if own > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share theirs."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks = [0.0] * len(values)
    start = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or values[order[place]] > values[order[start]]:
            for i in order[start:place]:
                ranks[i] = (start + 1 + place) / 2
            start = place
    return ranks


def evaluation_document(scored: Scored) -> dict[str, object]:
    """The figures as one JSON object; rates are fractions, null where there is nothing to say."""
    kinds = {
        kind: {
            name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in each._asdict().items()
        }
        for kind, each in scored.kinds.items()
    }
    return {"schema_version": SCHEMA_VERSION, "kinds": kinds, "skipped": dict(scored.skipped)}
