"""Stores and outputs that would lose data or hide damage."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from cli.console import run

from magnitude_tune.observations.store import store_path


@pytest.fixture
def a_store(tmp_path: Path) -> Path:
    """A store with one imported run."""
    rows = [
        {
            "build_commit": "b1",
            "build_number": 1,
            "model_filename": "m.gguf",
            "model_type": "llama 1B",
            "model_size": 1,
            "model_n_params": 1,
            "n_prompt": 512,
            "n_gen": 0,
            "avg_ns": 10**9,
            "avg_ts": 512.0,
            "samples_ns": [10**9, 10**9],
            "samples_ts": [512.0, 512.0],
        }
    ]
    source = tmp_path / "bench.json"
    source.write_text(json.dumps(rows))
    done = run("bench", "--import", source)
    assert done.returncode == 0, done.stderr
    return store_path()


@pytest.mark.parametrize("form", ["csv", "json", "sqlite"])
def test_an_export_never_goes_onto_the_store(a_store: Path, form: str) -> None:
    """The file that would be overwritten is what is exported: exit 2, and every run is still there."""
    before = a_store.read_bytes()
    done = run("bench", "--export", form, "-o", a_store)
    assert done.returncode == 2
    assert a_store.read_bytes() == before
    assert run("bench", "--history").returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="pipes are POSIX's")
def test_a_copy_of_the_store_replaces_no_pipe(a_store: Path, tmp_path: Path) -> None:
    """A copy goes into a regular file or nowhere; odd names are said."""
    pipe, loop = tmp_path / "pipe", tmp_path / "loop"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for target in (pipe, loop, tmp_path, Path()):
        done = run("bench", "--export", "sqlite", "-o", target)
        assert done.returncode == 2, done.stderr
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    "damage", ["settings = 'x'", "samples = '[[1, null]]'", "avg_ts = 9e999", "model_filename = x'ff00'"]
)
def test_a_damaged_row_is_said(a_store: Path, damage: str) -> None:
    """What no version of ours wrote is an error with the store's place, not a bug."""
    with sqlite3.connect(a_store) as connection:
        connection.execute(f"UPDATE llama_bench SET {damage}")  # noqa: S608 - the test's own text
    connection.close()
    for question in (("--history", "--json"), ("--export", "json"), ("--export", "csv")):
        done = run("bench", *question)
        assert done.returncode in (0, 2), done.stderr
        if done.returncode == 2:
            assert "damaged" in done.stderr
    assert run("bench", "--history", "--json").returncode == 2


def test_an_output_that_cannot_be_is_said_before_measuring(real_model: Path, tmp_path: Path) -> None:
    """Hours of measuring must not end in a folder that is not there."""
    absent = tmp_path / "absent" / "result.json"
    done = run("bench", real_model, "--settings", "n_threads=1", "--json", "-o", absent)
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr
    assert "bench:" not in done.stderr
