"""The GPU of an Apple chip: it shares the host's memory, up to a limit that macOS sets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from magnitude_tune.fingerprint.cards import CardFacts
from magnitude_tune.fingerprint.device_table import guessed_rates, known_device, least_variant
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.values import HOST_POOL, Device, Memory
from magnitude_tune.storage import read_cached, write_cached
from magnitude_tune.units import GIB, MIB

__all__ = ["metal_cap", "read_apple"]

_SECONDS: Final = 5.0
_CACHE_NAME: Final = "apple_gpu"


def read_apple(facts: Mapping[str, str], run: CommandRunner, memory: Memory) -> CardFacts:
    """The GPU of an Apple chip; nothing on Intel's Macs, whose GPUs have memory that nothing here measures.

    Args:
        facts: what `sysctl` said, by name.
        run: runs `system_profiler`, once for a chip that comes with several numbers of GPU cores.
        memory: the host's memory.
    """
    brand = facts.get("machdep.cpu.brand_string", "")[:120]
    if facts.get("hw.optional.arm64") != "1" or not brand:
        return CardFacts()
    cap = metal_cap(facts, memory.total_bytes)
    cores, metal = _gpu(brand, run) if least_variant(brand) else (None, None)
    known = (known_device(f"{brand} ({cores}-core GPU)", None) if cores else None) or known_device(brand, None)
    known = known or least_variant(brand)
    guessed = guessed_rates(brand, shares_host=True)
    device = Device(
        name="MTL0",
        backend="metal",
        pool=HOST_POOL,
        description=brand,
        total_bytes=memory.total_bytes,
        free_bytes=min(memory.available_bytes, cap),
        bandwidth=known.bandwidth if known else guessed[0],
        flops=known.flops if known else guessed[1],
        cap_bytes=cap,
        unified=True,
        runtime=metal,
        source="sysctl",
    )
    return CardFacts((device,))


def metal_cap(facts: Mapping[str, str], total_bytes: int) -> int:
    """Bytes the GPU may keep resident: `iogpu.wired_limit_mb` where it is set, else macOS's default.

    The default (`recommendedMaxWorkingSetSize`, as engines log it) is two thirds of the memory up to 32 GiB, three
    quarters above.
    """
    setting = facts.get("iogpu.wired_limit_mb", "")
    limit = int(setting) if re.fullmatch(r"[0-9]{1,12}", setting, re.ASCII) else 0
    if limit:
        return min(limit * MIB, total_bytes)
    return max(1, total_bytes * 2 // 3 if total_bytes <= 32 * GIB else total_bytes * 3 // 4)


def _gpu(brand: str, run: CommandRunner) -> tuple[int | None, str | None]:
    """GPU cores and the Metal family; asked once, because `system_profiler` takes most of a second."""
    kept = read_cached(_CACHE_NAME, brand) or {}
    if not kept:
        completed = run(("system_profiler", "SPDisplaysDataType", "-json"), _SECONDS)
        kept = _displayed(completed.stdout) if completed.returncode == 0 else {}
        if kept:
            write_cached(_CACHE_NAME, brand, kept)
    cores, metal = kept.get("cores"), kept.get("metal")
    return cores if isinstance(cores, int) else None, metal if isinstance(metal, str) else None


def _displayed(text: str) -> dict[str, object]:
    """Cores and Metal family of the first Apple GPU in `system_profiler`'s answer; empty where it cannot be read."""
    try:
        answer = json.loads(text)
        listed = answer["SPDisplaysDataType"]
        gpus = [gpu for gpu in listed if "Apple" in str(gpu.get("sppci_model", ""))]
        cores = str(gpus[0].get("sppci_cores", ""))
        family = str(gpus[0].get("spdisplays_mtlgpufamilysupport", ""))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return {}
    found: dict[str, object] = {}
    if re.fullmatch(r"[0-9]{1,3}", cores, re.ASCII) and int(cores):
        found["cores"] = int(cores)
    if named := re.fullmatch(r"spdisplays_metal([0-9]{1,2})", family, re.ASCII):
        found["metal"] = f"Metal {named[1]}"
    return found
