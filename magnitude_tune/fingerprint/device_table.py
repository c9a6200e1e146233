"""Rates of known accelerators, from the table `devices.csv` beside this file; read only when a device was found.

The table's columns: the device's name, its kind (`gpu` has memory of its own; `igpu` and `apple` share the host's),
memory bandwidth in GB/s, peak half-precision TFLOPS (single precision where that is faster, as on cards that run half
precision at a fraction of it), memory in GiB where one model has a size, and the source of the row.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.units import GIB

__all__ = ["KnownDevice", "guessed_rates", "known_device", "least_variant", "same_model"]

_TABLE: Final = Path(__file__).with_name("devices.csv")
# Words that vendors put before, or tables after, the words that tell two devices apart.
_EMPTY_WORDS: Final = frozenset(
    {"nvidia", "amd", "ati", "intel", "tesla", "graphics", "form", "factor", "edition", "unstated"}
)
# Drivers of Vulkan add theirs: `AMD Radeon RX 7900 XTX (RADV NAVI31)`.
_BRACKETS: Final = re.compile(r"\((?!r\)|tm\)|c\))[^()]*\)", re.IGNORECASE)
_CAPACITY: Final = re.compile(r"[0-9]+gb", re.ASCII)


class KnownDevice(NamedTuple):
    """One row: rates in bytes/second and operations/second; `shares_host` where it has no memory of its own."""

    name: str
    shares_host: bool
    bandwidth: Fact
    flops: Fact
    memory_gib: float | None


def known_device(name: str, total_bytes: int | None) -> KnownDevice | None:
    """The row of a device by the name its driver gives, and by its memory where several sizes share the name.

    Where rows still differ, the one with the least bandwidth is taken: a promise then errs on the safe side.
    """
    rows = _rows_named(name) or _rows_named(_BRACKETS.sub(" ", name))
    if total_bytes is not None and rows:
        gib = total_bytes / GIB
        nearest = min(abs((row.memory_gib or gib) - gib) for row in rows)
        rows = [row for row in rows if abs((row.memory_gib or gib) - gib) <= nearest]
    return min(rows, key=lambda row: row.bandwidth.value, default=None)


def least_variant(name: str) -> KnownDevice | None:
    """The slowest of the rows that name variants of a device, as `Apple M2 Max (30-core GPU)`; None without any."""
    rows = [row for row in _rows() if row.name.startswith(f"{name} (")]
    return min(rows, key=lambda row: (row.bandwidth.value, row.flops.value), default=None)


def same_model(one: str, other: str) -> bool:
    """Whether two names mean the same model: what drivers add in brackets, and vendors' words, do not count."""
    plain = [_words(_BRACKETS.sub(" ", name)) for name in (one, other)]
    return bool(plain[0]) and plain[0] == plain[1]


def guessed_rates(name: str, *, shares_host: bool) -> tuple[Fact, Fact]:
    """Modest rates for a device that the table does not know, and a source that says so.

    A card: 200 GB/s and 8 TFLOPS, an entry-level card of the last years; a device in host memory: 50 GB/s and
    2 TFLOPS.
    """
    kind = "a small integrated GPU" if shares_host else "an entry-level card"
    source = f"guessed: {name} is not in the device table; {kind} is assumed"
    return (Fact(50e9, source), Fact(2e12, source)) if shares_host else (Fact(200e9, source), Fact(8e12, source))


def _rows_named(name: str) -> list[KnownDevice]:
    wanted = _words(name)
    return [row for row in _rows() if _words(row.name) == wanted] if wanted else []


@lru_cache(maxsize=1024)
def _words(name: str) -> frozenset[str]:
    words = re.findall(r"[a-z0-9]+", re.sub(r"\((?:r|tm|c)\)", " ", name.lower()))
    return frozenset(word for word in words if word not in _EMPTY_WORDS and not _CAPACITY.fullmatch(word))


@cache
def _rows() -> tuple[KnownDevice, ...]:
    import csv

    with _TABLE.open(encoding="utf-8", newline="") as stream:
        return tuple(
            KnownDevice(
                name=row["name"],
                shares_host=row["kind"] != "gpu",
                bandwidth=Fact(float(row["bandwidth_gb_per_second"]) * 1e9, f"device table: {row['name']}"),
                flops=Fact(float(row["tflops"]) * 1e12, f"device table: {row['name']}"),
                memory_gib=float(row["memory_gib"]) if row["memory_gib"] else None,
            )
            for row in csv.DictReader(stream)
        )
