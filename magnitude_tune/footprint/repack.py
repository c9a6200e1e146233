"""How big the copies are that the CPU backend makes in a layout of its own.

Sizes: ggml's src/ggml-cpu/amx/mmq.cpp (`get_row_size`). The buffers are tried in the order in which the engine lists
them; what each takes is in `fingerprint/layouts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.layouts import AMX_ROWS, cpu_repack_types
from magnitude_tune.header.values import Role, TensorGroup

__all__ = ["Layout", "RepackRules"]

_AMX_GROWTH: Final = {
    "q4_0": (1, 1),
    "q4_1": (1, 1),
    "q8_0": (38, 34),
    "q4_k": (148, 144),
    "q5_k": (180, 176),
    "q6_k": (1, 1),
    "iq4_xs": (138, 136),
    "f16": (1, 1),
}
"""Bytes per block in the AMX buffer and in the file: some types gain sums or unpacked scales."""


class Layout(NamedTuple):
    """Repacked matrices in bytes: their copies, their sources in the file, and the largest read at once.

    `tied_source`: the part of `source` that is the token embedding of a tied output: it also stays as it was.
    """

    copy: int = 0
    source: int = 0
    tied_source: int = 0
    largest_amx: int = 0
    largest_repack: int = 0

    def plus(self, other: Layout) -> Layout:
        """Both together."""
        return Layout(
            self.copy + other.copy,
            self.source + other.source,
            self.tied_source + other.tied_source,
            max(self.largest_amx, other.largest_amx),
            max(self.largest_repack, other.largest_repack),
        )

    def minus(self, part: Layout) -> Layout:
        """Without a part of it; the largest tensors stay as an upper bound."""
        return Layout(
            self.copy - part.copy,
            self.source - part.source,
            self.tied_source - part.tied_source,
            self.largest_amx,
            self.largest_repack,
        )


class RepackRules:
    """What one engine build repacks on one CPU."""

    def __init__(self, extra_buffers: tuple[str, ...], cpu_features: frozenset[str], n_vocab: int) -> None:
        self._buffers = extra_buffers
        # Block matrices have round widths; of the output matrix only the vocabulary says how many rows it has.
        self._amx_takes_output = n_vocab % AMX_ROWS == 0
        self._repack_types = cpu_repack_types(cpu_features)

    def layout(self, groups: Iterable[TensorGroup]) -> Layout:
        """The layout of these tensors if they stay on the CPU."""
        total = Layout()
        for group in groups:
            buffer = self._buffer(group)
            source = self._source(group)
            if buffer is None or source <= 0:
                continue
            packed, stored = _AMX_GROWTH[group.type_name] if buffer == "amx" else (1, 1)
            # For a stack of packed matrices the AMX buffer has room for one of them only: a fault of the engine.
            copied = source if group.type_name == "f16" else source // max(1, group.slices)
            total = total.plus(
                Layout(
                    copy=copied * packed // stored,
                    source=source,
                    tied_source=source if group.role is Role.TOKEN_EMBEDDING else 0,
                    largest_amx=group.largest_bytes if buffer == "amx" else 0,
                    largest_repack=group.largest_bytes if buffer == "cpu_repack" else 0,
                )
            )
        return total

    def leaves(self, group: TensorGroup) -> bool:
        """Whether no matrix of the group is moved: they stay where the file is mapped."""
        return self._source(group) <= 0 or self._buffer(group) is None

    def _source(self, group: TensorGroup) -> int:
        """Bytes of the group in matrices that some buffer may take."""
        if group.slices > 1:
            return group.n_bytes
        whole = group.repackable_bytes >= group.n_bytes
        return group.n_bytes + group.padding_bytes if whole else group.repackable_bytes

    def _buffer(self, group: TensorGroup) -> str | None:
        for buffer in self._buffers:
            if buffer == "amx" and self._amx_takes(group):
                return buffer
            if buffer == "cpu_repack" and group.slices <= 1 and group.type_name in self._repack_types:
                return buffer
        return None

    def _amx_takes(self, group: TensorGroup) -> bool:
        if group.type_name not in _AMX_GROWTH or group.role is Role.EXPERT_FFN or group.row_multiple % AMX_ROWS:
            return False
        return group.block is not None or self._amx_takes_output
