"""What the machine is busy with: load, stolen time, stalls, and huge pages. Read on demand."""

from __future__ import annotations

import os
import re
from typing import Final

from magnitude_tune.fingerprint.details import HugePages, Pressure
from magnitude_tune.fingerprint.tree import Tree

__all__ = ["read_huge_pages", "read_load", "read_pressure", "read_steal_share"]

_RESOURCES: Final = ("cpu", "memory", "io")
_STEAL: Final = 7
_GUEST: Final = 8


def read_load(tree: Tree) -> tuple[float, float, float] | None:
    """Runnable tasks over 1, 5 and 15 minutes; None where nobody says."""
    found = re.match(r"([0-9.]{1,12}) ([0-9.]{1,12}) ([0-9.]{1,12}) ", tree.text("proc/loadavg") or "")
    if found is None:
        return os.getloadavg() if tree.live and hasattr(os, "getloadavg") else None
    try:
        return float(found[1]), float(found[2]), float(found[3])
    except ValueError:
        return None


def read_steal_share(tree: Tree) -> float | None:
    """Stolen time over all time since boot, from `/proc/stat`; None where the kernel does not count it.

    Guest time is counted within user time, so it is left out of the sum.
    """
    line = (tree.word("proc/stat") or "").split()
    if len(line) <= _STEAL + 1 or line[0] != "cpu" or not all(re.fullmatch("[0-9]{1,19}", word) for word in line[1:]):
        return None
    ticks = [int(word) for word in line[1 : _GUEST + 1]]
    total = sum(ticks)
    return ticks[_STEAL] / total if total else None


def read_pressure(tree: Tree) -> tuple[Pressure, ...]:
    """Stalls of this machine by resource; empty where the kernel does not measure them."""
    found = (_pressure(tree, resource) for resource in _RESOURCES)
    return tuple(pressure for pressure in found if pressure is not None)


def _pressure(tree: Tree, resource: str) -> Pressure | None:
    pattern = r"^(some|full) avg10=([0-9.]{1,8}) avg60=([0-9.]{1,8}) avg300=[0-9.]{1,8} total=([0-9]{1,19})$"
    lines = re.findall(pattern, tree.text(f"proc/pressure/{resource}") or "", re.ASCII | re.MULTILINE)
    try:
        shares = {kind: (_share(ten), _share(sixty), int(total) / 1e6) for kind, ten, sixty, total in lines}
    except ValueError:
        return None
    if "some" not in shares:
        return None
    some, full = shares["some"], shares.get("full")
    return Pressure(resource, some[0], some[1], full[0] if full else None, full[1] if full else None, some[2])


def _share(percent: str) -> float:
    return min(float(percent) / 100, 1.0)


def read_huge_pages(tree: Tree) -> HugePages | None:
    """Transparent huge pages as set, and the pages reserved; None where neither is known."""
    chosen = re.search(r"\[(\w{1,20})\]", tree.text("sys/kernel/mm/transparent_hugepage/enabled") or "", re.ASCII)
    lines = re.findall(
        r"^(HugePages_Total|HugePages_Free|Hugepagesize):\s+([0-9]{1,9})( kB)?$",
        tree.text("proc/meminfo") or "",
        re.ASCII | re.MULTILINE,
    )
    fields = {name: int(value) for name, value, _ in lines}
    if chosen is None and not fields:
        return None
    kib = fields.get("Hugepagesize")
    return HugePages(
        transparent=chosen[1] if chosen else None,
        reserved=fields.get("HugePages_Total"),
        free=fields.get("HugePages_Free"),
        page_bytes=kib * 1024 if kib is not None else None,
    )
