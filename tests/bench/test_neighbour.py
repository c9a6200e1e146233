"""A real busy process beside a grid: it is reported in the runs it touched, and in no other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import pytest
from bench.grid_stand_ins import KEY, configurations
from bench.stand_ins import FakeSession

from magnitude_tune.bench.disturbance import Reading, Watch
from magnitude_tune.bench.grid import Configuration, Outcome, measure_grid
from magnitude_tune.bench.journal import open_journal
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch, Sample
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.observations.store import store

TOUCHED = 2
SAMPLE_SECONDS = 0.2


class OwnWatch(Watch):
    """Sees the CPU time of the neighbours and of ours as they are, and nothing else of what this machine does.

    What other tests and services do meanwhile is no part of this test.
    """

    neighbours: tuple[int, ...] = ()
    _taken_seconds = 0.0

    def read(self, groups: Iterable[int] = ()) -> Reading:
        """The counters of our groups and of the neighbours, who count as others."""
        ours = super().read(groups)
        both = super().read((*groups, *self.neighbours))
        # What a process took stays taken when it has ended.
        self._taken_seconds = max(self._taken_seconds, both.own_seconds - ours.own_seconds)
        return replace(
            both,
            busy_seconds=ours.own_seconds + self._taken_seconds,
            own_seconds=ours.own_seconds,
            steal_seconds=0.0,
            pressure_memory_seconds=None,
            swapped_bytes=None,
        )


@dataclass
class Sleeping(FakeSession):
    """An engine that takes real time and no core."""

    def _work(self, name: str, n_tokens: int, _depth: int, _rates: list[float]) -> Sample:
        self.before(len(self.asked))
        self.asked.append((name, n_tokens))
        time.sleep(SAMPLE_SECONDS)
        return Sample(n_tokens, SAMPLE_SECONDS)


@contextmanager
def busy_neighbours(number: int) -> Iterator[tuple[int, ...]]:
    """Processes that keep cores busy, once they do; each a session of its own, as the kernel shares by session."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    processes = [subprocess.Popen(command, start_new_session=True) for _ in range(number)]
    try:
        while any(psutil.Process(process.pid).cpu_times().user < 0.02 for process in processes):
            time.sleep(0.01)
        yield tuple(process.pid for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass
class Engines:
    """In the first round, the neighbours work during the second and third sample of one configuration."""

    watch: OwnWatch
    n_processes: int
    opened: list[int] = field(default_factory=list)
    running: ExitStack = field(default_factory=ExitStack)

    def opener(self, _engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        """Start a sleeping engine."""
        n_threads = launch.settings.n_threads
        session = Sleeping(pid=os.getpid())
        if n_threads == TOUCHED and n_threads not in self.opened:
            session.before = self._begin_and_end
        self.opened.append(n_threads)
        return Opened(session, launch)

    def _begin_and_end(self, piece: int) -> None:
        # Pieces 0 and 1 warm up.
        if piece == 3:
            self.watch.neighbours = self.running.enter_context(busy_neighbours(self.n_processes))
        elif piece == 5:
            self.running.close()
            self.watch.neighbours = ()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="others' cores are read from /proc")
def test_a_neighbour_started_in_the_middle_is_reported_in_the_runs_it_touched_and_in_no_other() -> None:
    """A busy process during two samples of one configuration: those are repeated and reported, the others are clean."""
    cores = len(os.sched_getaffinity(0))
    watch = OwnWatch()
    # More processes than cores: on a machine that is busy anyway they still get a good part of it.
    engines = Engines(watch, n_processes=4 * cores)
    with engines.running, open_journal(KEY) as journal:
        outcomes, _, _ = measure_grid(
            [with_every_core(each, cores) for each in configurations(1, TOUCHED, 3)],
            engines.opener,
            journal,
            budget_seconds=60.0,
            keep=store,
            watch=watch,
        )
    reported = {
        outcome.configuration.point: [finding.rule for finding in outcome.result.findings]
        for outcome in outcomes
        if outcome.result
    }
    assert reported == {"n_threads=1": [], "n_threads=2": [Rule.DISTURBED_MEASUREMENT], "n_threads=3": []}
    touched = outcomes[1].result
    assert touched is not None
    assert [(left.test, left.reason) for left in touched.measurement.left_out] == [
        ("pp", "disturbed"),
        ("tg", "disturbed"),
    ]
    assert touched.measurement.disturbance.clean
    others = {outcome.configuration.point: others_cores(outcome) for outcome in outcomes}
    assert others["n_threads=2"] > 0.1
    assert max(others["n_threads=1"], others["n_threads=3"]) < 0.05


def with_every_core(configuration: Configuration, cores: int) -> Configuration:
    """A plan with a thread on every core, so that a neighbour takes some of them away."""
    subject = configuration.subject
    machine = replace(subject.machine, cpu=replace(subject.machine.cpu, performance_cores=cores, affinity_cpus=cores))
    plan = subject.resolution
    settings = replace(plan.settings, n_threads_batch=max(cores, plan.settings.n_threads))
    return configuration._replace(
        subject=replace(subject, machine=machine, resolution=plan._replace(settings=settings))
    )


def others_cores(outcome: Outcome) -> float:
    """Cores that others kept busy over the whole measurement."""
    assert outcome.result is not None
    return outcome.result.measurement.disturbance.other_cores or 0.0
