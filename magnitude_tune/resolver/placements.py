"""Where layers can go: which accelerators are worth using together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Device, Fingerprint

__all__ = ["Group", "Placement", "device_groups", "pinned_shares"]


class Group(NamedTuple):
    """Devices used together, in the engine's order; `shares` where they are pinned."""

    devices: tuple[Device, ...]
    shares: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What the engine calls them."""
        return tuple(device.name for device in self.devices)


class Placement(NamedTuple):
    """One way to place the layers. `tensor_split` counts layers per device; empty for one device or none."""

    n_gpu_layers: int
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] = ()
    n_cpu_moe: int = 0


def pinned_shares(machine: Fingerprint, written: str) -> tuple[tuple[Device, float], ...]:
    """The devices that a pinned `tensor_split` gives a share, in the engine's order."""
    shares = [float(part) for part in written.split(",")]
    return tuple((device, share) for device, share in zip(machine.devices, shares, strict=False) if share > 0)


def device_groups(machine: Fingerprint, pins: Mapping[str, int | str | bool]) -> tuple[Group, ...]:
    """Each device alone, those of each backend, those with memory left, all but one, and all.

    Of devices that are alike and equally free one stands for all where it is alone, or left out. Integrated devices
    only where there is nothing else. A pinned `tensor_split` leaves the devices that it names.
    """
    if (pinned := pins.get("tensor_split")) is not None and (shared := pinned_shares(machine, str(pinned))):
        return (Group(tuple(device for device, _ in shared), tuple(share for _, share in shared)),)
    worthwhile = [device for device in machine.devices if not device.integrated] or list(machine.devices)
    unlike = list({_kind(machine, device): device for device in reversed(worthwhile)}.values())[::-1]
    sets = [[device] for device in unlike]
    sets += [[d for d in worthwhile if d.backend == backend] for backend in {d.backend: None for d in worthwhile}]
    sets.append([device for device in worthwhile if _has_room(machine, device)])
    sets += [[d for d in worthwhile if d is not left_out] for left_out in unlike]
    sets.append(worthwhile)
    unique = {tuple(device.name for device in chosen): chosen for chosen in sets if chosen}
    return tuple(Group(tuple(chosen)) for chosen in unique.values())


def _kind(machine: Fingerprint, device: Device) -> tuple[object, ...]:
    """What makes a device another one to plan with: devices alike in all of it, and as free, stand for each other."""
    pool = machine.pool(device.pool)
    shared = [other.name for other in machine.devices if other.pool == device.pool]
    memory = (pool.kind, pool.total_bytes, pool.available_bytes, device.cap_bytes, shared if len(shared) > 1 else ())
    return (device.backend, str(memory), device.bandwidth, device.flops, device.link_bandwidth)


def _has_room(machine: Fingerprint, device: Device) -> bool:
    pool = machine.pool(device.pool)
    return pool.available_bytes > pool.floor_bytes
