"""The history of runs: order, names people give to runs, what a run says about itself."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pytest
from observations.measured import QUIET, SETTINGS, measurement, samples

from magnitude_tune.engines.values import Sample
from magnitude_tune.errors import UsageError
from magnitude_tune.observations.history import MIN_ID_LENGTH, StoredRun, Timed, find_run, runs, short_ids
from magnitude_tune.observations.llama_bench import BOOLEANS, COLUMNS, exported_rows
from magnitude_tune.observations.store import copy_store, store, store_path
from magnitude_tune.observations.values import LeftOut


def with_id(run_id: str) -> StoredRun:
    """A stored run of that id."""
    store(measurement())
    return runs()[0]._replace(run_id=run_id)


def test_no_store_is_no_history() -> None:
    """Asking before anything was measured finds nothing and makes no file."""
    assert runs() == ()
    assert not store_path().exists()


def test_a_run_comes_back_as_it_was_measured() -> None:
    """Subject, settings, samples, those left out, and the disturbance survive the store."""
    disturbed = replace(QUIET, other_cores=1.5, notes=("2 of 3 tg samples were taken while others were busy",))
    taken = measurement(disturbance=disturbed, left_out=(LeftOut("tg", "warm-up", Sample(128, 9.0)),))
    run_id = store(taken)
    (run,) = runs()
    assert (run.run_id, run.origin, run.started_at) == (run_id, "measured", taken.started_at)
    assert (run.model_hash, run.machine_hash, run.engine, run.engine_build) == (
        taken.model_hash,
        taken.machine_hash,
        taken.engine,
        taken.engine_build,
    )
    assert run.settings["n_ubatch"] == SETTINGS.n_ubatch
    assert [test.key for test in run.tests] == [Timed(512, 0, 0), Timed(0, 128, 0)]
    assert [test.samples for test in run.tests] == [taken.pp_samples, taken.tg_samples]
    assert [test.n_left_out for test in run.tests] == [0, 1]
    assert run.notes == disturbed.notes
    assert not run.clean
    assert run.disturbance["other_cores"] == 1.5


def test_the_newest_comes_first_and_a_model_can_be_picked() -> None:
    """By content, or by a part of the file's name or type, whatever its case."""
    first = store(measurement())
    second = store(measurement(model_hash="other", model_path="Qwen.gguf", model_type="qwen3 0.6B"))
    third = store(measurement())
    assert [run.run_id for run in runs()] == [third, second, first]
    assert [run.run_id for run in runs(model_hash="other")] == [second]
    assert [run.run_id for run in runs(model_text="QWEN3")] == [second]
    assert runs(model_text="llama") == ()


def test_runs_are_named_by_the_start_of_their_id_or_counted_from_the_last() -> None:
    """`last` is the newest, `last~1` the one before it, and a start that is one run's is enough."""
    among = [with_id(run_id) for run_id in ("abc1" * 8, "abd2" * 8, "0f00" * 8)]
    assert find_run("last", among) is among[0]
    assert find_run("last~2", among) is among[2]
    assert find_run("abd", among) is among[1]
    assert find_run("0F", among) is among[2]


@pytest.mark.parametrize(
    ("reference", "message"),
    [("ab", "2 stored runs begin so"), ("ff", "no stored run"), ("last~3", "there are 3"), ("", "no stored run")],
)
def test_a_name_that_is_nobodys_or_several_is_an_error(reference: str, message: str) -> None:
    """The error says which runs are meant or where to look."""
    among = [with_id(run_id) for run_id in ("abc1" * 8, "abd2" * 8, "0f00" * 8)]
    with pytest.raises(UsageError, match=message) as caught:
        find_run(reference, among)
    assert caught.value.hint


def test_short_ids_tell_runs_apart() -> None:
    """Eight characters where they do, more where two runs begin alike; each finds its own run."""
    among = [with_id(run_id) for run_id in ("a" * 32, "a" * 12 + "b" * 20, "c" * 32)]
    shown = short_ids(among)
    assert shown["c" * 32] == "c" * MIN_ID_LENGTH
    assert shown["a" * 32] == "a" * 13
    assert all(find_run(short, among).run_id == run_id for run_id, short in shown.items())


def test_statistics_of_an_old_run_are_todays() -> None:
    """Medians and intervals are computed from the samples, whatever an older version stored beside them."""
    store(measurement(tg_samples=samples(128, (40.0, 41.0, 42.0))))
    with sqlite3.connect(store_path()) as connection:
        connection.execute("UPDATE llama_bench SET median_ts = 1, low_ts = 1, high_ts = 1")
    connection.close()
    assert runs()[0].tests[1].summary.median == pytest.approx(41.0)


def test_exported_rows_are_llama_benchs() -> None:
    """Its keys in its order, switches as booleans, samples in nanoseconds and in tokens per second; oldest first."""
    store(measurement(started_at="2026-11-01T00:00:00Z"))
    store(measurement(started_at="2026-11-02T00:00:00Z", tg_samples=()))
    rows = exported_rows()
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(512, 0), (0, 128), (512, 0)]
    assert tuple(rows[0]) == (*COLUMNS, "samples_ns", "samples_ts")
    assert all(isinstance(rows[0][name], bool) for name in BOOLEANS)
    assert rows[1]["samples_ns"] == [round(1e9 * 128 / rate) for rate in (40.0, 41.0, 42.0)]
    assert rows[1]["samples_ts"] == pytest.approx([40.0, 41.0, 42.0])
    assert exported_rows(model_hash="other") == ()
    assert len(exported_rows(model_text="GEMMA3")) == 3


def test_a_copy_of_the_store_is_one_file_with_everything() -> None:
    """The copy holds every run, also those still in the write-ahead log, and needs no file beside it."""
    store(measurement())
    writer = sqlite3.connect(store_path())
    target = store_path().parent.parent / "copy.sqlite"
    copy_store(target)
    writer.close()
    copy = sqlite3.connect(f"{target.as_uri()}?mode=ro&immutable=1", uri=True)
    assert copy.execute("SELECT count(*) FROM llama_bench").fetchone() == (2,)
    assert copy.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    copy.close()
    assert sorted(path.name for path in target.parent.iterdir()) == ["copy.sqlite", "data"]


def test_a_copy_goes_to_no_folder_that_is_not_there_and_not_over_the_store() -> None:
    """What cannot be written is an error with the place; the store is never its own copy."""
    with pytest.raises(UsageError, match="nothing was measured"):
        copy_store(store_path().parent / "copy.sqlite")
    store(measurement())
    before = store_path().read_bytes()
    with pytest.raises(UsageError, match="cannot write") as caught:
        copy_store(store_path().parent / "none" / "copy.sqlite")
    assert "none" in str(caught.value.where)
    with pytest.raises(UsageError, match="the store itself"):
        copy_store(store_path())
    assert store_path().read_bytes() == before
