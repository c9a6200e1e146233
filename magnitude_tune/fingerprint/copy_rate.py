"""Memory bandwidth, measured: threads copy within buffers of their own. Loaded only to measure.

Other work on the machine keeps threads off their cores for milliseconds. So each thread copies in slices much shorter
than that and notes its own CPU time beside the clock's: moments at which nearly all threads were on their cores count,
the others do not.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

from magnitude_tune.units import GIB, MIB

__all__ = ["Measured", "Slice", "buffer_bytes", "joint_rate", "measure"]

_COPY_SECONDS: Final = 0.4
_MOST_COPY_SECONDS: Final = 0.9
"""How long the threads copy, and how long beside other work; with touching the buffers that is below two seconds."""
_QUICK_SHARE: Final = 1 / 3
_WAIT_SECONDS: Final = 5.0

_BASE_BYTES: Final = 512 * MIB
_PER_THREAD_BYTES: Final = 16 * MIB
_LEAST_BYTES: Final = 64 * MIB
_MODEST_SHARE: Final = 8
_SLICE_BYTES: Final = 4 * MIB

# A slice whose thread was on a core for less than this share of it was cut short by other work.
_CLEAN_SHARE: Final = 0.9
_CLEAN_THREADS: Final = 0.75
_LEAST_MOMENTS: Final = 5
_UNDISTURBED: Final = 0.8
# Windows counts a thread's time in steps of 16 ms, longer than a slice: there every slice passes for clean.
_thread_seconds: Final = time.thread_time if os.name == "posix" else time.perf_counter


class Measured(NamedTuple):
    """Bytes/second, read and written bytes counted, and whether other work kept threads off their cores."""

    rate: float
    disturbed: bool


class Slice(NamedTuple):
    """One copy: when it started and ended by the clock, and how long its thread was on a core, in seconds."""

    start: float
    end: float
    busy: float

    @property
    def clean(self) -> bool:
        """Whether the thread kept its core."""
        return self.busy >= _CLEAN_SHARE * (self.end - self.start)


def buffer_bytes(available_bytes: int, threads: int) -> int:
    """How much to copy between, over all threads: beyond common last-level caches, at most an eighth of what is free.

    0 where that is less than 64 MiB, which would measure a cache.
    """
    wanted = min(_BASE_BYTES + threads * _PER_THREAD_BYTES, 4 * GIB, available_bytes // _MODEST_SHARE)
    return wanted if wanted >= _LEAST_BYTES else 0


def measure(threads: int, total_bytes: int, *, quick: bool = False) -> Measured | None:
    """Copy on `threads` threads within buffers of `total_bytes` in all; `quick` copies for a third of the time.

    Each thread copies one half of its own buffer into the other, in the C library, without the interpreter's lock.
    None where `total_bytes` is too small, where memory or threads cannot be had, or where other work hardly ever left
    the threads their cores.
    """
    half = total_bytes // (2 * threads) // mmap.PAGESIZE * mmap.PAGESIZE
    if half == 0:
        return None
    team = _Team(threads, half, _QUICK_SHARE if quick else 1.0)
    workers = [threading.Thread(target=team.work, args=(slices,), daemon=True) for slices in team.slices]
    try:
        for worker in workers:
            worker.start()
    except RuntimeError:
        team.barrier.abort()
        return None
    for worker in workers:
        worker.join()
    return joint_rate(team.slices, 2 * team.slice_bytes)


def joint_rate(slices: Sequence[Sequence[Slice]], bytes_per_slice: int) -> Measured | None:
    """The rate of all threads together, from each thread's slices in order.

    Looked at are the midpoints of the first thread's clean slices; where at least three quarters of the threads are
    in a clean slice, their rates are summed, and the upper quartile of these sums is the figure. None for fewer than
    five such moments.
    """
    starts = [[one.start for one in thread] for thread in slices]
    sums = []
    for moment in ((one.start + one.end) / 2 for one in (slices[0] if slices else ()) if one.clean):
        positions = [bisect_right(thread, moment) - 1 for thread in starts]
        at = [thread[i] for thread, i in zip(slices, positions, strict=True) if i >= 0]
        clean = [one for one in at if one.clean and one.end >= moment]
        if len(clean) >= ceil(_CLEAN_THREADS * len(slices)):
            sums.append(sum(bytes_per_slice / max(one.end - one.start, 1e-9) for one in clean))
    if len(sums) < _LEAST_MOMENTS:
        return None
    return Measured(sorted(sums)[len(sums) * 3 // 4], _share_on_core(slices) < _UNDISTURBED)


def _share_on_core(slices: Sequence[Sequence[Slice]]) -> float:
    passed = sum(one.end - one.start for thread in slices for one in thread)
    return sum(one.busy for thread in slices for one in thread) / max(passed, 1e-9)


@dataclass(slots=True)
class _Team:
    """Threads that start together, each with its slices; `half` is half of one thread's buffer in bytes.

    `share` shortens the time they copy.

    `disturbed` is set by the first thread that finds itself kept off its core: all of them then copy for longer.
    """

    threads: int
    half: int
    share: float
    slices: list[list[Slice]] = field(init=False)
    slice_bytes: int = field(init=False)
    barrier: threading.Barrier = field(init=False)
    disturbed: bool = False

    def __post_init__(self) -> None:
        self.slices = [[] for _ in range(self.threads)]
        self.slice_bytes = min(_SLICE_BYTES, self.half)
        self.barrier = threading.Barrier(self.threads, timeout=_WAIT_SECONDS)

    def work(self, slices: list[Slice]) -> None:
        try:
            copy = _copier(self.half, self.slice_bytes)
            self.barrier.wait()
        except (OSError, MemoryError, ValueError, threading.BrokenBarrierError):
            self.barrier.abort()
            return
        offsets = range(0, self.half - self.slice_bytes + 1, self.slice_bytes)
        start = began = time.perf_counter()
        while start < began + self.share * (_MOST_COPY_SECONDS if self.disturbed else _COPY_SECONDS):
            for offset in offsets:
                start, used = time.perf_counter(), _thread_seconds()
                copy(offset)
                slices.append(Slice(start, time.perf_counter(), _thread_seconds() - used))
            self.disturbed = self.disturbed or _share_on_core([slices]) < _UNDISTURBED


def _copier(half: int, slice_bytes: int) -> Callable[[int], object]:
    """Copies one slice at an offset, within a buffer whose pages this thread has touched first, on its own node."""
    import ctypes

    buffer = mmap.mmap(-1, 2 * half)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    ctypes.memset(address, 1, 2 * half)

    def copy(offset: int) -> object:
        # The closure holds the buffer: its memory must outlive every copy.
        return ctypes.memmove(address + half + offset, address + offset, slice_bytes) and buffer

    return copy
