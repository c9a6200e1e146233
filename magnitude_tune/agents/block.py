"""The settings in a block: merge keys applied, names made ours, raw values with their places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from magnitude_tune.agents.dialect import ALIASES, NAMES, canonical_name
from magnitude_tune.agents.document import AgentDocument
from magnitude_tune.agents.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, followed
from magnitude_tune.agents.scalars import is_core_tag, scalar_value
from magnitude_tune.agents.yaml_tree import shortened
from magnitude_tune.errors import ConfigError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.request import Given

__all__ = ["BlockEntry", "given", "settings_of", "unknown_keys"]

_MAX_MERGES: Final = 32
_MAX_UNKNOWN: Final = 20
_MERGE_KEY = "<<"


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One setting of a block. `index` is its position among the block's own entries; None where it is merged in."""

    key: str
    entry: Entry
    index: int | None


def settings_of(document: AgentDocument, block: MappingNode) -> dict[str, BlockEntry]:
    """The block's entries by our names, its own before those of a merge key.

    Raises:
        ConfigError: one setting written under two names, or merge keys that lead too far.
    """
    settings: dict[str, BlockEntry] = {}
    for key, block_entry in _merged(document, block, 0).items():
        name = canonical_name(key)
        if name is None:
            continue
        earlier = settings.get(name)
        if earlier is not None and (earlier.index is None) == (block_entry.index is None):
            first, second = (document.place(entry.entry.key.start) for entry in (earlier, block_entry))
            raise ConfigError(
                f"{earlier.key} on line {first.line} and {key} on line {second.line} are the same setting",
                where=str(second),
                hint="keep one of the two",
            )
        if earlier is None or earlier.index is None:
            settings[name] = block_entry
    return settings


def unknown_keys(document: AgentDocument, block: MappingNode, *, all_of_them: bool) -> tuple[Finding, ...]:
    """A finding for each own key that is no setting; only for those that look like one unless `all_of_them`."""
    findings: list[Finding] = []
    for entry in block.entries:
        key = entry.key
        if len(findings) == _MAX_UNKNOWN:
            break
        if not isinstance(key, ScalarNode) or key.value == _MERGE_KEY or canonical_name(key.value) is not None:
            continue
        close = _closest(key.value)
        if close is not None or all_of_them:
            fix = f"did you mean {close}?" if close else None
            message = f"{shortened(key.value)} is not a setting; it is kept and not read"
            findings.append(Finding(Rule.UNKNOWN_KEY, message, document.place(key.start), fix))
    return tuple(findings)


def given(document: AgentDocument, node: Node) -> Given:
    """A raw value and its place; a list becomes a tuple of Given, a mapping a dict of Given.

    Raises:
        ConfigError: a value with a tag of another program.
    """
    place = document.place(node.start)
    target = followed(node)
    if isinstance(target, SequenceNode):
        return Given(tuple(given(document, item) for item in target.items), place)
    if isinstance(target, MappingNode):
        return Given({key: given(document, e.entry.value) for key, e in _merged(document, target, 0).items()}, place)
    if not is_core_tag(target.tag):
        what = f"the tag {shortened(str(target.tag))} has no meaning here"
        raise ConfigError(what, where=str(place), hint="write the value itself")
    return Given(scalar_value(target), place)


def _merged(document: AgentDocument, block: MappingNode, depth: int) -> dict[str, BlockEntry]:
    """Entries by key as written: own ones win over merged ones, earlier merged ones over later."""
    own: dict[str, BlockEntry] = {}
    merged: dict[str, BlockEntry] = {}
    for index, entry in enumerate(block.entries):
        key = entry.key
        if not isinstance(key, ScalarNode):
            continue
        if key.value != _MERGE_KEY or key.style is not None:
            own[key.value] = BlockEntry(key.value, entry, index)
            continue
        if depth >= _MAX_MERGES:
            where = str(document.place(key.start))
            raise ConfigError("merge keys lead too far", where=where, hint="write the settings out")
        for source in _merge_sources(document, entry):
            for name, found in _merged(document, source, depth + 1).items():
                merged.setdefault(name, BlockEntry(name, found.entry, None))
    return own | {name: found for name, found in merged.items() if name not in own}


def _merge_sources(document: AgentDocument, entry: Entry) -> list[MappingNode]:
    value = followed(entry.value)
    nodes = [followed(item) for item in value.items] if isinstance(value, SequenceNode) else [value]
    sources = [node for node in nodes if isinstance(node, MappingNode)]
    if len(sources) < len(nodes):
        where = str(document.place(entry.value.start))
        raise ConfigError("a merge key `<<` wants a mapping", where=where, hint="for example: <<: *defaults")
    return sources


def _closest(key: str) -> str | None:
    if len(key) > 40:
        return None
    import difflib

    matches = difflib.get_close_matches(key.replace("-", "_").lower(), [*NAMES, *ALIASES], n=1, cutoff=0.8)
    return matches[0] if matches else None
