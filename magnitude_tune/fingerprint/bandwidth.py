"""Memory bandwidth over usable cores: measured once by copying, kept in the cache, else guessed."""

from __future__ import annotations

import hashlib
import time
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.units import MIB

__all__ = ["cached_bandwidth", "guessed_bandwidth", "measured_bandwidth"]

_RETRY_SECONDS: Final = 600.0


def measured_bandwidth(
    brand: str | None, cores: int, total_bytes: int, available_bytes: int, *, quick: bool = False
) -> Fact | None:
    """The cached figure, or a new one that is then cached; None where there is too little memory to measure.

    A figure taken while other work kept threads off their cores is taken again ten minutes later, and the higher kept;
    so is one that could not be had. `quick` copies for a third of the time.
    """
    found = _read(brand, cores, total_bytes)
    if found is not None and not found.is_due:
        return _fact(found)
    from magnitude_tune.fingerprint.copy_rate import buffer_bytes, measure

    n_bytes = buffer_bytes(available_bytes, cores)
    new = measure(cores, n_bytes, quick=True) if quick else measure(cores, n_bytes)
    if new is None:
        if found is None or not found.rate:
            _write(brand, cores, total_bytes, _Kept(0.0, "", time.time(), True))
        return _fact(found) if found else None
    if found is not None and found.rate > new.rate:
        rate, date = found.rate, found.date
    else:
        rate, date = new.rate, time.strftime("%Y-%m-%d", time.gmtime())
    kept = _Kept(rate, date, time.time(), new.disturbed)
    _write(brand, cores, total_bytes, kept)
    return _fact(kept)


def cached_bandwidth(brand: str | None, cores: int, total_bytes: int) -> Fact | None:
    """The figure measured earlier on this processor with as many cores and as much memory; None without one."""
    found = _read(brand, cores, total_bytes)
    return _fact(found) if found else None


def guessed_bandwidth(cores: int) -> Fact:
    """A modest figure by the number of cores: 10 GB/s each up to 50, and servers 4 GB/s each up to 200.

    Two channels of DDR4-3200 carry 51.2 GB/s, eight 204.8, and one core seldom draws more than 10 to 15 of it.
    """
    gigabytes = max(min(10 * cores, 50), min(4 * cores, 200))
    return Fact(gigabytes * 1e9, f"guessed: not measured; {gigabytes} GB/s is modest for {cores} cores")


class _Kept(NamedTuple):
    """A figure in the cache; a rate of 0 remembers that none could be had."""

    rate: float
    date: str
    at: float
    disturbed: bool

    @property
    def is_due(self) -> bool:
        return self.disturbed and time.time() - self.at > _RETRY_SECONDS


def _fact(kept: _Kept) -> Fact | None:
    if not kept.rate:
        return None
    return Fact(kept.rate, f"measured {kept.date}{' beside other work' if kept.disturbed else ''}")


def _place(brand: str | None, cores: int, total_bytes: int) -> tuple[str, str]:
    """Name and key of the cached figure: one file per machine and limit, so that containers do not take turns."""
    key = f"{brand}, {cores} cores, {round(total_bytes / (128 * MIB))} x 128 MiB"
    return f"bandwidth-{hashlib.sha256(key.encode()).hexdigest()[:12]}", key


def _read(brand: str | None, cores: int, total_bytes: int) -> _Kept | None:
    from magnitude_tune.storage import read_cached

    value = read_cached(*_place(brand, cores, total_bytes)) or {}
    rate, date, at = value.get("rate"), value.get("date"), value.get("at")
    if not (
        isinstance(rate, float) and (rate == 0 or 1e6 < rate < 1e15) and isinstance(date, str) and isinstance(at, float)
    ):
        return None
    return _Kept(rate, date[:10], at, value.get("disturbed") is True)


def _write(brand: str | None, cores: int, total_bytes: int, kept: _Kept) -> None:
    from magnitude_tune.storage import write_cached

    value: dict[str, object] = {"rate": kept.rate, "date": kept.date, "at": kept.at, "disturbed": kept.disturbed}
    write_cached(*_place(brand, cores, total_bytes), value)
