"""What tuning knows: candidates, what is expected of each, the runs so far, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from magnitude_tune.request import Settings

__all__ = ["Candidate", "Choice", "Expected", "Phase", "Run", "Step", "Tuned", "Verdict"]

Phase = Literal["baseline", "explore", "confirm"]


class Candidate(NamedTuple):
    """One setting that may be measured. `changes` are the settings it has otherwise than the plan, as written."""

    settings: Settings
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def point(self) -> str:
        """`n_threads=2 n_ubatch=128`, or `the plan`."""
        return " ".join(f"{name}={value}" for name, value in self.changes) or "the plan"


class Expected(NamedTuple):
    """The turn that is expected of a candidate: seconds, and the standard deviation of their logarithm."""

    seconds: float
    sigma: float


class Run(NamedTuple):
    """One process of one candidate: seconds of the turn, the standard deviation of their logarithm, undisturbed or not.

    `candidate` is its number; `sigma` is what the samples of this run say about its own median.
    """

    candidate: int
    seconds: float
    sigma: float = 0.0
    clean: bool = True


class Choice(NamedTuple):
    """What to run next and why; None where nothing is left to be gained. `gain` is the expected one, a fraction."""

    candidate: int | None
    phase: Phase | None
    reason: str
    gain: float = 0.0


class Verdict(NamedTuple):
    """The candidate to use, against the plan.

    `gain` is by how much shorter its turn is, a fraction of the plan's; `low` and `high` hold 90 % of the doubt.
    `noise` is by how much two runs of one setting differ here, a fraction. `change` is whether it can be told from
    that; where it cannot, `winner` is the plan.
    """

    winner: int
    change: bool
    gain: float
    low: float
    high: float
    noise: float
    reason: str


class Step(NamedTuple):
    """One step of the path: what was run and why; `run` is None where it could not be, and `problem` says why."""

    candidate: int
    phase: Phase
    reason: str
    run: Run | None
    problem: str | None = None


class Tuned(NamedTuple):
    """A tuning session: every step in order, why it ended, and what it comes to (None before the plan was measured)."""

    candidates: Sequence[Candidate]
    steps: tuple[Step, ...]
    ended: str
    verdict: Verdict | None
    interrupted: bool = False

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all steps."""
        return tuple(step.run for step in self.steps if step.run is not None)
