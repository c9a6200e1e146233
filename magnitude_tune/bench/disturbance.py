"""What else the machine did meanwhile: steal time, other processes, pressure stalls, swapping."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from magnitude_tune.bench.heat import read_celsius, read_hertz, read_throttles
from magnitude_tune.engines.rpc import is_loopback, split_address
from magnitude_tune.fingerprint.values import Cpu
from magnitude_tune.observations.values import Disturbance
from magnitude_tune.units import MIB, format_bytes

__all__ = [
    "Reading",
    "Watch",
    "busy_cores",
    "disturbance_between",
    "doubts",
    "groups_of_listeners",
    "physical_cores",
    "with_heat",
]

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

# CPU time is counted in ticks of 10 ms: over a shorter span the share of others is noise.
_SHORTEST_SPAN_SECONDS: Final = 0.1
_MAX_STEAL: Final = 0.05
# Cores that we want and others have: more than a tenth of our threads' time, and at most half a core, since the
# slowest thread holds up all the others.
_MISSING_SHARE: Final = 0.1
_MOST_MISSING_CORES: Final = 0.5
_MAX_CPU_PRESSURE_PERCENT: Final = 25.0
_MAX_MEMORY_PRESSURE_PERCENT: Final = 10.0
_MAX_SWAPPED_BYTES: Final = MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Counters at one moment; None where the system does not tell. CPU times in seconds over the CPUs we may use."""

    at_seconds: float
    busy_seconds: float | None
    steal_seconds: float | None
    own_seconds: float
    pressure_cpu_seconds: float | None
    pressure_memory_seconds: float | None
    load: float | None
    swapped_bytes: int | None
    hertz: float | None = None
    celsius: float | None = None
    throttles: int | None = None


class Watch:
    """Reads the counters under `root`.

    Args:
        root: the folder that holds `proc`; another one reads a recorded machine.
        clock: a monotonic clock in seconds.
        cpus: the logical CPUs that count; those of this process's affinity mask if not given.
    """

    def __init__(
        self,
        *,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        cpus: frozenset[int] | None = None,
    ) -> None:
        self._root = root
        self._proc = root / "proc"
        self._clock = clock
        self._cpus = cpus if cpus is not None else _affinity()

    def group_of(self, pid: int) -> int | None:
        """The process group of `pid`, None where it cannot be read."""
        fields = self._stat_fields(self._proc / str(pid))
        return int(fields[2]) if fields else None

    def read(self, groups: Iterable[int] = ()) -> Reading:
        """The counters now; processes of `groups` and this process count as our own."""
        # The clock first: cores slow down as soon as they have nothing to do.
        hertz = read_hertz(self._root, self._cpus)
        busy, steal = self._cpu_times()
        return Reading(
            at_seconds=self._clock(),
            busy_seconds=busy,
            steal_seconds=steal,
            own_seconds=self._own_seconds(frozenset(groups)),
            pressure_cpu_seconds=self._pressure("cpu"),
            pressure_memory_seconds=self._pressure("memory"),
            load=self._load(),
            swapped_bytes=self._swapped_bytes(),
            hertz=hertz,
            celsius=read_celsius(self._root),
            throttles=read_throttles(self._root, self._cpus),
        )

    def _text(self, path: Path) -> str:
        # A counter that is missing or not readable here is unknown, not an error.
        with contextlib.suppress(OSError):
            return path.read_text(errors="replace")
        return ""

    def _cpu_times(self) -> tuple[float | None, float | None]:
        """Busy and stolen seconds; the columns are user nice system idle iowait irq softirq steal (proc(5))."""
        busy = steal = 0
        found = False
        for line in self._text(self._proc / "stat").splitlines():
            name, *columns = line.split() or [""]
            if not (name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in self._cpus):
                continue
            if len(columns) < 8 or not all(column.isdigit() for column in columns[:8]):
                continue
            user, nice, system, _idle, _iowait, irq, softirq, stolen = (int(column) for column in columns[:8])
            busy += user + nice + system + irq + softirq
            steal += stolen
            found = True
        if not found:
            return None, None
        return busy / _TICKS_PER_SECOND, steal / _TICKS_PER_SECOND

    def _own_seconds(self, groups: frozenset[int]) -> float:
        ticks = 0
        for folder in self._process_folders():
            fields = self._stat_fields(folder)
            ourselves = folder.name == str(os.getpid())
            if fields and (ourselves or int(fields[2]) in groups):
                # Children that have ended count with us: an engine may be a new process for each piece of work.
                columns = fields[11:15] if ourselves else fields[11:13]
                ticks += sum(int(column) for column in columns if column.isdigit())
        return ticks / _TICKS_PER_SECOND

    def _process_folders(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [folder for folder in self._proc.iterdir() if folder.name.isdigit()]
        return []

    def _stat_fields(self, folder: Path) -> list[str]:
        """Fields of /proc/PID/stat after the name, which may hold blanks and brackets; empty where unreadable."""
        fields = self._text(folder / "stat").rpartition(")")[2].split()
        numbers = [fields[i].lstrip("-") for i in (2, 11, 12)] if len(fields) > 12 else [""]
        return fields if all(number.isdigit() for number in numbers) else []

    def _pressure(self, kind: str) -> float | None:
        for line in self._text(self._proc / "pressure" / kind).splitlines():
            if line.startswith("some "):
                total = line.rpartition("total=")[2]
                return int(total) / 1e6 if total.isdigit() else None
        return None

    def _load(self) -> float | None:
        with contextlib.suppress(ValueError, IndexError):
            return float(self._text(self._proc / "loadavg").split()[0])
        return None

    def _swapped_bytes(self) -> int | None:
        pages = [
            int(count)
            for name, _, count in (line.partition(" ") for line in self._text(self._proc / "vmstat").splitlines())
            if name in ("pswpin", "pswpout") and count.isdigit()
        ]
        return sum(pages) * _PAGE_BYTES if pages else None


def disturbance_between(before: Reading, after: Reading) -> Disturbance:
    """What went on between two readings."""
    span = after.at_seconds - before.at_seconds
    busy = _grown(before.busy_seconds, after.busy_seconds)
    steal = _grown(before.steal_seconds, after.steal_seconds)
    swapped = _grown(before.swapped_bytes, after.swapped_bytes)
    own = max(0.0, after.own_seconds - before.own_seconds)
    long_enough = span >= _SHORTEST_SPAN_SECONDS
    return Disturbance(
        steal_fraction=steal / max(steal + (busy or 0.0), 1e-9) if steal is not None and long_enough else None,
        pressure_cpu_percent=_percent(before.pressure_cpu_seconds, after.pressure_cpu_seconds, span),
        pressure_memory_percent=_percent(before.pressure_memory_seconds, after.pressure_memory_seconds, span),
        other_cores=max(0.0, busy - own) / span if busy is not None and long_enough else None,
        load_before=before.load,
        swapped_bytes=None if swapped is None else int(swapped),
    )


def with_heat(seen: Disturbance, first: Reading, after: Sequence[Reading]) -> Disturbance:
    """`seen` with what the clock and the heat did: `first` is from before the samples, `after` from after each.

    The change of the clock is that from the first third of the samples to the last one.
    """
    clocks = [reading.hertz for reading in after if reading.hertz is not None]
    degrees = [reading.celsius for reading in after if reading.celsius is not None]
    third = max(1, len(clocks) // 3)
    throttles = _grown(first.throttles, after[-1].throttles) if after else None
    return replace(
        seen,
        clock_change=fmean(clocks[-third:]) / fmean(clocks[:third]) - 1 if clocks else None,
        celsius_highest=max(degrees) if degrees else None,
        throttles=None if throttles is None else int(throttles),
    )


def doubts(seen: Disturbance, *, n_threads: int, cores: int) -> tuple[str, ...]:
    """Why a sample taken meanwhile is contaminated, in clauses that begin `while`; empty if it is not.

    Others disturb where their cores and our threads are more than the cores there are, by more than a tenth of our
    threads or half a core. CPU pressure stalls tell only where the others' cores could not be read: our own threads
    cause them too.
    """
    found = []
    if seen.steal_fraction is not None and seen.steal_fraction > _MAX_STEAL:
        found.append(f"while the host took {seen.steal_fraction:.0%} of the CPU time away (steal)")
    if seen.other_cores is not None:
        if n_threads + seen.other_cores - cores > min(_MISSING_SHARE * n_threads, _MOST_MISSING_CORES):
            found.append(f"while other processes kept {seen.other_cores:.1f} of {cores} cores busy")
    elif (seen.pressure_cpu_percent or 0.0) > _MAX_CPU_PRESSURE_PERCENT:
        found.append(f"while tasks waited for a CPU {seen.pressure_cpu_percent:.0f} % of the time")
    if (seen.pressure_memory_percent or 0.0) > _MAX_MEMORY_PRESSURE_PERCENT:
        found.append(f"while tasks waited for memory {seen.pressure_memory_percent:.0f} % of the time")
    if (seen.swapped_bytes or 0) > _MAX_SWAPPED_BYTES:
        found.append(f"while {format_bytes(seen.swapped_bytes or 0)} were swapped")
    return tuple(found)


def physical_cores(cpu: Cpu) -> int:
    """Cores within the affinity mask that threads can have to themselves, the slow ones of a hybrid CPU included.

    Others are counted on all CPUs of the mask: on slow cores that we leave to them they take nothing away, on a
    sibling of a core of ours they do. Where it is not known whether there are siblings, there are.
    """
    threads_a_core = 1 if cpu.smt is False else 2
    return cpu.performance_cores + max(0, cpu.affinity_cpus - threads_a_core * cpu.performance_cores)


def busy_cores(
    endpoints: Iterable[str] = (),
    *,
    seconds: float = 1.0,
    watch: Watch | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Cores that others keep busy just now, over `seconds`; 0 where the system does not tell.

    This process and loopback RPC servers at `endpoints` are not others.
    """
    watch = watch or Watch()
    groups = groups_of_listeners(endpoints, watch)
    before = watch.read(groups)
    sleep(seconds)
    return disturbance_between(before, watch.read(groups)).other_cores or 0.0


def groups_of_listeners(endpoints: Iterable[str], watch: Watch) -> frozenset[int]:
    """Process groups on this host that serve `host:port` endpoints: a loopback RPC server works for us."""
    ports = {split_address(endpoint)[1] for endpoint in endpoints if is_loopback(endpoint)}
    if not ports:
        return frozenset()
    import psutil

    pids: set[int] = set()
    # Some systems tell only the administrator who listens; the server then counts as another process.
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and getattr(connection.laddr, "port", None) in ports
            if listens and connection.pid:
                pids.add(connection.pid)
    return frozenset(group for pid in pids if (group := watch.group_of(pid)) is not None)


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)


def _percent(before: float | None, after: float | None, span: float) -> float | None:
    grown = _grown(before, after)
    return None if grown is None or span <= 0 else min(100.0, 100 * grown / span)
