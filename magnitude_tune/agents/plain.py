"""Our own form: the settings at the top of the file, beside whatever else it holds."""

from __future__ import annotations

from magnitude_tune.agents.dialect import Dialect, canonical_name
from magnitude_tune.agents.document import AgentDocument
from magnitude_tune.agents.nodes import MappingNode, ScalarNode

__all__ = ["PLAIN"]


def _find(document: AgentDocument) -> MappingNode | None:
    keys = (entry.key for entry in document.root.entries)
    names = {canonical_name(key.value) for key in keys if isinstance(key, ScalarNode)}
    return document.root if names - {None} else None


PLAIN = Dialect(name="plain", find=_find, owns_block=False)
