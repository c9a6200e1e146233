"""Instruction-set flags, as the kernel names them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["cpu_flags"]

_CPUINFO_BYTES: Final = 1 << 14


def cpu_flags(root: Path = Path("/")) -> frozenset[str] | None:
    """Instruction-set flags of the first x86 CPU from `root`/proc/cpuinfo; None elsewhere."""
    try:
        with (root / "proc/cpuinfo").open("rb") as stream:
            text = stream.read(_CPUINFO_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else None
