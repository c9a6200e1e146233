"""Stored rows as llama-bench writes CSV: a header, every value in quotes, switches as 0 and 1."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

from magnitude_tune.observations.llama_bench import COLUMNS

__all__ = ["history_csv"]


def history_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """The table that `bench --export csv` prints; samples have no column in llama-bench's CSV."""
    stream = io.StringIO()
    stream.write(",".join(COLUMNS) + "\n")
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([_cell(row[name]) for name in COLUMNS] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> object:
    return int(value) if isinstance(value, bool) else value
