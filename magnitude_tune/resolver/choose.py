"""Choosing from the table: what the magnitude allows and what fits now, then the least of the fastest."""

from __future__ import annotations

import math
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Device, Fingerprint
from magnitude_tune.resolver.candidates import MU_SLACK, TIE, Base, Candidate, Table

__all__ = ["Limits", "best_turn", "choose", "limits_of"]


class Limits(NamedTuple):
    """Bytes that may be reserved now: per pool (available - floor) and per accelerator (its own cap).

    `cores` are those that others leave free: n threads fit if n - 0.5 <= cores, and one always fits.
    """

    pools: tuple[float, ...]
    devices: tuple[float, ...]
    cores: float = math.inf

    def hold(self, base: Base) -> bool:
        """Whether a base fits. A pool of which nothing is taken may be as full as it likes."""
        return self.hold_bytes(base.reserved) and all(
            n <= limit for n, limit in zip(base.by_device, self.devices, strict=True)
        )

    def hold_bytes(self, reserved: tuple[int, ...]) -> bool:
        """Whether that many bytes per pool fit."""
        return all(n == 0 or n <= limit for n, limit in zip(reserved, self.pools, strict=True))

    def without_limit_on(self, pool: int, total_bytes: int, floor_bytes: int) -> Limits:
        """The same limits with one pool wholly free but for its floor."""
        pools = (*self.pools[:pool], float(total_bytes - floor_bytes), *self.pools[pool + 1 :])
        return self._replace(pools=pools)

    @property
    def most_threads(self) -> float:
        """The largest number of threads that fit."""
        return max(1.0, self.cores + 0.5)


def limits_of(
    machine: Fingerprint, pools: tuple[str, ...], devices: tuple[str, ...], *, busy_cores: float = 0.0
) -> Limits:
    """What fits on the machine as it is now, with others keeping `busy_cores` of the CPUs busy that we may run on.

    A quota is ours alone: others press on it only where they leave fewer CPUs than it allows.
    """
    by_name: dict[str, Device] = {device.name: device for device in machine.devices}
    caps = (by_name[name].cap_bytes for name in devices)
    return Limits(
        tuple(float(machine.pool(name).available_bytes - machine.pool(name).floor_bytes) for name in pools),
        tuple(math.inf if cap is None else float(cap) for cap in caps),
        min(machine.cpu.usable_cores, machine.cpu.affinity_cpus - busy_cores) if busy_cores else math.inf,
    )


def allowed(table: Table, m: float, limits: Limits) -> list[Candidate]:
    """The rows that magnitude `m` allows and that fit."""
    fits = [base.mu <= m + MU_SLACK and limits.hold(base) for base in table.bases]
    most = limits.most_threads
    return [
        row
        for row in table.rows
        if fits[row.base] and row.mu <= m + MU_SLACK and row.n_threads <= most and row.n_threads_batch <= most
    ]


def choose(table: Table, m: float, limits: Limits) -> Candidate | None:
    """The row to run at magnitude `m`: among those within 3 % of the best turn time the least.

    Least by (mu, n_threads, bytes, the order of the table). The chosen turn time never rises with `m`: what was
    least among the best at a lower magnitude stays least until something more than 3 % faster comes in.
    """
    rows = allowed(table, m, limits)
    if not rows:
        return None
    bound = min(row.turn_seconds for row in rows) * (1 + TIE)
    return min((row for row in rows if row.turn_seconds <= bound), key=_tie_order)


def best_turn(table: Table, m: float, limits: Limits) -> float | None:
    """The best turn time in seconds before the 3 % tie; None where nothing fits."""
    return min((row.turn_seconds for row in allowed(table, m, limits)), default=None)


def _tie_order(row: Candidate) -> tuple[float, int, int, int, int]:
    return (row.mu, row.n_threads, row.reserved, row.base, row.n_threads_batch)
