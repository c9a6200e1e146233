"""What is handed to the engine, how long it may take to load, and whether the plan still fits right before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from magnitude_tune.engines.values import Launch
from magnitude_tune.fingerprint.values import EngineFacts, Fact, Fingerprint, Pool
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import NO_COMPANIONS, Companions
from magnitude_tune.resolver.values import PoolUse, Resolution

__all__ = ["Subject", "launch_of", "ready_timeout_seconds", "shortfalls"]

_MARGIN_SECONDS: Final = 120.0
_DISK_PATIENCE: Final = 3.0
_SLOW_DISK: Final = 50e6
"""Bytes/second where nobody says: a network share or a spinning disk beside other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured: the plan, the model, the engine, the machine it runs on, and what runs beside."""

    resolution: Resolution
    header: ModelHeader
    engine: EngineFacts
    machine: Fingerprint
    rpc: tuple[str, ...] = ()
    companions: Companions = NO_COMPANIONS


def launch_of(subject: Subject) -> Launch:
    """The launch of a plan; the engine's process is told the magnitudes."""
    magnitude = subject.resolution.magnitude
    return Launch(
        model_path=subject.header.path,
        settings=subject.resolution.settings,
        rpc=subject.rpc,
        companions=subject.companions,
        environment={
            "MAGNITUDE_LEVEL": f"{magnitude.executed:g}",
            "MAGNITUDE_REQUESTED": f"{magnitude.requested:g}",
        },
        ready_timeout_seconds=ready_timeout_seconds(subject.header.file_bytes, subject.machine.disk_bandwidth),
    )


def ready_timeout_seconds(file_bytes: int, disk: Fact | None) -> float:
    """How long loading may take: three times as long as reading the file from the disk, and two minutes.

    A fixed time is too short for large models on slow disks, and no limit waits for ever for a load that hangs.
    """
    rate = disk.value if disk is not None and disk.value > 0 else _SLOW_DISK
    return _MARGIN_SECONDS + _DISK_PATIENCE * file_bytes / rate


def shortfalls(resolution: Resolution, pools: Iterable[Pool]) -> tuple[PoolUse, ...]:
    """The plan's pools that by now lack more than their floor, each with what is available now.

    Free memory moves all the time; the floor is there to take that up. What goes beyond it needs another plan.
    """
    now = {pool.name: pool.available_bytes for pool in pools}
    short = (
        use._replace(available_bytes=now[use.name])
        for use in resolution.pools
        if use.name in now and use.reserved_bytes > now[use.name]
    )
    return tuple(short)
