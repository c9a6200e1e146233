"""The CPU's clock, its heat and how often heat slowed it down, as far as the system tells."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Final

__all__ = ["read_celsius", "read_hertz", "read_throttles"]

_MOST_ZONES: Final = 64
# Sensors that are not connected show absurd values.
_PLAUSIBLE_CELSIUS: Final = (1.0, 130.0)
_CLOCK_LINE: Final = re.compile(r"^(processor|cpu MHz)\s*:\s*([0-9.]{1,12})\s*$", re.MULTILINE)


def read_hertz(root: Path, cpus: Iterable[int]) -> float | None:
    """Mean clock of the logical CPUs `cpus` now: cpufreq's (kHz), else /proc/cpuinfo's (MHz), else None.

    A virtual machine often shows a clock that never changes: then there is no decline to see.
    """
    wanted = frozenset(cpus)
    kilohertz = [_number(root / f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq") for cpu in sorted(wanted)]
    known = [value for value in kilohertz if value]
    if known:
        return 1e3 * fmean(known)
    megahertz = _clocks(_text(root / "proc/cpuinfo"), wanted)
    return 1e6 * fmean(megahertz) if megahertz else None


def read_celsius(root: Path) -> float | None:
    """The hottest thermal zone, None where there is none."""
    least, most = _PLAUSIBLE_CELSIUS
    found = []
    for zone in range(_MOST_ZONES):
        folder = root / f"sys/class/thermal/thermal_zone{zone}"
        if not folder.is_dir():
            break
        value = _number(folder / "temp")
        if value is not None and least <= value / 1e3 <= most:
            found.append(value / 1e3)
    return max(found) if found else None


def read_throttles(root: Path, cpus: Iterable[int]) -> int | None:
    """How often the CPUs were slowed down for heat since boot (Intel's `core_throttle_count`), None if not counted."""
    counts = [
        _number(root / f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count") for cpu in sorted(cpus)
    ]
    known = [count for count in counts if count is not None]
    return int(sum(known)) if known else None


def _clocks(cpuinfo: str, wanted: frozenset[int]) -> list[float]:
    found, current = [], -1
    with contextlib.suppress(ValueError):
        for name, value in _CLOCK_LINE.findall(cpuinfo):
            if name == "processor":
                current = int(value)
            elif current in wanted:
                found.append(float(value))
    return found


def _number(path: Path) -> float | None:
    text = _text(path).strip()
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


def _text(path: Path) -> str:
    # A sensor that is missing or does not answer is unknown, not an error.
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""
