"""A grid of stand-in configurations: engines on one clock, each opening noted, so that order and number can be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.stand_ins import FakeSession, a_header, a_machine, a_resolution, an_engine

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.grid import Configuration, Outcome, measure_grid
from magnitude_tune.bench.journal import Journal, open_journal
from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.values import Progress
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.observations.store import store

KEY = "a-grid"


def configurations(*n_threads: int) -> tuple[Configuration, ...]:
    """One configuration for each number of threads."""
    return tuple(Configuration(f"n_threads={n}", subject_with(n)) for n in n_threads)


def subject_with(n_threads: int) -> Subject:
    """The stand-in plan with that many threads."""
    plan = a_resolution()
    plan = plan._replace(settings=replace(plan.settings, n_threads=n_threads))
    return Subject(resolution=plan, header=a_header(), engine=an_engine(), machine=a_machine())


@dataclass
class Engines:
    """Opens stand-in engines whose generation rate depends on the number of threads.

    `before` is called with the number of openings so far and the number of the piece of work in it.
    """

    rates: Mapping[int, Sequence[float]] = field(default_factory=dict)
    before: Callable[[int, int], None] = lambda _opening, _piece: None
    opened: list[int] = field(default_factory=list)
    now: float = 0.0
    running: int = 0

    def clock(self) -> float:
        """Seconds on the clock that all engines share."""
        return self.now

    def opener(self, _engine: EngineFacts, launch: Launch, _machine_hash: str) -> Opened:
        """Start one; two at once are a fault."""
        assert self.running == 0, "two engines run at once"
        n_threads = launch.settings.n_threads
        number = len(self.opened)
        self.opened.append(n_threads)
        self.now += 1.0
        self.running += 1
        session = _Timed(tg_rates=list(self.rates.get(n_threads, [40.0])), engines=self)
        session.before = lambda piece: self.before(number, piece)
        return Opened(session, launch)


@dataclass
class _Timed(FakeSession):
    engines: Engines = field(default_factory=Engines)

    def _work(self, name: str, n_tokens: int, depth: int, rates: list[float]) -> object:  # type: ignore[override]
        sample = super()._work(name, n_tokens, depth, rates)
        self.engines.now += sample.seconds
        return sample

    def close(self) -> None:
        super().close()
        self.engines.running -= 1


def grid(
    engines: Engines,
    folder: Path,
    *n_threads: int,
    budget_seconds: float = 300.0,
    shortage: Callable[[Subject], str | None] = lambda _: None,
    told: list[Progress] | None = None,
    journal: Journal | None = None,
) -> tuple[tuple[Outcome, ...], bool]:
    """Measure a grid as `bench` does, on a machine of which nothing else is known."""

    def measured(journal: Journal) -> tuple[tuple[Outcome, ...], bool]:
        found = measure_grid(
            configurations(*n_threads),
            engines.opener,
            journal,
            budget_seconds=budget_seconds,
            keep=store,
            shortage=shortage,
            report=(told if told is not None else []).append,
            watch=Watch(root=folder, clock=engines.clock, cpus=frozenset(range(4))),
            clock=engines.clock,
        )
        if found.problem is not None:
            raise found.problem
        return found.outcomes, found.interrupted

    if journal is not None:
        return measured(journal)
    with open_journal(KEY) as own:
        return measured(own)
