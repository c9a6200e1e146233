"""How fast a file is read from its device, past the page cache: samples over the file. Loaded only to measure."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["Sampled", "sample"]

_SECONDS: Final = 0.3
_WAIT_SECONDS: Final = 1.0
_BLOCK_BYTES: Final = 2 << 20
_LEAST_BLOCKS: Final = 4
_MOST_BLOCKS: Final = 128
_DIRECT: Final = getattr(os, "O_DIRECT", None)
_RUN_BLOCKS: Final = 8
"""Blocks read one after the other before the next place: a model is read in sequence, and a disk's parts differ."""


class Sampled(NamedTuple):
    """Bytes/second, and how they were read."""

    rate: float
    method: str


def sample(path: Path) -> Sampled | None:
    """Read parts of a file for at most 0.3 s, directly where the filesystem allows that, else after dropping them.

    None for files below 8 MiB, for those that cannot be read, where the page cache cannot be passed by (its rate
    would say nothing about the device), and where nothing has come within a second, as from a server that is gone.
    """
    found: list[Sampled | None] = []
    worker = threading.Thread(target=lambda: found.append(_sampled(path)), daemon=True)
    worker.start()
    worker.join(_WAIT_SECONDS)
    return found[0] if found else None


def _sampled(path: Path) -> Sampled | None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError):
        return None
    if size < _LEAST_BLOCKS * _BLOCK_BYTES or not hasattr(os, "preadv"):
        return None
    for method, flag in (("direct reads", _DIRECT), ("reads of dropped pages", 0)):
        if flag is None or not (flag or hasattr(os, "posix_fadvise")):
            continue
        try:
            rate = _timed(path, size, flag)
        except OSError:
            continue
        if rate is not None:
            return Sampled(rate, method)
    return None


def _runs(size: int) -> list[range]:
    """Where to read: offsets of neighbouring blocks, in runs spread over the file."""
    blocks = size // _BLOCK_BYTES
    wanted = min(blocks, _MOST_BLOCKS)
    runs = max(1, wanted // _RUN_BLOCKS)
    stride = blocks // runs * _BLOCK_BYTES
    length = min(_RUN_BLOCKS * _BLOCK_BYTES, stride)
    return [range(run * stride, run * stride + length, _BLOCK_BYTES) for run in range(runs)]


def _timed(path: Path, size: int, flag: int) -> float | None:
    descriptor = os.open(path, os.O_RDONLY | flag)
    try:
        n_bytes, began, seconds = 0, time.perf_counter(), 0.0
        # Anonymous memory begins on a page, as direct reads need.
        with mmap.mmap(-1, _BLOCK_BYTES) as buffer:
            for run in _runs(size):
                if not flag:
                    # Only what is read here: other pages of the model may be in use.
                    os.posix_fadvise(descriptor, run.start, len(run) * _BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                for offset in run:
                    n_bytes += os.preadv(descriptor, [buffer], offset)
                    seconds = time.perf_counter() - began
                    if seconds > _SECONDS:
                        return n_bytes / seconds
    finally:
        os.close(descriptor)
    return n_bytes / seconds if n_bytes >= _BLOCK_BYTES and seconds > 0 else None
