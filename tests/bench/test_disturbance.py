"""Readings of a composed /proc: steal, others' cores without our own, pressure, swap; absent is unknown."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from bench.stand_ins import a_machine

from magnitude_tune.bench.disturbance import Watch, disturbance_between, doubts, groups_of_listeners, physical_cores
from magnitude_tune.observations.values import Disturbance

TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass
class FakeProc:
    """A /proc whose counters a test moves; times in seconds per CPU."""

    root: Path
    user: list[float] = field(default_factory=lambda: [0.0, 0.0])
    steal: list[float] = field(default_factory=lambda: [0.0, 0.0])
    processes: dict[int, tuple[int, float]] = field(default_factory=dict)
    stalled_cpu: float = 0.0
    stalled_memory: float = 0.0
    swapped_pages: int = 0
    now: float = 0.0

    def write(self) -> None:
        """Write the counters as the kernel shows them."""
        proc = self.root / "proc"
        (proc / "pressure").mkdir(parents=True, exist_ok=True)
        lines = [f"cpu {self._ticks(sum(self.user))} 0 0 0 0 0 0 {self._ticks(sum(self.steal))} 0 0"]
        for index, (user, steal) in enumerate(zip(self.user, self.steal, strict=True)):
            lines.append(f"cpu{index} {self._ticks(user)} 0 0 900 40 0 0 {self._ticks(steal)} 0 0")
        (proc / "stat").write_text("\n".join([*lines, "intr 1 2 3", "ctxt 5", ""]))
        for kind, seconds in (("cpu", self.stalled_cpu), ("memory", self.stalled_memory)):
            total = round(seconds * 1e6)
            (proc / "pressure" / kind).write_text(
                f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 avg60=0.00 total=0\n"
            )
        (proc / "loadavg").write_text("1.25 0.50 0.25 2/100 4242\n")
        (proc / "vmstat").write_text(f"nr_free_pages 5\npswpin 0\npswpout {self.swapped_pages}\n")
        for pid, (group, seconds) in self.processes.items():
            (proc / str(pid)).mkdir(exist_ok=True)
            ticks = self._ticks(seconds)
            (proc / str(pid) / "stat").write_text(f"{pid} (a (b) c) R 1 {group} {group} 0 -1 0 0 0 0 0 {ticks} 0 0 0\n")

    def _ticks(self, seconds: float) -> int:
        return round(seconds * TICKS)

    def clock(self) -> float:
        """The composed machine's clock."""
        return self.now


def seen(
    tmp_path: Path, change: Callable[[FakeProc], None], *, cpus: tuple[int, ...] = (0, 1), groups: tuple[int, ...] = ()
) -> Disturbance:
    """What goes on in ten seconds in which a test's change happens."""
    proc = FakeProc(tmp_path, processes={700: (700, 0.0), 701: (700, 0.0), 800: (800, 0.0)})
    proc.write()
    watch = Watch(root=tmp_path, clock=proc.clock, cpus=frozenset(cpus))
    before = watch.read(groups)
    proc.now += 10.0
    change(proc)
    proc.write()
    return disturbance_between(before, watch.read(groups))


def test_steal_is_a_fraction_of_the_cpu_time(tmp_path: Path) -> None:
    """Three seconds stolen beside nine of work are a quarter."""

    def stolen(proc: FakeProc) -> None:
        proc.user, proc.steal = [4.5, 4.5], [1.5, 1.5]

    assert seen(tmp_path, stolen).steal_fraction == pytest.approx(0.25)


def test_our_own_group_is_not_another_process(tmp_path: Path) -> None:
    """Eighteen busy seconds in ten, of which our group's two processes took eight: others kept one core busy."""

    def work(proc: FakeProc) -> None:
        proc.user = [9.0, 9.0]
        proc.processes = {700: (700, 5.0), 701: (700, 3.0), 800: (800, 10.0)}

    assert seen(tmp_path, work, groups=(700,)).other_cores == pytest.approx(1.0)
    assert seen(tmp_path, work, groups=(700, 800)).other_cores == 0.0


def test_only_the_cpus_we_may_use_count(tmp_path: Path) -> None:
    """A neighbour on a CPU outside the affinity mask does not disturb."""

    def neighbour(proc: FakeProc) -> None:
        proc.user = [0.0, 10.0]

    assert seen(tmp_path, neighbour, cpus=(0,)).other_cores == 0.0
    assert seen(tmp_path, neighbour, cpus=(1,)).other_cores == pytest.approx(1.0)


def test_pressure_swap_and_load_are_read(tmp_path: Path) -> None:
    """Stall totals become percent of the time, pages become bytes, the load is that from before."""

    def stalls(proc: FakeProc) -> None:
        proc.stalled_cpu, proc.stalled_memory, proc.swapped_pages = 5.0, 2.0, 100

    found = seen(tmp_path, stalls)
    assert found.pressure_cpu_percent == pytest.approx(50.0)
    assert found.pressure_memory_percent == pytest.approx(20.0)
    assert found.swapped_bytes == 100 * PAGE
    assert found.load_before == 1.25


def test_what_cannot_be_read_is_unknown_and_disturbs_nobody(tmp_path: Path) -> None:
    """On a system without /proc every figure is None, none is zero, and no sample is doubted."""
    clock = iter((0.0, 10.0))
    watch = Watch(root=tmp_path, clock=lambda: next(clock), cpus=frozenset({0}))
    found = disturbance_between(watch.read(), watch.read())
    assert found.steal_fraction is None
    assert found.other_cores is None
    assert found.pressure_cpu_percent is None
    assert found.swapped_bytes is None
    assert doubts(found, n_threads=8, cores=1) == ()


@pytest.mark.parametrize("text", ["", "cpu0", "cpu0 a b c d e f g h", "cpu0 1 2 3", "\x00\xff", "cpuX 1 2 3 4 5 6 7 8"])
def test_counters_of_another_shape_are_unknown(tmp_path: Path, text: str) -> None:
    """A /proc/stat that is not the kernel's is unknown, not an error."""
    proc = FakeProc(tmp_path)
    proc.write()
    (tmp_path / "proc" / "stat").write_text(text)
    (tmp_path / "proc" / "loadavg").write_text("x")
    (tmp_path / "proc" / "pressure" / "cpu").write_text("some avg10=x total=\n")
    reading = Watch(root=tmp_path, clock=proc.clock, cpus=frozenset({0, 1})).read()
    assert reading.busy_seconds is None
    assert reading.load is None
    assert reading.pressure_cpu_seconds is None


def test_a_span_shorter_than_the_ticks_is_not_judged(tmp_path: Path) -> None:
    """Over 50 ms the ticks of 10 ms say nothing about others."""
    proc = FakeProc(tmp_path)
    proc.write()
    watch = Watch(root=tmp_path, clock=proc.clock, cpus=frozenset({0, 1}))
    before = watch.read()
    proc.now, proc.user = 0.05, [0.05, 0.05]
    proc.write()
    assert disturbance_between(before, watch.read()).other_cores is None


def quiet(**changes: float | None) -> Disturbance:
    """A quiet time, with changes."""
    values: dict[str, float | None] = {
        "steal_fraction": 0.0,
        "pressure_cpu_percent": 0.0,
        "pressure_memory_percent": 0.0,
        "other_cores": 0.1,
        "load_before": 0.3,
        "swapped_bytes": 0,
    }
    return Disturbance(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "n_threads", "expected"),
    [
        ({}, 4, None),
        ({"other_cores": 2.0}, 2, None),
        ({"other_cores": 2.0}, 4, "2.0 of 4 cores"),
        ({"other_cores": 3.05}, 1, None),
        ({"other_cores": 3.3}, 1, "3.3 of 4 cores"),
        ({"other_cores": 0.35}, 4, None),
        ({"other_cores": 0.55}, 4, "0.6 of 4 cores"),
        ({"steal_fraction": 0.04}, 1, None),
        ({"steal_fraction": 0.12}, 1, "12%"),
        ({"pressure_cpu_percent": 60.0}, 1, None),
        ({"pressure_cpu_percent": 60.0, "other_cores": None}, 1, "waited for a CPU"),
        ({"pressure_memory_percent": 30.0}, 1, "waited for memory"),
        ({"swapped_bytes": 50 << 20}, 1, "swapped"),
    ],
)
def test_a_sample_is_doubted_for_a_reason(
    changes: dict[str, float | None], n_threads: int, expected: str | None
) -> None:
    """Others' cores count where they and our threads exceed the cores; CPU stalls where nothing better is known."""
    found = doubts(quiet(**changes), n_threads=n_threads, cores=4)
    if expected is None:
        assert found == ()
    else:
        assert len(found) == 1
        assert expected in found[0]


@pytest.mark.parametrize(
    ("performance_cores", "affinity_cpus", "smt", "expected"),
    [
        (4, 4, False, 4),
        (4, 8, True, 4),
        (4, 4, True, 4),
        (8, 24, True, 16),
        (8, 24, False, 24),
        (8, 12, None, 8),
        (1, 2, True, 1),
    ],
)
def test_slow_cores_are_there_for_others_and_siblings_are_not(
    performance_cores: int, affinity_cpus: int, smt: bool | None, expected: int
) -> None:
    """Eight fast cores with two threads each and eight slow ones are sixteen; four with two threads are four."""
    cpu = replace(a_machine().cpu, performance_cores=performance_cores, affinity_cpus=affinity_cpus, smt=smt)
    assert physical_cores(cpu) == expected


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="process groups are read from /proc")
def test_the_server_of_a_loopback_device_counts_as_ours() -> None:
    """The group of the process that listens on a loopback address is found; an address elsewhere names nobody here."""
    watch = Watch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert groups_of_listeners((f"127.0.0.1:{port}",), watch) == {os.getpgid(0)}
        assert groups_of_listeners((f"192.0.2.7:{port}",), watch) == frozenset()
    assert groups_of_listeners((), watch) == frozenset()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs a kernel with /proc")
def test_this_machine_can_be_read() -> None:
    """A real reading has CPU times, and this process's own among them."""
    reading = Watch().read()
    assert reading.busy_seconds is not None
    assert reading.busy_seconds > 0
    assert reading.own_seconds > 0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs a kernel with /proc")
def test_a_child_that_has_ended_counts_as_ours() -> None:
    """What a process of ours did until its end is no neighbour's work: llama-bench is a new one for each sample."""
    before = Watch().read()
    work = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-I", "-S", "-c", work], check=True)
    assert Watch().read().own_seconds - before.own_seconds >= 0.25
