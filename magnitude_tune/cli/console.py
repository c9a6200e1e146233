"""The only place that writes: results to stdout or a file, narration to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from magnitude_tune.errors import MagnitudeTuneError, UsageError
from magnitude_tune.storage import write_whole

__all__ = ["colour", "emit", "emit_json", "fail", "narrate"]


def emit(text: str, output: str | None) -> None:
    """Write a result to `output`, or to stdout where it is None or `-`."""
    if not text.endswith("\n"):
        text += "\n"
    if output is None or output == "-":
        sys.stdout.write(_showable(text, sys.stdout.encoding))
        sys.stdout.flush()
    else:
        path = Path(output)
        if path.is_dir() or not path.parent.is_dir():
            what = "this is a folder" if path.is_dir() else "there is no such folder"
            raise UsageError(what, where=f"--output {output}", hint="name a file in a folder that exists")
        write_whole(path, text.encode(errors="surrogateescape"))


def emit_json(document: Mapping[str, object], output: str | None) -> None:
    """Write one JSON object; not-a-number never gets in."""
    emit(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False), output)


def narrate(line: str) -> None:
    """Say on stderr what is going on."""
    sys.stderr.write(_showable(line, sys.stderr.encoding) + "\n")
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
