"""A grid of configurations, measured in rounds: one process at a time, every configuration once a round.

The processes of all configurations together would not fit in memory, and open ones would disturb each other: each
round starts every configuration that is not finished anew. So samples of one configuration are minutes apart, and
what the machine does meanwhile (a neighbour, heat) touches all of them alike, instead of one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, Literal, NamedTuple

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.journal import Journal
from magnitude_tune.bench.launch import Subject
from magnitude_tune.bench.run import result_of, series_of
from magnitude_tune.bench.taking import Opener, take_slice
from magnitude_tune.bench.values import BenchResult, Ending, Progress, Report, Slice
from magnitude_tune.errors import EngineError, UsageError
from magnitude_tune.observations.values import Measurement

__all__ = ["ROUNDS", "Configuration", "Grid", "Outcome", "Status", "measure_grid"]

ROUNDS: Final = 3
"""Each takes a third of a configuration's budget; from the second on, one that is known well enough is left out."""

_LEAST_ROUNDS: Final = 2
_LOADING_GUESS_SECONDS: Final = 5.0

Status = Literal["measured", "crashed", "unfinished", "no longer fits"]


class Configuration(NamedTuple):
    """One point of the grid, as it was written (`n_threads=2 n_ubatch=64`), and its plan."""

    point: str
    subject: Subject


class Outcome(NamedTuple):
    """What came of one configuration; `result` is None where there is no sample, and `reason` says why.

    `rounds` counts the processes that were measured, `stored` is the run's id in the store.
    """

    configuration: Configuration
    status: Status
    result: BenchResult | None
    rounds: int
    reason: str | None = None
    stored: str | None = None


class Grid(NamedTuple):
    """What came of each configuration, whether it was interrupted, and why it could not be kept, if so."""

    outcomes: tuple[Outcome, ...]
    interrupted: bool
    problem: UsageError | None


@dataclass(slots=True)
class _State:
    """A configuration while it is measured."""

    configuration: Configuration
    slices: list[Slice]
    failure: Ending | None
    shortage: str | None = None
    spent_seconds: list[float] = field(default_factory=list)

    @property
    def crashed(self) -> Ending | None:
        return self.failure or next((taken.ending for taken in self.slices if taken.ending), None)

    @property
    def finished(self) -> bool:
        """Whether another process would not help: it crashes, or rounds or intervals are enough."""
        if self.crashed or len(self.slices) >= ROUNDS:
            return True
        return len(self.slices) >= _LEAST_ROUNDS and all(series.done for series in series_of(self.slices))


def measure_grid(
    configurations: Sequence[Configuration],
    open_engine: Opener,
    journal: Journal,
    *,
    budget_seconds: float,
    keep: Callable[[Measurement, str], str | None],
    shortage: Callable[[Subject], str | None] = lambda _: None,
    report: Report = lambda _: None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Grid:
    """Measure the configurations in rounds; gives an outcome for each, and what ended it early.

    What the journal knows is not measured again. A configuration is kept as soon as it is finished, and at the end as
    incomplete where it has samples but no longer fits. An interrupt (KeyboardInterrupt) ends the measuring; the
    process that was under way then is lost, everything before is not.

    A store or a journal that cannot be written ends it too, with the problem beside what was measured until then.

    Args:
        budget_seconds: for each configuration, over all its rounds; loading has its own time limit.
        keep: stores a finished run under the id it is given, once however often it is asked; gives the id.
        shortage: says right before a launch why a plan does not fit any more, None where it does.
        report: is told how far the grid is.
    """
    states = [
        _State(
            each,
            list(journal.slices(each.point, each.subject.resolution.settings)),
            journal.failure(each.point, each.subject.resolution.settings),
        )
        for each in configurations
    ]
    stored: dict[str, str | None] = {}
    tell = _Teller(states, report, budget_seconds)
    interrupted, problem = False, None

    def take(subject: Subject, report: Report) -> Slice:
        budget = budget_seconds / ROUNDS
        return take_slice(subject, open_engine, budget_seconds=budget, report=report, watch=watch, clock=clock)

    try:
        for state in states:
            _keep_finished(state, journal, keep, stored)
        for number in range(ROUNDS):
            for state in states:
                if state.finished or len(state.slices) > number:
                    continue
                state.shortage = shortage(state.configuration.subject)
                if state.shortage is None:
                    began = clock()
                    _take(state, take, journal, tell.of(state))
                    state.spent_seconds.append(clock() - began)
                _keep_finished(state, journal, keep, stored)
        for state in states:
            _keep_part(state, journal, keep, stored)
    except KeyboardInterrupt:
        interrupted = True
    except UsageError as error:
        # What was measured is worth more than where it is kept.
        problem = error
    outcomes = tuple(_outcome(state, stored.get(state.configuration.point)) for state in states)
    return Grid(outcomes, interrupted, problem)


def _take(state: _State, take: Callable[[Subject, Report], Slice], journal: Journal, report: Report) -> None:
    """One process of one configuration; journalled before anything else happens."""
    point, subject = state.configuration
    try:
        taken = take(subject, report)
    except EngineError as error:
        state.failure = Ending("crashed", str(error), error.hint)
        journal.add(point, subject.resolution.settings, state.failure)
        return
    if taken.ending is not None and taken.ending.kind == "interrupted":
        raise KeyboardInterrupt
    state.slices.append(taken)
    journal.add(point, subject.resolution.settings, taken)


def _keep_finished(
    state: _State, journal: Journal, keep: Callable[[Measurement, str], str | None], stored: dict[str, str | None]
) -> None:
    point = state.configuration.point
    if state.finished and (result := _result(state)) and point not in stored:
        stored[point] = keep(result.measurement, _run_id(state, journal))


def _keep_part(
    state: _State, journal: Journal, keep: Callable[[Measurement, str], str | None], stored: dict[str, str | None]
) -> None:
    """What was measured of a configuration that will not be finished; the whole would be another run."""
    if not state.finished and (result := _result(state)):
        run_id = _run_id(state, journal, f" {len(state.slices)}")
        stored[state.configuration.point] = keep(result.measurement, run_id)


def _run_id(state: _State, journal: Journal, part: str = "") -> str:
    name = f"{journal.key} {state.configuration.point} {state.slices[0].started_at}{part}"
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _result(state: _State) -> BenchResult | None:
    if not state.slices:
        return None
    return result_of(state.configuration.subject, state.slices, finished=state.finished)


def _outcome(state: _State, stored: str | None) -> Outcome:
    result = _result(state)
    status: Status = "measured" if state.finished else "unfinished"
    reason = None
    if state.crashed is not None:
        status, reason = "crashed", state.crashed.what
    elif state.shortage is not None and not state.finished:
        status, reason = "no longer fits", state.shortage
    return Outcome(state.configuration, status, result, len(state.slices), reason, stored)


class _Teller:
    """Adds to each report which configuration it is of, and how long the grid may still take."""

    def __init__(self, states: Sequence[_State], report: Report, budget_seconds: float) -> None:
        self._states, self._report, self._budget_seconds = states, report, budget_seconds

    def of(self, state: _State) -> Report:
        """The report of one process of that configuration."""
        number = self._states.index(state) + 1
        title = f"{number} of {len(self._states)}, round {len(state.slices) + 1}, {state.configuration.point}"

        def tell(progress: Progress) -> None:
            remaining = max(0.0, self._remaining() - progress.elapsed_seconds)
            self._report(replace(progress, title=title, remaining_seconds=remaining))

        return tell

    def _remaining(self) -> float:
        """An upper bound: a configuration that is known well enough after two rounds has no third."""
        spent = [seconds for state in self._states for seconds in state.spent_seconds]
        typical = fmean(spent) if spent else self._budget_seconds / ROUNDS + _LOADING_GUESS_SECONDS
        left = 0.0
        for state in self._states:
            own = fmean(state.spent_seconds) if state.spent_seconds else typical
            left += 0.0 if state.finished else own * (ROUNDS - len(state.slices))
        return left
