"""NVIDIA's accelerators, as NVML or `nvidia-smi` lists them, numbered as CUDA and so the engine numbers them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.cards import CardFacts, NvidiaCard, hidden_note, visible
from magnitude_tune.fingerprint.device_table import KnownDevice, guessed_rates, known_device
from magnitude_tune.fingerprint.nvidia_smi import ask_nvidia_smi, cards_left_out
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.values import HOST_POOL, Device, Fact, Memory, Pool

__all__ = ["read_nvidia"]

_INSTANCE_NAME = re.compile(r"(?P<card>.*?) MIG(?: (?P<slices>[1-7])g\.\S*)?", re.ASCII)
_COMPUTE_SLICES = 7
"""An undivided card has seven compute slices (NVIDIA's MIG user guide, "Partitioning")."""


def read_nvidia(
    run: CommandRunner, memory: Memory, environment: Mapping[str, str], nvml: Any | None = None
) -> CardFacts:
    """Ask NVML, or else `nvidia-smi`, for the devices, within a time limit: of a driver that hangs only one is asked.

    Args:
        run: runs the command.
        memory: the host's memory, which devices without memory of their own share.
        environment: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` decide what the engine sees, and in which order.
        nvml: the `pynvml` module, None to do without it.
    """
    listed, notes = _listed(run, nvml)
    cards = visible(_in_cuda_order(listed, environment), environment.get("CUDA_VISIBLE_DEVICES"), _uuid)
    hidden = hidden_note("CUDA_VISIBLE_DEVICES", len(cards), len(listed), "NVIDIA")
    cards, of_one = _one_instance(cards)
    facts = [_device(index, card, memory) for index, card in enumerate(cards)]
    said = [hidden, of_one, *(note for _, _, note in facts)]
    return CardFacts(
        devices=tuple(device for device, _, _ in facts if device is not None),
        pools=tuple(pool for _, pool, _ in facts if pool is not None),
        notes=(*notes, *(note for note in said if note is not None)),
    )


def _listed(run: CommandRunner, nvml: Any | None) -> tuple[list[NvidiaCard], tuple[Finding, ...]]:
    if nvml is not None:
        from magnitude_tune.fingerprint.nvml import ask_nvml

        try:
            if cards := ask_nvml(nvml):
                return cards, ()
        except TimeoutError as error:
            return [], (cards_left_out(str(error)),)
    return ask_nvidia_smi(run)


def _uuid(card: NvidiaCard) -> str | None:
    return card.uuid


def _in_cuda_order(cards: list[NvidiaCard], environment: Mapping[str, str]) -> list[NvidiaCard]:
    """CUDA puts the fastest device first unless it is told to follow the bus; speed is the device table's here."""
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({card.name for card in cards}) < 2:
        return cards
    known = [known_device(card.name, card.total_bytes) for card in cards]
    if any(device is None for device in known):
        return cards
    speeds = {card: device.flops.value for card, device in zip(cards, known, strict=True) if device is not None}
    return sorted(cards, key=lambda card: -speeds[card])


def _one_instance(cards: list[NvidiaCard]) -> tuple[list[NvidiaCard], Finding | None]:
    """Where cards are divided, CUDA shows a process one MIG instance and no whole card (NVIDIA's MIG user guide)."""
    instances = [card for card in cards if _INSTANCE_NAME.fullmatch(card.name)]
    if not instances or len(cards) == 1:
        return cards, None
    note = Finding(
        Rule.MACHINE_LIMITED,
        f"cards are divided by MIG into {len(instances)} instances: CUDA shows a process one of them, here "
        f"{instances[0].name}, and no whole card",
        fix="set CUDA_VISIBLE_DEVICES to the MIG- id of another one (nvidia-smi -L lists them)",
    )
    return instances[:1], note


def _device(index: int, card: NvidiaCard, memory: Memory) -> tuple[Device | None, Pool | None, Finding | None]:
    instance = _INSTANCE_NAME.fullmatch(card.name)
    known = known_device(
        instance["card"] if instance else card.name, card.whole_bytes or card.total_bytes or memory.host_total_bytes
    )
    shares_host = not instance and (known.shares_host if known else card.total_bytes is None)
    if card.total_bytes is None and not shares_host:
        note = Finding(
            Rule.PROBE_FAILED,
            f"{card.source} does not say how much memory {card.name} has; the card is left out",
            fix="run nvidia-smi: its memory may be hidden by permissions, or divided by MIG",
        )
        return None, None, note
    bandwidth, flops = _rates(card, known, shares_host=shares_host)
    device = Device(
        name=f"CUDA{index}",
        backend="cuda",
        pool=HOST_POOL if shares_host else f"cuda{index}",
        description=card.name,
        total_bytes=memory.total_bytes if shares_host else card.total_bytes,
        free_bytes=memory.available_bytes if shares_host else card.free_bytes,
        bandwidth=bandwidth,
        flops=flops,
        link_bandwidth=None if card.bus is None or shares_host else card.bus.rate(card.source),
        unified=shares_host,
        compute_capability=card.compute_capability,
        bus=None if card.bus is None or shares_host else str(card.bus),
        driver=card.driver,
        runtime=card.runtime,
        source=card.source,
    )
    if shares_host or card.total_bytes is None:
        return device, None, None
    pool = Pool(device.pool, "card", card.total_bytes, card.free_bytes or 0)
    return device, pool, _free_unknown(card) if card.free_bytes is None else None


def _rates(card: NvidiaCard, known: KnownDevice | None, *, shares_host: bool) -> tuple[Fact, Fact]:
    """The card's rates; an instance has its share of memory's rate and as many sevenths of arithmetic as slices."""
    if known is None:
        return guessed_rates(card.name, shares_host=shares_host)
    instance = _INSTANCE_NAME.fullmatch(card.name)
    if not instance or not card.total_bytes or not card.whole_bytes:
        return known.bandwidth, known.flops
    of_memory = min(card.total_bytes / card.whole_bytes, 1.0)
    of_compute = int(instance["slices"]) / _COMPUTE_SLICES if instance["slices"] else of_memory
    source = f"{known.bandwidth.source}, the instance's share"
    return Fact(known.bandwidth.value * of_memory, source), Fact(known.flops.value * of_compute, source)


def _free_unknown(card: NvidiaCard) -> Finding:
    return Finding(
        Rule.PROBE_FAILED,
        f"{card.source} does not say how much memory of {card.name} is free; it is taken as full",
        fix="run nvidia-smi and see what it says",
    )
