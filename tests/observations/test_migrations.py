"""Stores of every schema version: golden files that stay as they were written."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from observations.measured import measurement

from magnitude_tune.observations import schema
from magnitude_tune.observations.history import runs
from magnitude_tune.observations.schema import MIGRATIONS
from magnitude_tune.observations.store import evidence_for, store, store_path

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = range(1, len(MIGRATIONS) + 1)


@pytest.fixture(params=VERSIONS, ids=lambda version: f"version {version}")
def golden(request: pytest.FixtureRequest) -> int:
    """A store of each version in the place of this machine's; gives the version."""
    store_path().parent.mkdir(parents=True)
    shutil.copy(GOLDEN / f"v{request.param}.sqlite", store_path())
    store_path().chmod(0o644)
    return int(request.param)


def shape(path: Path) -> tuple[int, list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Version, columns and indexes of a store."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        columns = connection.execute("SELECT name, type, \"notnull\", dflt_value FROM pragma_table_info('llama_bench')")
        indexes = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY name")
        return version, columns.fetchall(), indexes.fetchall()
    finally:
        connection.close()


def test_every_version_has_its_golden_file() -> None:
    """Whoever adds a version adds a file that was written with it, and the files state their versions."""
    assert [shape(GOLDEN / f"v{version}.sqlite")[0] for version in VERSIONS] == list(VERSIONS)


def test_an_old_store_is_read_brought_up_to_date_and_written(golden: int) -> None:
    """Three runs come back as they were measured, count as evidence as before, and a fourth is stored beside them."""
    interrupted, disturbed, calm = runs()
    assert [run.run_id[:2] for run in (interrupted, disturbed, calm)] == ["33", "22", "11"]
    assert {run.origin for run in (interrupted, disturbed, calm)} == {"measured"}
    assert (interrupted.complete, interrupted.ready_seconds, interrupted.peak_bytes) == (False, None, None)
    assert "1.5 of 2 cores" in disturbed.notes[0]
    assert [test.summary.median for test in calm.tests] == pytest.approx([205.0, 41.0])
    assert calm.tests[1].n_left_out == 1
    assert calm.settings["n_threads"] == 2
    (found,) = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert found.tg is not None
    assert found.tg[0] == pytest.approx(41.0)
    store(measurement())
    assert len(runs()) == 4


def test_an_old_store_becomes_what_a_new_one_is(golden: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way through all migrations ends in the same columns and indexes as a new store has."""
    store(measurement())
    old = shape(store_path())
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path))
    store(measurement())
    assert old == shape(store_path())
    assert old[0] == len(MIGRATIONS)


def test_an_old_store_that_may_not_be_written_is_still_read(golden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bringing the file up to date is not allowed, a copy in memory is; the file stays as it was."""
    before = store_path().read_bytes()

    def refused(path: Path) -> sqlite3.Connection:
        raise schema.explained(sqlite3.OperationalError("attempt to write a readonly database"), path)

    monkeypatch.setattr(schema, "connect", refused)
    assert len(runs()) == 3
    assert len(evidence_for("model", "machine", "llama_cpp_python", "0.3.36")) == 1
    assert store_path().read_bytes() == before


def test_a_migration_that_fails_leaves_the_old_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration is one transaction: half of it is never seen."""
    store_path().parent.mkdir(parents=True)
    shutil.copy(GOLDEN / "v1.sqlite", store_path())
    store_path().chmod(0o644)
    before = shape(store_path())
    failing = (*MIGRATIONS[:1], (*MIGRATIONS[1], "SELECT no_such_function()"))
    monkeypatch.setattr(schema, "MIGRATIONS", failing)
    with pytest.raises(schema.UsageError, match="no_such_function"):
        store(measurement())
    assert shape(store_path()) == before
