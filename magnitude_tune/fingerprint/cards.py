"""What the probes of all vendors' cards share: the link to the host, the choice of visible cards, PCI names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Device, Fact, Pool

__all__ = [
    "AMD",
    "INTEL",
    "KFD_NODES",
    "NVIDIA",
    "Bus",
    "CardFacts",
    "NvidiaCard",
    "bus_in_tree",
    "cards_in_tree",
    "hidden_note",
    "pci_name",
    "visible",
]

AMD: Final = "0x1002"
INTEL: Final = "0x8086"
NVIDIA: Final = "0x10de"
KFD_NODES: Final = "sys/class/kfd/kfd/topology/nodes"
"""The compute topology of AMD's driver; processors are nodes of it too."""

# Bytes per second and lane, both ends' encoding taken off (PCI-SIG base specifications 1.0 to 6.0).
_LANE_RATES: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_WIDTHS: Final = frozenset({1, 2, 4, 8, 12, 16, 32})
_GENERATIONS: Final = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_NAME_LISTS: Final = ("usr/share/hwdata/pci.ids", "usr/share/misc/pci.ids")
_MOST_CARDS: Final = 64

Row = TypeVar("Row")


class CardFacts(NamedTuple):
    """Devices in the engine's order, pools of the cards that have memory of their own, and what there is to say."""

    devices: tuple[Device, ...] = ()
    pools: tuple[Pool, ...] = ()
    notes: tuple[Finding, ...] = ()


class Bus(NamedTuple):
    """The link between host and card at its best: PCIe generation and lanes."""

    generation: int
    lanes: int

    def __str__(self) -> str:
        return f"PCIe {self.generation}.0 x{self.lanes}"

    def rate(self, source: str) -> Fact:
        """Bytes per second in one direction."""
        return Fact(_LANE_RATES[self.generation] * self.lanes, f"{source}: the link's most")

    @staticmethod
    def of(generation: int | None, lanes: int | None) -> Bus | None:
        """The link, None where either figure is unknown or makes no sense."""
        if generation is None or lanes is None or generation not in _LANE_RATES or lanes not in _WIDTHS:
            return None
        return Bus(generation, lanes)


class NvidiaCard(NamedTuple):
    """An NVIDIA card, or a MIG instance of one, as a driver's tool describes it; None for what it does not say.

    `whole_bytes` is the memory of the card that an instance is cut from; None on a card that is whole.
    """

    name: str
    source: str
    total_bytes: int | None = None
    free_bytes: int | None = None
    driver: str | None = None
    runtime: str | None = None
    compute_capability: str | None = None
    bus: Bus | None = None
    uuid: str | None = None
    whole_bytes: int | None = None


def cards_in_tree(tree: Tree, vendor: str) -> tuple[str, ...]:
    """Folders of the graphics devices of one PCI vendor (`0x1002`), in the kernel's order.

    A server's display chip is a card here too: whoever asks for a vendor does not get it.
    """
    names = [name for name in tree.children("sys/class/drm") if re.fullmatch(r"card[0-9]{1,4}", name, re.ASCII)]
    folders = [f"sys/class/drm/{name}/device" for name in sorted(names, key=lambda name: int(name[4:]))]
    return tuple(folder for folder in folders if tree.word(f"{folder}/vendor") == vendor)[:_MOST_CARDS]


def bus_in_tree(tree: Tree, folder: str) -> Bus | None:
    """The narrowest link between a device and the root: a card's own bridge may be faster than its slot."""
    found = [_link(tree, folder + "/.." * level) for level in range(4)]
    links = [link for link in found if link is not None]
    return min(links, key=lambda link: link.rate("").value, default=None)


def _link(tree: Tree, folder: str) -> Bus | None:
    speed = (tree.word(f"{folder}/max_link_speed") or "").split(" ")[0]
    return Bus.of(_GENERATIONS.get(speed), tree.number(f"{folder}/max_link_width"))


def visible(rows: list[Row], chosen: str | None, uuid_of: Callable[[Row], str | None]) -> list[Row]:
    """The rows that a `*_VISIBLE_DEVICES` shows, in its order, by number or by the start of an id.

    The first part that names no row, or more than one, ends the list, as the runtimes do it.
    """
    if chosen is None:
        return rows
    shown: list[Row] = []
    for part in (part.strip() for part in chosen.split(",")):
        matching = [
            row
            for index, row in enumerate(rows)
            if part == str(index) or (part.startswith(("GPU-", "MIG-")) and (uuid_of(row) or "").startswith(part))
        ]
        if len(matching) != 1 or matching[0] in shown:
            break
        shown += matching
    return shown


def hidden_note(variable: str, n_shown: int, n_listed: int, vendor: str) -> Finding | None:
    """That a variable hides cards from the engine; None where it hides none."""
    if n_shown >= n_listed:
        return None
    return Finding(
        Rule.MACHINE_LIMITED,
        f"{variable} hides {n_listed - n_shown} of {n_listed} {vendor} cards from the engine",
        fix=f"unset {variable} to plan with all of them",
    )


def pci_name(tree: Tree, folder: str) -> tuple[str, str | None] | None:
    """The names of a device in the system's list of PCI ids: the chip's, and the card's in brackets where it has one.

    `1002` / `744c  Navi 31 [Radeon RX 7900 XT/7900 XTX]` gives (`Navi 31`, `Radeon RX 7900 XT/7900 XTX`).
    """
    vendor, device = tree.word(f"{folder}/vendor") or "", tree.word(f"{folder}/device") or ""
    if not all(re.fullmatch(r"0x[0-9a-f]{4}", number, re.ASCII) for number in (vendor, device)):
        return None
    text = next((text for path in _NAME_LISTS if (text := tree.text(path)) is not None), "")
    _, _, of_vendor = ("\n" + text).partition(f"\n{vendor[2:]}  ")
    found = re.search(rf"^(?:\t{device[2:]}  (.{{1,200}})|[0-9a-f]{{4}}  .*)$", of_vendor, re.MULTILINE | re.ASCII)
    if found is None or found[1] is None:
        return None
    chip, _, card = found[1].partition("[")
    return chip.strip()[:120], card.partition("]")[0].strip()[:120] or None
