"""Measures a server that runs already: turn by turn, each a sample of reading, of writing and of the first token."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from statistics import median
from typing import Final, NamedTuple

from magnitude_tune.bench.disturbance import (
    Reading,
    Watch,
    disturbance_between,
    doubts,
    groups_of_listeners,
    with_heat,
)
from magnitude_tune.bench.findings import crash_finding, run_findings, slowed_down
from magnitude_tune.bench.series import Series
from magnitude_tune.bench.values import Ending, Progress, Report, Stage
from magnitude_tune.engines.served import UNKNOWN_SETTINGS, ServedSession
from magnitude_tune.engines.served_answers import TimedBy, Turn
from magnitude_tune.engines.served_identity import ServedFacts
from magnitude_tune.errors import EngineError, UsageError
from magnitude_tune.findings import Finding
from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.observations.statistics import Summary, summarise, summarise_sum
from magnitude_tune.observations.values import Disturbance, Measurement
from magnitude_tune.request import Workload

__all__ = ["ServedResult", "is_local", "measure_served"]

_ELSEWHERE: Final = "another machine"
_NOTHING_SEEN: Final = Disturbance(
    steal_fraction=None,
    pressure_cpu_percent=None,
    pressure_memory_percent=None,
    other_cores=None,
    load_before=None,
    swapped_bytes=None,
)


class ServedResult(NamedTuple):
    """What a server did. `machine` is None where the server runs on another host, about which nothing is known.

    `ending` is what ended the measuring early, if something did.
    """

    address: str
    facts: ServedFacts
    measurement: Measurement
    ttft_seconds: Summary
    timed_by: TimedBy
    machine: Fingerprint | None
    findings: tuple[Finding, ...]
    ending: Ending | None = None

    @property
    def turn_seconds(self) -> Summary:
        """Reading and writing together: tokens read and written over the rates."""
        read, written = self.measurement.n_prompt, self.measurement.n_gen
        pp, tg = self.measurement.pp_samples, self.measurement.tg_samples
        return summarise_sum([read / sample.rate for sample in pp], [written / sample.rate for sample in tg])


def is_local(host: str) -> bool:
    """Whether a host's name or address is this host itself."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def measure_served(
    session: ServedSession,
    workload: Workload,
    machine: Fingerprint | None,
    *,
    budget_seconds: float,
    report: Report = lambda _: None,
    watch: Watch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ServedResult:
    """Take turns until the intervals of both rates are within 10 % either way, or the budget ends.

    An interrupt (KeyboardInterrupt) or a server that fails after the first turn ends the measuring: the turns until
    then are the result, with `complete` False and `ending` saying which.

    Args:
        machine: this host where the server runs on it, else None: then nothing is known about neighbours there.

    Raises:
        UsageError, EngineError: as `ServedSession.turn`, before there was anything to keep.
        KeyboardInterrupt: before there was anything to keep.
    """
    started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = _Run(session, workload, machine, watch or Watch(), clock)
    ending = run.measure(budget_seconds, report)
    measurement = slowed_down(_measurement(session.facts, run, machine, started, complete=ending is None))
    return ServedResult(
        address=session.address,
        facts=session.facts,
        measurement=measurement,
        ttft_seconds=summarise([turn.ttft_seconds for turn in run.turns]),
        timed_by=run.turns[-1].timed_by,
        machine=machine,
        findings=(*crash_finding(ending), *run_findings(measurement)),
        ending=ending,
    )


class _Run:
    """The turns taken, with the doubts about each."""

    def __init__(
        self,
        session: ServedSession,
        workload: Workload,
        machine: Fingerprint | None,
        watch: Watch,
        clock: Callable[[], float],
    ) -> None:
        self._session, self._watch, self._clock = session, watch, clock
        self._cores = machine.cpu.performance_cores if machine else None
        self._groups = groups_of_listeners([f"127.0.0.1:{session.port}"], watch) if machine else frozenset()
        room = session.facts.n_ctx
        self._n_gen = workload.n_gen if room is None else max(2, min(workload.n_gen, room // 4))
        self._n_prompt = workload.n_prompt if room is None else max(1, min(workload.n_prompt, room - self._n_gen - 64))
        self.pp, self.tg = Series("pp"), Series("tg")
        self.turns: list[Turn] = []
        self._first = watch.read(self._groups)
        self._after: list[Reading] = []

    @property
    def disturbance(self) -> Disturbance:
        """What went on from the first turn to the last on this host; nothing known where the server is elsewhere."""
        if self._cores is None:
            return _NOTHING_SEEN
        seen = with_heat(self._between(self._first, self._last), self._first, self._after)
        return replace(seen, notes=self.pp.notes + self.tg.notes)

    @property
    def _last(self) -> Reading:
        return self._after[-1] if self._after else self._first

    def measure(self, budget_seconds: float, report: Report) -> Ending | None:
        """Take turns; gives what ended it before they sufficed or the budget was spent."""
        began = self._clock()

        def tell(stage: Stage) -> None:
            pp, tg = self.pp.summary, self.tg.summary
            report(
                Progress(
                    stage,
                    self._clock() - began,
                    budget_seconds,
                    n_samples=2 * len(self.turns),
                    pp=pp.median if pp else None,
                    tg=tg.median if tg else None,
                )
            )

        tell("warming up")
        try:
            self._session.warm_up()
            self._first = self._watch.read(self._groups)
            while not (self.pp.done and self.tg.done):
                self._take()
                tell("measuring")
                if self._clock() - began >= budget_seconds:
                    break
        except (KeyboardInterrupt, EngineError, UsageError) as reason:
            if not self.tg.used:
                raise
            if isinstance(reason, KeyboardInterrupt):
                return Ending("interrupted", "interrupted", None)
            # After a turn that went well even a refusal is the server's doing, not the command line's.
            return Ending("crashed", str(reason), reason.hint)
        return None

    def _between(self, before: Reading, after: Reading) -> Disturbance:
        seen = disturbance_between(before, after)
        if self._groups:
            return seen
        # Whose cores are busy cannot be told: the server's own may be among them.
        return replace(seen, other_cores=None, pressure_cpu_percent=None)

    def _take(self) -> None:
        before = self._last
        turn = self._session.turn(self._n_prompt, self._n_gen)
        self._after.append(self._watch.read(self._groups))
        found: tuple[str, ...] = ()
        if self._cores is not None:
            seen = self._between(before, self._last)
            # How many threads the server has is not known: what others take beyond half a core is in its way.
            found = doubts(seen, n_threads=self._cores, cores=self._cores)
        self.turns.append(turn)
        self.pp.add(turn.prompt, found)
        self.tg.add(turn.generation, found)


def _measurement(
    facts: ServedFacts, run: _Run, machine: Fingerprint | None, started: str, *, complete: bool
) -> Measurement:
    return Measurement(
        started_at=started,
        machine_hash=machine.machine_hash if machine else _ELSEWHERE,
        cpu_info=(machine.cpu.brand or "") if machine else "",
        gpu_info="",
        engine="served",
        engine_build=f"{facts.kind} {facts.build}",
        engine_backends="",
        model_path=facts.model_path or facts.model,
        # By name only: nobody has read the file that is served.
        model_hash=f"served:{facts.model}",
        model_type=facts.model,
        model_bytes=facts.model_bytes or 0,
        model_n_params=facts.n_params or 0,
        settings=replace(UNKNOWN_SETTINGS, n_ctx=facts.n_ctx or 0),
        n_prompt=round(median(turn.prompt.n_tokens for turn in run.turns)),
        n_gen=round(median(turn.generation.n_tokens for turn in run.turns)),
        n_depth=0,
        pp_samples=run.pp.used,
        tg_samples=run.tg.used,
        ready_seconds=None,
        memory=None,
        buffers=(),
        disturbance=run.disturbance,
        complete=complete,
        left_out=run.pp.left_out + run.tg.left_out,
    )
