"""The tables of the store, version by version, and how a file is opened and brought up to date."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

from magnitude_tune.errors import UsageError

__all__ = ["APPLICATION_ID", "MIGRATIONS", "connect", "connect_to_read", "explained"]

APPLICATION_ID: Final = 0x4D54554E
"""Marks the file as ours (`MTUN`), so that another program's database is never written to."""

_BUSY_SECONDS: Final = 30.0

# The first block is llama-bench's own table (its `-o sql`), so that tools made for it read this one.
_VERSION_1: Final = (
    """
    CREATE TABLE llama_bench (
        build_commit TEXT, build_number INTEGER, cpu_info TEXT, gpu_info TEXT, backends TEXT,
        model_filename TEXT, model_type TEXT, model_size INTEGER, model_n_params INTEGER,
        n_batch INTEGER, n_ubatch INTEGER, n_threads INTEGER, cpu_mask TEXT, cpu_strict INTEGER, poll INTEGER,
        type_k TEXT, type_v TEXT, n_gpu_layers INTEGER, n_cpu_moe INTEGER, split_mode TEXT, main_gpu INTEGER,
        no_kv_offload INTEGER, flash_attn INTEGER, devices TEXT, tensor_split TEXT, tensor_buft_overrides TEXT,
        load_mode TEXT, lazy_mode TEXT, embeddings INTEGER, no_op_offload INTEGER, no_host INTEGER, repack INTEGER,
        fit_target INTEGER, fit_min_ctx INTEGER, n_prompt INTEGER, n_gen INTEGER, n_depth INTEGER, test_time TEXT,
        avg_ns INTEGER, stddev_ns INTEGER, avg_ts REAL, stddev_ts REAL,
        run_id TEXT NOT NULL, machine_hash TEXT NOT NULL, model_hash TEXT NOT NULL, engine TEXT NOT NULL,
        engine_build TEXT NOT NULL, settings TEXT NOT NULL, samples TEXT NOT NULL, left_out TEXT NOT NULL,
        median_ts REAL NOT NULL, low_ts REAL NOT NULL, high_ts REAL NOT NULL, stable INTEGER NOT NULL,
        ready_seconds REAL, peak_bytes INTEGER, anonymous_bytes INTEGER, buffers TEXT NOT NULL,
        disturbance TEXT NOT NULL, clean INTEGER NOT NULL, complete INTEGER NOT NULL,
        magnitude_requested REAL, magnitude_executed REAL
    )
    """,
    "CREATE INDEX llama_bench_subject ON llama_bench (model_hash, machine_hash, engine, engine_build)",
)

# Where a row comes from: `measured` by this program, or `imported` from a file of llama-bench.
_VERSION_2: Final = (
    "ALTER TABLE llama_bench ADD COLUMN origin TEXT NOT NULL DEFAULT 'measured'",
    "CREATE INDEX llama_bench_run ON llama_bench (run_id)",
)

# What the runs of one subject come to; `newest` is the last row that it knows, `basis` the predictions it corrects.
_VERSION_3: Final = (
    """
    CREATE TABLE refinements (
        machine_hash TEXT NOT NULL, model_hash TEXT NOT NULL, engine TEXT NOT NULL, engine_build TEXT NOT NULL,
        n_prompt INTEGER NOT NULL, n_gen INTEGER NOT NULL, basis TEXT NOT NULL,
        newest INTEGER NOT NULL, document TEXT NOT NULL,
        PRIMARY KEY (machine_hash, model_hash, engine, engine_build, n_prompt, n_gen)
    )
    """,
)

MIGRATIONS: Final = (_VERSION_1, _VERSION_2, _VERSION_3)
"""Statements that lead from each version of the schema to the next; the file's `user_version` counts them."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the store for reading and writing; it is created or brought up to date first.

    Raises:
        UsageError: the folder or the file cannot be used; says why and what to do.
    """
    connection: sqlite3.Connection | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        _check_owner(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        if _version(connection, path) < len(MIGRATIONS):
            _migrate(connection, path)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise explained(error, path) from error
    except UsageError:
        if connection is not None:
            connection.close()
        raise
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a store that exists, for reading; works in a folder that may not be written to.

    Raises:
        UsageError: the file cannot be read as a store of this version.
    """
    try:
        try:
            connection = _read_only(path, "mode=ro")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise
            # Reading a write-ahead log makes files beside it; where that is not allowed, nobody writes either.
            connection = _read_only(path, "mode=ro&immutable=1")
    except sqlite3.Error as error:
        raise explained(error, path) from error
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return connection if version == len(MIGRATIONS) else _brought_up_to_date(connection, path)


def explained(error: Exception, path: Path) -> UsageError:
    """The error of a store that cannot be used, in words a person can act on."""
    text = str(error)
    if isinstance(error, sqlite3.DatabaseError) and ("not a database" in text or "malformed" in text):
        hint = "move the file away; a new one is begun by the next bench"
    elif "full" in text or "disk I/O" in text:
        hint = "make room on the disk, or set MAGNITUDE_TUNE_HOME to another folder"
    else:
        hint = "make the folder writable, or set MAGNITUDE_TUNE_HOME to another folder"
    return UsageError(f"cannot use the store of measurements: {text}", where=str(path), hint=hint)


def _brought_up_to_date(old: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """The store at today's version: the file itself, or where it may not be written a copy of it in memory."""
    with contextlib.closing(old):
        with contextlib.suppress(UsageError):
            return connect(path)
        copy = sqlite3.connect(":memory:", isolation_level=None)
        try:
            old.backup(copy)
            _migrate(copy, path)
        except BaseException as error:
            copy.close()
            if isinstance(error, sqlite3.Error):
                raise explained(error, path) from error
            raise
    return copy


def _read_only(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=_BUSY_SECONDS)
    try:
        _check_owner(connection, path)
        _version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if owner != APPLICATION_ID and tables:
        raise UsageError(
            "this database was written by another program",
            where=str(path),
            hint="move it away, or set MAGNITUDE_TUNE_HOME to another folder",
        )


def _version(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise UsageError(
            f"the store has schema version {version}, this program knows {len(MIGRATIONS)}",
            where=str(path),
            hint="update magnitude-tune, or set MAGNITUDE_TUNE_HOME to another folder",
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date in one transaction; of two processes, the second finds nothing left to do."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statements in MIGRATIONS[_version(connection, path) :]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
