"""Intel's graphics by sysfs: cards with memory of their own (`xe`, `i915`), and what shares the host's."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.cards import INTEL, Bus, CardFacts, bus_in_tree, cards_in_tree, pci_name
from magnitude_tune.fingerprint.device_table import KnownDevice, guessed_rates, known_device
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Device, Memory, Pool
from magnitude_tune.units import GIB

__all__ = ["read_intel"]

_MOST_BYTES: Final = 1 << 44
_MEMORY_BAR: Final = 2
"""The PCI window that shows a card's memory: all of it where the window can be resized."""


class _Card(NamedTuple):
    name: str
    known: KnownDevice | None
    own_bytes: int | None
    free_bytes: int | None
    bus: Bus | None
    driver: str | None


def read_intel(tree: Tree, memory: Memory, *, first: int = 0) -> CardFacts:
    """Intel's devices; cards come before what shares the host's memory.

    The kernel seldom tells how much of a card's memory is free: then it counts as full until an engine says.

    Args:
        tree: the machine's files.
        memory: the host's memory, which integrated graphics share.
        first: the number of the first one: Vulkan counts the devices of all vendors together.
    """
    cards = sorted((_read(tree, folder) for folder in cards_in_tree(tree, INTEL)), key=lambda card: not card.own_bytes)
    devices: list[Device] = []
    pools: list[Pool] = []
    notes: list[Finding] = []
    for number, card in enumerate(cards, first):
        devices.append(_device(number, card, memory))
        if card.own_bytes:
            pools.append(Pool(devices[-1].pool, "card", card.own_bytes, card.free_bytes or 0))
            notes += [_free_unknown(card)] if card.free_bytes is None else []
    return CardFacts(tuple(devices), tuple(pools), tuple(notes))


def _read(tree: Tree, folder: str) -> _Card:
    names = pci_name(tree, folder)
    chip = names[0] if names else f"graphics {tree.word(f'{folder}/device') or ''}".strip()[:60]
    name = f"Intel {(names and names[1]) or chip}"
    known = known_device(name, None)
    own = _own_memory(tree, folder)
    if own is None and known is not None and not known.shares_host and known.memory_gib:
        own = round(known.memory_gib * GIB)
    free = _bytes(tree, folder.removesuffix("device") + "lmem_avail_bytes")
    uevent = re.search(r"^DRIVER=(\w{1,40})$", tree.text(f"{folder}/uevent") or "", re.MULTILINE | re.ASCII)
    return _Card(
        name=name.removeprefix("Intel ") if name.startswith("Intel Intel") else name,
        known=known,
        own_bytes=own,
        free_bytes=min(free, own) if free is not None and own else None,
        bus=bus_in_tree(tree, folder) if own else None,
        driver=uevent[1] if uevent else None,
    )


def _own_memory(tree: Tree, folder: str) -> int | None:
    """A card's memory: what `xe` says of each tile, what `i915` says, or the size of its window where that is large."""
    tiles = [name for name in tree.children(folder) if re.fullmatch(r"tile[0-9]{1,2}", name, re.ASCII)]
    of_tiles = [_bytes(tree, f"{folder}/{tile}/physical_vram_size_bytes") or 0 for tile in tiles]
    if total := sum(of_tiles) or _bytes(tree, folder.removesuffix("device") + "lmem_total_bytes"):
        return total
    lines = (tree.text(f"{folder}/resource") or "").splitlines()
    found = (
        re.match(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) ", lines[_MEMORY_BAR]) if len(lines) > _MEMORY_BAR else None
    )
    size = int(found[2], 16) - int(found[1], 16) + 1 if found else 0
    return size if GIB <= size < _MOST_BYTES else None


def _bytes(tree: Tree, path: str) -> int | None:
    """Bytes in a file, decimal or with `0x`; None for anything else, and for none."""
    word = tree.word(path) or ""
    if not re.fullmatch(r"0x[0-9a-f]{1,15}|[0-9]{1,15}", word, re.ASCII):
        return None
    size = int(word, 16 if word.startswith("0x") else 10)
    return size if 0 < size < _MOST_BYTES else None


def _device(number: int, card: _Card, memory: Memory) -> Device:
    shares_host = not card.own_bytes
    guessed = guessed_rates(card.name, shares_host=shares_host)
    return Device(
        name=f"Vulkan{number}",
        backend="vulkan",
        pool=HOST_POOL if shares_host else f"intel{number}",
        description=card.name,
        total_bytes=memory.total_bytes if shares_host else card.own_bytes,
        free_bytes=memory.available_bytes if shares_host else card.free_bytes,
        bandwidth=card.known.bandwidth if card.known else guessed[0],
        flops=card.known.flops if card.known else guessed[1],
        link_bandwidth=card.bus.rate("sysfs") if card.bus else None,
        unified=shares_host,
        integrated=shares_host,
        bus=str(card.bus) if card.bus else None,
        driver=card.driver,
        source="sysfs",
    )


def _free_unknown(card: _Card) -> Finding:
    return Finding(
        Rule.PROBE_FAILED,
        f"the kernel does not say how much memory of {card.name} is free; it is taken as full unless an engine says",
    )
