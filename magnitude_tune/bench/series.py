"""The samples of one test while they come in: which count, and whether there are enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal

from magnitude_tune.bench.statistics import warm_up_count
from magnitude_tune.bench.values import Taken
from magnitude_tune.engines.values import Sample
from magnitude_tune.observations.statistics import MIN_SAMPLES, Summary, summarise
from magnitude_tune.observations.values import LeftOut

__all__ = ["MAX_ATTEMPTS", "Series"]

MAX_ATTEMPTS: Final = 20
_CLOSE_ENOUGH: Final = 0.10


class Series:
    """Samples of one test in the order they were taken, each with the doubts about it.

    A contaminated sample is left out and so repeated. Where the machine never gets quiet, the contaminated ones are
    all there is: they are used, and `notes` marks them.
    """

    def __init__(self, test: Literal["pp", "tg"]) -> None:
        self._test: Literal["pp", "tg"] = test
        self._taken: list[Taken] = []
        self._starts: list[int] = [0]

    def __len__(self) -> int:
        return len(self._taken)

    def add(self, sample: Sample, doubts: tuple[str, ...]) -> None:
        """Take one more sample, with why it is contaminated, if it is."""
        self._taken.append(Taken(sample, doubts))

    def extend(self, taken: Iterable[Taken]) -> None:
        """Take the samples of one more process, which had a warm-up of its own."""
        self._starts.append(len(self._taken))
        self._taken.extend(taken)

    @property
    def taken(self) -> tuple[Taken, ...]:
        """All samples in the order they were taken."""
        return tuple(self._taken)

    @property
    def used(self) -> tuple[Sample, ...]:
        """The samples that the figures rest on."""
        return tuple(self._taken[index][0] for index in self._used())

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The others, with the reason."""
        used = self._used()
        return tuple(
            LeftOut(self._test, "disturbed" if doubts and self._enough_quiet() else "warm-up", sample)
            for index, (sample, doubts) in enumerate(self._taken)
            if index not in used
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Doubts about the samples that are used, one sentence for the test; empty if there are none."""
        used = self._used()
        doubtful = [self._taken[index][1] for index in used if self._taken[index][1]]
        if not doubtful:
            return ()
        return (f"{len(doubtful)} of {len(used)} {self._test} samples were taken {doubtful[0][0]}",)

    @property
    def summary(self) -> Summary | None:
        """Rates of the used samples, tokens/second."""
        used = self.used
        return summarise([sample.rate for sample in used]) if used else None

    @property
    def done(self) -> bool:
        """Whether more samples would not help: the interval is close enough, or there were attempts enough.

        Contaminated samples are enough only once each of the least number was repeated.
        """
        if len(self) >= MAX_ATTEMPTS:
            return True
        if not self._enough_quiet() and len(self) < 2 * MIN_SAMPLES:
            return False
        summary = self.summary
        return summary is not None and summary.n >= MIN_SAMPLES and summary.half_width <= _CLOSE_ENOUGH

    def _enough_quiet(self) -> bool:
        return sum(1 for _, doubts in self._taken if not doubts) >= MIN_SAMPLES

    def _used(self) -> Sequence[int]:
        quiet = self._enough_quiet()
        used: list[int] = []
        for start, end in pairwise((*self._starts, len(self._taken))):
            chosen = [index for index in range(start, end) if not (quiet and self._taken[index].doubts)]
            used += chosen[warm_up_count([self._taken[index].sample.rate for index in chosen]) :]
        return used
