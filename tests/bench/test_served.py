"""The measuring of a running server: the stopping rule, the budget, what is known where, what an interrupt leaves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bench.stand_ins import StubWatch, a_machine

from magnitude_tune.bench.served import ServedResult, is_local, measure_served
from magnitude_tune.engines.served import UNKNOWN_SETTINGS
from magnitude_tune.engines.served_answers import Turn
from magnitude_tune.engines.served_identity import ServedFacts
from magnitude_tune.engines.values import Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.observations.rows import rows_of
from magnitude_tune.observations.statistics import MIN_SAMPLES
from magnitude_tune.report.served import served_document, served_text
from magnitude_tune.request import REFERENCE_TURN, Workload

SOME_MODEL = ServedFacts("openai", "some-model")


@dataclass
class FakeServer:
    """A session whose turns take as long as a test says; a negative rate is an interrupt, 0 a failure."""

    rates: list[float] = field(default_factory=lambda: [40.0])
    facts: ServedFacts = SOME_MODEL
    address: str = "http://198.51.100.7:80"
    host: str = "198.51.100.7"
    port: int = 80
    asked: list[tuple[int, int]] = field(default_factory=list)
    now: float = 0.0

    def warm_up(self) -> None:
        """Nothing to warm up."""

    def turn(self, n_prompt: int, n_gen: int) -> Turn:
        """The next turn."""
        self.asked.append((n_prompt, n_gen))
        rate = self.rates.pop(0) if len(self.rates) > 1 else self.rates[0]
        if rate < 0:
            raise KeyboardInterrupt
        if rate == 0:
            raise EngineError("the server ended", hint="look at its log")
        prompt, written = Sample(n_prompt, n_prompt / 200), Sample(n_gen - 1, (n_gen - 1) / rate)
        self.now += prompt.seconds + written.seconds
        return Turn(prompt, written, prompt.seconds, n_gen, n_prompt, "stream")


def measured(server: FakeServer, budget_seconds: float = 1000.0, workload: Workload = REFERENCE_TURN) -> ServedResult:
    """A run against it, on the server's own clock."""
    return measure_served(
        server,  # type: ignore[arg-type]
        workload,
        None,
        budget_seconds=budget_seconds,
        clock=lambda: server.now,
    )


def test_a_steady_server_needs_few_turns() -> None:
    """Three turns that agree are enough."""
    server = FakeServer()
    result = measured(server)
    assert len(server.asked) == MIN_SAMPLES
    assert result.measurement.complete
    assert (result.measurement.n_prompt, result.measurement.n_gen) == (512, 127)
    assert result.turn_seconds.median == pytest.approx(512 / 200 + 127 / 40)
    assert result.ttft_seconds.median == pytest.approx(2.56)


def test_the_budget_ends_an_unsteady_one() -> None:
    """Where turns never agree the budget ends it, after one turn at least."""
    unsteady = FakeServer(rates=list(itertools.islice(itertools.cycle([10.0, 90.0]), 100)))
    result = measured(unsteady, budget_seconds=30.0)
    assert unsteady.now >= 30
    assert 1 < len(unsteady.asked) < 20
    assert result.measurement.complete
    slow = FakeServer(rates=[0.5])
    assert len(measured(slow, budget_seconds=1.0).measurement.tg_samples) == 1


def test_an_interrupt_keeps_the_turns_before_it() -> None:
    """What was measured stays, marked; nothing measured is nothing to keep."""
    result = measured(FakeServer(rates=[40.0, -1.0]))
    assert not result.measurement.complete
    assert len(result.measurement.tg_samples) == 1
    with pytest.raises(KeyboardInterrupt):
        measured(FakeServer(rates=[-1.0]))


def test_a_failing_server_leaves_the_turns_before_it() -> None:
    """A server that ends after good turns does not throw them away; one that ends at once is an error."""
    result = measured(FakeServer(rates=[40.0, 10.0, 0.0]))
    assert not result.measurement.complete
    assert len(result.measurement.tg_samples) == 2
    assert result.ending == ("crashed", "the server ended", "look at its log")
    assert result.findings[0].rule is Rule.ENGINE_ENDED
    assert "written, crashed" in served_text(result, None, None)
    assert served_document(result, None, None)["ending"] == result.ending._asdict()
    with pytest.raises(EngineError):
        measured(FakeServer(rates=[0.0]))


@pytest.mark.parametrize(
    ("n_ctx", "asked"), [(None, (512, 128)), (4096, (512, 128)), (512, (320, 128)), (256, (128, 64))]
)
def test_a_turn_fits_the_context(n_ctx: int | None, asked: tuple[int, int]) -> None:
    """A turn that the context of a slot cannot hold would be refused or cut."""
    server = FakeServer(facts=ServedFacts("openai", "m", n_ctx=n_ctx))
    measured(server)
    assert server.asked[0] == asked


def test_another_host_is_not_judged_by_this_one() -> None:
    """Neighbours here disturb nobody there: nothing is known, and the page and the row say so."""
    result = measured(FakeServer())
    assert result.measurement.disturbance.other_cores is None
    assert "not known on another host" in served_text(result, None, None)
    assert served_document(result, None, None)["disturbance"] is None
    (row, _) = rows_of(result.measurement, "id")
    assert row["machine_hash"] == "another machine"
    assert row["cpu_info"] == ""


def test_a_server_here_is_judged_by_this_machine() -> None:
    """The machine's hash is kept, so that runs on another machine are told apart."""
    machine = a_machine()
    server = FakeServer(address="http://127.0.0.1:9", host="127.0.0.1", port=9)
    result = measure_served(server, Workload(), machine, budget_seconds=1.0)  # type: ignore[arg-type]
    assert result.measurement.machine_hash == machine.machine_hash
    assert result.measurement.settings == UNKNOWN_SETTINGS
    assert served_document(result, None, None)["disturbance"] is not None


def test_the_cores_of_a_server_are_no_neighbours(tmp_path: Path) -> None:
    """Where its processes cannot be told from others, what keeps cores busy is unknown: for a turn and for the run."""
    server = FakeServer(address="http://127.0.0.1:9", host="127.0.0.1", port=9)
    watch = StubWatch(tmp_path, lambda: server.now, itertools.repeat(4.0))
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/pressure/cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    result = measure_served(
        server,  # type: ignore[arg-type]
        Workload(),
        a_machine(),
        budget_seconds=1000.0,
        watch=watch,
        clock=lambda: server.now,
    )
    seen = result.measurement.disturbance
    assert seen.clean
    assert seen.steal_fraction == 0
    assert (seen.other_cores, seen.pressure_cpu_percent) == (None, None)


@pytest.mark.parametrize(("machine", "known"), [(a_machine(), True), (None, False)])
def test_the_heat_of_this_host_belongs_to_a_server_on_it(
    machine: Fingerprint | None, known: bool, tmp_path: Path
) -> None:
    """Clock and heat are read after each turn; of a server elsewhere they say nothing."""
    zone, cpuinfo = tmp_path / "sys/class/thermal/thermal_zone0", tmp_path / "proc/cpuinfo"
    zone.mkdir(parents=True)
    cpuinfo.parent.mkdir()

    class Heating(FakeServer):
        def turn(self, n_prompt: int, n_gen: int) -> Turn:
            n = len(self.asked)
            (zone / "temp").write_text(f"{80_000 + 8_000 * n}\n")
            cpuinfo.write_text(f"processor\t: 0\ncpu MHz\t\t: {4000 - 800 * n}.000\n")
            return super().turn(n_prompt, n_gen)

    server = Heating(address="http://127.0.0.1:9", host="127.0.0.1", port=9)
    watch = StubWatch(tmp_path, lambda: server.now, iter(()))
    result = measure_served(
        server,  # type: ignore[arg-type]
        Workload(),
        machine,
        budget_seconds=1000.0,
        watch=watch,
        clock=lambda: server.now,
    )
    seen = result.measurement.disturbance
    assert len(server.asked) == MIN_SAMPLES
    assert seen.celsius_highest == (96.0 if known else None)
    assert seen.clock_change == (pytest.approx(-0.4) if known else None)
    assert any("96" in finding.message for finding in result.findings) is known


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", True),
     ("192.0.2.1", False), ("example.org", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_which_hosts_are_this_one(host: str, local: bool) -> None:
    """Only this host's own names and addresses; no name is looked up."""
    assert is_local(host) is local
