"""What stored measurements come to, kept beside them: `resolve` reads a small posterior instead of every run."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from magnitude_tune.observations.schema import connect, connect_to_read
from magnitude_tune.observations.store import opened, store_path
from magnitude_tune.throughput.posterior import Posterior, Row
from magnitude_tune.throughput.refine import FEATURES, Calibration, Quantity, Refined

__all__ = ["Learned", "RefinementKey", "keep_refinement", "kept_refinement", "rows_of_other_models"]

_QUANTITIES: Final[tuple[Quantity, ...]] = ("tg", "pp")
_MOST_MODELS: Final = 20
_MOST_ROWS: Final = 100


class RefinementKey(NamedTuple):
    """What a refinement holds for. `basis` names the shipped predictions that it corrects."""

    machine_hash: str
    model_hash: str
    engine: str
    engine_build: str
    n_prompt: int
    n_gen: int
    basis: str


class Learned(NamedTuple):
    """A refinement, and the rows that other models on this machine may learn from."""

    calibration: Calibration
    rows: Mapping[Quantity, Sequence[Row]]


def keep_refinement(key: RefinementKey, learned: Learned) -> None:
    """Keep what the runs stored so far come to; an earlier one of the same subject is replaced.

    Raises:
        UsageError: the store cannot be written.
    """
    document = json.dumps(_document(learned), separators=(",", ":"), allow_nan=False)
    with opened(connect) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT OR REPLACE INTO refinements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, _newest(connection, key), document),
        )
        connection.execute("COMMIT")


def kept_refinement(key: RefinementKey) -> Calibration | None:
    """The refinement of that subject; None where there is none, or runs or predictions have changed since.

    Raises:
        UsageError: the store cannot be read.
    """
    if not os.path.lexists(store_path()):
        return None
    with opened(connect_to_read) as connection:
        found = connection.execute(
            "SELECT newest, document FROM refinements WHERE machine_hash = ? AND model_hash = ? AND engine = ? "
            "AND engine_build = ? AND n_prompt = ? AND n_gen = ? AND basis = ?",
            key,
        ).fetchone()
        if found is None or found[0] != _newest(connection, key):
            return None
    try:
        return _calibration(json.loads(found[1]))
    except (ValueError, TypeError, LookupError, AttributeError):
        # Of another version, or damaged: the runs themselves are read then.
        return None


def rows_of_other_models(key: RefinementKey) -> dict[Quantity, list[tuple[Row, ...]]]:
    """What other models' runs gave on this machine with this engine and these shipped predictions, a group for each.

    Raises:
        UsageError: the store cannot be read.
    """
    found: dict[Quantity, list[tuple[Row, ...]]] = {quantity: [] for quantity in _QUANTITIES}
    if not os.path.lexists(store_path()):
        return found
    with opened(connect_to_read) as connection:
        documents = connection.execute(
            "SELECT document, max(newest) FROM refinements WHERE machine_hash = ? AND engine = ? AND basis = ? "
            "AND model_hash <> ? GROUP BY model_hash ORDER BY max(newest) DESC LIMIT ?",
            (key.machine_hash, key.engine, key.basis, key.model_hash, _MOST_MODELS),
        ).fetchall()
    for document, _ in documents:
        try:
            rows = json.loads(document)["rows"]
            groups = {quantity: _rows(rows[quantity]) for quantity in _QUANTITIES}
        except (ValueError, TypeError, LookupError, AttributeError):
            continue
        for quantity, group in groups.items():
            if group:
                found[quantity].append(group)
    return found


def _newest(connection: sqlite3.Connection, key: RefinementKey) -> int:
    """The newest row of the subject in the store: another one since means that there is more to learn."""
    (newest,) = connection.execute(
        "SELECT coalesce(max(rowid), 0) FROM llama_bench WHERE model_hash = ? AND machine_hash = ? AND engine = ?",
        (key.model_hash, key.machine_hash, key.engine),
    ).fetchone()
    return int(newest)


def _document(learned: Learned) -> dict[str, object]:
    calibration = learned.calibration
    return {
        "tg": _refined_document(calibration.tg),
        "pp": _refined_document(calibration.pp),
        "ready": [[key, seconds] for key, seconds in calibration.ready.items()],
        "n_runs": calibration.n_runs,
        "rows": {quantity: list(learned.rows.get(quantity, ()))[:_MOST_ROWS] for quantity in _QUANTITIES},
    }


def _refined_document(refined: Refined | None) -> dict[str, object] | None:
    if refined is None:
        return None
    return {"exact": [[key, rate] for key, rate in refined.exact.items()], "posterior": refined.posterior}


def _calibration(document: Mapping[str, Any]) -> Calibration:
    return Calibration(
        tg=_refined(document["tg"]),
        pp=_refined(document["pp"]),
        ready={_tuples(key): tuple(map(_finite, seconds)) for key, seconds in document["ready"]},
        n_runs=int(document["n_runs"]),
    )


def _refined(document: Mapping[str, Any] | None) -> Refined | None:
    if document is None:
        return None
    mean, covariance, own = document["posterior"]
    if len(mean) != len(FEATURES) or [len(row) for row in covariance] != [len(FEATURES)] * len(FEATURES):
        raise ValueError("a posterior of other features")
    exact = {}
    for key, (middle, low, high) in document["exact"]:
        exact[_tuples(key)] = (_finite(middle), _finite(low), _finite(high))
    rows = tuple(tuple(map(_finite, row)) for row in covariance)
    return Refined(exact, Posterior(tuple(map(_finite, mean)), rows, _finite(own)))


def _rows(found: Sequence[Any]) -> tuple[Row, ...]:
    return tuple(
        Row(tuple(map(_finite, features)), _finite(ratio), _finite(variance))
        for features, ratio, variance in found[:_MOST_ROWS]
        if len(features) == len(FEATURES)
    )


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _tuples(value: Any) -> Any:
    """Keys hold tuples, JSON has lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
