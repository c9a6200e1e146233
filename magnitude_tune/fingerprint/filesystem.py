"""What a model file lies on, and how fast that is read: measured by samples of the file, cached per device."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Fact

__all__ = ["Mount", "cached_read_rate", "filesystem_note", "find_mount", "measured_read_rate"]

_RETRY_SECONDS: Final = 7 * 86400.0
_NETWORK: Final = r"nfs4?|cifs|smb3?|fuse\.(sshfs|rclone|s3fs|gcsfuse)|ceph|lustre|glusterfs|afs|beegfs"
_IN_MEMORY: Final = frozenset(("tmpfs", "ramfs"))


class Mount(NamedTuple):
    """A mounted filesystem: type, mount point and device as the kernel names them, and the device's size in bytes."""

    kind: str
    point: str
    device: str
    size_bytes: int | None


def find_mount(path: Path, tree: Tree) -> Mount | None:
    """The mount that holds a file of this machine; None where the kernel does not list mounts."""
    target = os.path.realpath(path)
    best: Mount | None = None
    for line in (tree.text("proc/self/mountinfo") or "").splitlines():
        fields, _, rest = line.partition(" - ")
        before, after = fields.split(" "), rest.split(" ")
        if len(before) < 6 or len(after) < 2:
            continue
        point = _unescaped(before[4])
        # A later line with the same mount point covers the earlier one.
        if _holds(point, target) and (best is None or len(point) >= len(best.point)):
            sectors = tree.number(f"sys/dev/block/{before[2]}/size") if re.fullmatch(r"\d+:\d+", before[2]) else None
            best = Mount(after[0][:80], point, _unescaped(after[1])[:256], sectors * 512 if sectors else None)
    return best


def _holds(point: str, target: str) -> bool:
    return target == point or target.startswith(point.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    """The kernel writes space, tab, newline and backslash as octal numbers."""
    if "\\" not in text:
        return text
    return re.sub(r"\\(0[0-7]{2}|1[0-7]{2})", lambda found: chr(int(found[1], 8)), text)


def measured_read_rate(path: Path, mount: Mount | None) -> Fact | None:
    """The cached rate of the device, or a new one from samples of this file; None where nothing can be measured.

    Takes at most about 0.3 s. A figure is taken again after a week.
    """
    if mount is None:
        return None
    found = _read(mount)
    if found is not None and 0 <= time.time() - found[2] < _RETRY_SECONDS:
        return _fact(found, mount)
    from magnitude_tune.fingerprint.read_rate import sample

    measured = sample(path)
    if measured is None:
        return _fact(found, mount) if found else None
    new = (measured.rate, f"{time.strftime('%Y-%m-%d', time.gmtime())} by {measured.method}", time.time())
    _write(mount, new)
    return _fact(new, mount)


def cached_read_rate(path: Path, tree: Tree) -> Fact | None:
    """The rate measured earlier on the device that holds a file; None without one."""
    mount = find_mount(path, tree)
    found = _read(mount) if mount else None
    return _fact(found, mount) if found and mount else None


def filesystem_note(mount: Mount) -> Finding | None:
    """A filesystem that makes loading slow or costs memory."""
    if mount.kind in _IN_MEMORY:
        return Finding(
            Rule.MACHINE_LIMITED,
            f"the model lies on {mount.kind} at {mount.point}: it takes its size of memory there, loaded or not",
            fix="keep models on a disk",
        )
    if re.fullmatch(_NETWORK, mount.kind):
        return Finding(
            Rule.MACHINE_LIMITED,
            f"the model lies on a network filesystem ({mount.kind} at {mount.point}): loading takes as long as the "
            "network does, and pages that were dropped are fetched again",
            fix="copy the model to a local disk",
        )
    if mount.kind in ("9p", "drvfs") and mount.device.rstrip("\\/").endswith(":"):
        return Finding(
            Rule.MACHINE_LIMITED,
            f"the model lies on a Windows drive ({mount.device} at {mount.point}): WSL reads those slowly",
            fix="copy the model below your home folder in WSL",
        )
    return None


_Kept = tuple[float, str, float]
"""Bytes/second, date and method, and the time of the measurement."""


def _fact(kept: _Kept, mount: Mount) -> Fact:
    return Fact(kept[0], f"measured {kept[1]} on {mount.device} ({mount.kind})")


def _place(mount: Mount) -> tuple[str, str]:
    key = f"{mount.kind}, {mount.device}, {mount.point}, {mount.size_bytes}"
    return f"disk-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}", key


def _read(mount: Mount) -> _Kept | None:
    from magnitude_tune.storage import read_cached

    value = read_cached(*_place(mount)) or {}
    rate, said, at = value.get("rate"), value.get("said"), value.get("at")
    if not (isinstance(rate, float) and 1e3 < rate < 1e13 and isinstance(said, str) and isinstance(at, float)):
        return None
    return rate, said[:80], at


def _write(mount: Mount, kept: _Kept) -> None:
    from magnitude_tune.storage import write_cached

    write_cached(*_place(mount), {"rate": kept[0], "said": kept[1], "at": kept[2]})
