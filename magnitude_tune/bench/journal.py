"""The journal of a grid that is being measured: what each process gave is on disk before the next one starts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from magnitude_tune.bench.values import Ending, Slice
from magnitude_tune.errors import UsageError
from magnitude_tune.request import Settings
from magnitude_tune.resolver.values import Resolution
from magnitude_tune.storage import data_dir

__all__ = ["RESUMED_FOR_SECONDS", "Journal", "Plans", "grid_key", "open_journal"]

_MOST_SLICES: Final = 16
"""More than any grid has rounds."""

_LONGEST_SECONDS: Final = 1e6

RESUMED_FOR_SECONDS: Final = 24 * 3600.0
"""A grid that was interrupted longer ago is measured anew: the machine may be another by now."""

_KEPT_FOR_SECONDS: Final = 7 * 24 * 3600.0
_SCHEMA: Final = 1
_MOST_BYTES: Final = 256 << 20


def grid_key(facts: Mapping[str, object]) -> str:
    """A name for what makes two grids the same: machine, model, engine, workload, budget and points."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class Plans(NamedTuple):
    """What a grid was begun with: each point's plan, as far as measuring needs it, and points that were left out.

    A plan follows the free memory and the busy cores of its moment, so a later one may be another for the same point.
    """

    plans: Mapping[str, Resolution]
    left_out: Sequence[tuple[str, str, str]]


class Journal:
    """What was measured so far of one grid, one line a process, each written through to the disk.

    A line is whole or not there: a torn one, as a killed process leaves it, is passed over.
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream = path, stream
        self._slices: dict[tuple[str, str], list[Slice]] = {}
        self._failures: dict[tuple[str, str], Ending] = {}
        self._plans: Plans | None = None

    @property
    def key(self) -> str:
        """The grid's name."""
        return self._path.stem

    @property
    def plans(self) -> Plans | None:
        """What the grid was begun with, if something of it was measured: there is nothing to go on with otherwise."""
        return self._plans if self._slices or self._failures else None

    @property
    def points(self) -> frozenset[str]:
        """The points at which something was measured."""
        return frozenset(point for point, _ in self._slices)

    def begin(self, begun: Plans) -> None:
        """Keep what the grid is begun with; the last one counts.

        Raises:
            UsageError: it cannot be written.
        """
        plans = {
            point: plan._replace(reasons=(), given_up=(), findings=(), log_lines=(), curve=())
            for point, plan in begun.plans.items()
        }
        self._plans = Plans(plans, begun.left_out)
        document = {"begun": json.loads(_adapter("begun").dump_json(self._plans))}
        _write(self._stream, self._path, document)

    def slices(self, point: str, planned: Settings) -> tuple[Slice, ...]:
        """What was measured at that point of the grid; nothing if it was planned with other settings then."""
        return tuple(self._slices.get((point, _text(planned)), ()))

    def failure(self, point: str, planned: Settings) -> Ending | None:
        """How the engine ended at that point before there was a sample, if it did."""
        return self._failures.get((point, _text(planned)))

    def add(self, point: str, planned: Settings, outcome: Slice | Ending) -> None:
        """Keep what one process gave, or how it failed; when this returns it is on the disk.

        Raises:
            UsageError: it cannot be written.
        """
        kind = "slice" if isinstance(outcome, Slice) else "failure"
        document = {"point": point, "planned": _text(planned), kind: json.loads(_adapter(kind).dump_json(outcome))}
        self._take(document["point"], document["planned"], outcome)
        _write(self._stream, self._path, document)

    def end(self) -> None:
        """The grid is measured and shown: the next one begins anew."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def load(self, now: float) -> bool:
        """Read what is there; False where nothing of it can be used.

        The last line's time counts, not the first one's: a grid may take longer than a day itself. A clock that was
        set back makes nothing old.
        """
        if now - os.fstat(self._stream.fileno()).st_mtime > RESUMED_FOR_SECONDS:
            return False
        content = self._stream.read(_MOST_BYTES)
        head, *lines = content.split(b"\n")
        if _object(head).get("schema") != _SCHEMA:
            return False
        for line in lines:
            self._read(_object(line))
        if not content.endswith(b"\n"):
            _append(self._stream, self._path, b"\n")
        return True

    def _read(self, document: Mapping[str, Any]) -> None:
        if "begun" in document:
            self._plans = None
            with contextlib.suppress(ValueError):
                self._plans = _adapter("begun").validate_json(json.dumps(document["begun"]))
        point, planned = document.get("point"), document.get("planned")
        if not isinstance(point, str) or not isinstance(planned, str):
            return
        for kind in ("slice", "failure"):
            if kind in document:
                # Of another version, or of somebody else: measured again.
                with contextlib.suppress(ValueError):
                    self._take(point, planned, _adapter(kind).validate_json(json.dumps(document[kind])))

    def _take(self, point: str, planned: str, outcome: Slice | Ending) -> None:
        if isinstance(outcome, Slice):
            kept = self._slices.setdefault((point, planned), [])
            if _is_possible(outcome) and len(kept) < _MOST_SLICES:
                kept.append(outcome)
        else:
            self._failures[point, planned] = outcome


def _is_possible(outcome: Slice) -> bool:
    """Whether samples and times are such as a clock can give; anything else was not written by us."""
    samples = [taken.sample for taken in (*outcome.pp, *outcome.tg)]
    ready = outcome.ready_seconds
    return all(
        sample.n_tokens > 0 and math.isfinite(sample.seconds) and 0 < sample.seconds < _LONGEST_SECONDS
        for sample in samples
    ) and (ready is None or 0 <= ready < _LONGEST_SECONDS)


@contextlib.contextmanager
def open_journal(key: str, *, clock: Callable[[], float] = time.time) -> Iterator[Journal]:
    """The journal of that grid: continued where one was interrupted within a day, else begun.

    Journals of other grids that nobody went on with for a week are removed.

    Raises:
        UsageError: another process measures the same grid, or the folder cannot be written.
    """
    path = data_dir() / "grids" / f"{key}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a+b", buffering=0)
    except OSError as error:
        raise _unwritable(error, path) from error
    with stream:
        _lock(stream, path)
        stream.seek(0)
        _forget_abandoned(path, clock())
        journal = Journal(path, stream)
        if not journal.load(clock()):
            stream.truncate(0)
            journal = Journal(path, stream)
            _write(stream, path, {"schema": _SCHEMA})
        yield journal


def _forget_abandoned(own: Path, now: float) -> None:
    for path in own.parent.glob("*.jsonl"):
        # One that cannot be removed, or is being measured, is left alone.
        with contextlib.suppress(OSError, UsageError):
            if path != own and now - path.stat().st_mtime > _KEPT_FOR_SECONDS:
                with path.open("r+b") as stream:
                    _lock(stream, path)
                    path.unlink()


def _lock(stream: IO[bytes], path: Path) -> None:
    """Two processes that measure the same grid would disturb each other and mix their lines."""
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        hint = "wait for the other bench, or stop it"
        raise UsageError("this grid is being measured by another process", where=str(path), hint=hint) from error
    except OSError:
        # Some network file systems know no locks.
        return


def _write(stream: IO[bytes], path: Path, document: Mapping[str, object]) -> None:
    _append(stream, path, json.dumps(document, separators=(",", ":")).encode() + b"\n")


def _append(stream: IO[bytes], path: Path, line: bytes) -> None:
    """All of it or nothing: a disk that gets full takes a part of the line and says so by its length only."""
    try:
        before = os.fstat(stream.fileno()).st_size
        whole = stream.write(line) == len(line)
        if not whole:
            stream.truncate(before)
        os.fsync(stream.fileno())
    except OSError as error:
        raise _unwritable(error, path) from error
    if not whole:
        raise _unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path)


def _unwritable(error: OSError, path: Path) -> UsageError:
    hint = "make room or the folder writable, or set MAGNITUDE_TUNE_HOME to another folder"
    return UsageError(f"cannot keep the grid's journal: {error.strerror or error}", where=str(path), hint=hint)


def _object(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(line)
        if isinstance(document, dict):
            return document
    return {}


def _text(settings: Settings) -> str:
    return json.dumps(asdict(settings), sort_keys=True)


@cache
def _adapter(kind: str) -> Any:
    from pydantic import TypeAdapter

    kinds = {"slice": Slice, "failure": Ending, "begun": Plans}
    return TypeAdapter(kinds[kind])
