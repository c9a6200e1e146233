"""Runs candidates on the real engine, one fresh process each, and says what is expected of the others meanwhile."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnitude_tune.bench.journal import Journal
from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.run import result_of
from magnitude_tune.bench.values import BenchResult, Ending, Slice
from magnitude_tune.errors import DoesNotFitError, EngineError
from magnitude_tune.observations.statistics import MIN_SAMPLES, SIGMA_90, Summary, summarise
from magnitude_tune.observations.values import Measurement
from magnitude_tune.throughput.model import OtherRows, PhysicsModel
from magnitude_tune.throughput.values import Evidence
from magnitude_tune.tuning.session import CannotRun
from magnitude_tune.tuning.values import Candidate, Expected, Run

__all__ = ["Before", "Doing", "Runner"]

_WIDTH_OF_FEW: Final = 0.05
"""Standard deviation of a turn's logarithm where a run gave too few samples to tell its own."""


class Before(NamedTuple):
    """What was measured before this session: runs of this model, and rows of other models."""

    evidence: tuple[Evidence, ...] = ()
    others: OtherRows | None = None


class Doing(NamedTuple):
    """How things are done outside of this room.

    Args:
        plan: a candidate's own plan; raises DoesNotFitError where it does not fit or cannot run as it is written.
        take: measures a plan in a fresh process.
        keep: stores a run under the id it is given, once however often it is asked; gives the id.
        shortage: says right before a launch why a plan does not fit any more, None where it does.
    """

    plan: Callable[[Candidate], Subject]
    take: Callable[[Subject], Slice]
    keep: Callable[[Measurement, str], str | None]
    shortage: Callable[[Subject], str | None] = lambda _: None


class Runner:
    """Measures candidates by their numbers; what the journal knows already is not measured again.

    `results` holds what each run gave, in order, with the candidate's number.
    """

    def __init__(
        self, candidates: Sequence[Candidate], speed: PhysicsModel, before: Before, journal: Journal, doing: Doing
    ) -> None:
        self._candidates, self._speed, self._before = candidates, speed, before
        self._journal, self._doing = journal, doing
        self._subjects: dict[int, Subject] = {}
        self._used: dict[int, int] = {}
        self._evidence: list[Evidence] = []
        self.results: list[tuple[int, BenchResult]] = []

    def expect(self, _runs: Sequence[Run]) -> tuple[Expected, ...]:
        """What is expected of each candidate's turn after the runs of this session and those before."""
        self._speed.learn((*self._evidence, *self._before.evidence), self._before.others)
        workload = self._subject(0).resolution.workload
        turns = (self._speed.speed(each.settings, workload).turn_seconds for each in self._candidates)
        return tuple(Expected(turn.value, math.log(turn.high / turn.low) / (2 * SIGMA_90)) for turn in turns)

    def known(self) -> tuple[int, ...]:
        """The candidates that the journal has runs of, one number for each run, in the order they were made."""
        found: list[tuple[str, int]] = []
        for number, candidate in enumerate(self._candidates):
            if candidate.point in self._journal.points:
                with contextlib.suppress(DoesNotFitError):
                    planned = self._subject(number).resolution.settings
                    found += [(each.started_at, number) for each in self._journal.slices(candidate.point, planned)]
        return tuple(number for _, number in sorted(found))

    def run(self, number: int) -> Run:
        """One process of that candidate.

        Raises:
            CannotRun: it does not fit, cannot run as it is written, or ended its engine.
            KeyboardInterrupt: the process was interrupted; it is lost.
            UsageError: journal or store cannot be written.
        """
        candidate = self._candidates[number]
        try:
            subject = self._subject(number)
        except DoesNotFitError as error:
            raise CannotRun(str(error)) from error
        taken = self._taken(number, candidate, subject)
        result = result_of(subject, [taken])
        turn = result.promise.item("turn_seconds").measured
        if taken.ending is not None or turn is None:
            raise CannotRun(taken.ending.what if taken.ending else "it gave no samples")
        # Times are in seconds: two runs of one candidate may have begun in the same one.
        name = f"{self._journal.key} {candidate.point} {taken.started_at} {self._used[number]}"
        self._doing.keep(result.measurement, hashlib.sha256(name.encode()).hexdigest()[:32])
        self.results.append((number, result))
        self._evidence.append(_evidence(candidate, result.measurement))
        enough = turn.n >= MIN_SAMPLES
        clean = enough and result.measurement.disturbance.clean
        return Run(number, turn.median, _sigma(turn) if enough else _WIDTH_OF_FEW, clean)

    def _subject(self, number: int) -> Subject:
        if number not in self._subjects:
            self._subjects[number] = self._doing.plan(self._candidates[number])
        return self._subjects[number]

    def _taken(self, number: int, candidate: Candidate, subject: Subject) -> Slice:
        planned = subject.resolution.settings
        index = self._used[number] = self._used.get(number, -1) + 1
        known = self._journal.slices(candidate.point, planned)
        if index < len(known):
            return known[index]
        if failure := self._journal.failure(candidate.point, planned):
            raise CannotRun(failure.what)
        if short := self._doing.shortage(subject):
            raise CannotRun(short)
        try:
            taken = self._doing.take(subject)
        except EngineError as error:
            self._journal.add(candidate.point, planned, Ending("crashed", str(error), error.hint))
            raise CannotRun(str(error)) from error
        if taken.ending is not None and taken.ending.kind == "interrupted":
            raise KeyboardInterrupt
        self._journal.add(candidate.point, planned, taken)
        return taken


def _sigma(turn: Summary) -> float:
    if not 0 < turn.low <= turn.high:
        return _WIDTH_OF_FEW
    return math.log(turn.high / turn.low) / (2 * SIGMA_90)


def _evidence(candidate: Candidate, measurement: Measurement) -> Evidence:
    """A run as the speed model uses it; under the candidate's settings, for whose sake it was made."""

    def rate(rates: Sequence[float]) -> tuple[float, float, float] | None:
        if not rates:
            return None
        found = summarise(rates)
        return found.median, found.low, found.high

    return Evidence(
        settings=candidate.settings,
        pp=rate([sample.rate for sample in measurement.pp_samples]),
        tg=rate([sample.rate for sample in measurement.tg_samples]),
        ready_seconds=measurement.ready_seconds,
    )
