"""A tuning session: choose, run, learn, until nothing is left to be gained or the runs are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from magnitude_tune.tuning.choosing import LEAST_NOISE, PLAN, choose, judge
from magnitude_tune.tuning.values import Candidate, Choice, Expected, Phase, Run, Step, Tuned

__all__ = ["MAX_RUNS", "CannotRun", "tune"]

MAX_RUNS: Final = 8


class CannotRun(Exception):  # noqa: N818
    """A candidate does not fit, cannot run as it is written, or ended its engine; the text says which."""


def tune(
    candidates: Sequence[Candidate],
    expect: Callable[[Sequence[Run]], Sequence[Expected]],
    run: Callable[[int], Run],
    *,
    max_runs: int = MAX_RUNS,
    noise: float = LEAST_NOISE,
    known: Sequence[int] = (),
    tell: Callable[[Step, int], None] = lambda _step, _number: None,
) -> Tuned:
    """Run candidates one after another; the plan is the first of them.

    An interrupt (KeyboardInterrupt) ends it with what is known until then.

    Args:
        expect: what is expected of each candidate after these runs.
        run: measures the candidate of that number in a fresh process; raises `CannotRun` where it cannot be.
        known: runs that an interrupted session made already, by candidate: they come first.
        noise: by how much two runs of one setting differ, as known before, a fraction.
        tell: is told each step when it is done, with its number.
    """
    steps: list[Step] = []
    runs: list[Run] = []
    struck: set[int] = set()
    coming = iter(known)
    interrupted = False
    while True:
        choice = _known_choice(coming, runs) or choose(
            expect(runs), runs, max_runs=max_runs, noise=noise, struck=struck
        )
        if choice.candidate is None or choice.phase is None:
            ended = choice.reason
            break
        try:
            taken = run(choice.candidate)
            runs.append(taken)
            steps.append(Step(choice.candidate, choice.phase, choice.reason, taken))
        except CannotRun as problem:
            struck.add(choice.candidate)
            steps.append(Step(choice.candidate, choice.phase, choice.reason, None, str(problem)))
        except KeyboardInterrupt:
            ended, interrupted = "interrupted", True
            break
        tell(steps[-1], len(runs))
    return Tuned(candidates, tuple(steps), ended, judge(runs, noise), interrupted)


def _known_choice(coming: Iterator[int], runs: Sequence[Run]) -> Choice | None:
    """The next of the runs that were made already; None where there is none left."""
    number = next(coming, None)
    if number is None:
        return None
    again: Phase = "baseline" if number == PLAN else "explore"
    phase: Phase = "confirm" if number in {run.candidate for run in runs} else again
    return Choice(number, phase, "measured before the interruption")
