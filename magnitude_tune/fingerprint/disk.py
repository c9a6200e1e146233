"""How fast a model is read from disk: as measured earlier on its device, else a guess by the kinds of disk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Fact

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["disk_bandwidth", "guessed_disk_bandwidth"]

# Sequential reads in bytes/second, modest for the kind: PCIe 3.0 x4 and SATA carry 3.5 and 0.55 GB/s at most.
_KINDS: Final = (
    (r"nvme[0-9]+n[0-9]+", "NVMe disk", 2e9),
    (r"(vd|xvd)[a-z]+", "virtual disk", 5e8),
    (r"sd[a-z]+", "SATA or SCSI disk", 5e8),
    (r"mmcblk[0-9]+", "memory card", 8e7),
)
_ROTATING: Final = 1.5e8


def disk_bandwidth(tree: Tree, model: Path | None, *, measure: bool = False) -> Fact | None:
    """The rate of the device that holds the model, where it is this machine's; else a guess.

    It is the rate measured earlier; with `measure` it is measured now where it has not been.
    """
    if model is not None and tree.live:
        from magnitude_tune.fingerprint import filesystem

        if measure:
            rate = filesystem.measured_read_rate(model, filesystem.find_mount(model, tree))
        else:
            rate = filesystem.cached_read_rate(model, tree)
        if rate is not None:
            return rate
    return guessed_disk_bandwidth(tree)


def guessed_disk_bandwidth(tree: Tree) -> Fact | None:
    """A modest rate for the slowest kind of disk that the machine lists; None where it lists none.

    Which disk will hold the model is not known here, so the slowest counts.
    """
    found = [fact for name in tree.children("sys/block") if (fact := _disk(tree, name)) is not None]
    return min(found, key=lambda fact: fact.value, default=None)


def _disk(tree: Tree, name: str) -> Fact | None:
    for pattern, kind, rate in _KINDS:
        if re.fullmatch(pattern, name):
            # Virtual disks call themselves rotating whatever they rest on.
            if name.startswith("sd") and tree.number(f"sys/block/{name}/queue/rotational") == 1:
                return Fact(_ROTATING, f"guessed: {name} is a rotating disk")
            return Fact(rate, f"guessed: {name} is a {kind}")
    return None
