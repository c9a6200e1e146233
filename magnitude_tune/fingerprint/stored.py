"""A machine as a document: written for other tools and for `--machine`, read back strictly."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnitude_tune.errors import InputFileError, UsageError
from magnitude_tune.findings import Finding
from magnitude_tune.fingerprint.identity import machine_hash
from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.storage import read_regular, shipped_dir

if TYPE_CHECKING:
    from magnitude_tune.fingerprint.details import Details

__all__ = ["SCHEMA_VERSION", "from_document", "load_machine", "profile_names", "to_document"]

SCHEMA_VERSION: Final = 1

_LARGEST_FILE_BYTES: Final = 1 << 20


def to_document(fingerprint: Fingerprint) -> dict[str, object]:
    """A fingerprint as JSON-able values in base units; `from_document` gives the same machine back, marked stored."""
    return {
        "schema_version": SCHEMA_VERSION,
        "hash": fingerprint.machine_hash,
        "hostname": fingerprint.hostname,
        "system": fingerprint.system,
        "cpu": _cpu(fingerprint.cpu),
        "memory": _memory(fingerprint.memory),
        "pools": [_pool(pool) for pool in fingerprint.pools],
        "devices": [_device(device) for device in fingerprint.devices],
        "engines": [_engine(engine) for engine in fingerprint.engines],
        "disk_bandwidth": _fact(fingerprint.disk_bandwidth),
        "notes": [_note(note) for note in fingerprint.notes],
        "details": None if fingerprint.details is None else _details(fingerprint.details),
    }


def _fact(fact: Fact | None) -> dict[str, object] | None:
    return None if fact is None else {"value": fact.value, "source": fact.source}


def _cpu(cpu: Cpu) -> dict[str, object]:
    return {
        "brand": cpu.brand,
        "architecture": cpu.architecture,
        "usable_cores": cpu.usable_cores,
        "performance_cores": cpu.performance_cores,
        "logical_cpus": cpu.logical_cpus,
        "affinity_cpus": cpu.affinity_cpus,
        "smt": cpu.smt,
        "quota_cores": cpu.quota_cores,
        "features": sorted(cpu.features),
        "max_hertz": cpu.max_hertz,
        "bandwidth": _fact(cpu.bandwidth),
        "flops": _fact(cpu.flops),
        "sources": dict(cpu.sources),
    }


def _memory(memory: Memory) -> dict[str, object]:
    return {
        "total_bytes": memory.total_bytes,
        "available_bytes": memory.available_bytes,
        "host_total_bytes": memory.host_total_bytes,
        "swap_total_bytes": memory.swap_total_bytes,
        "swap_free_bytes": memory.swap_free_bytes,
        "limit_source": memory.limit_source,
        "address_space_bytes": memory.address_space_bytes,
        "locked_bytes": memory.locked_bytes,
        "sources": dict(memory.sources),
    }


def _pool(pool: Pool) -> dict[str, object]:
    return {
        "name": pool.name,
        "kind": pool.kind,
        "total_bytes": pool.total_bytes,
        "available_bytes": pool.available_bytes,
    }


def _device(device: Device) -> dict[str, object]:
    return {
        "name": device.name,
        "backend": device.backend,
        "pool": device.pool,
        "description": device.description,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "cap_bytes": device.cap_bytes,
        "unified": device.unified,
        "integrated": device.integrated,
        "bandwidth": _fact(device.bandwidth),
        "flops": _fact(device.flops),
        "link_bandwidth": _fact(device.link_bandwidth),
        "compute_capability": device.compute_capability,
        "bus": device.bus,
        "driver": device.driver,
        "runtime": device.runtime,
        "source": device.source,
    }


def _engine(engine: EngineFacts) -> dict[str, object]:
    return {
        "name": engine.name,
        "path": engine.path,
        "build": engine.build,
        "ggml_version": engine.ggml_version,
        "problem": engine.problem,
        "backends": list(engine.backends),
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "total_bytes": device.total_bytes,
                "free_bytes": device.free_bytes,
                "integrated": device.integrated,
            }
            for device in engine.devices
        ],
        "extra_buffers": list(engine.extra_buffers),
        "extra_buffers_problem": engine.extra_buffers_problem,
        "gpu_offload": engine.gpu_offload,
        "prompt_cache": engine.prompt_cache,
        "flags": sorted(engine.flags),
        "cuda_archs": list(engine.cuda_archs),
    }


def _note(note: Finding) -> dict[str, object]:
    place = note.place
    return {
        "id": note.rule.id,
        "severity": note.rule.severity.value,
        "message": note.message,
        "file": place.label if place else None,
        "line": place.line if place else None,
        "column": place.column if place else None,
        "fix": note.fix,
        "setting": note.setting,
    }


def _details(details: Details) -> dict[str, object]:
    return {**_plain_fields(details._asdict()), "sources": dict(details.sources)}


def _plain_fields(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: _plain(value) for name, value in fields.items()}


def _plain(value: object) -> object:
    """Named tuples as objects by their field names, other tuples as lists."""
    if isinstance(value, tuple):
        return _plain_fields(value._asdict()) if hasattr(value, "_asdict") else [_plain(item) for item in value]
    return value


def from_document(document: Mapping[str, object], where: str) -> Fingerprint:
    """Read a machine from JSON values; a missing hash is computed, everything else must be right.

    Args:
        document: the parsed JSON object.
        where: the file or the name it came from, for errors.

    Raises:
        InputFileError: a key is missing, unknown or wrong; names the key.
    """
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        what = "has no schema_version" if version is None else f"has schema_version {version!r}, which is not known"
        raise InputFileError(
            f"this machine {what}", where=where, hint=f"this version reads schema_version {SCHEMA_VERSION}"
        )
    from magnitude_tune.fingerprint.schema import read_machine

    fingerprint = read_machine(document, where)
    if not fingerprint.machine_hash:
        fingerprint = replace(fingerprint, machine_hash=machine_hash(fingerprint))
    return fingerprint


def load_machine(name_or_path: str) -> Fingerprint:
    """A machine from a JSON file, or a shipped profile by its name.

    Text with a folder separator or ending in `.json`, and what exists under that name, is a path; other text names a
    profile.

    Raises:
        UsageError: no such profile; the hint names the nearest ones.
        InputFileError: the file cannot be read or is not a machine.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or {"/", os.sep} & set(name_or_path) or _is_there(path):
        return _read(path)
    if name_or_path in (names := profile_names()):
        return _read(shipped_dir("profiles") / f"{name_or_path}.json")
    near = get_close_matches(name_or_path, names, n=3, cutoff=0.4) or list(names)
    raise UsageError(
        f"no machine named {name_or_path!r}",
        where="--machine",
        hint=f"near names: {', '.join(near)}" if near else "give the path of a file made by `fingerprint --json`",
    )


def _is_there(path: Path) -> bool:
    try:
        return path.name != "" and path.exists()
    except (OSError, ValueError):
        return False


def profile_names() -> tuple[str, ...]:
    """Names of the shipped machines, in order."""
    return tuple(sorted(path.stem for path in shipped_dir("profiles").glob("*.json")))


def _read(path: Path) -> Fingerprint:
    hint = "write one with `magnitude-tune fingerprint --json -o machine.json`"
    try:
        content = read_regular(path, _LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputFileError(f"cannot read this machine: {reason}", where=str(path), hint=hint) from error
    if len(content) > _LARGEST_FILE_BYTES:
        raise InputFileError("too large for a machine: more than 1 MiB", where=str(path), hint=hint)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputFileError(f"not JSON: {error}", where=str(path), hint=hint) from error
    if not isinstance(document, dict):
        raise InputFileError("not a machine: the file must hold one JSON object", where=str(path), hint=hint)
    return from_document(document, str(path))
