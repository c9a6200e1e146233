"""AMD's graphics: memory by sysfs or else `rocm-smi`, architecture and order by the kernel's compute topology (KFD)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.cards import (
    AMD,
    KFD_NODES,
    Bus,
    CardFacts,
    bus_in_tree,
    cards_in_tree,
    hidden_note,
    pci_name,
    visible,
)
from magnitude_tune.fingerprint.device_table import KnownDevice, guessed_rates, known_device
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import HOST_POOL, Device, Memory, Pool
from magnitude_tune.units import GIB

if TYPE_CHECKING:
    from magnitude_tune.fingerprint.rocm_smi import SmiCard

__all__ = ["read_amd"]

# The system's list, or that of AMD's own packages.
_NAME_LISTS: Final = ("usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids")
_MOST_NODES: Final = 256
_MOST_BYTES: Final = 1 << 44
# Chips with the graphics on the processor's die (LLVM's AMDGPU usage guide, "Processors", column "APU").
_APU: Final = re.compile(r"gfx(?:90[29c]|10(?:13|3[3567])|11(?:03|5[0-3]))", re.ASCII)
_APU_NAME: Final = re.compile(
    r"Radeon( Vega [0-9]{1,2})? Graphics|Ryzen|Radeon [678][0-9]{2}M|Radeon 80[0-9]{2}S", re.ASCII
)
_LEAST_CARD_BYTES: Final = GIB
"""Less is what a firmware sets aside for graphics on the processor's die."""


class _Node(NamedTuple):
    """One GPU of the compute topology."""

    number: int
    gfx: str
    render: int | None
    location: tuple[int, int] | None


class _Card(NamedTuple):
    """One GPU; bytes are None where nobody says."""

    name: str
    source: str
    gfx: str | None = None
    node: int | None = None
    uuid: str | None = None
    vram_bytes: int | None = None
    vram_used_bytes: int | None = None
    gtt_bytes: int | None = None
    gtt_used_bytes: int | None = None
    bus: Bus | None = None


def read_amd(tree: Tree, run: CommandRunner | None, memory: Memory, environment: Mapping[str, str]) -> CardFacts:
    """AMD's devices in ROCm's order; those that ROCm does not know come last, as Vulkan's.

    Free memory is total less used of the driver's own count, which every process is in. ROCm's figure of free memory
    is 126 to 176 MiB too high in public reports, and joins only as the smaller of two.

    Args:
        tree: the machine's files.
        run: runs `rocm-smi` where the driver's files do not tell the memory; None to do without it.
        memory: the host's memory, which integrated graphics share.
        environment: `ROCR_VISIBLE_DEVICES`, `HIP_VISIBLE_DEVICES` and `CUDA_VISIBLE_DEVICES` decide what engines see.
    """
    nodes = _nodes(tree)
    cards = [_read(tree, folder, nodes) for folder in cards_in_tree(tree, AMD)]
    if run is not None and (any(card.vram_bytes is None for card in cards) if cards else nodes):
        cards = _with_smi(cards, run)
    of_rocm = sorted((card for card in cards if card.node is not None), key=lambda card: card.node or 0)
    shown, hidden = _visible(of_rocm, environment)
    version, driver = _rocm_version(tree), _driver(tree)
    devices: list[Device] = []
    pools: list[Pool] = []
    notes = list(hidden)
    others = [card for card in cards if card.node is None]
    for backend, group in (("rocm", shown), ("vulkan", others)):
        for card in group:
            number = sum(device.backend == backend for device in devices)
            device, pool, note = _device(number, backend, card, memory)
            devices += (
                []
                if device is None
                else [replace(device, driver=driver, runtime=version if backend == "rocm" else None)]
            )
            pools += [] if pool is None else [pool]
            notes += [] if note is None else [note]
    return CardFacts(tuple(devices), tuple(pools), tuple(notes))


def _nodes(tree: Tree) -> list[_Node]:
    found = []
    for name in tree.children(KFD_NODES)[:_MOST_NODES]:
        text = tree.text(f"{KFD_NODES}/{name}/properties") or ""
        figures = {key: int(value) for key, value in re.findall(r"^(\w{1,40}) ([0-9]{1,20})$", text, re.M | re.ASCII)}
        version = figures.get("gfx_target_version", 0)
        if not re.fullmatch(r"[0-9]{1,4}", name, re.ASCII) or not 0 < version < 10**7 or not figures.get("simd_count"):
            continue
        location = figures.get("location_id")
        found.append(
            _Node(
                number=int(name),
                gfx=f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}",
                render=figures.get("drm_render_minor"),
                location=None if location is None else (figures.get("domain", 0), location),
            )
        )
    return sorted(found)


def _read(tree: Tree, folder: str, nodes: list[_Node]) -> _Card:
    node = _node_of(tree, folder, nodes)
    unique = tree.word(f"{folder}/unique_id") or ""
    return _Card(
        name=_name(tree, folder),
        gfx=node.gfx if node else None,
        node=node.number if node else None,
        uuid=f"GPU-{unique}" if re.fullmatch(r"[0-9a-f]{16}", unique, re.ASCII) else None,
        vram_bytes=_bytes(tree, f"{folder}/mem_info_vram_total") or None,
        vram_used_bytes=_bytes(tree, f"{folder}/mem_info_vram_used"),
        gtt_bytes=_bytes(tree, f"{folder}/mem_info_gtt_total") or None,
        gtt_used_bytes=_bytes(tree, f"{folder}/mem_info_gtt_used"),
        bus=bus_in_tree(tree, folder),
        source="sysfs",
    )


def _bytes(tree: Tree, path: str) -> int | None:
    number = tree.number(path)
    return number if number is not None and 0 <= number < _MOST_BYTES else None


def _node_of(tree: Tree, folder: str, nodes: list[_Node]) -> _Node | None:
    """The card's node, by its render device or by its place on the bus."""
    renders = [int(name[7:]) for name in tree.children(f"{folder}/drm") if re.fullmatch(r"renderD[0-9]{1,4}", name)]
    uevent = tree.text(f"{folder}/uevent") or ""
    slot = re.search(r"^PCI_SLOT_NAME=([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$", uevent, re.M | re.ASCII)
    place = None
    if slot:
        place = (int(slot[1], 16), int(slot[2], 16) << 8 | int(slot[3], 16) << 3 | int(slot[4]))
    return next(
        (node for node in nodes if node.render in renders or (place is not None and node.location == place)), None
    )


def _name(tree: Tree, folder: str) -> str:
    """The card's name: the firmware's, that of libdrm's list, that of the PCI list, or its number."""
    if product := tree.word(f"{folder}/product_name"):
        return product[:120]
    device, revision = (tree.word(f"{folder}/{name}") or "" for name in ("device", "revision"))
    if all(re.fullmatch(r"0x[0-9a-f]{1,4}", number, re.ASCII) for number in (device, revision)):
        wanted = (int(device, 16), int(revision, 16))
        names = next((text for path in _NAME_LISTS if (text := tree.text(path)) is not None), "")
        for line in names.splitlines():
            found = re.match(r"([0-9A-Fa-f]{1,4}),\s*([0-9A-Fa-f]{1,2}),\s*(\S.{0,119})", line, re.ASCII)
            if found and (int(found[1], 16), int(found[2], 16)) == wanted:
                return found[3].strip()
    listed = pci_name(tree, folder)
    return f"AMD {listed[1] or listed[0]}" if listed else f"AMD graphics {device}".strip()[:60]


def _with_smi(cards: list[_Card], run: CommandRunner) -> list[_Card]:
    """Cards completed by `rocm-smi`'s memory, the nth by the nth; where the kernel shows none, `rocm-smi`'s own."""
    from magnitude_tune.fingerprint.rocm_smi import ask_rocm_smi

    listed = ask_rocm_smi(run)
    if not cards:
        return [_of_smi(smi) for smi in listed]
    if len(listed) != len(cards):
        return cards
    return [
        card
        if card.vram_bytes is not None
        else card._replace(vram_bytes=smi.total_bytes, vram_used_bytes=smi.used_bytes, source="rocm-smi")
        for card, smi in zip(cards, listed, strict=True)
    ]


def _of_smi(smi: SmiCard) -> _Card:
    return _Card(
        name=smi.name or "AMD graphics",
        gfx=smi.gfx,
        node=smi.number,
        vram_bytes=smi.total_bytes,
        vram_used_bytes=smi.used_bytes,
        source="rocm-smi",
    )


def _uuid(card: _Card) -> str | None:
    return card.uuid


def _visible(cards: list[_Card], environment: Mapping[str, str]) -> tuple[list[_Card], list[Finding]]:
    """What the runtimes show: ROCr chooses among all, HIP (or CUDA's variable in its place) among what is left."""
    of_hip = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environment else "CUDA_VISIBLE_DEVICES"
    notes = []
    for variable in ("ROCR_VISIBLE_DEVICES", of_hip):
        shown = visible(cards, environment.get(variable), _uuid)
        notes.append(hidden_note(variable, len(shown), len(cards), "AMD"))
        cards = shown
    return cards, [note for note in notes if note is not None]


def _rocm_version(tree: Tree) -> str | None:
    version = tree.word("opt/rocm/.info/version") or ""
    return f"ROCm {version}" if re.fullmatch(r"[0-9.]{1,12}(-[0-9]{1,6})?", version, re.ASCII) else None


def _driver(tree: Tree) -> str | None:
    """The driver's version where it was installed apart, else the kernel's, whose part it is."""
    own = tree.word("sys/module/amdgpu/version")
    kernel = tree.word("proc/sys/kernel/osrelease")
    return f"amdgpu {own}"[:80] if own else f"amdgpu of Linux {kernel}"[:80] if kernel else None


def _is_integrated(card: _Card, known: KnownDevice | None) -> bool:
    if card.gfx is not None and _APU.fullmatch(card.gfx):
        return True
    if known is not None:
        return known.shares_host
    return bool(_APU_NAME.search(card.name)) or (card.vram_bytes or _LEAST_CARD_BYTES) < _LEAST_CARD_BYTES


def _device(
    number: int, backend: str, card: _Card, memory: Memory
) -> tuple[Device | None, Pool | None, Finding | None]:
    known = known_device(card.name, card.vram_bytes)
    integrated = _is_integrated(card, known)
    shares_host = integrated and (card.gtt_bytes or memory.total_bytes) >= (card.vram_bytes or 0)
    if card.vram_bytes is None and not shares_host:
        return None, None, _unknown("how much memory", card, "has; the card is left out")
    name = f"{'ROCm' if backend == 'rocm' else 'Vulkan'}{number}"
    guessed = guessed_rates(card.name, shares_host=integrated)
    total, free = _shared(card, memory) if shares_host else _own(card)
    device = Device(
        name=name,
        backend=backend,
        pool=HOST_POOL if shares_host else name.lower(),
        description=card.name,
        total_bytes=total,
        free_bytes=free,
        bandwidth=known.bandwidth if known else guessed[0],
        flops=known.flops if known else guessed[1],
        link_bandwidth=None if card.bus is None or integrated else card.bus.rate(card.source),
        cap_bytes=total if shares_host else None,
        unified=shares_host,
        integrated=integrated,
        compute_capability=card.gfx,
        bus=None if card.bus is None or integrated else str(card.bus),
        source=card.source,
    )
    if shares_host or total is None:
        return device, None, None
    note = _unknown("how much memory of", card, "is free; it is taken as full") if free is None else None
    return device, Pool(device.pool, "card", total, free or 0), note


def _shared(card: _Card, memory: Memory) -> tuple[int, int]:
    """Integrated graphics take the host's memory, up to the driver's limit (GTT), beside what firmware set aside."""
    total = min(card.gtt_bytes or memory.total_bytes, memory.total_bytes)
    left = total - min(card.gtt_used_bytes or 0, total)
    return max(total, 1), min(left, memory.available_bytes)


def _own(card: _Card) -> tuple[int | None, int | None]:
    total, used = card.vram_bytes, card.vram_used_bytes
    return total, None if total is None or used is None else max(0, total - used)


def _unknown(what: str, card: _Card, then: str) -> Finding:
    between = f"{what} {card.name}"
    return Finding(
        Rule.PROBE_FAILED,
        f"neither the driver nor rocm-smi says {between} {then}",
        fix="run rocm-smi --showmeminfo vram and see what it says",
    )
