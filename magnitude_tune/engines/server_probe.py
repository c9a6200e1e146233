"""Asks a llama-server what it can do; a server that cannot run here is a fact with its reason, not a failure."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from magnitude_tune import storage
from magnitude_tune.engines import server_files
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts, EngineName

__all__ = ["find_server", "from_stored", "to_stored"]


def find_server(*, engine_path: str | None, rpc: tuple[str, ...]) -> EngineFacts | None:
    """The llama-server to use here and what it can do; None if there is none.

    Looked for at `engine_path`, else on PATH, else in an installed package; the first that can run (and has RPC, if
    that is wanted), or else the first, with its problem. What it can do is remembered until its files change;
    devices, whose free memory changes, are asked for each time if there are any.

    Args:
        engine_path: a llama-server, or a folder that holds one.
        rpc: addresses of RPC servers, `host:port`, whose devices are wanted.

    Raises:
        UsageError: `engine_path` is no llama-server, or an RPC server does not answer.
    """
    explicit = engine_path is not None
    paths = server_files.installed_programs() if engine_path is None else [server_files.explicit_program(engine_path)]
    found = [facts for path in paths if (facts := _facts(path, explicit=explicit)) is not None]
    usable = [facts for facts in found if facts.problem is None]
    if not usable:
        return found[0] if found else None
    chosen = next((facts for facts in usable if "rpc" in facts.flags), usable[0]) if rpc else usable[0]
    if not rpc and not chosen.devices:
        return chosen
    from magnitude_tune.engines.server_questions import with_devices

    return with_devices(chosen, rpc)


def _facts(program: Path, *, explicit: bool) -> EngineFacts | None:
    name = f"llama-server-{hashlib.sha256(str(program).encode()).hexdigest()[:12]}"
    key = server_files.identity(program)
    if (stored := storage.read_cached(name, key)) is not None and (
        facts := from_stored(stored, "llama_server")
    ) is not None:
        return facts
    # Imported here: from a warm cache, `resolve` needs nothing that runs a program.
    from magnitude_tune.engines.server_questions import probe
    from magnitude_tune.engines.values import CrashKind

    facts = probe(program, explicit=explicit)
    # What keeps a program from running may pass, a missing library or a busy machine; what it was built for stays.
    if facts is not None and (facts.problem is None or facts.problem.startswith(CrashKind.ILLEGAL_INSTRUCTION.value)):
        storage.write_cached(name, key, to_stored(facts))
    return facts


def to_stored(facts: EngineFacts) -> dict[str, object]:
    """The facts as one JSON object."""
    return asdict(facts) | {"flags": sorted(facts.flags)}


def from_stored(stored: dict[str, Any], engine: EngineName) -> EngineFacts | None:
    """What `to_stored` made of that engine's facts; None where the file holds anything else."""
    try:
        texts = {name: tuple(map(str, stored[name])) for name in ("backends", "extra_buffers", "flags")}
        return EngineFacts(
            name=engine,
            path=str(stored["path"]),
            build=str(stored["build"]),
            ggml_version=_text_or_none(stored["ggml_version"]),
            problem=_text_or_none(stored["problem"]),
            backends=texts["backends"],
            devices=tuple(
                EngineDevice(
                    str(d["name"]),
                    str(d["description"]),
                    int(d["total_bytes"]),
                    int(d["free_bytes"]),
                    d.get("integrated") is True,
                )
                for d in stored["devices"]
            ),
            extra_buffers=texts["extra_buffers"],
            prompt_cache=stored["prompt_cache"] is True,
            flags=frozenset(texts["flags"]),
            cuda_archs=tuple(map(int, stored.get("cuda_archs", ()))),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)
