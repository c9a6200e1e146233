"""Measures grids of stand-in engines in children that are killed at random moments; prints what was promised and kept.

Run by test_kill.py in a process of its own, because it forks: `python killed_grid.py KILLS SEED`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

from bench.grid_stand_ins import Engines, configurations

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.grid import measure_grid
from magnitude_tune.bench.journal import Journal, open_journal
from magnitude_tune.bench.values import Ending, Slice
from magnitude_tune.observations.store import store, store_path
from magnitude_tune.observations.values import Measurement
from magnitude_tune.request import Settings

THREADS = tuple(range(1, 11))
LONGEST_SECONDS = 0.15


class TellingJournal(Journal):
    """Says on a pipe what it has kept, after it has."""

    def __init__(self, journal: Journal, pipe: int) -> None:
        self._journal, self._pipe = journal, pipe

    @property
    def key(self) -> str:
        return self._journal.key

    def slices(self, point: str, planned: Settings) -> tuple[Slice, ...]:
        return self._journal.slices(point, planned)

    def failure(self, point: str, planned: Settings) -> Ending | None:
        return self._journal.failure(point, planned)

    def add(self, point: str, planned: Settings, outcome: Slice | Ending) -> None:
        self._journal.add(point, planned, outcome)
        os.write(self._pipe, f"kept {point}\n".encode())


def measure(key: str, pipe: int) -> None:
    """The whole grid, with pieces of work of a millisecond."""

    def keep(measurement: Measurement, run_id: str) -> str | None:
        stored = store(measurement, run_id)
        os.write(pipe, f"stored {run_id}\n".encode())
        return stored

    engines = Engines(before=lambda _opening, _piece: time.sleep(0.0005))
    with tempfile.TemporaryDirectory() as empty, open_journal(key) as journal:
        watch = Watch(root=Path(empty), clock=engines.clock, cpus=frozenset({0}))
        measure_grid(
            configurations(*THREADS),
            engines.opener,
            TellingJournal(journal, pipe),
            budget_seconds=300.0,
            keep=keep,
            watch=watch,
            clock=engines.clock,
        )


def run_and_kill(key: str, after_seconds: float | None) -> tuple[list[str], bool]:
    """What a child said before it was killed (None: never), and whether it had come to its end by itself."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            measure(key, write)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    if after_seconds is not None:
        time.sleep(after_seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as said:
        lines = _whole_lines(said)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child failed"
    return lines, os.WIFEXITED(status)


def _whole_lines(said: IO[str]) -> list[str]:
    return [line.rstrip("\n") for line in said if line.endswith("\n")]


def kept_in(key: str) -> Counter[str]:
    """Processes that the journal holds, by point."""
    with open_journal(key) as journal:
        return Counter(
            {
                each.point: len(journal.slices(each.point, each.subject.resolution.settings))
                for each in configurations(*THREADS)
            }
        )


def stored_runs() -> Counter[str]:
    """Rows in the store, by run."""
    if not store_path().exists():
        return Counter()
    connection = sqlite3.connect(store_path())
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'llama_bench'").fetchone():
        # Killed between making the file and making its table: nothing was stored yet.
        return Counter()
    found = Counter(run_id for (run_id,) in connection.execute("SELECT run_id FROM llama_bench"))
    connection.close()
    return found


def main() -> None:
    """Kill that often; a grid that comes to its end is followed by another."""
    kills, chance = int(sys.argv[1]), random.Random(int(sys.argv[2]))  # noqa: S311
    grids, killed = 0, 0
    promised: Counter[str] = Counter()
    lost: list[str] = []
    twice: list[str] = []
    ended = True
    while killed < kills or not ended:
        key = f"grid-{grids}"
        # The last grid is brought to its end.
        said, ended = run_and_kill(key, chance.uniform(0, LONGEST_SECONDS) if killed < kills else None)
        killed += not ended
        promised.update(line.removeprefix("kept ") for line in said if line.startswith("kept "))
        kept, stored = kept_in(key), stored_runs()
        lost += [point for point, number in promised.items() if kept[point] < number]
        lost += [run for line in said if (run := line.removeprefix("stored ")) != line and stored[run] != 2]
        # Two rounds are enough for steady engines: a third process would be one that was measured again.
        twice += [point for point, number in kept.items() if number > 2]
        twice += [run for run, rows in stored.items() if rows != 2]
        if ended:
            grids, promised = grids + 1, Counter()
    print(json.dumps({"kills": killed, "grids": grids, "runs": len(stored_runs()), "lost": lost, "twice": twice}))  # noqa: T201


if __name__ == "__main__":
    main()
