"""The name of a machine for stored measurements."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final

from magnitude_tune.fingerprint.values import Fingerprint
from magnitude_tune.units import MIB

__all__ = ["machine_hash"]

_LENGTH: Final = 16
# Kernels and microcode add and hide flags that have nothing to do with arithmetic (`ibrs`, `ssbd`).
_ARITHMETIC: Final = re.compile(r"s?sse|avx|amx|fma|f16c|bmi|asimd|fphp|neon|sve|sme|i8mm|bf16|zv|v$")
# The kernel's own share of memory moves by some MiB with its version; a limit or a module moves it by more.
_MEMORY_STEP: Final = 128 * MIB


def machine_hash(fingerprint: Fingerprint) -> str:
    """The first 16 hex digits of the SHA-256 of what decides speed and memory and does not move with load.

    Taken in: processor brand, architecture, arithmetic features, usable, performance and logical cores, SMT, quota;
    memory after limits, rounded to 128 MiB, and the limit of address space where there is one; name, backend,
    description and total of each device, rounded alike.
    Left out: host name, load, available and free memory, swap, measured rates, details, engines, notes.
    Devices that engines add (over RPC) come and go with the command line and are left out too.
    """
    cpu = fingerprint.cpu
    stable: dict[str, object] = {
        "cpu": [
            cpu.brand,
            cpu.architecture,
            sorted(filter(_ARITHMETIC.match, cpu.features)),
            cpu.usable_cores,
            cpu.performance_cores,
            cpu.logical_cpus,
            cpu.smt,
            cpu.quota_cores,
        ],
        "system": fingerprint.system,
        "memory": _rounded(fingerprint.memory.total_bytes),
        "devices": [
            [device.name, device.backend, device.description, _rounded(device.total_bytes)]
            for device in fingerprint.devices
            if device.backend != "rpc"
        ],
    }
    if fingerprint.memory.address_space_bytes is not None:
        stable["address_space"] = fingerprint.memory.address_space_bytes
    text = json.dumps(stable, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def _rounded(n_bytes: int | None) -> int | None:
    return None if n_bytes is None else round(n_bytes / _MEMORY_STEP)
