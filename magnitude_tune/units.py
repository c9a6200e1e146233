"""Units: base units inside (bytes, seconds, tokens per second), scaled ones for people."""

from __future__ import annotations

from typing import Final

__all__ = ["GIB", "KIB", "MIB", "format_bytes", "format_rate", "format_seconds"]

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


def format_bytes(n_bytes: float) -> str:
    """Bytes as people read them: `253 MiB`, `1.50 GiB`; the sign is kept."""
    size = abs(n_bytes)
    if size >= GIB:
        return f"{n_bytes / GIB:.2f} GiB"
    if size >= MIB:
        return f"{n_bytes / MIB:.0f} MiB" if size >= 100 * MIB else f"{n_bytes / MIB:.1f} MiB"
    if size >= KIB:
        return f"{n_bytes / KIB:.1f} KiB"
    return f"{n_bytes:.0f} B"


def format_rate(tokens_per_second: float) -> str:
    """Tokens per second with three significant digits."""
    return f"{_three_digits(tokens_per_second)} t/s"


def format_seconds(seconds: float) -> str:
    """Seconds, or milliseconds below one second."""
    if abs(seconds) < 1:
        return f"{_three_digits(seconds * 1000)} ms"
    return f"{_three_digits(seconds)} s"


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
