"""The store of measurements: one SQLite file with llama-bench's columns and ours."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnitude_tune.errors import UsageError
from magnitude_tune.observations.evidence import evidence_of
from magnitude_tune.observations.schema import connect, connect_to_read, explained
from magnitude_tune.request import REFERENCE_TURN, Workload
from magnitude_tune.storage import data_dir
from magnitude_tune.throughput.values import Evidence

if TYPE_CHECKING:
    from magnitude_tune.observations.values import Measurement

__all__ = [
    "copy_store",
    "damaged_rows_said",
    "evidence_for",
    "insert_row",
    "opened",
    "require_plain",
    "store",
    "store_path",
]

_MOST_RUNS: Final = 200


def store_path() -> Path:
    """The file that holds what was measured on this machine."""
    return data_dir() / "observations.sqlite"


def store(measurement: Measurement, run_id: str | None = None) -> str | None:
    """Keep one run, in one transaction; gives its id, None where there is no sample to keep.

    Args:
        run_id: for a run that may have been kept already, by a process that then died: it is not kept twice.

    Raises:
        UsageError: the store cannot be written (full disk, read-only folder, not our file).
    """
    # Statistics cost import time that `resolve`, which only reads, does not have.
    from magnitude_tune.observations.rows import rows_of

    known = run_id is not None
    run_id = run_id or os.urandom(16).hex()
    rows = rows_of(measurement, run_id)
    if not rows:
        return None
    with opened(connect) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if known and connection.execute("SELECT 1 FROM llama_bench WHERE run_id = ?", (run_id,)).fetchone():
            rows = ()
        for row in rows:
            insert_row(connection, row)
        connection.execute("COMMIT")
    return run_id


def insert_row(connection: sqlite3.Connection, row: Mapping[str, object]) -> None:
    """Insert one row; its names are columns of the table, this package's own constants."""
    columns, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    connection.execute(f"INSERT INTO llama_bench ({columns}) VALUES ({marks})", row)  # noqa: S608 - values are bound


def evidence_for(
    model_hash: str, machine_hash: str, engine: str, engine_build: str, *, workload: Workload = REFERENCE_TURN
) -> tuple[Evidence, ...]:
    """What was measured with this model, machine and engine and may calibrate, newest first.

    Runs of other builds of the engine are there too, and say so.

    Rates hold for the workload they were measured with: a prompt of 64 tokens is read at another rate than one of 512.

    Interrupted, disturbed and unstable runs are kept in the store but are no calibration; nor are imported ones,
    whatever machine they name: a name is no fingerprint, and nobody watched what disturbed them.

    Raises:
        UsageError: the store cannot be read (not a database, another program's, a newer schema).
    """
    if not os.path.lexists(store_path()):
        return ()
    runs: dict[str, list[sqlite3.Row]] = {}
    with opened(connect_to_read) as connection:
        connection.row_factory = sqlite3.Row
        for row in connection.execute(
            "SELECT run_id, n_gen, n_depth, engine_build, settings, median_ts, low_ts, high_ts, ready_seconds "
            "FROM llama_bench WHERE model_hash = ? AND machine_hash = ? AND engine = ? "
            "AND origin = 'measured' AND n_prompt IN (0, ?) AND n_gen IN (0, ?) AND complete AND clean AND stable "
            "ORDER BY rowid DESC LIMIT ?",
            (model_hash, machine_hash, engine, workload.n_prompt, workload.n_gen, 2 * _MOST_RUNS),
        ):
            runs.setdefault(row["run_id"], []).append(row)
    found = (evidence_of([dict(row) for row in rows], engine_build) for rows in runs.values())
    return tuple(evidence for evidence in found if evidence is not None)


def copy_store(target: Path) -> None:
    """Write a copy of the whole store to `target`, whole or not at all, while others may go on writing to the store.

    Raises:
        UsageError: there is no store yet, it cannot be read, or the copy cannot be written.
    """
    if not store_path().exists():
        raise UsageError("nothing was measured yet", where=str(store_path()), hint="run bench first")
    if os.path.realpath(target) == os.path.realpath(store_path()):
        raise UsageError("this is the store itself", where=str(target), hint="name another file for the copy")
    if os.path.lexists(target) and not os.path.isfile(target):  # noqa: PTH113 - no name raises here
        raise UsageError("this is no regular file", where=str(target), hint="name a file for the copy")
    begun = target.parent / f".{target.name}.{os.urandom(4).hex()}"
    try:
        with opened(connect_to_read) as connection:
            _back_up(connection, begun)
        begun.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=str(target), hint="choose another folder") from error
    finally:
        with contextlib.suppress(OSError):
            begun.unlink(missing_ok=True)


@contextlib.contextmanager
def damaged_rows_said() -> Iterator[None]:
    """Turn what reading a damaged row raises into an error that says so.

    Raises:
        UsageError: a row holds what no version of ours writes.
    """
    try:
        yield
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise UsageError(
            f"a row of the store of measurements is damaged: {error}",
            where=str(store_path()),
            hint="copy the store with --export sqlite, and delete the row in the copy or move the store away",
        ) from error


def require_plain(row: sqlite3.Row) -> None:
    """See that a row holds numbers and text only, as every version of ours wrote it.

    Raises:
        ValueError: it holds bytes, or a number that is not finite.
    """
    for name in row.keys():  # noqa: SIM118 - iterating over a row gives its values
        value = row[name]
        if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{name} is {value!r:.40}")


def _back_up(connection: sqlite3.Connection, target: Path) -> None:
    try:
        with contextlib.closing(sqlite3.connect(target)) as copy:
            connection.backup(copy)
            # The copy is one file that can be read from anywhere: it needs no write-ahead log beside it.
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as error:
        raise UsageError(f"cannot write the copy: {error}", where=str(target), hint="choose another folder") from error


@contextlib.contextmanager
def opened(how: Callable[[Path], sqlite3.Connection]) -> Iterator[sqlite3.Connection]:
    """The store, opened by `connect` or `connect_to_read`; what was not committed is rolled back at the end.

    Raises:
        UsageError: it cannot be opened, read or written; says why and what to do.
    """
    path = store_path()
    if os.path.lexists(path) and not path.is_file():
        hint = f"move it away from {path.parent}"
        raise UsageError("the store of measurements is no regular file", where=str(path), hint=hint)
    connection = how(path)
    try:
        yield connection
    except sqlite3.Error as error:
        raise explained(error, path) from error
    finally:
        # Closing rolls back what was not committed.
        with contextlib.suppress(sqlite3.Error):
            connection.close()
