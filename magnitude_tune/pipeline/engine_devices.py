"""Accelerators as the engines list them, matched to the cards that probes found; and those that only engines see."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.values import HOST_POOL, Device, EngineDevice, EngineFacts, Fact, Fingerprint, Pool
from magnitude_tune.magnitude import PoolKind
from magnitude_tune.units import MIB

__all__ = ["with_engine_devices"]

_BACKENDS: Final = {
    "CUDA": "cuda",
    "ROCm": "rocm",
    "Vulkan": "vulkan",
    "SYCL": "sycl",
    "RPC": "rpc",
    "Metal": "metal",
    "MTL": "metal",
}
_VENDOR_OF_BACKEND: Final = {"cuda": "nvidia", "rocm": "amd", "metal": "apple"}
_VENDOR_WORDS: Final = {
    "nvidia": ("nvidia", "geforce", "tesla", "quadro"),
    "amd": ("amd", "radeon", "ryzen", "gfx"),
    "intel": ("intel", "arc", "iris", "uhd"),
    "apple": ("apple",),
}
_ROCM_OVERSTATES_BYTES: Final = 176 * MIB
"""ROCm's free memory is 126 to 176 MiB too high in public reports (field report B34)."""
_SIZES_AGREE: Final = 0.125
"""Backends differ in what of a card's memory they count: its own reserve, or none of it."""


def with_engine_devices(machine: Fingerprint) -> Fingerprint:
    """The machine with its accelerators named and ordered as the engines do, and what only an engine sees.

    A card that both see keeps the smaller of the two readings of its free memory. A card that several backends list
    (`CUDA0`, `Vulkan0`) is a device for each, all in one pool. An engine's order counts more than our own guess of it.
    """
    devices = {device.name: device for device in machine.devices}
    pools = {pool.name: pool for pool in machine.pools}
    taken: dict[str, set[str]] = {}
    notes: list[Finding] = []
    named: dict[str, Device] = {}
    for listed in _listed(machine.engines):
        backend = _backend(listed)
        card = _card_of(listed, backend, machine.devices, taken.setdefault(backend, set()))
        if card is None and listed.total_bytes <= 0:
            notes.append(_sizeless(listed))
            continue
        if card is None:
            device, pool = _from_engine(listed, backend, machine, pools)
            pools |= {} if pool is None else {pool.name: pool}
            if device.unified:
                pools[HOST_POOL] = replace(pools[HOST_POOL], kind="unified")
        else:
            taken[backend].add(card.name)
            device = _seen_by_both(card, listed, backend)
            pools[card.pool] = _with_reading(pools[card.pool], card, device)
            if card.backend == backend:
                devices.pop(card.name, None)
        named[listed.name] = device
    found = tuple({**devices, **named}.values())
    in_use = {HOST_POOL, *(device.pool for device in found)}
    return replace(
        machine,
        devices=found,
        pools=tuple(pool for pool in pools.values() if pool.name in in_use),
        notes=(*machine.notes, *notes),
    )


def _listed(engines: Iterable[EngineFacts]) -> Iterable[EngineDevice]:
    seen: set[str] = set()
    for engine in engines:
        for device in engine.devices:
            if device.name not in seen and engine.problem is None:
                seen.add(device.name)
                yield device


def _backend(listed: EngineDevice) -> str:
    prefix = listed.name.partition("[")[0].rstrip("0123456789")
    return _BACKENDS.get(prefix, prefix.lower())


def _card_of(listed: EngineDevice, backend: str, cards: Sequence[Device], taken: set[str]) -> Device | None:
    """The card of ours that an engine lists: by its model, else by its name, else the next of its vendor.

    The nth card of a model in the engine's list is our nth one.
    """
    if backend == "rpc":
        return None
    from magnitude_tune.fingerprint.device_table import same_model

    left = [card for card in cards if card.backend != "rpc" and card.name not in taken]
    models = [card for card in left if same_model(card.description, listed.description) and _agree(card, listed)]
    if models:
        return next((card for card in models if card.name == listed.name), models[0])
    by_name = next((card for card in left if card.name == listed.name), None)
    if by_name is not None and _agree(by_name, listed):
        return by_name
    vendor = _vendor(listed.description, backend)
    return next(
        (card for card in left if vendor == _vendor(card.description, card.backend) and _agree(card, listed)), None
    )


def _agree(card: Device, listed: EngineDevice) -> bool:
    """Whether the sizes can be those of one card; memory shared with the host is counted in many ways."""
    if card.unified or card.integrated:
        return True
    if listed.integrated:
        return False
    if not card.total_bytes or listed.total_bytes <= 0:
        return True
    return abs(card.total_bytes - listed.total_bytes) <= _SIZES_AGREE * card.total_bytes


def _vendor(description: str, backend: str) -> str | None:
    if backend in _VENDOR_OF_BACKEND:
        return _VENDOR_OF_BACKEND[backend]
    lower = description.lower()
    return next((vendor for vendor, words in _VENDOR_WORDS.items() if any(word in lower for word in words)), None)


def _seen_by_both(card: Device, listed: EngineDevice, backend: str) -> Device:
    """Our card by the engine's name; the smaller reading of free memory, and of what a shared one may take."""
    free = _free(listed, backend if card.free_bytes is None else "")
    if card.free_bytes is not None:
        free = min(card.free_bytes, free) if listed.total_bytes > 0 else card.free_bytes
    cap = card.cap_bytes
    if card.unified and listed.total_bytes > 0:
        cap = min(cap or listed.total_bytes, listed.total_bytes)
    return replace(card, name=listed.name, backend=backend, free_bytes=free, cap_bytes=cap)


def _free(listed: EngineDevice, backend: str) -> int:
    """Free bytes as an engine reads them, less what ROCm adds where nobody else can say."""
    free = min(max(listed.free_bytes, 0), max(listed.total_bytes, 0))
    return max(0, free - _ROCM_OVERSTATES_BYTES) if backend == "rocm" else free


def _with_reading(pool: Pool, card: Device, device: Device) -> Pool:
    """A card's pool with the engine's reading: the smaller one, or the only one."""
    if pool.kind != "card" or device.free_bytes is None:
        return pool
    available = device.free_bytes if card.free_bytes is None else min(pool.available_bytes, device.free_bytes)
    return replace(pool, available_bytes=min(available, pool.total_bytes))


def _sizeless(listed: EngineDevice) -> Finding:
    return Finding(
        Rule.PROBE_FAILED,
        f"the engine does not say how much memory {listed.name} ({listed.description}) has; it is left out",
    )


def _from_engine(
    listed: EngineDevice, backend: str, machine: Fingerprint, pools: Container[str]
) -> tuple[Device, Pool | None]:
    """A device as an engine lists it; one that shares this host's RAM, as one over loopback does, brings no pool."""
    from magnitude_tune.fingerprint.device_table import guessed_rates, known_device

    known = known_device(listed.description, listed.total_bytes)
    unified = backend != "rpc" and (listed.integrated or (known is not None and known.shares_host))
    guessed = guessed_rates(listed.description, shares_host=unified)
    bandwidth, flops = (known.bandwidth, known.flops) if known else guessed
    shares_host, free = unified, _free(listed, backend)
    if backend == "rpc" and _is_here(listed):
        cpu, shares_host = machine.cpu, True
        bandwidth = Fact(cpu.bandwidth.value, f"this host's: {cpu.bandwidth.source}")
        flops = Fact(cpu.flops.value, f"this host's: {cpu.flops.source}")
    kind: PoolKind = "remote" if backend == "rpc" else "card"
    own = listed.name.lower()
    name = f"{own} of the engine" if own in pools else own
    pool = None if shares_host else Pool(name, kind, listed.total_bytes, free)
    device = Device(
        name=listed.name,
        backend=backend,
        pool=HOST_POOL if pool is None else pool.name,
        description=listed.description,
        total_bytes=listed.total_bytes,
        free_bytes=min(free, machine.memory.available_bytes) if unified else free,
        bandwidth=bandwidth,
        flops=flops,
        cap_bytes=listed.total_bytes if unified else None,
        unified=unified,
        integrated=unified and listed.integrated,
        source="listed by the engine",
    )
    return device, pool


def _is_here(listed: EngineDevice) -> bool:
    from magnitude_tune.engines.rpc import address_of, is_loopback

    address = address_of(listed)
    return address is not None and is_loopback(address)
