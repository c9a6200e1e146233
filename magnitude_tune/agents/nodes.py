"""What a YAML file holds, as written: nodes that know where they stand in the text and are never expanded."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AliasNode", "Entry", "MappingNode", "Node", "ScalarNode", "SequenceNode", "followed"]


class ScalarNode(NamedTuple):
    """One scalar. `start` and `end` enclose it in the text, quotes included, anchor and tag left out.

    `value` is the text with quotes and escapes undone; `style` is None for a plain scalar, else its first character.
    """

    value: str
    style: str | None
    tag: str | None
    anchor: str | None
    start: int
    end: int


class MappingNode(NamedTuple):
    """Keys and values in their order. `end` of a block mapping is where its last value ends."""

    entries: tuple[Entry, ...]
    flow: bool
    tag: str | None
    anchor: str | None
    start: int
    end: int


class SequenceNode(NamedTuple):
    """Items in their order. `end` of a block sequence is where its last item ends."""

    items: tuple[Node, ...]
    flow: bool
    tag: str | None
    anchor: str | None
    start: int
    end: int


class AliasNode(NamedTuple):
    """`*name`, and the node it stands for."""

    name: str
    target: Node
    start: int
    end: int


Node = ScalarNode | MappingNode | SequenceNode | AliasNode


class Entry(NamedTuple):
    """A key and its value."""

    key: Node
    value: Node


def followed(node: Node) -> ScalarNode | MappingNode | SequenceNode:
    """The node itself, or what its alias stands for."""
    while isinstance(node, AliasNode):
        node = node.target
    return node
