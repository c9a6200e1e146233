"""Remembers, per machine and engine build, that repacked weights crash here.

Some virtual machines advertise AMX and then fault on it; the engine repacks the weights and dies on the first prompt.
It is kept with the measurements, not in the cache: a new version of ours must not crash an engine to find it out again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from magnitude_tune.engines.find import build_stamp
from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.values import EngineFacts
from magnitude_tune.storage import data_dir, read_regular, write_whole

__all__ = ["remember_illegal_instruction", "without_crashing_buffers"]

_MOST_ENTRIES: Final = 256
_LARGEST_BYTES: Final = 1 << 16


def remember_illegal_instruction(engine: EngineFacts, machine_hash: str) -> None:
    """Note that this build's extra buffers crash on this machine."""
    entry = _entry(engine, machine_hash)
    known = [kept for kept in _known() if kept != entry]
    text = json.dumps({"entries": [*known, entry][-_MOST_ENTRIES:]})
    with contextlib.suppress(UsageError):
        write_whole(_path(), text.encode())


def without_crashing_buffers(engines: tuple[EngineFacts, ...], machine_hash: str) -> tuple[EngineFacts, ...]:
    """The engines, with extra buffers cleared and the reason stated where they are known to crash here."""
    known = frozenset(_known())
    if not known:
        return engines
    return tuple(
        replace(
            engine,
            extra_buffers=(),
            extra_buffers_problem=f"repacked weights ({', '.join(engine.extra_buffers)}) crashed this build of "
            "the engine on this machine",
        )
        if engine.extra_buffers and _entry(engine, machine_hash) in known
        else engine
        for engine in engines
    )


def _path() -> Path:
    return data_dir() / "crashing-buffers.json"


def _known() -> list[str]:
    try:
        kept = json.loads(read_regular(_path(), _LARGEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    entries = kept.get("entries") if isinstance(kept, dict) else None
    return [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []


def _entry(engine: EngineFacts, machine_hash: str) -> str:
    parts = (machine_hash, engine.name, engine.path, engine.build, str(engine.ggml_version), build_stamp(engine.path))
    return hashlib.sha256("\n".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]
