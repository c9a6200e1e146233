"""Memory bandwidth, measured: threads copy between buffers of their own. Loaded only to measure."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from magnitude_tune.units import GIB, MIB

__all__ = ["Measured", "buffer_bytes", "measure"]

_PASSES: Final = 12
_PASSES_SECONDS: Final = 0.6
"""No pass starts later than this after the first; with the first touch of the buffers that stays below two seconds."""
_WAIT_SECONDS: Final = 10.0

_BASE_BYTES: Final = 512 * MIB
_PER_THREAD_BYTES: Final = 16 * MIB
_LEAST_BYTES: Final = 64 * MIB
_MODEST_SHARE: Final = 8

# A thread that got less than this share of its pass was kept off its core: the figure is too low.
_UNDISTURBED_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes/second, read and written bytes counted, and whether other work kept threads off their cores."""

    rate: float
    disturbed: bool


def buffer_bytes(available_bytes: int, threads: int) -> int:
    """How much to copy between, over all threads: beyond common last-level caches, at most an eighth of what is free.

    0 where that is less than 64 MiB, which would measure a cache.
    """
    wanted = min(_BASE_BYTES + threads * _PER_THREAD_BYTES, 4 * GIB, available_bytes // _MODEST_SHARE)
    return wanted if wanted >= _LEAST_BYTES else 0


def measure(threads: int, total_bytes: int) -> Measured | None:
    """Copy on `threads` threads between buffers of `total_bytes` in all; the best pass counts.

    Each thread copies one half of its own buffers into the other, in the C library, without the interpreter's lock.
    None where `total_bytes` is too small or the memory or the threads cannot be had.
    """
    each = total_bytes // (2 * threads) // mmap.PAGESIZE * mmap.PAGESIZE
    if each == 0:
        return None
    team = _Team(threads)
    workers = [threading.Thread(target=team.work, args=(each,), daemon=True) for _ in range(threads)]
    try:
        for worker in workers:
            worker.start()
    except RuntimeError:
        team.barrier.abort()
        return None
    for worker in workers:
        worker.join()
    passes = [times for times in team.passes if len(times) == threads]
    if not passes:
        return None
    best = min(passes, key=_length)
    seconds = _length(best)
    busy = min(busy / (end - start) if end > start else 1.0 for start, end, busy in best)
    return Measured(2 * each * threads / max(seconds, 1e-9), disturbed=busy < _UNDISTURBED_SHARE)


_Times = list[tuple[float, float, float]]


def _length(times: _Times) -> float:
    return max(end for _, end, _ in times) - min(start for start, _, _ in times)


@dataclass(slots=True)
class _Team:
    """Threads that start each pass together; a pass holds each thread's start, end and own CPU time in seconds."""

    threads: int
    passes: list[_Times] = field(default_factory=lambda: [[] for _ in range(_PASSES)])
    barrier: threading.Barrier = field(init=False)
    deadline: float = 0.0
    going: bool = True

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.threads, action=self._begin, timeout=_WAIT_SECONDS)

    def _begin(self) -> None:
        """Runs in one thread while all others wait, so that all agree on whether there is another pass."""
        now = time.perf_counter()
        self.deadline = self.deadline or now + _PASSES_SECONDS
        self.going = now < self.deadline

    def work(self, each: int) -> None:
        try:
            copy = _copier(each)
            for times in self.passes:
                self.barrier.wait()
                if not self.going:
                    return
                start, used = time.perf_counter(), time.thread_time()
                copy()
                times.append((start, time.perf_counter(), time.thread_time() - used))
        except (OSError, MemoryError, ValueError):
            self.barrier.abort()
        except threading.BrokenBarrierError:
            return


def _copier(each: int) -> Callable[[], object]:
    """A copy between two buffers of `each` bytes whose pages this thread has touched first, on its own node."""
    import ctypes

    buffer = mmap.mmap(-1, 2 * each)
    start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    ctypes.memset(start, 1, 2 * each)

    def copy() -> object:
        # The closure holds the buffer: its memory must outlive every copy.
        return ctypes.memmove(start + each, start, each) and buffer

    return copy
