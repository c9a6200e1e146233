"""Where layers can go: how many on which accelerators, and the experts of how many blocks on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from magnitude_tune.fingerprint.values import Device
from magnitude_tune.header.values import ModelHeader

__all__ = ["Placement", "placements", "split_layers"]


class Placement(NamedTuple):
    """One way to place the layers. `tensor_split` counts layers per device; empty for one device or none."""

    n_gpu_layers: int
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] = ()
    n_cpu_moe: int = 0


def placements(
    header: ModelHeader, devices: Sequence[Device], pins: Mapping[str, int | str | bool]
) -> Iterator[Placement]:
    """Everything on the CPU, then each number of layers on each sensible set of devices.

    Experts are left on the CPU only where all layers are offloaded: then the dense part of every block is worth
    more on the device than the experts of a few blocks.
    """
    n_all = header.all_layers
    wanted = pins.get("n_gpu_layers")
    layer_counts = range(n_all + 1) if wanted is None else (min(int(wanted), n_all),)
    if 0 in layer_counts or not devices:
        yield Placement(0)
    for group in _device_groups(devices):
        names = tuple(device.name for device in group)
        for n_gpu_layers in layer_counts:
            if n_gpu_layers == 0:
                continue
            split = split_layers(n_gpu_layers, _shares(group, pins)) if len(group) > 1 else ()
            if split and min(split) == 0:
                continue
            for n_cpu_moe in _cpu_moe_counts(header, n_gpu_layers, pins):
                yield Placement(n_gpu_layers, names, split, n_cpu_moe)


def _cpu_moe_counts(header: ModelHeader, n_gpu_layers: int, pins: Mapping[str, int | str | bool]) -> Sequence[int]:
    if header.moe is None:
        return (0,)
    if (pinned := pins.get("n_cpu_moe")) is not None:
        return (min(int(pinned), header.block_count),)
    return range(header.block_count + 1) if n_gpu_layers == header.all_layers else (0,)


def _device_groups(devices: Sequence[Device]) -> Iterator[tuple[Device, ...]]:
    """Each device alone and all together; integrated ones only where there is nothing else."""
    worthwhile = [device for device in devices if not device.integrated] or list(devices)
    for device in worthwhile:
        yield (device,)
    if len(worthwhile) > 1:
        yield tuple(worthwhile)
        for left_out in worthwhile if len(worthwhile) > 2 else ():
            yield tuple(device for device in worthwhile if device is not left_out)


def _shares(group: Sequence[Device], pins: Mapping[str, int | str | bool]) -> tuple[float, ...]:
    """Pinned proportions, else each device's memory."""
    if (pinned := pins.get("tensor_split")) is not None:
        written = [float(part) for part in str(pinned).split(",")]
        return tuple((written + [0.0] * len(group))[: len(group)])
    return tuple(float(device.cap_bytes or device.total_bytes or 0) for device in group)


def split_layers(n_layers: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Layers per device in proportion to `shares`, as the engine rounds them.

    Layer i of n goes to the first device whose cumulative share exceeds i / n (llama.cpp, load_tensors).
    """
    total = sum(shares)
    if total <= 0:
        return (n_layers, *([0] * (len(shares) - 1)))
    bounds: list[float] = []
    reached = 0.0
    for part in shares:
        reached += part / total
        bounds.append(reached)
    counts = [0] * len(shares)
    for layer in range(n_layers):
        place = next((i for i, bound in enumerate(bounds) if layer / n_layers < bound), len(shares) - 1)
        counts[place] += 1
    return tuple(counts)
