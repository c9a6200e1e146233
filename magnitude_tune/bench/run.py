"""One configuration, measured in one fresh process of the engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from magnitude_tune.bench.disturbance import Watch, disturbance_between, doubts, groups_of_listeners
from magnitude_tune.bench.findings import run_findings
from magnitude_tune.bench.promise import compare
from magnitude_tune.bench.series import Series
from magnitude_tune.bench.values import BenchResult, Progress, Report, Stage
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import Launch, MemoryReading, Sample
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.observations.values import Disturbance, Measurement
from magnitude_tune.resolver.values import Resolution

__all__ = ["DEFAULT_BUDGET_SECONDS", "Opener", "Subject", "run_bench"]

DEFAULT_BUDGET_SECONDS: Final = 120.0
_WARM_UP_TOKENS: Final = 8

Opener = Callable[[EngineFacts, Launch, str], Opened]
"""Starts an engine on the machine of that hash: `engines.sessions.open_or_without_repack`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: the plan, the model, the engine, the machine it runs on, and devices over RPC."""

    resolution: Resolution
    header: ModelHeader
    engine: EngineFacts
    machine: Fingerprint
    rpc: tuple[str, ...] = ()


def run_bench(
    subject: Subject,
    open_engine: Opener,
    *,
    budget_seconds: float = DEFAULT_BUDGET_SECONDS,
    report: Report = lambda _: None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> BenchResult:
    """Launch the plan's configuration, measure it and hold the prediction against it.

    The workload's prompt and its generation are measured in turn until the interval of each median is within 10 %
    either way, or the budget ends. An interrupt (KeyboardInterrupt) ends the measuring: what was measured until
    then is the result, with `complete` False.

    Args:
        budget_seconds: for warming up and measuring; loading the model has its own time limit.
        report: is told how far the run is.

    Raises:
        EngineError: the engine did not start, or died.
        KeyboardInterrupt: before there was anything to keep.
    """
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report(Progress("loading", 0.0, budget_seconds))
    opened = open_engine(subject.engine, _launch(subject), subject.machine.machine_hash)
    try:
        run = _Run(subject, opened, watch=watch or Watch(), clock=clock, report=report, budget_seconds=budget_seconds)
        complete = run.measure()
        measurement = _measurement(subject, opened, run, started, complete)
    finally:
        opened.session.close()
    return BenchResult(
        measurement=measurement,
        promise=compare(subject.resolution, measurement, subject.machine),
        findings=(*_about_repacking(opened), *run_findings(measurement)),
    )


def _launch(subject: Subject) -> Launch:
    magnitude = subject.resolution.magnitude
    return Launch(
        model_path=subject.header.path,
        settings=subject.resolution.settings,
        rpc=subject.rpc,
        environment={
            "MAGNITUDE_LEVEL": f"{magnitude.executed:g}",
            "MAGNITUDE_REQUESTED": f"{magnitude.requested:g}",
        },
    )


def _about_repacking(opened: Opened) -> tuple[Finding, ...]:
    if opened.repack_crash is None:
        return ()
    message = f"with repacked weights the engine ended ({opened.repack_crash.kind.value}); measured without them"
    fix = "this is remembered: the next resolve plans without repacking"
    return (Finding(Rule.ILLEGAL_INSTRUCTION_REMEMBERED, message, fix=fix, setting="repack"),)


class _Run:
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
        self._cores = subject.machine.cpu.performance_cores
        groups = groups_of_listeners(subject.rpc, watch)
        own = watch.group_of(opened.session.pid)
        self._groups = groups if own is None else groups | {own}
        # A prompt longer than the context of one slot cannot be read; the figures are rates all the same.
        room = max(1, self._settings.n_ctx // max(1, self._settings.n_parallel))
        self.n_prompt = min(subject.resolution.workload.n_prompt, room)
        self.n_gen = min(subject.resolution.workload.n_gen, room)
        self.pp, self.tg = Series("pp"), Series("tg")
        self.memory: MemoryReading | None = None
        self._first = self._last = watch.read(self._groups)
        self._began = clock()

    @property
    def disturbance(self) -> Disturbance:
        """What went on from the first reading to the last, with the doubts about the samples in use."""
        return disturbance_between(self._first, self._last, self.pp.notes + self.tg.notes)

    def measure(self) -> bool:
        """Take samples until they suffice or the budget ends; gives False where an interrupt ended it."""
        settings = self._settings
        tests = ((self.pp, self._prompt, settings.n_threads_batch), (self.tg, self._generate, settings.n_threads))
        complete = True
        try:
            self._warm_up()
            self._first = self._last = self._watch.read(self._groups)
            while not (self.pp.done and self.tg.done) and not self._spent():
                for series, work, n_threads in tests:
                    if not series.done and not self._spent():
                        self._take(series, work, n_threads)
        except KeyboardInterrupt:
            if not (self.pp.used or self.tg.used):
                raise
            complete = False
        self.memory = self._session.memory()
        return complete

    def _warm_up(self) -> None:
        self._tell("warming up")
        self._session.prompt(min(self.n_prompt, self._settings.n_ubatch))
        self._session.generate(min(self.n_gen, _WARM_UP_TOKENS))

    def _take(self, series: Series, work: Callable[[], Sample], n_threads: int) -> None:
        before = self._watch.read(self._groups)
        sample = work()
        self._last = self._watch.read(self._groups)
        seen = disturbance_between(before, self._last)
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


def _measurement(subject: Subject, opened: Opened, run: _Run, started: str, complete: bool) -> Measurement:
    header, engine, machine = subject.header, subject.engine, subject.machine
    magnitude, settings = subject.resolution.magnitude, opened.launch.settings
    used_devices = [device for device in machine.devices if device.name in settings.devices]
    return Measurement(
        started_at=started,
        machine_hash=machine.machine_hash,
        cpu_info=machine.cpu.brand or "",
        gpu_info=", ".join(device.description for device in used_devices),
        engine=engine.name,
        engine_build=engine.build,
        engine_backends=",".join(name.upper() for name in engine.backends),
        model_path=header.path,
        model_hash=header.content_hash,
        model_type=_model_type(header),
        model_bytes=header.tensor_bytes,
        model_n_params=header.n_params,
        settings=settings,
        n_prompt=run.n_prompt,
        n_gen=run.n_gen,
        n_depth=0,
        pp_samples=run.pp.used,
        tg_samples=run.tg.used,
        ready_seconds=opened.session.ready_seconds,
        memory=run.memory,
        buffers=opened.session.buffers,
        disturbance=run.disturbance,
        complete=complete,
        magnitude_requested=magnitude.requested,
        magnitude_executed=magnitude.executed,
        left_out=run.pp.left_out + run.tg.left_out,
    )


def _model_type(header: ModelHeader) -> str:
    """As llama-bench words it: architecture, parameters, quantisation."""
    n_params = header.n_params
    size = f"{n_params / 1e9:.2f}B" if n_params >= 1e9 else f"{n_params / 1e6:.2f}M"
    return " ".join(part for part in (header.architecture, size, header.file_type) if part)
