"""`bench --history`, `--compare`, `--export` and `--import`, through the real console script."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cli.bench_command import Bench
from cli.console import run
from observations.measured import QUIET, SETTINGS, measurement, samples

from magnitude_tune.observations.llama_bench import COLUMNS
from magnitude_tune.observations.store import store, store_path


@pytest.fixture
def three_runs() -> list[str]:
    """A calm run with two threads, a calm one with one thread, and a disturbed one; ids, newest first."""
    busy = replace(QUIET, notes=("3 of 3 tg samples were taken while other processes kept 1.5 of 2 cores busy",))
    kept = [
        store(measurement()),
        store(measurement(settings=replace(SETTINGS, n_threads=1), tg_samples=samples(128, (29.0, 29.5, 30.0)))),
        store(measurement(tg_samples=samples(128, (5.6, 5.7, 5.8)), disturbance=busy)),
    ]
    return [run_id for run_id in reversed(kept) if run_id is not None]


def test_the_history_lists_runs_newest_first_with_what_differs(three_runs: list[str]) -> None:
    """Short ids, the settings that differ, medians with intervals, and the mark of the disturbed run; nothing runs."""
    done = run("bench", "--history")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [run_id[:8] for run_id in three_runs]
    assert "n_threads=1" in lines[2]
    assert "tg128: 29.5 t/s (" in lines[2]
    assert lines[1].endswith("disturbed")
    assert "n_ubatch" not in "".join(lines[:4])
    assert "The same in all:" in done.stdout
    assert "n_ubatch=512" in done.stdout
    assert done.stderr == ""


def test_the_history_as_json_has_everything(three_runs: list[str], tmp_path: Path) -> None:
    """One object with a schema version: full ids, settings, tests with intervals and samples, the disturbance."""
    assert run("bench", "--history", "--json", "-o", tmp_path / "history.json").stdout == ""
    document = json.loads((tmp_path / "history.json").read_text())
    assert next(iter(document)) == "schema_version"
    assert [one["id"] for one in document["runs"]] == three_runs
    newest = document["runs"][0]
    assert newest["disturbance"]["clean"] is False
    assert newest["settings"]["n_threads"] == 2
    test = newest["tests"][1]
    assert test["low"] <= test["value"] <= test["high"]
    assert (test["test"], test["basis"], test["n"], len(test["samples"])) == ("tg128", "measured", 3, 3)


def test_the_history_of_a_model_by_a_part_of_its_name(three_runs: list[str]) -> None:
    """A text that names no file is looked for in the names of stored models; nothing found is no error."""
    assert three_runs[0][:8] in run("bench", "--history", "gemma3").stdout
    assert run("bench", "--history", "qwen").stdout == "No runs are stored.\n"


def test_the_history_of_a_file_and_of_a_config(real_model: Path, tmp_path: Path, three_runs: list[str]) -> None:
    """A model's file is known by its content, a config by the model it names, whatever the file's name was."""
    from magnitude_tune.header.cached import read_model_cached

    run_id = store(measurement(model_hash=read_model_cached(str(real_model)).content_hash))
    config = tmp_path / "agent.yaml"
    config.write_text(f"model_path: {real_model}\nmagnitude: 4.0\n")
    for what in (real_model, config):
        runs = json.loads(run("bench", "--history", what, "--json").stdout)["runs"]
        assert [one["id"] for one in runs] == [run_id]


def test_two_runs_are_compared_with_an_interval_and_a_verdict(three_runs: list[str]) -> None:
    """By the start of an id and by `last~1`: the ratio of medians, and that it is more than noise."""
    done = run("bench", "--compare", three_runs[2][:10], "last~1")
    assert done.returncode == 0
    assert "n_threads  2  1" in done.stdout
    writing = next(line for line in done.stdout.splitlines() if line.startswith("  tg128"))
    assert "0.720" in writing
    assert "slower: more than the 3%" in writing
    document = json.loads(run("bench", "--compare", three_runs[2], three_runs[1], "--json").stdout)
    assert document["settings"] == {"n_threads": {"a": 2, "b": 1}}
    ratio = document["tests"][1]["ratio"]
    assert ratio["low"] < ratio["value"] < ratio["high"] < 1
    assert document["tests"][0]["verdict"] == "within noise"


def test_a_disturbed_run_gets_no_verdict(three_runs: list[str]) -> None:
    """45 against 5.7 tokens/s on one machine, minutes apart: shown, and not believed."""
    done = run("bench", "--compare", "last~2", "last")
    assert "undecided: B was disturbed" in done.stdout


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine_hash": "elsewhere", "cpu_info": "Another CPU"}, "machine"),
        ({"model_hash": "other", "model_type": "qwen3"}, "model"),
        ({"engine_build": "0.3.37"}, "engine"),
        ({"n_gen": 32, "tg_samples": samples(32, (40.0, 41.0, 42.0))}, "workload"),
    ],
)
def test_unlike_runs_are_refused(three_runs: list[str], changes: dict[str, object], named: str) -> None:
    """Exit 2, naming what differs, and nothing on stdout."""
    store(measurement(**changes))
    done = run("bench", "--compare", "last~1", "last")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot be compared: {named}: " in done.stderr


def test_exported_json_holds_names_as_they_are() -> None:
    """A control character in a stranger's name is escaped, not replaced."""
    store(measurement(model_type="modèle\x9b\x1b[2J"))
    done = run("bench", "--export", "json")
    assert "modèle\\u009b\\u001b[2J" in done.stdout
    assert {row["model_type"] for row in json.loads(done.stdout)} == {"modèle\x9b\x1b[2J"}


def test_export_and_import_are_each_others_way_back(
    three_runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON, CSV and SQLite of one home come into another, once: the same medians, marked as imported."""
    assert run("bench", "--export", "json", "-o", tmp_path / "rows.json").returncode == 0
    assert run("bench", "--export", "csv", "-o", tmp_path / "rows.csv").returncode == 0
    assert run("bench", "--export", "sqlite", "-o", tmp_path / "rows.sqlite").returncode == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [list(row) for row in rows] == [[*COLUMNS, "samples_ns", "samples_ts"]] * 6
    with (tmp_path / "rows.csv").open() as stream:
        table = list(csv.reader(stream))
    assert (tuple(table[0]), len(table)) == (COLUMNS, 7)
    connection = sqlite3.connect(tmp_path / "rows.sqlite")
    assert connection.execute("SELECT count(*) FROM llama_bench").fetchone() == (6,)
    connection.close()

    for name in ("rows.json", "rows.csv", "rows.sqlite"):
        monkeypatch.setenv("MAGNITUDE_TUNE_HOME", str(tmp_path / f"home of {name}"))
        done = run("bench", "--import", tmp_path / name, "--json")
        document = json.loads(done.stdout)
        assert (document["rows"], len(document["runs"]), document["left_out"]) == (6, 3, [])
        assert json.loads(run("bench", "--import", tmp_path / name, "--json").stdout)["runs_known"] == 3
        history = json.loads(run("bench", "--history", "--json").stdout)["runs"]
        assert {one["origin"] for one in history} == {"imported"}
        medians = sorted(round(test["value"], 1) for one in history for test in one["tests"])
        assert medians == [5.7, 29.5, 41.0, 205.0, 205.0, 205.0]


def test_a_file_of_llama_bench_comes_in_over_stdin(tmp_path: Path) -> None:
    """`llama-bench -o jsonl | magnitude-tune bench --import -`: what was taken, what was left out, and why."""
    whole = {"model_type": "llama 8B", "n_prompt": 512, "n_gen": 0, "samples_ns": [512_000_000] * 3}
    text = f"warning: debug build\n{json.dumps(whole)}\n{json.dumps(whole | {'n_prompt': None})}\n"
    done = subprocess.run(
        [sys.executable, "-m", "magnitude_tune", "bench", "--import", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Imported 1 run with 1 row.\nLeft out 1 row: n_prompt is missing")
    assert "calibrate nothing" in done.stdout
    assert "imported" in run("bench", "--history").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--compare", "last", "last~9"), 2, "3 stored runs"),
        (("--compare", "zz", "last"), 2, "no stored run"),
        (("--history", "--export", "csv"), 2, "exclude each other"),
        (("--export", "xml"), 2, "choose csv, json, sqlite"),
        (("--export", "sqlite"), 2, "add -o FILE"),
        (("--export", "sqlite", "-o", "copy", "gemma3"), 2, "every model"),
        (("--import", "missing.json"), 3, "cannot read"),
        (("--import", "missing.json", "gemma3"), 2, "imported whole"),
        (("--history", "missing.yaml"), 3, "missing.yaml"),
        ((), 2, "nothing to measure is named"),
    ],
)
def test_what_cannot_be_done_is_said(
    three_runs: list[str], tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """Wrong questions end in their exit code with a reason, and leave no file."""
    done = run("bench", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_is_no_error() -> None:
    """Before anything was measured the history is empty, the exports have no rows, and no file is made."""
    assert run("bench", "--history").stdout == "No runs are stored.\n"
    assert json.loads(run("bench", "--export", "json").stdout) == []
    assert run("bench", "--export", "csv").stdout == ",".join(COLUMNS) + "\n"
    assert not store_path().exists()


LOADED = """
import sys
from magnitude_tune.cli.app import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_asking_the_store_loads_nothing_heavy(three_runs: list[str]) -> None:
    """The history needs no numeric library and no engine."""
    argv = [sys.executable, "-c", LOADED, "bench", "--history"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert not {"numpy", "pandas", "matplotlib", "llama_cpp", "gguf"} & set(done.stderr.split())


@contextmanager
def no_file_grows() -> Iterator[None]:
    """The system refuses every write past the first 4 KiB of a file, as a full disk would."""
    resource = pytest.importorskip("resource", reason="limits of file sizes are POSIX's")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_never_costs_the_result(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole result is on stdout, then the error says that there is no room, and exit 2 says it was not kept."""
    with no_file_grows():
        assert bench("--json") == 2
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert document["measured"]["tg"]["value"] == 40.0
    assert document["stored"] is None
    assert "cannot use the store of measurements" in shown.err
    assert "make room on the disk" in shown.err
    assert bench("--json") == 0
    assert len(json.loads(capsys.readouterr().out)["stored"]) == 32
