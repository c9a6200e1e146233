"""Details of macOS and Windows machines: what `sysctl` and psutil say. Read on demand."""

from __future__ import annotations

from collections.abc import Mapping

from magnitude_tune.fingerprint.details import Cache
from magnitude_tune.fingerprint.elsewhere import fact_number
from magnitude_tune.fingerprint.structure import Structure

__all__ = ["system_caches", "system_structure", "system_virtual_machine"]


def system_structure(facts: Mapping[str, str]) -> Structure:
    """Packages and cores of each kind; macOS names its performance levels, psutil counts cores alone."""
    import psutil

    logical = fact_number(facts, "hw.logicalcpu") or psutil.cpu_count() or 1
    physical = fact_number(facts, "hw.physicalcpu") or psutil.cpu_count(logical=False)
    if physical is None:
        return Structure(fact_number(facts, "hw.packages"), None, None, None)
    return Structure(
        packages=fact_number(facts, "hw.packages"),
        physical_cores=physical,
        efficiency_cores=(fact_number(facts, "hw.perflevel1.physicalcpu") or 0) if facts else None,
        threads_per_core=max(1, logical // physical),
    )


def system_caches(facts: Mapping[str, str]) -> tuple[Cache, ...]:
    """Caches of macOS's fastest cores, which are those that work is planned for; none elsewhere."""
    cores = fact_number(facts, "hw.perflevel0.physicalcpu") or fact_number(facts, "hw.physicalcpu")
    if cores is None:
        return ()
    caches = []
    if data := fact_number(facts, "hw.perflevel0.l1dcachesize") or fact_number(facts, "hw.l1dcachesize"):
        caches.append(Cache(1, "data", data, cores, 1))
    if second := fact_number(facts, "hw.perflevel0.l2cachesize") or fact_number(facts, "hw.l2cachesize"):
        shared = min(fact_number(facts, "hw.perflevel0.cpusperl2") or 1, cores)
        caches.append(Cache(2, "unified", second, max(1, cores // shared), shared))
    if third := fact_number(facts, "hw.l3cachesize"):
        caches.append(Cache(3, "unified", third, fact_number(facts, "hw.packages") or 1, cores))
    return tuple(caches)


def system_virtual_machine(facts: Mapping[str, str]) -> tuple[str | None, str]:
    """Whether macOS runs below a hypervisor, and what says so."""
    told = facts.get("kern.hv_vmm_present")
    if told not in ("0", "1"):
        return None, "unknown"
    return ("unknown" if told == "1" else "none"), "sysctl kern.hv_vmm_present"
