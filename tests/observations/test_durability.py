"""The store when things end badly: killed writers, writers at once, a full disk, folders that may not be written."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from observations.measured import measurement

from magnitude_tune.observations.history import runs
from magnitude_tune.observations.store import store, store_path

FOLDER = str(Path(__file__).parent)
KILLS = 50
WRITER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from measured import measurement
from magnitude_tune.observations.store import store
"""
ENDLESS = """
import signal, time
for _ in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        while True:
            run_id = store(measurement())
            os.write(writing, run_id.encode())
    os.close(writing)
    print(child, flush=True)
    os.waitpid(child, 0)
    with os.fdopen(reading) as told:
        print(told.read(), flush=True)
"""


def counted() -> dict[str, int]:
    """Rows of each run, read past the store's own code, from a database that SQLite finds sound."""
    connection = sqlite3.connect(store_path())
    try:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return dict(connection.execute("SELECT run_id, count(*) FROM llama_bench GROUP BY run_id"))
    finally:
        connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forked")
def test_fifty_kills_at_random_moments_lose_nothing_that_was_stored() -> None:
    """Every run whose id was given out is there whole, no run is there in part, and the next writer goes on."""
    moments = random.Random(9)  # noqa: S311
    told: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", WRITER + ENDLESS, FOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        for _ in range(KILLS):
            supervisor.stdin.write("go\n")
            supervisor.stdin.flush()
            child = int(supervisor.stdout.readline())
            time.sleep(moments.uniform(0.0, 0.06))
            os.kill(child, signal.SIGKILL)
            ids = supervisor.stdout.readline().strip()
            told += [ids[i : i + 32] for i in range(0, len(ids), 32)]
        supervisor.stdin.close()
        assert supervisor.wait(timeout=60) == 0
    rows = counted()
    assert len(told) > KILLS // 5
    assert set(told) <= rows.keys()
    assert set(rows.values()) == {2}
    # What is not told of is at most the one run of each writer whose kill came after its commit.
    assert len(rows) - len(told) <= KILLS
    store(measurement())
    assert len(runs()) == len(rows) + 1


def test_two_processes_write_at_once_and_a_reader_sees_whole_runs() -> None:
    """Two writers lose nothing to each other, and whoever reads meanwhile sees only whole runs."""
    store(measurement())
    script = WRITER + "for _ in range(20): store(measurement())\n"
    writers = [subprocess.Popen([sys.executable, "-c", script, FOLDER]) for _ in range(2)]
    seen = [1]
    while any(writer.poll() is None for writer in writers):
        found = runs()
        assert all(len(run.tests) == 2 for run in found)
        seen.append(len(found))
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen == sorted(seen)
    assert len(runs()) == 41
    assert set(counted().values()) == {2}


def test_a_writer_waits_for_another_that_is_at_it() -> None:
    """A run that comes while another process writes is stored when that one has finished."""
    store(measurement())
    other = sqlite3.connect(store_path(), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = subprocess.Popen([sys.executable, "-c", WRITER + "store(measurement())\n", FOLDER])
    time.sleep(0.5)
    assert len(runs()) == 1
    other.execute("COMMIT")
    other.close()
    assert waiting.wait(timeout=60) == 0
    assert len(runs()) == 2


REFUSED = """
from magnitude_tune.errors import UsageError
try:
    print("stored", store(measurement()))
except UsageError as error:
    print(error, "|", error.hint)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX's")
@pytest.mark.parametrize("begun", [True, False], ids=["a store that is there", "the first run"])
def test_a_disk_without_room_is_said_and_leaves_the_store_whole(begun: bool) -> None:
    """Where the system refuses to let the file grow, the error says where and what to do; earlier runs stay."""
    if begun:
        store(measurement())
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    done = subprocess.run(
        [sys.executable, "-B", "-c", WRITER + limit + REFUSED, FOLDER], capture_output=True, text=True, check=True
    )
    assert "cannot use the store of measurements" in done.stdout
    assert str(store_path()) in done.stdout
    assert "make room on the disk" in done.stdout
    assert store(measurement()) is not None
    assert set(counted().values()) == {2}
    assert len(counted()) == 1 + begun


WITHOUT_RIGHTS = """
import os
from magnitude_tune.observations.history import runs
from magnitude_tune.observations.store import store_path
store(measurement())
assert len(runs()) == 1
os.chmod(store_path(), 0o444)
os.chmod(store_path().parent, 0o555)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(len(runs()), "run")
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions of folders are POSIX's")
def test_a_folder_that_may_not_be_written_is_said_and_can_be_read() -> None:
    """An account without rights reads the history there, and storing is an error with a way out."""
    # Not below pytest's own folder, which is closed to other accounts.
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-B", "-c", WRITER + WITHOUT_RIGHTS + REFUSED, FOLDER],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "MAGNITUDE_TUNE_HOME": home},
        )
        (Path(home) / "data").chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert "1 run" in done.stdout
    assert "cannot use the store of measurements" in done.stdout
    assert "MAGNITUDE_TUNE_HOME" in done.stdout
