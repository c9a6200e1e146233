"""Where layers can go: how many on which accelerators, and the experts of how many blocks on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Device, Fingerprint
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import layers_per_device

__all__ = ["Placement", "pinned_shares", "placements"]

_Group = tuple[tuple[Device, float], ...]
"""Devices with their shares of the offloaded layers."""


class Placement(NamedTuple):
    """One way to place the layers. `tensor_split` counts layers per device; empty for one device or none."""

    n_gpu_layers: int
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] = ()
    n_cpu_moe: int = 0


def placements(header: ModelHeader, machine: Fingerprint, pins: Mapping[str, int | str | bool]) -> Iterator[Placement]:
    """Everything on the CPU, then each number of layers on each sensible set of devices.

    Experts are left on the CPU only where all layers are offloaded: then the dense part of every block is worth
    more on the device than the experts of a few blocks.
    """
    n_all = header.all_layers
    wanted = pins.get("n_gpu_layers")
    layer_counts = range(n_all + 1) if wanted is None else (min(int(wanted), n_all),)
    if 0 in layer_counts or not machine.devices:
        yield Placement(0)
    for group in _groups(machine, pins):
        names = tuple(device.name for device, _ in group)
        for n_gpu_layers in layer_counts:
            if n_gpu_layers == 0:
                continue
            split = layers_per_device(n_gpu_layers, [share for _, share in group]) if len(group) > 1 else ()
            if split and min(split) == 0:
                continue
            for n_cpu_moe in _cpu_moe_counts(header, n_gpu_layers, pins):
                yield Placement(n_gpu_layers, names, split, n_cpu_moe)


def pinned_shares(machine: Fingerprint, written: str) -> _Group:
    """The devices that a pinned `tensor_split` gives a share, in the engine's order."""
    shares = [float(part) for part in written.split(",")]
    return tuple((device, share) for device, share in zip(machine.devices, shares, strict=False) if share > 0)


def _cpu_moe_counts(header: ModelHeader, n_gpu_layers: int, pins: Mapping[str, int | str | bool]) -> Sequence[int]:
    if header.moe is None:
        return (0,)
    if (pinned := pins.get("n_cpu_moe")) is not None:
        return (min(int(pinned), header.block_count),)
    return range(header.block_count + 1) if n_gpu_layers == header.all_layers else (0,)


def _groups(machine: Fingerprint, pins: Mapping[str, int | str | bool]) -> tuple[_Group, ...]:
    """Each device alone, those of each backend, those with memory left, all but one, and all; shared by memory.

    Integrated devices only where there is nothing else. A pinned `tensor_split` leaves the devices that it names.
    """
    if (pinned := pins.get("tensor_split")) is not None and (group := pinned_shares(machine, str(pinned))):
        return (group,)
    worthwhile = [device for device in machine.devices if not device.integrated] or list(machine.devices)
    sets = [[device] for device in worthwhile]
    sets += [[d for d in worthwhile if d.backend == backend] for backend in {d.backend: None for d in worthwhile}]
    sets.append([device for device in worthwhile if _has_room(machine, device)])
    sets += [[d for d in worthwhile if d is not left_out] for left_out in worthwhile]
    sets.append(worthwhile)
    unique = {tuple(device.name for device in chosen): chosen for chosen in sets if chosen}
    return tuple(tuple((device, _memory(device)) for device in chosen) for chosen in unique.values())


def _has_room(machine: Fingerprint, device: Device) -> bool:
    pool = machine.pool(device.pool)
    return pool.available_bytes > pool.floor_bytes


def _memory(device: Device) -> float:
    return float(device.cap_bytes or device.total_bytes or 0)
