"""What a plan takes of each memory pool, term by term."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from magnitude_tune.request import Settings

__all__ = ["Certainty", "Footprint", "FootprintModel", "Term"]

Certainty = Literal["exact", "bounded", "estimated"]


class Term(NamedTuple):
    """One named part of the memory of a running engine.

    Args:
        name: `weights`, `kv_cache`, `recurrent_state`, `compute`, `output`, `work`, `repacked`, `prompt_cache`,
            `checkpoints`, `process`, `device_overhead`, `staging`; beside the model `projector`, `projector_compute`,
            terms of a draft (`draft_weights`, `draft_kv_cache` ...) and of the model's own drafting blocks
            (`mtp_weights`, `mtp_kv_cache`, `mtp_compute`, `mtp_output`), and `draft_logits`: rows to be checked.
        device: `CPU` or the engine's device name.
        reserved_bytes: what budgets must hold.
        resident_bytes: what the process will show (RSS on the host, used memory on a card) once it has worked.
        rule: the formula or the source of the figure, in a few words.
        low_bytes, high_bytes: between which the resident figure lies; both equal it where the term is exact.
    """

    name: str
    device: str
    pool: str
    reserved_bytes: int
    resident_bytes: int
    certainty: Certainty
    rule: str
    low_bytes: int
    high_bytes: int


class Footprint(NamedTuple):
    """All terms of one plan."""

    terms: tuple[Term, ...]

    def reserved_of_pool(self, pool: str) -> int:
        """Bytes that the pool's budget must hold."""
        return sum(term.reserved_bytes for term in self.terms if term.pool == pool)

    def reserved_of_device(self, device: str) -> int:
        """Bytes that the device's own cap must hold."""
        return sum(term.reserved_bytes for term in self.terms if term.device == device)


class FootprintModel(Protocol):
    """Prices settings for one model, machine and engine: sums over layers are prepared once."""

    @property
    def pools(self) -> tuple[str, ...]:
        """Pool names, in the order of `reserved`."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Accelerators with a cap or pool of their own, in the order of `reserved_by_device`."""

    def reserved(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per pool: the same sums as `footprint(settings)` gives, without the terms."""

    def reserved_by_device(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per accelerator, for devices that have a cap of their own."""

    def footprint(self, settings: Settings) -> Footprint:
        """Every term."""
