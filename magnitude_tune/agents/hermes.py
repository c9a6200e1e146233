"""Hermes: a block `inference_server:`, at the top of the file or under other keys."""

from __future__ import annotations

from magnitude_tune.agents.dialect import Dialect
from magnitude_tune.agents.document import AgentDocument
from magnitude_tune.agents.nodes import AliasNode, Entry, MappingNode, Node, ScalarNode, SequenceNode, followed
from magnitude_tune.errors import ConfigError

__all__ = ["HERMES"]

_BLOCK = "inference_server"
_HINT = "write under it, for example: magnitude: 4.0"


def _find(document: AgentDocument) -> MappingNode | None:
    found = _entries_named(document.root, _BLOCK)
    if not found:
        return None
    lines = [document.place(entry.key.start).line for entry in found]
    if len(found) > 1:
        raise ConfigError(
            f"{_BLOCK} stands on line {lines[0]} and on line {lines[1]}",
            where=str(document.place(found[1].key.start)),
            hint="keep one block for each file",
        )
    block = followed(found[0].value)
    if isinstance(block, MappingNode):
        return block
    where = str(document.place(found[0].value.start))
    if isinstance(block, ScalarNode) and block.end == block.start:
        raise ConfigError(f"{_BLOCK} is empty", where=where, hint=_HINT)
    raise ConfigError(f"{_BLOCK} must hold `key: value` pairs", where=where, hint=_HINT)


def _entries_named(root: MappingNode, name: str) -> list[Entry]:
    """Every entry of that name, in the file's order; aliases are not followed, so each block counts once."""
    found: list[Entry] = []
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, SequenceNode):
            waiting.extend(node.items)
        elif isinstance(node, MappingNode):
            for entry in node.entries:
                if isinstance(entry.key, ScalarNode) and entry.key.value == name:
                    found.append(entry)
                elif not isinstance(entry.value, AliasNode):
                    waiting.append(entry.value)
    return sorted(found, key=lambda entry: entry.key.start)


HERMES = Dialect(
    name="hermes",
    find=_find,
    written_names={"n_ctx": "max_ctx_size", "model": "model_path", "engine": "backend"},
)
