"""Where the blocks run: stages on the host and on devices, and the crossings between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from magnitude_tune.request import Settings, layers_per_device
from magnitude_tune.throughput.costs import Cost, ModelCosts
from magnitude_tune.throughput.rates import DeviceRates

__all__ = ["Crossing", "Plan", "Stage", "make_plan"]


class Stage(NamedTuple):
    """Blocks that run one after another on one device (None is the host), with what they cost."""

    device: DeviceRates | None
    cost: Cost


class Crossing(NamedTuple):
    """How often a token's activations go over a device's link, there and back counted apart."""

    device: DeviceRates
    times: int


class Plan(NamedTuple):
    """A placement. `copier` is the device that uses host weights for large batches, None without one.

    The engine asks every device that it was given, also one that holds no layers.
    """

    stages: tuple[Stage, ...]
    output: Stage
    crossings: tuple[Crossing, ...]
    copier: DeviceRates | None
    repacked: bool
    n_embd: int
    n_vocab: int
    window: int
    used_share: float


def make_plan(costs: ModelCosts, devices: Sequence[DeviceRates], settings: Settings) -> Plan:
    """Place a model's blocks as the engine does.

    Index block_count is the output layer; layers from max(block_count + 1 - n_gpu_layers, 0) on are offloaded, shared
    out over `devices` in order by `tensor_split`: layer i of n goes to the first device whose cumulative share exceeds
    i / n (llama.cpp rules, section 4). The experts of the first `n_cpu_moe` blocks stay on the host. Host weights are
    repacked only where no device wants them in a host buffer of its own.
    """
    n_all = costs.block_count + 1
    offloaded = min(settings.n_gpu_layers, n_all) if settings.n_gpu_layers >= 0 else n_all
    first = n_all - offloaded if devices else n_all
    on_host = min(first, costs.block_count)
    stages = [Stage(None, costs.between(0, on_host))] if on_host else []
    output = Stage(None, costs.output)
    crossings: list[Crossing] = []
    start = first
    for device, end in zip(devices, _ends(first, n_all, settings.tensor_split, len(devices)), strict=True):
        if end <= start:
            continue
        blocks_end = min(end, costs.block_count)
        kept = min(max(settings.n_cpu_moe, start), blocks_end)
        stages += _device_stages(costs, device, (start, kept, blocks_end))
        crossings.append(Crossing(device, 1 + 2 * (kept - start)))
        if end == n_all:
            output = Stage(device, costs.output)
        start = end
    used = [crossing.device for crossing in crossings]
    return Plan(
        stages=tuple(stages),
        output=output,
        crossings=tuple(crossings),
        copier=next((device for device in devices if device.copies_host_weights), None),
        repacked=settings.repack and not any(device.pins_host_weights for device in used),
        n_embd=costs.n_embd,
        n_vocab=costs.n_vocab,
        window=costs.window,
        used_share=costs.used_share,
    )


def _ends(first: int, n_all: int, split: tuple[int, ...], n_devices: int) -> list[int]:
    """Where each device's run of layers ends; devices without a share get none."""
    shares = (*split, *([0] * n_devices))[:n_devices]
    return [first + count for count in accumulate(layers_per_device(n_all - first, shares))]


def _device_stages(costs: ModelCosts, device: DeviceRates, bounds: tuple[int, int, int]) -> list[Stage]:
    """One device's blocks start .. end-1; before `kept` their experts stay on the host."""
    start, kept, end = bounds
    if kept == start:
        return [Stage(device, costs.between(start, end))]
    split = costs.between(start, kept)
    return [
        Stage(device, split.without_experts()),
        Stage(None, split.experts()),
        Stage(device, costs.between(kept, end)),
    ]
