"""Rows of llama-bench as runs of the store: checked one by one, marked as imported, taken once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Final, NamedTuple

from magnitude_tune.observations.cells import column, listed, real, whole
from magnitude_tune.observations.foreign import ForeignRows
from magnitude_tune.observations.llama_bench import COLUMNS
from magnitude_tune.observations.schema import connect
from magnitude_tune.observations.statistics import SIGMA_90, Summary, summarise
from magnitude_tune.observations.store import insert_row, opened

__all__ = ["Imported", "store_imported"]

Raw = Mapping[str, object]
Row = dict[str, object]

_MAX_SAMPLES: Final = 1_000
_MAX_SAMPLES_IN_ALL: Final = 50_000
_MAX_COUNT: Final = 2**31 - 1
_MAX_SECONDS: Final = 1e7
_SECONDS_OF: Final[Mapping[str, Callable[[float, int], float]]] = {
    "samples_ns": lambda nanoseconds, _: nanoseconds / 1e9,
    "samples_ts": lambda rate, n_tokens: n_tokens / rate,
    "samples": lambda seconds, _: seconds,
}
_OF_A_TEST: Final = frozenset(
    {"n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts"}
)
_SETTINGS: Final = (
    *("n_gpu_layers", "n_threads", "n_batch", "n_ubatch", "flash_attn", "type_k", "type_v", "load_mode", "repack"),
    *("n_cpu_moe", "devices", "tensor_split", "main_gpu", "split_mode", "no_kv_offload"),
)
_SWITCHES: Final = frozenset({"flash_attn", "repack", "no_kv_offload"})
_UNSET: Final = (None, "auto", "0.00")
"""Values of columns that say nothing was set."""


class Imported(NamedTuple):
    """What became of a file: new runs, rows in them, runs that were here already, rows left out by reason."""

    run_ids: tuple[str, ...]
    n_rows: int
    n_known: int
    left_out: tuple[tuple[str, int], ...]


class _Unusable(Exception):  # noqa: N818
    """A row lacks what the store needs; the text says what."""


def store_imported(found: ForeignRows) -> Imported:
    """Store the usable rows in one transaction; rows of one configuration make one run.

    A run's id is a digest of its rows, so the same file again adds nothing. Machine and model are known by name only:
    imported runs are for reading and comparing, and calibrate nothing.

    Raises:
        UsageError: the store cannot be written.
    """
    left_out = Counter(found.problems)
    rows: list[Row] = []
    n_samples = 0
    for raw in found.rows:
        try:
            row, n = _row(raw, _MAX_SAMPLES_IN_ALL - n_samples)
        except _Unusable as error:
            left_out[str(error)] += 1
        else:
            rows.append(row)
            n_samples += n
    runs = _grouped(rows)
    new = _insert(runs) if runs else ()
    return Imported(
        run_ids=new,
        n_rows=sum(len(runs[run_id]) for run_id in new),
        n_known=len(runs) - len(new),
        left_out=tuple(left_out.most_common()),
    )


def _insert(runs: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    new = []
    with opened(connect) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for run_id, rows in runs.items():
            if connection.execute("SELECT 1 FROM llama_bench WHERE run_id = ?", (run_id,)).fetchone():
                continue
            new.append(run_id)
            for row in rows:
                insert_row(connection, row | {"run_id": run_id})
        connection.execute("COMMIT")
    return tuple(new)


def _grouped(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Runs by id: neighbouring tests of one configuration; a test that comes again begins a new run."""
    runs: list[list[Row]] = []
    current: dict[str, list[Row]] = {}
    for row in rows:
        configuration = _text_of({name: row[name] for name in COLUMNS if name not in _OF_A_TEST})
        run = current.get(configuration)
        if run is None or any(_test_of(row) == _test_of(other) for other in run):
            run = current[configuration] = []
            runs.append(run)
        run.append(row)
    # Of what the file said, not of what is computed from it: the id outlives a change of the statistics.
    said = (*COLUMNS, "samples")
    return {_run_id([[row[name] for name in said] for row in run]): run for run in runs}


def _run_id(said: object) -> str:
    return hashlib.sha256(_text_of(said).encode()).hexdigest()[:32]


def _test_of(row: Row) -> tuple[object, ...]:
    return row["n_prompt"], row["n_gen"], row["n_depth"]


def _row(raw: Raw, room: int) -> tuple[Row, int]:
    """One row of the store and its number of samples, `room` at most.

    Raises:
        _Unusable: the row says neither what was timed nor how long it took, or names no model.
    """
    row: Row = {name: column(name, raw.get(name)) for name in COLUMNS}
    if row["load_mode"] is None and raw.get("use_mmap") is not None:
        # Builds before load_mode.
        row["load_mode"] = "mmap" if whole(raw["use_mmap"]) else "none"
    n_prompt, n_gen = _count(raw, "n_prompt"), _count(raw, "n_gen")
    if not n_prompt + n_gen:
        raise _Unusable("nothing was read or written")
    row |= {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": row["n_depth"] or 0}
    if not (row["model_filename"] or row["model_type"]):
        raise _Unusable("names no model")
    seconds = _seconds(raw, n_prompt + n_gen)
    if len(seconds) > room:
        raise _Unusable(f"more than {_MAX_SAMPLES_IN_ALL} samples in one file")
    row |= _figures(row, seconds, n_prompt + n_gen)
    row |= _subject(row)
    return row, len(seconds)


def _count(raw: Raw, name: str) -> int:
    value = whole(raw.get(name))
    if value is None or not 0 <= value <= _MAX_COUNT:
        raise _Unusable(f"{name} is missing or no count")
    return value


def _seconds(raw: Raw, n_tokens: int) -> tuple[float, ...]:
    """Samples in seconds: of `samples_ns`, else of `samples_ts`, else of this store's own `samples`; or none.

    Raises:
        _Unusable: there are samples, but too many or none that took any time.
    """
    for name in ("samples_ns", "samples_ts", "samples"):
        given = listed(raw.get(name))
        if not given:
            continue
        if len(given) > _MAX_SAMPLES:
            raise _Unusable(f"more than {_MAX_SAMPLES} samples in one row")
        numbers = [real(value[1] if isinstance(value, list) and len(value) == 2 else value) for value in given]
        above_zero = [number for number in numbers if number is not None and number > 0]
        seconds = [_SECONDS_OF[name](number, n_tokens) for number in above_zero]
        usable = tuple(value for value in seconds if 1e-9 <= value <= _MAX_SECONDS)
        if not usable:
            raise _Unusable("no sample took any time")
        return usable
    return ()


def _figures(row: Row, seconds: tuple[float, ...], n_tokens: int) -> Row:
    """Means, spreads and the median's interval, computed anew from samples: llama-bench's own overflow on slow runs.

    Without samples the mean stands for the median, and the interval is where 90 % of single samples would lie: wider
    than the median's own, and never stable.

    Raises:
        _Unusable: there are neither samples nor a mean.
    """
    if seconds:
        rates = [n_tokens / value for value in seconds]
        nanoseconds = [value * 1e9 for value in seconds]
        mean, spread = fmean(rates), stdev(rates) if len(rates) > 1 else 0.0
        mean_ns, spread_ns = fmean(nanoseconds), stdev(nanoseconds) if len(nanoseconds) > 1 else 0.0
        summary = summarise(rates)
    else:
        mean, spread = _mean(row, n_tokens)
        mean_ns = n_tokens * 1e9 / mean
        spread_ns = mean_ns * spread / mean
        low, high = max(0.0, mean - SIGMA_90 * spread), mean + SIGMA_90 * spread
        summary = Summary(median=mean, low=low, high=high, n=0, variation=spread / mean)
    return {
        "avg_ts": mean,
        "stddev_ts": spread,
        "avg_ns": round(mean_ns),
        "stddev_ns": round(spread_ns),
        "samples": _text_of([(n_tokens, value) for value in seconds]),
        "median_ts": summary.median,
        "low_ts": summary.low,
        "high_ts": summary.high,
        "stable": int(summary.stable),
    }


def _mean(row: Row, n_tokens: int) -> tuple[float, float]:
    """Mean rate and its spread as the row states them; the spread is 0 where it cannot be one."""
    mean, mean_ns, spread = (real(row[name]) for name in ("avg_ts", "avg_ns", "stddev_ts"))
    if not mean and mean_ns and mean_ns > 0:
        mean = n_tokens * 1e9 / mean_ns
    if not mean or not n_tokens / _MAX_SECONDS <= mean <= n_tokens * 1e9:
        raise _Unusable("no samples and no mean")
    return mean, spread if spread is not None and 0 <= spread <= 10 * mean else 0.0


def _subject(row: Row) -> Row:
    """What the store wants besides. Hashes of names, so that equal names are the same machine and model."""
    settings = {name: _setting(name, row[name]) for name in _SETTINGS if row[name] not in _UNSET}
    return {
        "machine_hash": _digest("machine", row["cpu_info"], row["gpu_info"]),
        "model_hash": _digest("model", row["model_type"] or row["model_filename"], row["model_size"]),
        "engine": "llama_bench",
        "engine_build": f"{row['build_commit'] or 'unknown'} ({row['build_number'] or 0})",
        "settings": _text_of(settings),
        "left_out": "[]",
        "buffers": "[]",
        # Nobody watched: an empty disturbance says so.
        "disturbance": "{}",
        "clean": 1,
        "complete": 1,
        "origin": "imported",
    }


def _setting(name: str, value: object) -> object:
    """A setting as this program words it: llama-bench writes switches as numbers, and -1 where the engine decides."""
    return value == 1 if name in _SWITCHES and value in (0, 1) else "auto" if name in _SWITCHES else value


def _digest(*parts: object) -> str:
    return "imported-" + hashlib.sha256(_text_of(parts).encode()).hexdigest()[:24]


def _text_of(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
