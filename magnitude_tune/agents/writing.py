"""Settings written back into a file: only their own characters change, and the result is read again to be sure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from magnitude_tune.agents.block import BlockEntry, given, settings_of
from magnitude_tune.agents.detect import locate
from magnitude_tune.agents.dialect import NAMES, Dialect
from magnitude_tune.agents.document import AgentDocument, parse_document
from magnitude_tune.agents.nodes import AliasNode, MappingNode, Node, ScalarNode, SequenceNode
from magnitude_tune.agents.scalars import BOOLEAN_WORDS, Value, is_plain_number, scalar_text
from magnitude_tune.errors import ConfigError, MagnitudeTuneError
from magnitude_tune.request import Given
from magnitude_tune.storage import write_whole

__all__ = ["Change", "proposed_text", "unified_diff", "write"]

Change = Value | tuple[Value, ...]

_LINE_END = re.compile(r"\r\n|\r|\n")
_COLON = re.compile(r"\s*:")
_BY_HAND: Final = "write these settings into the file by hand"
_Edit = tuple[int, int, str]


def proposed_text(document: AgentDocument, changes: Mapping[str, Change], dialect: str | None = None) -> str:
    """The file's text with these settings in its block; every other character stays.

    A setting that already says so is left as it is written. New ones follow the block's last.

    Args:
        document: the file as read.
        changes: values by our names (`n_ctx` is written as `max_ctx_size` where the file calls it so).

    Raises:
        MagnitudeTuneError: a name that no config holds.
        ConfigError: the block is written in a way that cannot be edited without touching anything else.
    """
    if unknown := [name for name in changes if name not in NAMES]:
        raise MagnitudeTuneError(f"no config holds {', '.join(unknown)}")
    found, block = locate(document, dialect)
    settings = settings_of(document, block)
    edits: list[_Edit] = []
    added: dict[str, Change] = {}
    touched: set[int] = set()
    for name, value in changes.items():
        entry = settings.get(name)
        wanted = _as_written(name, value, entry)
        if entry is not None and _says(given(document, entry.entry.value), wanted):
            continue
        if entry is None or entry.index is None:
            added[name] = _as_written(name, value, None)
        else:
            edits.append(_replacement(document, entry, wanted))
            touched.add(entry.index)
    if added or edits:
        _refuse_shared(document, block)
    if added:
        edits.append(_addition(document, block, found, added))
    text = document.text
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    _verify(document, text, changes, touched, found.name)
    return text


def unified_diff(path: Path, before: str, after: str) -> str:
    """What would change, as `diff -u` shows it; empty where nothing does."""
    import difflib

    lines = difflib.unified_diff(_lines(before), _lines(after), fromfile=str(path), tofile=f"{path} (proposed)", n=3)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write(path: Path, text: str, expected_original: str) -> None:
    """Write the text atomically; permissions are kept and links followed.

    Raises:
        ConfigError: the file is not what was read before, or may not be written.
        UsageError: its folder cannot be written.
    """
    import os

    try:
        unchanged = path.read_bytes() == expected_original.encode()
    except OSError as error:
        hint = "check path and permissions"
        raise ConfigError(f"cannot read: {error.strerror or error}", where=str(path), hint=hint) from error
    if not unchanged:
        raise ConfigError("the file has changed since it was read", where=str(path), hint="run the command again")
    if not os.access(path, os.W_OK):
        raise ConfigError("the file is read-only", where=str(path), hint="make it writable, or change it by hand")
    write_whole(path, text.encode())


def _lines(text: str) -> list[str]:
    """Lines as `diff` counts them: a carriage return is part of its line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _as_written(name: str, value: Change, entry: BlockEntry | None) -> Change:
    """A load mode under a key `mmap` is a boolean; so is flash attention, which readers take `on` for."""
    if name == "flash_attn" and isinstance(value, str):
        return BOOLEAN_WORDS.get(value, value)
    if entry is not None and entry.key.endswith("mmap") and isinstance(value, str):
        return value == "mmap"
    return value


def _says(written: Given, wanted: Change) -> bool:
    """Whether the raw value already means what is wanted."""
    raw = written.raw
    if isinstance(wanted, tuple):
        items = raw if isinstance(raw, tuple) else ()
        return len(items) == len(wanted) and all(_says(item, value) for item, value in zip(items, wanted, strict=True))
    if isinstance(wanted, bool):
        word = raw.lower() if isinstance(raw, str) else None
        return raw is wanted or (word is not None and BOOLEAN_WORDS.get(word) is wanted)
    if isinstance(wanted, int | float):
        number = float(raw) if isinstance(raw, str) and is_plain_number(raw) else raw
        return isinstance(number, int | float) and not isinstance(number, bool) and number == wanted
    return raw == wanted and type(raw) is type(wanted)


def _replacement(document: AgentDocument, entry: BlockEntry, wanted: Change) -> _Edit:
    node = entry.entry.value
    where = str(document.place(node.start))
    anchor = None if isinstance(node, AliasNode) else node.anchor
    if anchor is not None and _is_used(document.root, anchor):
        raise ConfigError(f"{entry.key} is also read as *{anchor} elsewhere", where=where, hint=_BY_HAND)
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        raise ConfigError(f"{entry.key} is a text of several lines", where=where, hint=_BY_HAND)
    like = node if isinstance(node, ScalarNode) else None
    text = _value_text(wanted, like, quoted=_is_json_key(entry.entry.key))
    colon = _COLON.match(document.text, entry.entry.key.end)
    if isinstance(node, MappingNode | SequenceNode):
        if "#" in document.text[node.start : node.end]:
            raise ConfigError(f"{entry.key} holds comments", where=where, hint=_BY_HAND)
        if not node.flow and colon is not None and not document.text[colon.end() : node.start].strip():
            return colon.end(), node.end, " " + text
    if node.start == node.end:
        text = " " + text if colon is not None and colon.end() == node.start else ": " + text
    return node.start, node.end, text


def _addition(document: AgentDocument, block: MappingNode, dialect: Dialect, added: Mapping[str, Change]) -> _Edit:
    quoted = bool(block.entries) and all(_is_json_key(entry.key) for entry in block.entries)
    pairs = []
    for name, value in added.items():
        key = dialect.written_names.get(name, name)
        pairs.append(f"{_double(key) if quoted else key}: {_value_text(value, None, quoted=quoted)}")
    if block.flow:
        return _flow_addition(block, pairs)
    # The block's own column, for its keys stand below each other.
    indent = " " * ((document.place(block.start).column or 1) - 1)
    lines = [indent + pair for pair in pairs]
    line_end = _line_end_near(document.text, block.end)
    match = _LINE_END.search(document.text, block.end)
    if match is None:
        return len(document.text), len(document.text), "".join(line_end + line for line in lines)
    return match.end(), match.end(), "".join(line + line_end for line in lines)


def _flow_addition(block: MappingNode, pairs: list[str]) -> _Edit:
    if not block.entries:
        inside = block.start + 1
        return inside, inside, ", ".join(pairs)
    last = block.entries[-1]
    end = max(last.key.end, last.value.end)
    return end, end, "".join(f", {pair}" for pair in pairs)


def _value_text(value: Change, like: ScalarNode | None, *, quoted: bool) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(scalar_text(item, like=None, quoted=quoted) for item in value) + "]"
    return scalar_text(value, like=like, quoted=quoted)


def _double(key: str) -> str:
    return f'"{key}"'


def _is_json_key(key: Node) -> bool:
    return isinstance(key, ScalarNode) and key.style == '"'


def _line_end_near(text: str, offset: int) -> str:
    match = _LINE_END.search(text, offset) or _LINE_END.search(text)
    return match.group() if match else "\n"


def _refuse_shared(document: AgentDocument, block: MappingNode) -> None:
    """A block that other parts of the file read through an alias would change for them too."""
    for _, node in _walk(document.root, ()):
        if isinstance(node, AliasNode) or node.anchor is None or not (node.start <= block.start <= node.end):
            continue
        if _is_used(document.root, node.anchor):
            where = str(document.place(node.start))
            raise ConfigError(f"the block is also read as *{node.anchor} elsewhere", where=where, hint=_BY_HAND)


def _is_used(root: Node, anchor: str) -> bool:
    return any(isinstance(node, AliasNode) and node.name == anchor for _, node in _walk(root, ()))


def _walk(node: Node, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Node]]:
    """Every node with its path: entry `i` has its key at `2 * i` and its value at `2 * i + 1`."""
    yield path, node
    children: tuple[Node, ...] = ()
    if isinstance(node, SequenceNode):
        children = node.items
    elif isinstance(node, MappingNode):
        children = tuple(child for entry in node.entries for child in (entry.key, entry.value))
    for index, child in enumerate(children):
        yield from _walk(child, (*path, index))


def _verify(document: AgentDocument, text: str, changes: Mapping[str, Change], touched: set[int], dialect: str) -> None:
    """Read the new text again: the changes must stand in it, and everything else as before."""
    refusal = ConfigError("the block cannot be edited safely", where=str(document.path), hint=_BY_HAND)
    try:
        after = parse_document(text, document.path)
        old_block, new_block = locate(document, dialect)[1], locate(after, dialect)[1]
        settings = settings_of(after, new_block)
    except ConfigError as error:
        raise refusal from error
    n_old = len(old_block.entries)
    same = _rest(document.root, old_block, touched, n_old) == _rest(after.root, new_block, touched, n_old)
    done = all(
        name in settings and _says(given(after, settings[name].entry.value), _as_written(name, value, settings[name]))
        for name, value in changes.items()
    )
    if not (same and done):
        raise refusal


def _rest(root: Node, block: MappingNode, touched: set[int], n_old: int) -> list[object]:
    """Everything but the changed and the added values, in a form that can be compared."""
    skipped: set[tuple[int, ...]] = set()
    rest: list[object] = []
    for path, node in _walk(root, ()):
        if node is block:
            new = range(n_old, len(block.entries))
            skipped = {(*path, 2 * index + 1) for index in touched}
            skipped |= {(*path, 2 * index + offset) for index in new for offset in (0, 1)}
        if any(path[:length] in skipped for length in range(1, len(path) + 1)):
            continue
        content = node.value if isinstance(node, ScalarNode) else node.name if isinstance(node, AliasNode) else None
        style = node.style if isinstance(node, ScalarNode) else None
        tag = None if isinstance(node, AliasNode) else node.tag
        anchor = None if isinstance(node, AliasNode) else node.anchor
        rest.append((path, type(node).__name__, content, style, tag, anchor))
    return rest
