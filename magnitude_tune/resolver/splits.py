"""How many of the offloaded layers each of several devices gets, from the bytes of the layers and the memory there is.

Splits are stated as layers per device. The engine gives layer i of n to the first device whose cumulative share exceeds
i / n (llama.cpp, `load_tensors`), in single precision; with counts as shares that is exactly these counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

from magnitude_tune.fingerprint.values import Device, Fingerprint
from magnitude_tune.footprint.values import FootprintModel
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.magnitude import share
from magnitude_tune.request import Settings, layers_per_device

__all__ = ["LayerBytes", "Splits"]

_OF_LAYERS: Final = frozenset({"weights", "kv_cache", "recurrent_state"})
_SHARES: Final = tuple(share(halves / 2) for halves in range(1, 13))
"""Parts of a card that splits are made for: magnitudes 0.5 to 6, whichever is asked for."""

_SAME_SPEED: Final = 1.1
_SAME_PROPORTIONS: Final = 200
_MOST_MOVES: Final = 8

_Counts = tuple[int, ...]


class LayerBytes:
    """What layers take on a device, as the footprint says: their weights and their cache, and all else apart."""

    def __init__(self, footprint: FootprintModel, template: Settings, device: str, header: ModelHeader) -> None:
        self._footprint = footprint
        self._template = replace(template, devices=(device,), tensor_split=(), n_gpu_layers=header.all_layers)
        self._device = device
        self.n_layers = header.all_layers
        self._like = _alike(header)
        self._before: dict[int, tuple[int, ...]] = {}

    def total(self, n_cpu_moe: int) -> int:
        """Bytes of all layers, the experts of the first `n_cpu_moe` blocks left out."""
        return self._of_layers(self.n_layers, n_cpu_moe)

    def before(self, n_cpu_moe: int) -> tuple[int, ...]:
        """Bytes of all layers before each layer, and of all of them; the experts of `n_cpu_moe` blocks left out."""
        found = self._before.get(n_cpu_moe)
        if found is None:
            found = self._before[n_cpu_moe] = self._made(n_cpu_moe)
        return found

    def besides(self, devices: tuple[str, ...], where: tuple[int, int], batches: tuple[int, int]) -> _Counts:
        """Bytes that each device takes besides layers: compute buffer, copies of what the host keeps, driver.

        Args:
            devices: each gets as many layers as the others.
            where: n_gpu_layers and n_cpu_moe.
            batches: n_batch and n_ubatch.
        """
        settings = replace(
            self._template,
            n_gpu_layers=where[0],
            n_cpu_moe=where[1],
            n_batch=batches[0],
            n_ubatch=batches[1],
            devices=devices,
            tensor_split=layers_per_device(where[0], [1] * len(devices)),
        )
        others = [term for term in self._footprint.footprint(settings).terms if term.name not in _OF_LAYERS]
        return tuple(sum(term.reserved_bytes for term in others if term.device == name) for name in devices)

    def _made(self, n_cpu_moe: int) -> tuple[int, ...]:
        n_blocks = self.n_layers - 1
        if 0 < n_cpu_moe < n_blocks:
            whole, dense = self.before(0), self.before(n_blocks)
            kept = whole[n_cpu_moe] - dense[n_cpu_moe]
            return (*dense[:n_cpu_moe], *(n_bytes - kept for n_bytes in whole[n_cpu_moe:]))
        each: dict[object, int] = {}
        for layer in range(self.n_layers - 1, -1, -1):
            if (like := self._like[layer]) not in each:
                more, less = (self._of_layers(self.n_layers - first, n_cpu_moe) for first in (layer, layer + 1))
                each[like] = more - less
        return tuple(accumulate((each[like] for like in self._like), initial=0))

    def _of_layers(self, n_gpu_layers: int, n_cpu_moe: int) -> int:
        if n_gpu_layers == 0:
            return 0
        settings = replace(self._template, n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe)
        return sum(
            term.reserved_bytes
            for term in self._footprint.footprint(settings).terms
            if term.device == self._device and term.name in _OF_LAYERS
        )


def _alike(header: ModelHeader) -> list[object]:
    """For each layer, the output layer last, what it has in common with those that take as many bytes."""
    tensors: list[list[object]] = [[] for _ in range(header.block_count)]
    for group in header.groups:
        if group.block is not None and 0 <= group.block < header.block_count:
            tensors[group.block].append((group.role, group.type_name, group.n_bytes, group.padding_bytes))
    n_trunk = header.block_count - header.nextn_predict_layers
    caches = [*header.layers, *([None] * header.block_count)]
    kinds = [(tuple(tensors[block]), caches[block], block < n_trunk) for block in range(header.block_count)]
    return [*kinds, None]


class Splits:
    """Splits over one set of devices: equally full ones, and where devices differ in speed, the fastest filled first.

    A card's memory is counted as its total and as what magnitude and others leave of it now, for magnitudes all along
    the scale: what is chosen among the splits depends on the magnitude, what there is to choose from does not.
    """

    def __init__(self, layers: LayerBytes, machine: Fingerprint, devices: Sequence[Device]) -> None:
        self._layers = layers
        self._names = tuple(device.name for device in devices)
        self._besides: dict[tuple[object, ...], _Counts] = {}
        limits = tuple(_limits(machine, devices))
        proportions = {tuple(round(_SAME_PROPORTIONS * n / sum(each)) for n in each): each for each in limits}
        self._balanced = tuple(proportions.values())
        speeds = [device.bandwidth.value for device in devices]
        self._filled = limits if max(speeds) > _SAME_SPEED * min(speeds) else ()
        self._fastest_first = sorted(range(len(devices)), key=lambda index: -speeds[index])

    def of(self, n_gpu_layers: int, n_cpu_moe: int, batches: tuple[int, int]) -> tuple[_Counts, ...]:
        """Layers per device, each at least one; `batches` are n_batch and n_ubatch."""
        if n_gpu_layers < len(self._names):
            return ()
        offloaded = self._layers.before(n_cpu_moe)[self._layers.n_layers - n_gpu_layers :]
        besides = self._beside(n_gpu_layers, n_cpu_moe, batches)
        found = {_equally_full(offloaded, besides, limits): None for limits in self._balanced}
        found |= {_filled(offloaded, besides, limits, self._fastest_first): None for limits in self._filled}
        return tuple(counts for counts in found if min(counts) > 0)

    def _beside(self, n_gpu_layers: int, n_cpu_moe: int, batches: tuple[int, int]) -> _Counts:
        """What devices take besides layers: whether the host keeps layers or experts decides, hardly how many."""
        n_all = self._layers.n_layers
        offloads_all, keeps_experts = n_gpu_layers == n_all, n_cpu_moe > n_all - n_gpu_layers
        key = (offloads_all, keeps_experts, batches)
        if key not in self._besides:
            few = min(2 * len(self._names), n_all - 1)
            where = (n_all if offloads_all else few, n_all - 1 if keeps_experts else 0)
            self._besides[key] = self._layers.besides(self._names, where, batches)
        return self._besides[key]


def _limits(machine: Fingerprint, devices: Sequence[Device]) -> Iterator[tuple[float, ...]]:
    """Bytes of each device: in total, and what each share of the total allows of what is there now."""
    pools = [machine.pool(device.pool) for device in devices]
    sharing = [sum(other.name == pool.name for other in pools) for pool in pools]
    caps = [min(p.total_bytes, d.cap_bytes or p.total_bytes) for p, d in zip(pools, devices, strict=True)]
    yield tuple(cap / n for cap, n in zip(caps, sharing, strict=True))
    for part in _SHARES:
        left = [min(part * pool.total_bytes, pool.available_bytes - pool.floor_bytes) for pool in pools]
        if min(left) > 0:
            yield tuple(min(n, cap) / m for n, cap, m in zip(left, caps, sharing, strict=True))


def _equally_full(offloaded: Sequence[int], besides: _Counts, limits: Sequence[float]) -> _Counts:
    """Layers per device so that the fullest is as little full as can be.

    Args:
        offloaded: bytes before each of the offloaded layers and after the last, on one scale.
        besides: bytes that each device takes besides its layers.
        limits: bytes of each device.
    """
    first, n_layers = offloaded[0], len(offloaded) - 1
    fullness = (offloaded[-1] - first + sum(besides)) / sum(limits)
    wanted = [max(0.0, fullness * limit - taken) for limit, taken in zip(limits, besides, strict=True)]
    scale = (offloaded[-1] - first) / sum(wanted) if sum(wanted) else 0.0
    ends = [0]
    for reached in accumulate(wanted[:-1]):
        goal = first + reached * scale
        place = bisect_left(offloaded, goal)
        nearer = place > 0 and goal - offloaded[place - 1] < offloaded[min(place, n_layers)] - goal
        ends.append(max(ends[-1], min(n_layers, place - nearer)))
    ends.append(n_layers)
    return _counts(_evened(ends, offloaded, besides, limits))


def _evened(ends: list[int], offloaded: Sequence[int], besides: _Counts, limits: Sequence[float]) -> list[int]:
    """The same bounds with single layers moved off the fullest device as long as that helps."""

    def fullness(bounds: Sequence[int]) -> list[float]:
        return [
            (offloaded[end] - offloaded[start] + taken) / limit
            for (start, end), taken, limit in zip(pairwise(bounds), besides, limits, strict=True)
        ]

    full = fullness(ends)
    for _ in range(_MOST_MOVES):
        worst = max(range(len(full)), key=full.__getitem__)
        if ends[worst + 1] <= ends[worst]:
            break
        moved = []
        if worst > 0:
            moved.append([*ends[:worst], ends[worst] + 1, *ends[worst + 1 :]])
        if worst < len(full) - 1:
            moved.append([*ends[: worst + 1], ends[worst + 1] - 1, *ends[worst + 2 :]])
        best = min(moved, key=lambda bounds: max(fullness(bounds)))
        if max(fullness(best)) >= max(full):
            break
        ends, full = best, fullness(best)
    return ends


def _filled(
    offloaded: Sequence[int], besides: _Counts, limits: Sequence[float], fastest_first: Sequence[int]
) -> _Counts:
    """Layers per device with the fastest filled first; the slowest takes what is left. Arguments as above."""
    left: float = offloaded[-1] - offloaded[0]
    room = [0.0] * len(limits)
    for device in fastest_first[:-1]:
        room[device] = max(0.0, min(limits[device] - besides[device], left))
        left -= room[device]
    slowest = fastest_first[-1]
    ends = [0] * (len(limits) + 1)
    for device in range(slowest):
        ends[device + 1] = bisect_right(offloaded, offloaded[ends[device]] + room[device]) - 1
    ends[-1] = len(offloaded) - 1
    for device in range(len(limits) - 1, slowest, -1):
        ends[device] = max(ends[slowest], bisect_left(offloaded, offloaded[ends[device + 1]] - room[device]))
    return _counts(ends)


def _counts(ends: Iterable[int]) -> _Counts:
    return tuple(end - start for start, end in pairwise(ends))
