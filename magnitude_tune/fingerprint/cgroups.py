"""Limits that control groups set, version 1 and 2: this group and all its ancestors, the tightest of each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.tree import Tree

__all__ = ["MemoryLimit", "cpu_quota", "cpuset", "memory_limits"]

_MOUNT: Final = "sys/fs/cgroup"
# Version 1 writes "no limit" as the largest page-aligned number, which depends on the page size.
_NO_LIMIT: Final = 1 << 60
_DEEPEST: Final = 64


class MemoryLimit(NamedTuple):
    """One level that limits memory, in bytes: its limit, what it uses less reclaimable file pages, and its file."""

    limit_bytes: int
    used_bytes: int
    source: str

    @property
    def available_bytes(self) -> int:
        """What may still be allocated below the limit."""
        return max(0, self.limit_bytes - self.used_bytes)


def memory_limits(tree: Tree) -> tuple[MemoryLimit, ...]:
    """Every level with a memory limit.

    Version 2 limits by `memory.max` and `memory.high`: above `high` a group is slowed down until it frees memory, so
    nothing should be planned there. Version 1 limits by `memory.limit_in_bytes`; `hierarchical_memory_limit` also
    carries limits of ancestors that a container cannot see. File pages that were not used lately
    (`inactive_file`) are taken back before anything is refused, so they do not count as used.
    """
    found = [
        _limit(tree, f"{folder}/{name}", tree.number(f"{folder}/{name}"))
        for folder in _levels(tree, "memory")
        for name in ("memory.max", "memory.high")
    ]
    for folder in _levels(tree, "memory", version=1):
        stated = tree.number(f"{folder}/memory.limit_in_bytes")
        inherited = _statistics(tree, folder).get("hierarchical_memory_limit")
        found += [_limit(tree, f"{folder}/memory.limit_in_bytes", stated)]
        found += [_limit(tree, f"{folder}/memory.stat", inherited)]
    return tuple(limit for limit in found if limit is not None)


def _limit(tree: Tree, source: str, limit: int | None) -> MemoryLimit | None:
    """The limit that a file sets, with the usage that stands beside it; None for no limit."""
    if limit is None or not 0 < limit < _NO_LIMIT:
        return None
    folder = source.rpartition("/")[0]
    usages = (tree.number(f"{folder}/{name}") for name in ("memory.current", "memory.usage_in_bytes"))
    usage = next((usage for usage in usages if usage is not None), 0)
    statistics = _statistics(tree, folder)
    # In version 1 the plain name counts this group alone, but usage counts its descendants too.
    reclaimable = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
    return MemoryLimit(limit, max(0, usage - reclaimable), f"/{source}")


def _statistics(tree: Tree, folder: str) -> dict[str, int]:
    pairs = re.findall(r"^(\w+) ([0-9]{1,20})$", tree.text(f"{folder}/memory.stat") or "", re.ASCII | re.MULTILINE)
    return {name: int(value) for name, value in pairs}


def cpu_quota(tree: Tree) -> tuple[float, str] | None:
    """The tightest CPU quota in cores, fractions kept, and the file that sets it; None without one."""
    quotas: list[tuple[float, str]] = []
    for folder in _levels(tree, "cpu"):
        words = (tree.word(f"{folder}/cpu.max") or "").split()
        if len(words) == 2 and all(re.fullmatch(r"[0-9]{1,15}", word, re.ASCII) for word in words):
            quotas += _cores(int(words[0]), int(words[1]), f"/{folder}/cpu.max")
    for folder in _levels(tree, "cpu", version=1):
        quota = tree.number(f"{folder}/cpu.cfs_quota_us")
        period = tree.number(f"{folder}/cpu.cfs_period_us")
        if quota is not None and period is not None:
            quotas += _cores(quota, period, f"/{folder}/cpu.cfs_quota_us")
    return min(quotas, default=None)


def _cores(quota: int, period: int, source: str) -> list[tuple[float, str]]:
    return [(quota / period, source)] if quota > 0 and period > 0 else []


def cpuset(tree: Tree) -> frozenset[int]:
    """CPUs that the nearest group with a set allows; empty without one. A live process has an affinity instead."""
    names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
    folders = [*_levels(tree, "cpuset"), *_levels(tree, "cpuset", version=1)]
    return next((cpus for folder in folders for name in names if (cpus := tree.cpus(f"{folder}/{name}"))), frozenset())


def _levels(tree: Tree, controller: str, version: int = 2) -> Iterator[str]:
    """Folders of this process's group and its ancestors, nearest first, relative to the root.

    Inside a container the path may name a folder that only the host can see: such folders hold no files here, and
    the walk ends at the mount, which then is the container's own group.
    """
    mounts, path = _place(tree, controller, version)
    parts = [part for part in path.split("/") if part not in ("", ".", "..")][:_DEEPEST]
    for depth in range(len(parts), -1, -1):
        for mount in mounts:
            yield "/".join([mount, *parts[:depth]])


def _place(tree: Tree, controller: str, version: int) -> tuple[tuple[str, ...], str]:
    """Where the controller is mounted, by custom, and this process's path in it; the path is `/` where unknown."""
    if version == 2:
        mounts: tuple[str, ...] = (_MOUNT, f"{_MOUNT}/unified")
    else:
        mounts = (f"{_MOUNT}/{controller}",)
    for line in (tree.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version == 2 and number == "0" and not controllers:
            return mounts, path
        if version == 1 and controller in controllers.split(",") and re.fullmatch(r"[\w,]+", controllers, re.ASCII):
            # Kernels list joint controllers in one order, and the folder's name may have them in another.
            ordered = ",".join(sorted(controllers.split(",")))
            return tuple(dict.fromkeys((f"{_MOUNT}/{controllers}", f"{_MOUNT}/{ordered}", *mounts))), path
    return mounts, "/"
