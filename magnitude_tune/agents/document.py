"""An agent's configuration file: its text, its nodes, and the place of each."""

from __future__ import annotations

import bisect
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.agents.nodes import MappingNode
from magnitude_tune.agents.yaml_tree import parse_tree
from magnitude_tune.errors import ConfigError
from magnitude_tune.findings import Place

__all__ = ["MAX_CONFIG_BYTES", "AgentDocument", "parse_document", "read_document"]

MAX_CONFIG_BYTES: Final = 256 * 1024

_BOM = "\ufeff"
_LINE_END = re.compile(r"\r\n|\r|\n")
_EXAMPLE = "write at least the line `magnitude: 4.0`"


class AgentDocument(NamedTuple):
    """One file as read. `text` holds every character, a byte-order mark included; offsets count in it."""

    path: Path
    text: str
    root: MappingNode
    line_starts: tuple[int, ...]

    def place(self, offset: int) -> Place:
        """File, line and column of an offset in the text."""
        return _place(str(self.path), self.text, self.line_starts, offset)


def read_document(path: Path) -> AgentDocument:
    """Read a YAML configuration of at most 256 KiB.

    Raises:
        ConfigError: the file is missing, unreadable, not UTF-8, empty, not YAML, no mapping, or beyond the bounds.
    """
    return parse_document(_decoded(_content(path), path), path)


def parse_document(text: str, path: Path) -> AgentDocument:
    """The document of a text already read; `path` is only named in errors and places.

    Raises:
        ConfigError: as `read_document`.
    """
    label = str(path)
    starts = (0, *(match.end() for match in _LINE_END.finditer(text)))
    root = parse_tree(text, lambda offset: _place(label, text, starts, offset))
    if root is None:
        raise ConfigError("the file is empty", where=f"{label}:1:1", hint=_EXAMPLE)
    if not isinstance(root, MappingNode):
        where = str(_place(label, text, starts, root.start))
        raise ConfigError("the file holds no `key: value` pairs at its top", where=where, hint=_EXAMPLE)
    return AgentDocument(path, text, root, starts)


def _place(label: str, text: str, starts: tuple[int, ...], offset: int) -> Place:
    line = bisect.bisect_right(starts, offset)
    column = offset - starts[line - 1] + 1
    if line == 1 and text.startswith(_BOM):
        column = max(1, column - 1)
    return Place(label, line, column)


def _content(path: Path) -> bytes:
    where = str(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ConfigError("is a folder, not a configuration", where=where, hint="name the file in it")
        if not stat.S_ISREG(mode):
            raise ConfigError("is not a regular file", where=where, hint="name a configuration file")
        with path.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError("the file does not exist", where=where, hint="check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"cannot read: {reason}", where=where, hint="check path and permissions") from error
    if content.startswith(b"GGUF"):
        raise ConfigError("is a model, not a configuration", where=where, hint="pass a model with --model")
    if len(content) > MAX_CONFIG_BYTES:
        what = f"is larger than {MAX_CONFIG_BYTES // 1024} KiB"
        raise ConfigError(what, where=where, hint="is this an agent's configuration?")
    return content


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - (content.rfind(b"\n", 0, error.start) + 1) + 1
        raise ConfigError(
            f"is not UTF-8 text (byte {error.start})",
            where=str(Place(str(path), line, column)),
            hint="save the file as UTF-8",
        ) from None
