"""The light form of a term while candidates are priced: thousands are made, few are ever shown."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.values import Certainty, Term

__all__ = ["HOST", "Part"]

HOST: Final = 0
"""Place of the CPU; the machine's device `i` is place `i + 1`."""


class Part(NamedTuple):
    """One term at one place (see `Term`), bytes reserved and resident.

    `low` and `high` are the interval of the resident figure. Left out, an exact term has none, and any other reaches
    from the smaller to the larger of its two figures.
    """

    name: str
    place: int
    reserved: int
    resident: int
    certainty: Certainty
    rule: str
    low: int | None = None
    high: int | None = None

    def term(self, device: str, pool: str) -> Term:
        """The term that is shown: at a device by its name."""
        exact = self.certainty == "exact"
        low = self.resident if exact else min(self.resident, self.reserved)
        high = self.resident if exact else max(self.resident, self.reserved)
        return Term(
            name=self.name,
            device=device,
            pool=pool,
            reserved_bytes=self.reserved,
            resident_bytes=self.resident,
            certainty=self.certainty,
            rule=self.rule,
            low_bytes=low if self.low is None else self.low,
            high_bytes=high if self.high is None else self.high,
        )
