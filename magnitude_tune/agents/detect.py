"""Which dialect a file is written in, and the raw values it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.agents.block import given, settings_of, unknown_keys
from magnitude_tune.agents.dialect import Dialect
from magnitude_tune.agents.document import AgentDocument, read_document
from magnitude_tune.agents.hermes import HERMES
from magnitude_tune.agents.nodes import MappingNode, ScalarNode
from magnitude_tune.agents.plain import PLAIN
from magnitude_tune.errors import ConfigError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.request import Given

__all__ = ["DIALECTS", "AgentRequest", "locate", "read_agent", "understood"]

DIALECTS: Final[tuple[Dialect, ...]] = (HERMES, PLAIN)
"""In the order they are tried: the one with a block of its own before the one that takes the whole file."""

_PATHS: Final = ("model", "mmproj", "model_draft")


class AgentRequest(NamedTuple):
    """What a file asks for, not yet validated.

    `values` has llama.cpp's names (`max_ctx_size` is `n_ctx`, `model_path` is `model`); the workload is flat, as
    `n_prompt` and `n_gen`. A list is a tuple of Given. A relative path to a model is joined to the file's folder.
    """

    dialect: str
    path: Path
    document: AgentDocument
    values: Mapping[str, Given]
    findings: tuple[Finding, ...] = ()


def read_agent(path: Path, dialect: str | None = None) -> AgentRequest:
    """Read a configuration file in the dialect it is written in, or in the one named.

    Raises:
        ConfigError: the file cannot be read, or holds no settings of ours.
    """
    return understood(read_document(path), dialect)


def understood(document: AgentDocument, dialect: str | None = None) -> AgentRequest:
    """The raw values of a document.

    Raises:
        ConfigError: no settings, a setting under two names, or a `workload` that is no mapping.
    """
    found, block = locate(document, dialect)
    values: dict[str, Given] = {}
    findings = list(unknown_keys(document, block, all_of_them=found.owns_block))
    for name, entry in settings_of(document, block).items():
        value = given(document, entry.entry.value)
        if name == "workload":
            findings.extend(_add_workload(value, values))
        elif name in _PATHS:
            is_path = name != "model" or entry.key.replace("-", "_") == "model_path"
            values[name] = _beside_file(value, document.path, is_path=is_path)
        else:
            values[name] = value
    if block is not document.root:
        findings.extend(_stray_magnitude(document))
    return AgentRequest(
        dialect=found.name, path=document.path, document=document, values=values, findings=tuple(findings)
    )


def locate(document: AgentDocument, dialect: str | None = None) -> tuple[Dialect, MappingNode]:
    """The dialect of a document and the block that holds the settings.

    Raises:
        ConfigError: no dialect, or not the one named, finds its block.
    """
    for candidate in DIALECTS:
        if dialect is not None and candidate.name != dialect:
            continue
        block = candidate.find(document)
        if block is not None:
            return candidate, block
    raise ConfigError(
        "the file holds no settings that we know",
        where=str(document.place(document.root.start)),
        hint="write `magnitude: 4.0` at its top, or a block `inference_server:` that holds it",
    )


def _add_workload(value: Given, values: dict[str, Given]) -> tuple[Finding, ...]:
    if value.raw is None or value.raw == "":
        return ()
    if not isinstance(value.raw, Mapping):
        raise ConfigError(
            "workload must hold n_prompt and n_gen",
            where=str(value.place),
            hint="for example: workload: {n_prompt: 512, n_gen: 128}",
        )
    known = {"n_prompt", "n_gen"}
    values.update((key, number) for key, number in value.raw.items() if key in known)
    unknown = ((key, number) for key, number in value.raw.items() if key not in known)
    return tuple(
        Finding(Rule.UNKNOWN_KEY, f"workload knows no {key[:60]!r}; it is not read", number.place, "n_prompt and n_gen")
        for key, number in unknown
    )


def _beside_file(value: Given, path: Path, *, is_path: bool) -> Given:
    """The model's path as seen from here; a bare name under `model` stays a name."""
    raw = value.raw
    if not isinstance(raw, str) or not raw or "://" in raw:
        return value
    if not (is_path or "/" in raw or "\\" in raw or raw.lower().endswith(".gguf")):
        return value
    try:
        return Given(str(path.parent / Path(raw).expanduser()), value.place)
    except RuntimeError:
        # No such user: the path is taken as it stands, and not found.
        return value


def _stray_magnitude(document: AgentDocument) -> tuple[Finding, ...]:
    """A magnitude beside the block that is read, where nobody reads it."""
    for entry in document.root.entries:
        if isinstance(entry.key, ScalarNode) and entry.key.value == "magnitude":
            place: Place = document.place(entry.key.start)
            message = "magnitude stands outside inference_server, where it is not read"
            return (Finding(Rule.UNKNOWN_KEY, message, place, "move it into the block"),)
    return ()
