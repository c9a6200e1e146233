"""The clock, its heat and its slowing down, over composed trees: what falls within a run is reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench.stand_ins import FakeSession

from magnitude_tune.bench.disturbance import Watch, disturbance_between, with_heat
from magnitude_tune.bench.findings import run_findings, slowed_down
from magnitude_tune.bench.heat import read_celsius, read_hertz, read_throttles
from magnitude_tune.bench.run import Subject, run_bench
from magnitude_tune.bench.together import combined
from magnitude_tune.findings import Rule
from magnitude_tune.observations.store import evidence_for, store
from magnitude_tune.observations.values import Measurement

CPUINFO = "processor\t: {cpu}\nmodel name\t: A CPU\ncpu MHz\t\t: {megahertz}\ncache size\t: 1 KB\n\n"


def write(path: Path, text: str) -> None:
    """Write a file of the tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_clock(root: Path, kilohertz: int, *, cpu: int = 0) -> None:
    """The clock as cpufreq shows it."""
    write(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", f"{kilohertz}\n")


def test_cpufreq_is_read_for_our_cpus_only(tmp_path: Path) -> None:
    """The mean of the CPUs that count; kHz become Hz."""
    for cpu, kilohertz in enumerate((3_000_000, 2_000_000, 800_000)):
        write_clock(tmp_path, kilohertz, cpu=cpu)
    assert read_hertz(tmp_path, {0, 1}) == pytest.approx(2.5e9)


def test_cpuinfo_stands_in_where_there_is_no_cpufreq(tmp_path: Path) -> None:
    """Virtual machines have no cpufreq: `cpu MHz` of our CPUs."""
    write(tmp_path / "proc/cpuinfo", "".join(CPUINFO.format(cpu=n, megahertz=f"{2000 + n}.5") for n in range(4)))
    assert read_hertz(tmp_path, {1, 3}) == pytest.approx(2002.5e6)


@pytest.mark.parametrize("text", ["", "garbage", "processor : x\ncpu MHz : y\n", "cpu MHz : 5\n", "processor : 0\n"])
def test_a_clock_that_is_not_told_is_unknown(tmp_path: Path, text: str) -> None:
    """ARM's cpuinfo has no clock, and others are of another shape: unknown, not zero."""
    write(tmp_path / "proc/cpuinfo", text)
    write_clock(tmp_path, 0)
    assert read_hertz(tmp_path, {0}) is None


def test_the_hottest_plausible_zone_counts(tmp_path: Path) -> None:
    """Sensors that are not connected show absurd values; where there is none, nothing is said."""
    assert read_celsius(tmp_path) is None
    for zone, text in enumerate(("45000", "91500", "-274000", "200000", "x")):
        write(tmp_path / f"sys/class/thermal/thermal_zone{zone}/temp", f"{text}\n")
    assert read_celsius(tmp_path) == pytest.approx(91.5)


def test_throttling_is_counted_over_our_cpus(tmp_path: Path) -> None:
    """Intel counts each slowing down for heat; others do not count, which is not zero."""
    assert read_throttles(tmp_path, {0}) is None
    for cpu, count in enumerate((5, 7, 100)):
        write(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count", f"{count}\n")
    assert read_throttles(tmp_path, {0, 1}) == 12


@pytest.fixture
def steady(subject: Subject, tmp_path: Path) -> Measurement:
    """A run without anything to say."""
    session = FakeSession()
    watch = Watch(root=tmp_path / "none", clock=session.clock, cpus=frozenset({0}))
    return run_bench(subject, session.opener, watch=watch, clock=session.clock).measurement


def test_a_clock_that_falls_within_a_run_is_a_finding(
    subject: Subject, session: FakeSession, steady: Measurement, tmp_path: Path
) -> None:
    """A clock a seventh slower in the last third than in the first is named with the heat; a steady one is not."""
    session.before = lambda piece: write_clock(tmp_path, 3_500_000 if piece < 6 else 3_000_000)
    write(tmp_path / "sys/class/thermal/thermal_zone0/temp", "96000\n")
    watch = Watch(root=tmp_path, clock=session.clock, cpus=frozenset({0}))
    result = run_bench(subject, session.opener, watch=watch, clock=session.clock)
    seen = result.measurement.disturbance
    assert seen.clock_change == pytest.approx(-1 / 7)
    assert seen.celsius_highest == 96.0
    (finding,) = result.findings
    assert finding.rule is Rule.DISTURBED_MEASUREMENT
    sign = "the CPU's clock fell by 14% within the run, the hottest sensor showed 96 °C"
    assert finding.message == f"{sign}; the figures carry no verdict"
    assert seen.notes == (sign,)
    assert {item.verdict for item in result.promise.items if item.quantity in ("pp", "tg")} == {"undecided"}
    assert steady.disturbance.clean
    assert run_findings(steady) == ()


def test_slowing_down_for_heat_is_a_finding_whatever_the_clock_shows(steady: Measurement) -> None:
    """The CPU's own counter is enough, where the clock shown is a constant."""
    hot = replace(steady, disturbance=replace(steady.disturbance, clock_change=0.0, throttles=3))
    (finding,) = run_findings(hot)
    assert "slowed down for heat 3 times" in finding.message
    assert not slowed_down(hot).disturbance.clean
    assert run_findings(slowed_down(hot)) == (finding,)
    warm = replace(steady, disturbance=replace(steady.disturbance, clock_change=-0.05, throttles=0))
    assert run_findings(warm) == ()


def test_a_run_under_a_falling_clock_is_stored_and_does_not_calibrate(
    subject: Subject, session: FakeSession, steady: Measurement, tmp_path: Path
) -> None:
    """Both runs are kept; only the steady one is evidence for a prediction."""
    session.before = lambda piece: write_clock(tmp_path, 3_500_000 if piece < 6 else 3_000_000)
    watch = Watch(root=tmp_path, clock=session.clock, cpus=frozenset({0}))
    falling = run_bench(subject, session.opener, watch=watch, clock=session.clock).measurement
    asked = (steady.model_hash, steady.machine_hash, steady.engine, steady.engine_build)
    assert store(falling) is not None
    assert evidence_for(*asked) == ()
    assert store(steady) is not None
    assert len(evidence_for(*asked)) == 1


def test_disturbances_of_several_processes_are_put_together(tmp_path: Path) -> None:
    """Shares are weighted by time, counts add, the hottest and the largest fall remain, unknown stays unknown."""
    clock = iter((0.0, 1.0))
    watch = Watch(root=tmp_path, clock=lambda: next(clock), cpus=frozenset({0}))
    first, last = watch.read(), watch.read()
    nothing = with_heat(disturbance_between(first, last), first, [last])
    one = replace(nothing, other_cores=2.0, clock_change=-0.2, throttles=1, celsius_highest=80.0, swapped_bytes=5)
    two = replace(nothing, other_cores=0.0, clock_change=0.1, throttles=2, celsius_highest=90.0)
    both = combined([(1.0, one), (3.0, two)], ("a note",))
    assert (both.other_cores, both.clock_change, both.throttles) == (0.5, -0.2, 3)
    assert (both.celsius_highest, both.swapped_bytes, both.steal_fraction) == (90.0, 5, None)
    assert both.notes == ("a note",)
