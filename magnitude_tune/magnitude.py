"""The magnitude scale: at magnitude m a model may take the share 1 - 2^-m of the machine.

One step up halves what is left. The law is this project's reading of a dial that the field uses loosely.
Pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

from magnitude_tune.errors import UsageError
from magnitude_tune.units import MIB

__all__ = [
    "DEFAULT_MAGNITUDE",
    "MAX_MAGNITUDE",
    "MIN_MAGNITUDE",
    "SAFE_BAND",
    "PoolKind",
    "band",
    "executed_for_cores",
    "executed_for_pool",
    "is_pool_short",
    "magnitude_of_bytes",
    "magnitude_of_threads",
    "needed",
    "parse_magnitude",
    "pool_floor",
    "share",
    "thread_cap",
    "usable_cores",
]

MIN_MAGNITUDE: Final = 0.1
MAX_MAGNITUDE: Final = 6.0
DEFAULT_MAGNITUDE: Final = 4.0
SAFE_BAND: Final = (3.0, 4.4)

PoolKind = Literal["host", "card", "unified", "remote"]
"""Whose memory a pool is: this host's RAM, a card's own, one shared by host and GPU, another host's RAM."""

_PLAIN_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
# Figures are stated in tenths; this keeps 3.3 from reading 3.2999999 as 3.2.
_TENTHS_SLACK = 1e-6


def share(m: float) -> float:
    """The share of a pool, or of the usable cores, that magnitude `m` allows: 1 - 2^-m."""
    return -math.expm1(-m * math.log(2))


def magnitude_of_bytes(n_bytes: float, total_bytes: float) -> float:
    """The smallest magnitude whose share of `total_bytes` holds `n_bytes`; infinite if none does."""
    if n_bytes <= 0:
        return 0.0
    if n_bytes >= total_bytes:
        return math.inf
    return -math.log1p(-n_bytes / total_bytes) / math.log(2)


def magnitude_of_threads(n_threads: int, usable: int) -> float:
    """The smallest magnitude whose thread cap reaches `n_threads` of `usable` cores; 0 for one thread."""
    if n_threads <= 1:
        return 0.0
    return magnitude_of_bytes(n_threads - 0.5, usable)


def usable_cores(performance_cores: int, quota_cores: float | None) -> int:
    """min(distinct performance cores in the affinity mask, floor(CPU quota)), at least 1."""
    quota = performance_cores if quota_cores is None else math.floor(quota_cores + 1e-9)
    return max(1, min(performance_cores, quota))


def thread_cap(m: float, usable: int) -> int:
    """Most threads at magnitude `m`: share(m) * usable, rounded half up, at least 1."""
    return max(1, math.floor(share(m) * usable + 0.5 + 1e-9))


def pool_floor(kind: PoolKind, total_bytes: int) -> int:
    """Bytes of a pool that nobody may plan with: max(64 MiB, 1 %) of a card's own, else max(256 MiB, 2 %)."""
    if kind == "card":
        return max(64 * MIB, total_bytes // 100)
    return max(256 * MIB, total_bytes // 50)


def is_pool_short(m: float, total_bytes: int, available_bytes: int, floor_bytes: int) -> bool:
    """Whether less is available now than magnitude `m` would allow of the whole pool.

    Pressure also needs the plan to differ from the one that the whole pool would give; the resolver sees to that.
    """
    return available_bytes - floor_bytes < min(share(m) * total_bytes, total_bytes - floor_bytes)


def executed_for_pool(m: float, total_bytes: int, usable_bytes: int) -> float:
    """The magnitude that `usable_bytes` (available - floor) amounts to, in tenths, within 0.1..m."""
    return _executed(m, total_bytes, usable_bytes)


def executed_for_cores(m: float, usable: int, busy_cores: float) -> float:
    """The magnitude left when others keep `busy_cores` of `usable` busy, in tenths, within 0.1..m."""
    return _executed(m, usable, usable - busy_cores)


def _executed(m: float, total: float, left: float) -> float:
    if left >= total:
        return m
    if left <= 0:
        return min(m, MIN_MAGNITUDE)
    tenths = math.floor(10 * math.log2(total / (total - left)) + _TENTHS_SLACK)
    return min(m, max(MIN_MAGNITUDE, tenths / 10))


def needed(m: float, mu: float) -> float:
    """The least magnitude, in tenths, at which a plan of magnitude `mu` would still be allowed; at most m."""
    return min(m, math.ceil(10 * mu - _TENTHS_SLACK) / 10) if math.isfinite(mu) else m


def band(m: float) -> Literal["light", "safe", "overcommit"]:
    """Below 3.0 is a light load, above 4.4 overcommit, between them safe."""
    low, high = SAFE_BAND
    if m < low:
        return "light"
    return "safe" if m <= high else "overcommit"


def parse_magnitude(raw: object, *, where: str) -> tuple[float, str | None]:
    """A magnitude as people write it, and a note where it was text.

    Args:
        raw: what was read: a number, or text holding a plain decimal.
        where: `file:line:column`, the option or the variable it was read from.

    Returns:
        The magnitude and, for a quoted number, a note that says so.

    Raises:
        UsageError: not a number from 0.1 to 6; says what was read and where. Callers that read files turn it
            into their own error.
    """
    note = None
    if isinstance(raw, str):
        text = raw.strip()
        if not _PLAIN_DECIMAL.fullmatch(text):
            raise UsageError(f"magnitude must be a number, got {raw!r}", where=where, hint=_hint_for_text(text))
        raw, note = float(text), f"magnitude {raw!r} is text; read as {text}"
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise UsageError(
            f"magnitude must be a number, got {raw!r} ({type(raw).__name__})", where=where, hint=_RANGE_HINT
        )
    # An integer of any length is not a float, nor can it always be printed.
    value = float(raw) if abs(raw) < 1e300 else math.inf
    if not math.isfinite(value):
        shown = raw if isinstance(raw, float) else "more than 300 digits"
        raise UsageError(f"magnitude must be a finite number, got {shown}", where=where, hint=_RANGE_HINT)
    if not MIN_MAGNITUDE <= value <= MAX_MAGNITUDE:
        raise UsageError(f"magnitude must be from 0.1 to 6, got {raw}", where=where, hint=_RANGE_HINT)
    return value, note


_RANGE_HINT = "write a number from 0.1 to 6; 3.0 to 4.4 is the safe band, for example magnitude: 4.0"


def _hint_for_text(text: str) -> str:
    with_point = text.replace(",", ".")
    if with_point != text and _PLAIN_DECIMAL.fullmatch(with_point):
        return f"use a point: {with_point}"
    return _RANGE_HINT
