"""The only place that writes: results to stdout or a file, narration to stderr."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from magnitude_tune.errors import MagnitudeTuneError, UsageError
from magnitude_tune.storage import cache_dir, data_dir, write_whole

# Names come from files that strangers made: control characters must not reach a terminal.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# What JSON may hold as it is: the rest below U+0020 is escaped by `json` itself.
_CONTROL_IN_JSON = re.compile(r"[\x7f-\x9f]")

__all__ = ["check_output", "colour", "emit", "emit_json", "fail", "narrate"]


def emit(text: str, output: str | None) -> None:
    """Write a result to `output`, or to stdout where it is None or `-`."""
    _write(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text), output)


def emit_json(document: Mapping[str, object] | Sequence[Mapping[str, object]], output: str | None) -> None:
    """Write one JSON document; not-a-number never gets in, and control characters are escaped."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    # Outside strings JSON is ASCII, so whatever is found here stands in a string, where an escape means the same.
    _write(_CONTROL_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text), output)


def _write(text: str, output: str | None) -> None:
    if not text.endswith("\n"):
        text += "\n"
    if output is None or output == "-":
        _to_stdout(text)
        return
    check_output(output)
    write_whole(Path(output), text.encode(errors="surrogateescape"))


def check_output(output: str | None) -> None:
    """See that a result could be written to `output`, before it takes hours to get.

    Raises:
        UsageError: a folder, no folder to write into, or a file that we keep ourselves.
    """
    if output is None or output == "-":
        return
    # `os.path` says no where `Path` raises, for too long a name.
    is_folder = os.path.isdir(output)  # noqa: PTH112
    if is_folder or not os.path.isdir(Path(output).parent):  # noqa: PTH112
        what = "this is a folder" if is_folder else "there is no such folder"
        raise UsageError(what, where=f"--output {output}", hint="name a file in a folder that exists")
    real = Path(os.path.realpath(output))
    if any(Path(os.path.realpath(ours)) in real.parents for ours in (data_dir(), cache_dir())):
        raise UsageError("we keep our own files there", where=f"--output {output}", hint="name a file elsewhere")


def _to_stdout(text: str) -> None:
    if sys.stdout is None:
        raise UsageError("cannot write the result: stdout is closed", hint="use --output FILE")
    try:
        sys.stdout.write(_showable(text, sys.stdout.encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What could not be written would be tried again, and complained about again, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise UsageError(
            f"cannot write the result to stdout: {error.strerror}", hint="make room there, or use --output FILE"
        ) from error


def narrate(line: str) -> None:
    """Say on stderr what is going on."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError):
        sys.stderr.write(_showable(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", line), sys.stderr.encoding) + "\n")
        sys.stderr.flush()


def colour(stream_is_terminal: bool) -> bool:
    """Whether to colour: FORCE_COLOR, then NO_COLOR, then whether the stream is a terminal."""
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream_is_terminal and not os.environ.get("NO_COLOR")


def fail(error: MagnitudeTuneError) -> NoReturn:
    """Show an error and leave with its exit code."""
    narrate(f"error: {error}")
    if error.hint:
        narrate(f"hint: {error.hint}")
    sys.exit(error.exit_code)


def _showable(text: str, encoding: str | None) -> str:
    """The text in what the stream can show: `->` for the arrow, `?` for the rest."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("→", "->").encode(encoding, "replace").decode(encoding)
    return text
