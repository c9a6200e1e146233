"""The light form of a term while candidates are priced: thousands are made, few are ever shown."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.values import Certainty

__all__ = ["HOST", "Part"]

HOST: Final = 0
"""Place of the CPU; the machine's device `i` is place `i + 1`."""


class Part(NamedTuple):
    """One term at one place (see `Term`), bytes reserved and resident."""

    name: str
    place: int
    reserved: int
    resident: int
    certainty: Certainty
    rule: str
