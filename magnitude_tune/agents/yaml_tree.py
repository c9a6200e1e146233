"""From YAML text to nodes, bounded at every step: nothing is constructed, no tag is acted on, no alias expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

from magnitude_tune.agents.nodes import AliasNode, Entry, MappingNode, Node, ScalarNode, SequenceNode
from magnitude_tune.agents.scalars import plain_value
from magnitude_tune.errors import ConfigError
from magnitude_tune.findings import Place

__all__ = ["MAX_DEPTH", "MAX_EXPANDED", "MAX_NODES", "parse_tree", "shortened"]

MAX_DEPTH: Final = 64
MAX_NODES: Final = 10_000
MAX_EXPANDED: Final = 100_000
"""Values that the file would have with every alias written out."""

_PROPERTIES = re.compile(r"(?:[&!][^\s]*\s+(?:#[^\r\n]*\s+)*)+")
_COLON = re.compile(r"\s*:")


class _Mark(Protocol):
    index: int


class _Event(Protocol):
    start_mark: _Mark
    end_mark: _Mark


@dataclass(slots=True)
class _Frame:
    """A collection that is still open. `size` counts its values with aliases written out."""

    kind: str
    start: int
    end: int
    flow: bool
    tag: str | None
    anchor: str | None
    children: list[Node] = field(default_factory=list)
    keys: dict[object, int] = field(default_factory=dict)
    size: int = 1


class _Builder:
    def __init__(self, text: str, place: Callable[[int], Place]) -> None:
        self._text = text
        self._place = place
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._n_nodes = 0
        self.roots: list[Node] = []

    def take(self, event: _Event) -> None:
        """Take the parser's next event."""
        kind = type(event).__name__
        if kind == "ScalarEvent":
            self._scalar(event)
        elif kind == "AliasEvent":
            self._alias(event)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._open(event, kind)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close(event)
        elif kind == "DocumentStartEvent" and self.roots:
            self._refuse("the file holds more than one document", event.start_mark.index, "keep one, without `---`")

    def _scalar(self, event: _Event) -> None:
        tag, anchor = self._properties(event)
        start, end = self._content_start(event, tag or anchor), event.end_mark.index
        style = getattr(event, "style", None) or None
        if style in ("|", ">"):
            end = start + len(self._text[start:end].rstrip())
        value = str(getattr(event, "value", ""))
        if start == end and anchor is None and tag is None:
            start = end = self._empty_at(start)
        self._add(ScalarNode(value=value, style=style, tag=tag, anchor=anchor, start=start, end=end), anchor, 1)

    def _empty_at(self, offset: int) -> int:
        """Where a missing value would stand: the parser says only where it noticed."""
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.kind == "MappingStartEvent" and len(frame.children) % 2:
            key_end = frame.children[-1].end
            colon = _COLON.match(self._text, key_end)
            return colon.end() if colon else key_end
        while offset > 0 and self._text[offset - 1].isspace():
            offset -= 1
        return offset

    def _alias(self, event: _Event) -> None:
        name, start = str(getattr(event, "anchor", "")), event.start_mark.index
        if any(frame.anchor == name for frame in self._stack) and name not in self._anchors:
            self._refuse(f"*{name} refers to itself", start, "write the values out")
        if name not in self._anchors:
            self._refuse(f"*{name} has no anchor &{name} before it", start, f"name the value with &{name} first")
        target, size = self._anchors[name]
        self._add(AliasNode(name=name, target=target, start=start, end=event.end_mark.index), None, size)

    def _open(self, event: _Event, kind: str) -> None:
        tag, anchor = self._properties(event)
        start = self._content_start(event, tag or anchor)
        if len(self._stack) >= MAX_DEPTH:
            self._refuse(f"the file nests deeper than {MAX_DEPTH} levels", start, "is this an agent's configuration?")
        if anchor is not None:
            # An alias inside its own anchor must not find an earlier node of that name.
            self._anchors.pop(anchor, None)
        flow = bool(getattr(event, "flow_style", False))
        self._stack.append(_Frame(kind, start, event.end_mark.index, flow, tag, anchor))

    def _close(self, event: _Event) -> None:
        frame = self._stack.pop()
        end = event.end_mark.index if frame.flow else max([frame.start, *(child.end for child in frame.children[-2:])])
        node: Node
        if frame.kind == "MappingStartEvent":
            pairs = zip(frame.children[::2], frame.children[1::2], strict=True)
            entries = tuple(Entry(key, value) for key, value in pairs)
            node = MappingNode(
                entries=entries, flow=frame.flow, tag=frame.tag, anchor=frame.anchor, start=frame.start, end=end
            )
        else:
            items = tuple(frame.children)
            node = SequenceNode(
                items=items, flow=frame.flow, tag=frame.tag, anchor=frame.anchor, start=frame.start, end=end
            )
        self._add(node, frame.anchor, frame.size)

    def _add(self, node: Node, anchor: str | None, size: int) -> None:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            self._refuse(
                f"the file holds more than {MAX_NODES} values", node.start, "is this an agent's configuration?"
            )
        if anchor is not None:
            self._anchors[anchor] = (node, size)
        if not self._stack:
            self.roots.append(node)
            return
        parent = self._stack[-1]
        parent.size += size
        if parent.size > MAX_EXPANDED:
            what = f"the aliases expand to more than {MAX_EXPANDED} values"
            self._refuse(what, node.start, "write the values out without anchors")
        if parent.kind == "MappingStartEvent" and len(parent.children) % 2 == 0:
            self._check_key(parent, node)
        parent.children.append(node)

    def _check_key(self, parent: _Frame, key: Node) -> None:
        if not isinstance(key, ScalarNode):
            return
        identity = (key.value, key.style is None and not isinstance(plain_value(key.value), str))
        if identity in parent.keys:
            first, second = self._place(parent.keys[identity]), self._place(key.start)
            self._refuse(
                f"the key {shortened(key.value)} stands on line {first.line} and again on line {second.line}",
                key.start,
                "YAML readers silently take one of the two: remove the other",
            )
        parent.keys[identity] = key.start

    def _properties(self, event: _Event) -> tuple[str | None, str | None]:
        tag = getattr(event, "tag", None)
        tag = None if tag is None else str(tag)
        if tag is not None and tag.startswith("tag:yaml.org,2002:python/"):
            what = f"the tag {shortened(tag)} would make other readers run code"
            self._refuse(what, event.start_mark.index, "remove the tag")
        anchor = getattr(event, "anchor", None)
        return tag, None if anchor is None else str(anchor)

    def _content_start(self, event: _Event, properties: str | None) -> int:
        start: int = event.start_mark.index
        if properties is not None:
            match = _PROPERTIES.match(self._text, start, event.end_mark.index)
            return match.end() if match else event.end_mark.index
        return start

    def _refuse(self, what: str, offset: int, hint: str) -> NoReturn:
        raise ConfigError(what, where=str(self._place(offset)), hint=hint)


def shortened(text: str, limit: int = 60) -> str:
    """The text as it can stand in a message: quoted, control characters escaped, cut where it is long."""
    return repr(text if len(text) <= limit else text[:limit] + "...")


def parse_tree(text: str, place: Callable[[int], Place]) -> Node | None:
    """The one document of `text`, or None where there is none.

    Args:
        text: the whole file, byte-order mark included.
        place: from an offset in `text` to file, line and column.

    Raises:
        ConfigError: not YAML, a duplicate key, an unknown anchor, or more than the bounds above; with its place.
    """
    builder = _Builder(text, place)
    for event in _events(text, place):
        builder.take(event)
    return builder.roots[0] if builder.roots else None


def _events(text: str, place: Callable[[int], Place]) -> Iterator[_Event]:
    """The parser's events; whatever it raises becomes an error of ours."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    reached = 0
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            reached = event.end_mark.index
            yield event
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        offset = reached if mark is None else mark.index
        raise _syntax_error(text, str(error.problem or error.context), offset, place) from error
    except YAMLError as error:
        offset = getattr(error, "position", reached)
        raise _syntax_error(text, "a character that YAML does not allow", offset, place) from error
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, AssertionError) as error:
        # The parser has faults of its own, for example on escapes beyond Unicode.
        raise _syntax_error(text, "an escape or a directive that no reader understands", reached, place) from error


def _syntax_error(text: str, problem: str, offset: int, place: Callable[[int], Place]) -> ConfigError:
    where = str(place(min(offset, len(text))))
    if text[offset : offset + 1] == "\t":
        return ConfigError("a tab stands where YAML wants spaces", where=where, hint="replace the tab with spaces")
    return ConfigError(f"not YAML: {problem}", where=where, hint="correct the line; a quoted text is always safe")
