"""The store of measurements: what goes in, what comes out as evidence, and what a store that cannot be used says."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from observations.measured import QUIET, SETTINGS, measurement, samples

from magnitude_tune.engines.values import BufferLine, Sample
from magnitude_tune.errors import UsageError
from magnitude_tune.observations.schema import MIGRATIONS
from magnitude_tune.observations.store import evidence_for, store, store_path
from magnitude_tune.observations.values import LeftOut
from magnitude_tune.request import Workload

LLAMA_BENCH_COLUMNS = """
build_commit build_number cpu_info gpu_info backends model_filename model_type model_size model_n_params n_batch
n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu
no_kv_offload flash_attn devices tensor_split tensor_buft_overrides load_mode lazy_mode embeddings no_op_offload
no_host repack fit_target fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts
"""


def evidence() -> tuple[object, ...]:
    """What the store has for the model, machine and engine of `measurement`."""
    return evidence_for("model", "machine", "llama_cpp_python", "0.3.36")


def stored_rows() -> list[sqlite3.Row]:
    """Every row, read past the store's own code."""
    connection = sqlite3.connect(store_path())
    connection.row_factory = sqlite3.Row
    try:
        return connection.execute("SELECT * FROM llama_bench ORDER BY rowid").fetchall()
    finally:
        connection.close()


def test_a_run_is_two_rows_with_the_columns_of_llama_bench() -> None:
    """One row for pp and one for tg, tied by a run id, led by llama-bench's columns in its order."""
    run_id = store(measurement())
    prompt, generation = stored_rows()
    assert list(prompt.keys())[:42] == LLAMA_BENCH_COLUMNS.split()
    assert (prompt["n_prompt"], prompt["n_gen"]) == (512, 0)
    assert (generation["n_prompt"], generation["n_gen"]) == (0, 128)
    assert prompt["run_id"] == generation["run_id"] == run_id
    assert generation["avg_ts"] == pytest.approx(41.0)
    assert generation["stddev_ts"] == pytest.approx(1.0)
    assert prompt["peak_bytes"] == 3_000
    assert json.loads(generation["samples"]) == [[128, pytest.approx(128 / rate)] for rate in (40.0, 41.0, 42.0)]


def test_samples_left_out_are_kept_with_their_reason() -> None:
    """A disturbed sample stays in the row of its test and out of its mean."""
    slow = Sample(128, 12.8)
    store(measurement(left_out=(LeftOut("tg", "disturbed", slow),)))
    prompt, generation = stored_rows()
    assert json.loads(prompt["left_out"]) == []
    assert json.loads(generation["left_out"]) == [{"reason": "disturbed", "sample": [128, 12.8]}]
    assert generation["avg_ts"] == pytest.approx(41.0)


def test_the_deviation_of_a_slow_run_does_not_overflow() -> None:
    """Seconds-long samples, whose squared nanoseconds pass 2^64, have a true standard deviation."""
    store(measurement(tg_samples=tuple(Sample(1, seconds) for seconds in (100.0, 101.0, 102.0))))
    assert stored_rows()[1]["stddev_ns"] == pytest.approx(1e9, rel=1e-6)


def test_a_stored_run_is_evidence_with_its_settings_and_interval() -> None:
    """What is stored comes back as the median with the ends of its interval, and the settings it was run with."""
    store(measurement())
    (found,) = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert found.settings == SETTINGS
    assert found.tg is not None
    assert found.tg[0] == pytest.approx(41.0)
    assert 39.0 <= found.tg[1] <= 40.0
    assert 42.0 <= found.tg[2] <= 43.0
    assert found.ready_seconds == 1.5


def test_the_newest_evidence_comes_first() -> None:
    """Runs are given newest first."""
    store(measurement())
    store(measurement(tg_samples=samples(128, (50.0, 50.5, 51.0))))
    found = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert [round(run.tg[0]) if run.tg else None for run in found] == [50, 41]


def test_evidence_is_of_the_same_workload() -> None:
    """A prompt of another length, or an answer of another length, is read at another rate."""
    store(measurement())
    asked = ("model", "machine", "llama_cpp_python", "0.3.36")
    (found,) = evidence_for(*asked, workload=Workload(512, 128))
    assert found.pp is not None
    assert found.tg is not None
    (only_tg,) = evidence_for(*asked, workload=Workload(64, 128))
    assert only_tg.pp is None
    assert evidence_for(*asked, workload=Workload(64, 32)) == ()


def test_lists_in_settings_come_back_as_they_were() -> None:
    """Devices and splits survive the way through JSON."""
    split = replace(SETTINGS, n_gpu_layers=10, devices=("RPC0", "RPC1"), tensor_split=(6, 4))
    store(measurement(settings=split))
    (found,) = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert found.settings == split


@pytest.mark.parametrize(
    "subject",
    [
        ("other", "machine", "llama_cpp_python", "0.3.36"),
        ("model", "other", "llama_cpp_python", "0.3.36"),
        ("model", "machine", "llama_server", "0.3.36"),
    ],
)
def test_evidence_is_of_the_same_model_machine_and_engine(subject: tuple[str, str, str, str]) -> None:
    """A measurement of anything else is none of this subject's."""
    store(measurement())
    assert evidence_for(*subject) == ()


def test_another_build_says_so() -> None:
    """A run of another build of the engine is evidence of its own kind; so is one after some context."""
    store(measurement(engine_build="0.3.35", n_depth=2048))
    (found,) = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert (found.same_build, found.depth) == (False, 2048)


def test_b37_a_cold_unstable_run_is_no_calibration() -> None:
    """B37: Samples that spread by two thirds are stored and not used; the stable test of the same run still is."""
    store(measurement(pp_samples=samples(512, (5300.0, 35100.0, 35300.0))))
    (found,) = evidence_for("model", "machine", "llama_cpp_python", "0.3.36")
    assert found.pp is None
    assert found.tg is not None
    assert stored_rows()[0]["stable"] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"complete": False},
        {"disturbance": replace(QUIET, notes=("other processes kept 1.5 cores busy",))},
        {"pp_samples": samples(512, (200.0, 201.0)), "tg_samples": samples(128, (40.0, 40.1))},
    ],
    ids=["interrupted", "disturbed", "too few samples"],
)
def test_a_doubtful_run_is_stored_but_no_calibration(changes: dict[str, object]) -> None:
    """Interrupted, disturbed and two-sample runs stay out of the evidence."""
    store(measurement(**changes))
    assert len(stored_rows()) == 2
    assert evidence() == ()


def test_a_run_without_samples_is_not_stored() -> None:
    """A run that was interrupted before its first sample leaves nothing."""
    assert store(measurement(pp_samples=(), tg_samples=(), complete=False)) is None
    assert not store_path().exists()


def test_no_store_is_no_evidence() -> None:
    """Asking before anything was measured makes no file."""
    assert evidence() == ()
    assert not store_path().exists()


def test_settings_of_another_shape_are_passed_over() -> None:
    """A row whose settings this version does not know is no evidence and no error."""
    store(measurement())
    store(measurement())
    connection = sqlite3.connect(store_path())
    with connection:
        connection.execute("UPDATE llama_bench SET settings = '{\"n_threads\": 2}' WHERE rowid > 2")
    connection.close()
    assert len(evidence()) == 1


def test_the_file_states_its_schema_version_and_journal() -> None:
    """`user_version` counts the migrations; the journal is write-ahead."""
    store(measurement())
    connection = sqlite3.connect(store_path())
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.parametrize("ask", [evidence, lambda: store(measurement())], ids=["read", "write"])
def test_a_file_that_is_no_database_is_named(ask: object) -> None:
    """Text in place of the store is an error with the path and what to do, and stays as it was."""
    store_path().parent.mkdir(parents=True)
    store_path().write_text("my notes, not a database, and longer than a header of SQLite would be\n" * 20)
    with pytest.raises(UsageError, match="not a database") as caught:
        ask()  # type: ignore[operator]
    assert caught.value.where == str(store_path())
    assert caught.value.hint is not None
    assert store_path().read_text().startswith("my notes")


@pytest.mark.parametrize("ask", [evidence, lambda: store(measurement())], ids=["read", "write"])
def test_another_programs_database_is_never_written(ask: object) -> None:
    """A database with tables that are not ours is refused and left as it is."""
    store_path().parent.mkdir(parents=True)
    connection = sqlite3.connect(store_path())
    with connection:
        connection.execute("CREATE TABLE llama_bench (mine TEXT)")
    connection.close()
    before = store_path().read_bytes()
    with pytest.raises(UsageError, match="another program"):
        ask()  # type: ignore[operator]
    assert store_path().read_bytes() == before


@pytest.mark.parametrize("ask", [evidence, lambda: store(measurement())], ids=["read", "write"])
def test_a_newer_schema_is_refused(ask: object) -> None:
    """A store of a later version is not guessed at."""
    store(measurement())
    connection = sqlite3.connect(store_path())
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(UsageError, match="schema version"):
        ask()  # type: ignore[operator]


def test_a_torn_file_is_an_error_of_ours() -> None:
    """A store cut off in the middle gives our error, no traceback of SQLite's."""
    for _ in range(20):
        store(measurement())
    content = store_path().read_bytes()
    store_path().write_bytes(content[: len(content) // 2])
    with pytest.raises(UsageError, match="cannot use the store"):
        evidence()


def test_a_full_disk_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's full-disk error becomes one that says where and what to do, and no half run is left."""
    store(measurement())
    from magnitude_tune.observations import store as module

    whole = module.connect

    def small(path: Path) -> sqlite3.Connection:
        connection = whole(path)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(module, "connect", small)
    with pytest.raises(UsageError, match="full") as caught:
        store(measurement(buffers=tuple(BufferLine("CPU", "kv", n) for n in range(5_000))))
    assert "room" in str(caught.value.hint)
    assert len(stored_rows()) == 2


def test_a_folder_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home below a file cannot be made, and the error names the place."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError) as caught:
        store(measurement())
    assert str(tmp_path) in str(caught.value)


def test_processes_that_begin_the_store_at_once_all_keep_their_runs() -> None:
    """Three processes that create, migrate and write at the same time lose nothing."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from measured import measurement\n"
        "from magnitude_tune.observations.store import store\n"
        "for _ in range(5): store(measurement())\n"
    )
    folder = str(Path(__file__).parent)
    running = [subprocess.Popen([sys.executable, "-c", script, folder]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert len(stored_rows()) == 30
    assert len({row["run_id"] for row in stored_rows()}) == 15
