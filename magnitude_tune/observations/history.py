"""The runs that the store holds, newest first, and how people name one of them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

from magnitude_tune.engines.values import Sample
from magnitude_tune.errors import UsageError
from magnitude_tune.observations.schema import connect_to_read
from magnitude_tune.observations.statistics import Summary, summarise
from magnitude_tune.observations.store import damaged_rows_said, opened, require_plain, store_path

__all__ = ["MIN_ID_LENGTH", "Origin", "StoredRun", "StoredTest", "Timed", "find_run", "runs", "short_ids"]

Origin = Literal["measured", "imported"]

MIN_ID_LENGTH: Final = 8
"""Ids are shown with this many characters, or more where two runs would look alike."""

_LAST = re.compile(r"last(?:~([0-9]{1,6}))?", re.ASCII)
_MAX_NAMED: Final = 5


class Timed(NamedTuple):
    """What was timed: `n_prompt` tokens read and `n_gen` written with `n_depth` in the context already."""

    n_prompt: int
    n_gen: int
    n_depth: int

    @property
    def kind(self) -> str:
        """`pp`, `tg`, or `pp+tg` for one test that reads and writes."""
        return "+".join(name for name, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n)

    def __str__(self) -> str:
        """As llama-bench writes it: `pp512`, `tg128 @ d4096`."""
        text = "+".join(f"{name}{n}" for name, n in (("pp", self.n_prompt), ("tg", self.n_gen)) if n)
        return f"{text} @ d{self.n_depth}" if self.n_depth else text


class StoredTest(NamedTuple):
    """One test of a run. `samples` is empty where an imported file gave only a mean and a spread."""

    key: Timed
    samples: tuple[Sample, ...]
    n_left_out: int
    summary: Summary
    stable: bool


class StoredRun(NamedTuple):
    """One run as it is stored: subject, settings by llama.cpp's names, tests, and what disturbed it.

    `disturbance` is empty where nobody watched, as in imported runs; `clean` is then no statement.
    """

    run_id: str
    origin: Origin
    started_at: str
    machine_hash: str
    cpu_info: str
    gpu_info: str
    model_hash: str
    model_filename: str
    model_type: str
    engine: str
    engine_build: str
    settings: Mapping[str, object]
    tests: tuple[StoredTest, ...]
    complete: bool
    clean: bool
    disturbance: Mapping[str, object]
    ready_seconds: float | None
    peak_bytes: int | None
    magnitude_requested: float | None
    magnitude_executed: float | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was seen to disturb the run, one sentence each."""
        found = self.disturbance.get("notes")
        return tuple(str(note) for note in found) if isinstance(found, list) else ()


def runs(*, model_hash: str | None = None, model_text: str | None = None) -> tuple[StoredRun, ...]:
    """All stored runs in the order they were stored, newest first.

    Args:
        model_hash: only runs of the model with this content.
        model_text: only runs whose model's file name, type or hash holds this text, whatever its case.

    Raises:
        UsageError: the store cannot be read.
    """
    if not store_path().exists():
        return ()
    rows: dict[str, list[sqlite3.Row]] = {}
    with opened(connect_to_read) as connection:
        connection.row_factory = sqlite3.Row
        query = "SELECT * FROM llama_bench WHERE ?1 IS NULL OR model_hash = ?1 ORDER BY rowid DESC"
        for row in connection.execute(query, (model_hash,)):
            rows.setdefault(row["run_id"], []).append(row)
    with damaged_rows_said():
        found = [_run(of_run[::-1]) for of_run in rows.values()]
    return tuple(run for run in found if model_text is None or _is_about(run, model_text.casefold()))


def find_run(reference: str, among: Sequence[StoredRun]) -> StoredRun:
    """The run that a person means: an id, the start of one, `last`, or `last~1` for the one before.

    Args:
        among: runs, newest first.

    Raises:
        UsageError: none or several are meant.
    """
    hint = "see the ids with bench --history"
    if counted := _LAST.fullmatch(reference):
        index = int(counted[1] or 0)
        if index >= len(among):
            raise UsageError(f"there are {len(among)} stored runs", where=reference, hint=hint)
        return among[index]
    found = [run for run in among if reference and run.run_id.startswith(reference.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError("no stored run has this id", where=reference, hint=hint)
    named = ", ".join(run.run_id[: len(reference) + 6] for run in found[:_MAX_NAMED])
    raise UsageError(f"{len(found)} stored runs begin so: {named}", where=reference, hint="give more of the id")


def short_ids(among: Iterable[StoredRun]) -> dict[str, str]:
    """By full id, the shortest start that is no other run's, at least `MIN_ID_LENGTH` long."""
    ordered = sorted(run.run_id for run in among)
    shown = {}
    for index, run_id in enumerate(ordered):
        beside = ordered[max(0, index - 1) : index] + ordered[index + 1 : index + 2]
        length = max([MIN_ID_LENGTH, *(_shared(run_id, other) + 1 for other in beside)])
        shown[run_id] = run_id[:length]
    return shown


def _shared(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _is_about(run: StoredRun, text: str) -> bool:
    return any(text in name.casefold() for name in (run.model_filename, run.model_type, run.model_hash))


def _run(rows: Sequence[sqlite3.Row]) -> StoredRun:
    for row in rows:
        require_plain(row)
    first = rows[0]
    return StoredRun(
        run_id=first["run_id"],
        origin=cast(Origin, first["origin"]),
        started_at=first["test_time"] or "",
        machine_hash=first["machine_hash"],
        cpu_info=first["cpu_info"] or "",
        gpu_info=first["gpu_info"] or "",
        model_hash=first["model_hash"],
        model_filename=first["model_filename"] or "",
        model_type=first["model_type"] or "",
        engine=first["engine"],
        engine_build=first["engine_build"],
        settings=_object(first["settings"]),
        tests=tuple(_test(row) for row in rows),
        complete=bool(first["complete"]),
        clean=bool(first["clean"]),
        disturbance=_object(first["disturbance"]),
        ready_seconds=first["ready_seconds"],
        peak_bytes=first["peak_bytes"],
        magnitude_requested=first["magnitude_requested"],
        magnitude_executed=first["magnitude_executed"],
    )


def _test(row: sqlite3.Row) -> StoredTest:
    samples = tuple(Sample(int(n_tokens), float(seconds)) for n_tokens, seconds in _list(row["samples"]))
    return StoredTest(
        key=Timed(row["n_prompt"] or 0, row["n_gen"] or 0, row["n_depth"] or 0),
        samples=samples,
        n_left_out=len(_list(row["left_out"])),
        # Statistics are views of the samples: the same ones for a run that an older version stored.
        summary=summarise([sample.rate for sample in samples]) if samples else _stated(row),
        stable=bool(row["stable"]),
    )


def _stated(row: sqlite3.Row) -> Summary:
    """What a file without samples said: its mean, and where 90 % of its samples lay."""
    spread = (row["stddev_ts"] or 0.0) / row["avg_ts"]
    return Summary(median=row["median_ts"], low=row["low_ts"], high=row["high_ts"], n=0, variation=spread)


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    return value if isinstance(value, dict) else {}


def _list(text: str) -> list[Any]:
    value = json.loads(text)
    return value if isinstance(value, list) else []
