"""One process of the engine: warm up, then take samples in turn until they suffice or the budget ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from magnitude_tune.bench.disturbance import (
    Reading,
    Watch,
    disturbance_between,
    doubts,
    groups_of_listeners,
    physical_cores,
    with_heat,
)
from magnitude_tune.bench.launch import Subject, launch_of
from magnitude_tune.bench.series import Series
from magnitude_tune.bench.values import Ending, Progress, Report, Slice, Stage
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch, MemoryReading, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.observations.values import Disturbance

__all__ = ["Opener", "take_slice"]

Opener = Callable[[EngineFacts, Launch, str], Opened]
"""Starts an engine on the machine of that hash: `engines.sessions.open_or_without_repack`."""

_WARM_UP_TOKENS: Final = 8


def take_slice(
    subject: Subject,
    open_engine: Opener,
    *,
    budget_seconds: float,
    report: Report = lambda _: None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Slice:
    """Start one process of the plan's configuration, take samples, end it.

    An interrupt or a crash after the first samples ends the taking, and `ending` says which; the samples are kept.

    Raises:
        EngineError: the engine did not start, or died before the first sample.
        KeyboardInterrupt: before there was anything to keep.
    """
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report(Progress("loading", 0.0, budget_seconds))
    opened = open_engine(subject.engine, launch_of(subject), subject.machine.machine_hash)
    session = opened.session
    try:
        taking = _Taking(
            subject, opened, watch=watch or Watch(), clock=clock, report=report, budget_seconds=budget_seconds
        )
        ending = taking.take()
        return Slice(
            started_at=started,
            settings=opened.launch.settings,
            n_prompt=taking.n_prompt,
            n_gen=taking.n_gen,
            pp=taking.pp.taken,
            tg=taking.tg.taken,
            ready_seconds=session.ready_seconds,
            memory=taking.memory,
            buffers=session.buffers,
            disturbance=taking.disturbance,
            span_seconds=taking.span_seconds,
            ending=ending,
            repack_crash=opened.repack_crash.kind.value if opened.repack_crash else None,
        )
    finally:
        session.close()


class _Taking:
    """The measuring of one session: takes samples in turn and keeps them, whatever ends it."""

    def __init__(
        self,
        subject: Subject,
        opened: Opened,
        *,
        watch: Watch,
        clock: Callable[[], float],
        report: Report,
        budget_seconds: float,
    ) -> None:
        self._session, self._settings = opened.session, opened.launch.settings
        self._watch, self._clock, self._report = watch, clock, report
        self._budget_seconds = budget_seconds
        self._cores = physical_cores(subject.machine.cpu)
        groups = groups_of_listeners(subject.rpc, watch)
        own = watch.group_of(opened.session.pid)
        self._groups = groups if own is None else groups | {own}
        # A prompt longer than the context of one slot cannot be read; the figures are rates all the same.
        room = max(1, self._settings.n_ctx // max(1, self._settings.n_parallel))
        self.n_prompt = min(subject.resolution.workload.n_prompt, room)
        self.n_gen = min(subject.resolution.workload.n_gen, room)
        self.pp, self.tg = Series("pp"), Series("tg")
        self.memory: MemoryReading | None = None
        self._first = watch.read(self._groups)
        self._after: list[Reading] = []
        self._began = clock()

    @property
    def disturbance(self) -> Disturbance:
        """What went on from the first sample to the last."""
        return with_heat(disturbance_between(self._first, self._last), self._first, self._after)

    @property
    def span_seconds(self) -> float:
        """From the first sample's start to the last one's end."""
        return self._last.at_seconds - self._first.at_seconds

    @property
    def _last(self) -> Reading:
        return self._after[-1] if self._after else self._first

    def take(self) -> Ending | None:
        """Take samples until they suffice or the budget ends; gives what else ended it."""
        settings = self._settings
        tests = ((self.pp, self._prompt, settings.n_threads_batch), (self.tg, self._generate, settings.n_threads))
        try:
            self._warm_up()
            self._first = self._watch.read(self._groups)
            while not (self.pp.done and self.tg.done) and not self._spent():
                for series, work, n_threads in tests:
                    if not series.done and not self._spent():
                        self._take(series, work, n_threads)
        except (KeyboardInterrupt, EngineError) as reason:
            if not (self.pp.used or self.tg.used):
                raise
            if isinstance(reason, EngineError):
                # Its memory went with its process.
                return Ending("crashed", str(reason), reason.hint)
            self.memory = self._session.memory()
            return Ending("interrupted", "interrupted", None)
        self.memory = self._session.memory()
        return None

    def _warm_up(self) -> None:
        self._tell("warming up")
        self._session.prompt(min(self.n_prompt, self._settings.n_ubatch))
        self._session.generate(min(self.n_gen, _WARM_UP_TOKENS))

    def _take(self, series: Series, work: Callable[[], Sample], n_threads: int) -> None:
        before = self._watch.read(self._groups)
        sample = work()
        after = self._watch.read(self._groups)
        self._after.append(after)
        seen = disturbance_between(before, after)
        series.add(sample, doubts(seen, n_threads=min(n_threads, self._cores), cores=self._cores))
        self._tell("measuring")

    def _prompt(self) -> Sample:
        return self._session.prompt(self.n_prompt)

    def _generate(self) -> Sample:
        return self._session.generate(self.n_gen)

    def _spent(self) -> bool:
        """Whether the budget is used up; one sample of each test is taken whatever it costs."""
        return bool(self.pp.used and self.tg.used) and self._clock() - self._began >= self._budget_seconds

    def _tell(self, stage: Stage) -> None:
        pp, tg = self.pp.summary, self.tg.summary
        self._report(
            Progress(
                stage,
                self._clock() - self._began,
                self._budget_seconds,
                n_samples=len(self.pp) + len(self.tg),
                pp=pp.median if pp else None,
                tg=tg.median if tg else None,
            )
        )
