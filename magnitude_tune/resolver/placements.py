"""Where layers can go: how many on which accelerators, and the experts of how many blocks on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import Device, Fingerprint
from magnitude_tune.header.values import ModelHeader, Role

__all__ = ["Group", "Placement", "device_groups", "expert_pairs", "pinned_shares"]

_FEW_BLOCKS: Final = 16
"""Up to here a single block matters more than candidates do: every pair of counts is tried."""

_FINE_STEPS: Final = 27
"""Numbers of layers tried where only their dense parts are offloaded: steps of 1/27 gain less than 3 %."""


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


def expert_pairs(
    header: ModelHeader, pins: Mapping[str, int | str | bool], *, blocks_for_one: int
) -> Iterator[tuple[int, int]]:
    """Pairs of n_gpu_layers (from 1) and n_cpu_moe that are worth pricing, fewest layers first.

    A model without experts has each number of layers. One with experts can leave those of the first blocks on the CPU:

    - Where a byte of the dense parts gains more time on a device than a byte of experts (`blocks_for_one` is 0), the
      dense parts go first, in steps that gain less than 3 %, then the experts, block by block.
    - Otherwise whole blocks go. What room is left takes the dense parts of some blocks more: of one, and of as many as
      one whole block has bytes for (`blocks_for_one`). While most blocks are on the CPU that gains less than 3 %.
    - Where blocks are few, or the number of layers is pinned, every pair is tried.
    """
    n_all, n_blocks = header.all_layers, header.block_count
    wanted, pinned = pins.get("n_gpu_layers"), pins.get("n_cpu_moe")
    counts = range(1, n_all + 1) if wanted is None else [n for n in (min(int(wanted), n_all),) if n > 0]
    every = wanted is not None or n_blocks <= _FEW_BLOCKS
    for n_gpu_layers in counts:
        if header.moe is None:
            yield n_gpu_layers, 0
        elif pinned is not None:
            yield n_gpu_layers, min(int(pinned), n_blocks)
        elif every or n_gpu_layers == n_all:
            yield n_gpu_layers, 0
            yield from ((n_gpu_layers, n) for n in _with_experts(header, n_all - n_gpu_layers))
        elif blocks_for_one:
            yield n_gpu_layers, 0
            on_host = n_all - n_gpu_layers
            if on_host <= n_blocks // 2:
                yield from ((n_gpu_layers, min(on_host + more, n_blocks)) for more in sorted({1, blocks_for_one}))
        elif (n_all - n_gpu_layers) % -(-n_all // _FINE_STEPS) == 0:
            yield n_gpu_layers, n_blocks


def _with_experts(header: ModelHeader, on_host: int) -> list[int]:
    """Counts whose last block has experts: any other count comes to the same as one less."""
    experts = {group.block for group in header.groups if group.role is Role.EXPERT_FFN}
    return [block + 1 for block in range(on_host, header.block_count) if not experts or block in experts]


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
