"""Which weight types a CPU's extra buffers hold in a faster layout."""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.fingerprint.layouts import AMX_ROWS, AMX_TYPES, cpu_repack_types

__all__ = ["Repackable", "repackable_types"]


class Repackable(NamedTuple):
    """Types by what they are used for: in blocks, as experts, and in the output matrix.

    AMX leaves experts to `cpu_repack`, and matrices whose rows are no multiple of 32: the vocabulary decides for the
    output matrix, blocks have round widths.
    """

    dense: frozenset[str]
    experts: frozenset[str]
    output: frozenset[str]


def repackable_types(extra_buffers: tuple[str, ...], features: frozenset[str], n_vocab: int) -> Repackable:
    """Types that these extra buffers take on a CPU with these features."""
    plain = cpu_repack_types(features)
    experts = plain if "cpu_repack" in extra_buffers else frozenset[str]()
    dense = experts | AMX_TYPES if "amx" in extra_buffers else experts
    return Repackable(dense, experts, experts if n_vocab % AMX_ROWS else dense)
