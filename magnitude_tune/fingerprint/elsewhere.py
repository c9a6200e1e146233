"""macOS and Windows: what `sysctl`, the registry and psutil say."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from magnitude_tune.fingerprint.processor import Processor
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.topology import Topology
from magnitude_tune.fingerprint.values import Memory

__all__ = ["fact_number", "read_sysctl", "system_memory", "system_processor", "system_topology"]

_SECONDS: Final = 5.0
_NAMES: Final = (
    "machdep.cpu.brand_string",
    "hw.physicalcpu",
    "hw.logicalcpu",
    "hw.perflevel0.physicalcpu",
    "hw.memsize",
    "hw.cpufrequency_max",
    "hw.optional.arm64",
    "hw.optional.arm.FEAT_DotProd",
    "hw.optional.arm.FEAT_I8MM",
    "hw.optional.arm.FEAT_BF16",
    "hw.optional.avx2_0",
    "hw.optional.avx512f",
    "iogpu.wired_limit_mb",
    "hw.packages",
    "hw.perflevel1.physicalcpu",
    "hw.perflevel0.l1dcachesize",
    "hw.perflevel0.l2cachesize",
    "hw.perflevel0.cpusperl2",
    "hw.l1dcachesize",
    "hw.l2cachesize",
    "hw.l3cachesize",
    "kern.hv_vmm_present",
)
_FEATURES: Final = (
    ("hw.optional.arm64", ("asimd", "asimdhp")),
    ("hw.optional.arm.FEAT_DotProd", ("asimddp",)),
    ("hw.optional.arm.FEAT_I8MM", ("i8mm",)),
    ("hw.optional.arm.FEAT_BF16", ("bf16",)),
    ("hw.optional.avx2_0", ("avx", "avx2", "fma", "f16c")),
    ("hw.optional.avx512f", ("avx512f",)),
)


def read_sysctl(run: CommandRunner) -> dict[str, str]:
    """macOS's figures by name; names that this system does not know are left out."""
    completed = run(("sysctl", *_NAMES), _SECONDS)
    lines = re.findall(r"^([\w.]+): (.*)$", completed.stdout, re.MULTILINE)
    return {name: value.strip() for name, value in lines if name in _NAMES and value.strip()}


def fact_number(facts: Mapping[str, str], name: str) -> int | None:
    """One of macOS's figures as a number above zero; None for anything else."""
    value = facts.get(name, "")
    return int(value) if re.fullmatch(r"[0-9]{1,18}", value, re.ASCII) and int(value) > 0 else None


def system_processor(facts: dict[str, str]) -> Processor:
    """Brand, features and clock as `sysctl` or the registry has them."""
    brand = facts.get("machdep.cpu.brand_string") or _registry_brand()
    features = {feature for name, features in _FEATURES if facts.get(name) == "1" for feature in features}
    hertz = fact_number(facts, "hw.cpufrequency_max")
    source = "sysctl" if facts else "registry"
    return Processor(
        brand=brand[:120] if brand else None,
        architecture=None,
        features=frozenset(features),
        max_hertz=float(hertz) if hertz else None,
        sources=(("brand", source if brand else "unknown"), ("features", source if features else "unknown")),
    )


def _registry_brand() -> str | None:
    if sys.platform == "win32":
        import winreg

        try:
            path = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
                return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip() or None
        except OSError:
            return None
    return None


def system_topology(facts: dict[str, str]) -> Topology:
    """Cores as the system counts them, over all processor groups; macOS's performance cores where it has two kinds."""
    import psutil

    logical = fact_number(facts, "hw.logicalcpu") or psutil.cpu_count() or 1
    physical = fact_number(facts, "hw.physicalcpu") or psutil.cpu_count(logical=False)
    allowed = _affinity(psutil.Process(), logical)
    fast = fact_number(facts, "hw.perflevel0.physicalcpu") or physical or logical
    smt = None if physical is None else logical > physical
    reachable = len(allowed) if not smt or physical is None else max(1, len(allowed) * physical // logical)
    source = "sysctl" if facts else "psutil"
    return Topology(
        online=frozenset(range(logical)),
        allowed=allowed,
        performance_cores=max(1, min(fast, reachable)),
        smt=smt,
        sources=(("cpus", source), ("performance_cores", source)),
    )


def _affinity(process: object, logical: int) -> frozenset[int]:
    """CPUs of the affinity; all where the system has none, or where a process sees one processor group of several."""
    ask = getattr(process, "cpu_affinity", None)
    try:
        cpus: Sequence[int] = ask() if ask is not None and logical <= 64 else ()
    except (OSError, ValueError):
        cpus = ()
    return frozenset(cpus) or frozenset(range(logical))


def system_memory() -> Memory:
    """Total and available memory, and swap, by psutil."""
    import psutil

    memory = psutil.virtual_memory()
    swap = psutil.swap_memory()
    return Memory(
        total_bytes=memory.total,
        available_bytes=min(memory.available, memory.total),
        host_total_bytes=memory.total,
        swap_total_bytes=swap.total,
        swap_free_bytes=swap.free,
        sources=(("total", "psutil"), ("available", "psutil")),
    )
