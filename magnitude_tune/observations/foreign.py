"""Files that llama-bench wrote, as raw rows by key: JSON, JSON lines, CSV or SQLite, as different builds have them.

The files come from strangers: sizes are bounded, nothing in them is evaluated, and a row that cannot be read is
counted with the reason while the rest is taken.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.errors import InputFileError
from magnitude_tune.units import MIB, format_bytes

__all__ = ["MAX_FILE_BYTES", "MAX_ROWS", "ForeignRows", "parse_foreign", "read_foreign"]

MAX_FILE_BYTES: Final = 64 * MIB
MAX_ROWS: Final = 5_000

_MAX_ROW_CHARACTERS: Final = 262_144
_MAX_FAILURES: Final = 300
_MAX_HEADER_LINES: Final = 10_000
_MAX_COLUMNS: Final = 200
_DATABASE_SECONDS: Final = 10.0
_DATABASE = b"SQLite format 3\0"

# An object begins a line or follows a bracket or a comma; anywhere else it is part of a log line.
_OBJECT = re.compile(r"(?:^|[\n\[,])[ \t\r]*(?=\{)")
_OF_A_ROW = re.compile(r'"(?:n_prompt|n_gen|avg_ts|samples_ns|build_commit)"')
_NOT_A_NUMBER = re.compile(r"(?<=[:,\[])(\s*)[+-]?(?:nan|inf(?:inity)?)\b(?:\([a-z0-9]*\))?", re.IGNORECASE)
_TABLES: Final = ("llama_bench", "test")
_HINT: Final = "write it with llama-bench -o jsonl, and give that file"


class ForeignRows(NamedTuple):
    """Raw rows by llama-bench's keys, values as the format has them, and why others could not be read."""

    rows: tuple[Mapping[str, object], ...]
    problems: tuple[str, ...]


def read_foreign(path: Path) -> ForeignRows:
    """The rows of a file.

    Raises:
        InputFileError: it cannot be read, is too large, or is none of the formats.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputFileError(
            f"cannot read: {error.strerror or error}", where=str(path), hint="check the path"
        ) from error
    if content.startswith(_DATABASE):
        return _of_database(path)
    return parse_foreign(content, str(path))


def parse_foreign(content: bytes, where: str) -> ForeignRows:
    """The rows of a file's content: JSON, JSON lines or CSV, with log lines before, between and after them.

    Raises:
        InputFileError: it is too large, or none of the formats.
    """
    if len(content) > MAX_FILE_BYTES:
        limit = format_bytes(MAX_FILE_BYTES)
        raise InputFileError(f"longer than {limit}", where=where, hint="import it in parts")
    if content.startswith(_DATABASE):
        raise InputFileError("a database can only be read from a file", where=where, hint="give its path")
    text = _text(content)
    found = _of_json(text, where)
    if not found.rows and not found.problems:
        found = _of_csv(text, where)
    if not found.rows and not found.problems:
        raise InputFileError(f"no rows of llama-bench in it: {_kind(text)}", where=where, hint=_HINT)
    return found


def _text(content: bytes) -> str:
    """UTF-8 or, as PowerShell redirects it, UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    return content.decode("utf-8-sig", "replace")


def _kind(text: str) -> str:
    if not text.strip():
        return "it is empty"
    if "INSERT INTO" in text or "CREATE TABLE" in text:
        return "it is an SQL script, which is not run here"
    if re.search(r"^\| *model ", text, re.MULTILINE):
        return "it is the table for people, which has neither samples nor whole settings"
    return "it is neither JSON, JSON lines, CSV nor an SQLite file"


def _bounded(rows: Iterator[Mapping[str, object]], where: str) -> tuple[Mapping[str, object], ...]:
    taken: list[Mapping[str, object]] = []
    for row in rows:
        if len(taken) == MAX_ROWS:
            raise InputFileError(f"more than {MAX_ROWS} rows", where=where, hint="import it in parts")
        taken.append(row)
    return tuple(taken)


def _of_json(text: str, where: str) -> ForeignRows:
    problems: list[str] = []
    return ForeignRows(_bounded(_objects(text, problems, where), where), tuple(problems))


def _objects(text: str, problems: list[str], where: str) -> Iterator[Mapping[str, object]]:
    """The objects of llama-bench in a text, one after the other; what lies between them is passed over."""
    position = failures = 0
    while found := _OBJECT.search(text, position):
        start = found.end()
        row, length = _decoded(text[start : start + _MAX_ROW_CHARACTERS])
        if row is not None:
            # One character less: the comma or line end after an object begins the next.
            position = start + length
            if _OF_A_ROW.search(text, start, position):
                yield row
            continue
        position = start + 1
        failures += 1
        if failures > _MAX_FAILURES:
            raise InputFileError("too much in it is not JSON", where=where, hint=_HINT)
        following = _OBJECT.search(text, position)
        end = min(following.start() if following else len(text), start + _MAX_ROW_CHARACTERS)
        if _OF_A_ROW.search(text, start, end):
            problems.append("cut off or not JSON")


def _decoded(text: str) -> tuple[dict[str, object] | None, int]:
    """The object that a text begins with and its length; None where there is none that is whole."""
    decoder = json.JSONDecoder()
    # Builds write a rate over zero nanoseconds as bare `inf` or `-nan`, which is not JSON: no rate is 0 here.
    for spelling in (str, _with_zeros):
        with contextlib.suppress(ValueError, RecursionError):
            value, length = decoder.raw_decode(spelling(text))
            return (value, length) if isinstance(value, dict) else (None, 0)
    return None, 0


def _with_zeros(text: str) -> str:
    return _NOT_A_NUMBER.sub(lambda found: found[1] + "0".rjust(len(found[0]) - len(found[1])), text)


def _of_csv(text: str, where: str) -> ForeignRows:
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines[:_MAX_HEADER_LINES]):
        names = [name.strip().strip('"') for name in line.split(",")]
        if {"n_prompt", "n_gen"} <= set(names) and {"avg_ts", "avg_ns"} & set(names) and len(names) <= _MAX_COLUMNS:
            problems: list[str] = []
            return ForeignRows(_bounded(_records(lines[index + 1 :], names, problems), where), tuple(problems))
    return ForeignRows((), ())


def _records(lines: list[str], names: list[str], problems: list[str]) -> Iterator[Mapping[str, object]]:
    try:
        for values in csv.reader(lines):
            if values == names or len(values) <= len(names) // 2:
                # The header again, where files were put together, or a log line.
                continue
            if len(values) != len(names):
                problems.append("cut off or of another width than the header")
                continue
            yield dict(zip(names, values, strict=True))
    except csv.Error as error:
        problems.append(f"not CSV: {error}")


def _of_database(path: Path) -> ForeignRows:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            limit = format_bytes(MAX_FILE_BYTES)
            raise InputFileError(f"longer than {limit}", where=str(path), hint="import it in parts")
        try:
            return _of_connection(path, "mode=ro")
        except sqlite3.OperationalError:
            # A write-ahead log cannot be read in a folder that may not be written to.
            return _of_connection(path, "mode=ro&immutable=1")
    except (sqlite3.Error, OSError) as error:
        raise InputFileError(f"cannot read the database: {error}", where=str(path), hint=_HINT) from error


def _of_connection(path: Path, mode: str) -> ForeignRows:
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4 * MIB)
        connection.execute("PRAGMA trusted_schema = OFF")
        table, columns = _plain_columns(connection, str(path))
        deadline = time.monotonic() + _DATABASE_SECONDS
        connection.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
        connection.set_authorizer(_reads_only)
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
        cursor = connection.execute(f'SELECT {quoted} FROM "{table}" LIMIT {MAX_ROWS + 1}')  # noqa: S608
        return ForeignRows(_bounded((dict(zip(columns, row, strict=True)) for row in cursor), str(path)), ())


def _plain_columns(connection: sqlite3.Connection, where: str) -> tuple[str, list[str]]:
    """The table of llama-bench (older builds call it `test`) and its columns that are stored, not computed."""
    for table in _TABLES:
        kinds = connection.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (table,)).fetchall()
        if not kinds:
            continue
        ((kind, sql),) = kinds[:1]
        if kind != "table" or "VIRTUAL" in str(sql).upper().split("(")[0]:
            raise InputFileError(f"{table} is computed, not stored", where=where, hint=_HINT)
        shape = connection.execute(f"PRAGMA table_xinfo({table})").fetchmany(_MAX_COLUMNS)
        # The last column says how it is hidden: 0 is not at all, 2 and 3 are generated by an expression.
        columns = [str(name) for _, name, *_, hidden in shape if not hidden]
        if {"n_prompt", "n_gen"} <= set(columns):
            return table, columns
    raise InputFileError("it has no table llama_bench with n_prompt and n_gen", where=where, hint=_HINT)


def _reads_only(action: int, *_: object) -> int:
    """What a query of a stranger's database may do: select and read, and call no function."""
    return sqlite3.SQLITE_OK if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) else sqlite3.SQLITE_DENY
