"""Weights: which tensors lie where, and which are copied into a layout of the CPU's liking.

Rules: llama.cpp's `load_tensors` (src/llama-model.cpp) and `create_tensor` (src/llama-model-loader.cpp). Input tensors
stay on the CPU; block and output tensors follow their layer; a tied output is a second copy of the token embedding
wherever the output's buffer cannot look up rows, which is every buffer but the CPU's plain one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.footprint.repack import Layout, RepackRules
from magnitude_tune.header.values import ModelHeader, Role, TensorGroup
from magnitude_tune.request import LoadMode
from magnitude_tune.units import MIB

__all__ = ["Weights"]

"""Backends with pinned host buffers: CPU weights go there before any repacking is considered."""

_INPUT_ROLES: Final = frozenset({Role.TOKEN_EMBEDDING, Role.INPUT_OTHER, Role.PER_LAYER_EMBEDDING})
_PINNED_STAGING: Final = 4 * 64 * MIB


class Weights:
    """Bytes of weights for any placement, from sums over the blocks made once."""

    def __init__(self, header: ModelHeader, rules: RepackRules, backends: tuple[str, ...]) -> None:
        self._backends = backends
        self._loaded_blocks = max(0, header.block_count - max(0, header.nextn_predict_layers))
        self._blocks = header.block_count
        loaded = [group for group in header.groups if self._is_loaded(group)]
        inputs = [group for group in loaded if group.block is None and group.role in _INPUT_ROLES]
        outputs = [group for group in loaded if group.block is None and group.role not in _INPUT_ROLES]
        in_blocks = [group for group in loaded if group.block is not None]
        self._input_bytes = _sum(inputs)
        self._output_bytes = _sum(outputs)
        tied = [group for group in inputs if header.tied_output and group.role is Role.TOKEN_EMBEDDING]
        self._tied_bytes = _sum(tied)
        self._tied_layout = rules.layout(tied)
        self._output_layout = rules.layout(outputs)
        self._largest_output = max((group.largest_bytes for group in (*outputs, *tied)), default=0)
        experts = [group for group in in_blocks if group.role is Role.EXPERT_FFN]
        self._all = self._prefix(in_blocks)
        self._experts = self._prefix(experts)
        self._layouts = self._prefix_layouts(in_blocks, rules)
        self._expert_layouts = self._prefix_layouts(experts, rules)
        self._largest = self._running_largest(in_blocks)
        self._largest_from_end = self._running_largest(in_blocks, from_end=True)
        self._largest_expert = max((group.largest_bytes for group in experts), default=0)

    def parts(self, placement: Placement, n_cpu_moe: int, repack: bool, load_mode: LoadMode) -> list[Part]:
        """Weights, repacked copies and staging buffers of one placement."""
        first_gpu = placement.host_blocks
        moe_end = min(max(n_cpu_moe, 0), self._blocks)
        host = self._input_bytes + self._all[first_gpu]
        layout = self._layouts[first_gpu]
        if moe_end > first_gpu:
            host += self._experts[moe_end] - self._experts[first_gpu]
            layout = layout.plus(self._expert_layouts[moe_end]).minus(self._expert_layouts[first_gpu])
        parts = []
        for span in placement.spans:
            kept = self._experts[max(span.first, min(span.end, moe_end))] - self._experts[span.first]
            n_bytes = self._all[span.end] - self._all[span.first] - kept
            n_bytes += self._output_bytes + self._tied_bytes if span.holds_output else 0
            parts.append(Part("weights", span.place, n_bytes, n_bytes, "exact", _DEVICE_RULE))
        if placement.output_place == HOST:
            host += self._output_bytes
            layout = layout.plus(self._output_layout).plus(self._tied_layout)
        if not repack or self._has_pinned_buffers(placement):
            layout = Layout()
        return [*self._host_parts(host, layout, load_mode), *parts, *self._staging(placement, layout, host, load_mode)]

    def largest_on_host(self, placement: Placement, n_cpu_moe: int) -> int:
        """The largest single block tensor that the CPU keeps: an offloaded matmul copies it to the device."""
        experts = self._largest_expert if n_cpu_moe > placement.host_blocks else 0
        return max(self._largest[placement.host_blocks], experts)

    def _host_parts(self, host: int, layout: Layout, load_mode: LoadMode) -> list[Part]:
        if load_mode == "mmap":
            held, rule = host, _MAPPED_RULE
        else:
            # A tied output's copy has its source in the token embedding, which stays where it is.
            held, rule = host - layout.source + layout.tied_source, _UNMAPPED_RULE
        parts = [Part("weights", HOST, held, held, "exact", rule)]
        if layout.copy:
            parts.append(Part("repacked", HOST, layout.copy, layout.copy, "exact", _REPACKED_RULE))
        return parts

    def _staging(self, placement: Placement, layout: Layout, host: int, load_mode: LoadMode) -> list[Part]:
        rpc = [span for span in placement.spans if self._backends[span.place - 1] == "rpc"]
        parts = []
        for span in rpc:
            largest = self._largest_offloaded(span.first, span.holds_output)
            parts.append(Part("staging", span.place, largest, 0, "bounded", "one tensor in transit while loading"))
        in_transit = max((part.reserved for part in parts), default=0)
        if load_mode == "mmap":
            at_host, rule = in_transit, "largest tensor sent over RPC, while loading"
        elif self._has_pinned_buffers(placement):
            at_host, rule = _PINNED_STAGING, "4 pinned buffers of 64 MiB, while loading"
        else:
            # Buffers are filled in the order of their names: AMX, CPU, CPU_REPACK. Only what is read before others
            # are filled can hide its read buffer in memory that is needed later anyway.
            late = layout.largest_repack
            early = max(0, layout.largest_amx - (host - layout.source + layout.tied_source))
            at_host, rule = max(2 * in_transit, late, early), "read buffer of the largest tensor, while loading"
        if at_host:
            parts.append(Part("staging", HOST, at_host, 0, "bounded", rule))
        return parts

    def _largest_offloaded(self, first: int, holds_output: bool) -> int:
        return max(self._largest_from_end[first], self._largest_output if holds_output else 0)

    def _has_pinned_buffers(self, placement: Placement) -> bool:
        return any(self._backends[span.place - 1] in HOST_BUFFER_BACKENDS for span in placement.spans)

    def _is_loaded(self, group: TensorGroup) -> bool:
        if group.role is Role.UNUSED:
            return False
        return group.block is None or 0 <= group.block < self._loaded_blocks

    def _prefix(self, groups: Iterable[TensorGroup]) -> list[int]:
        """Bytes of all blocks before each block, and of all of them."""
        sums = [0] * self._blocks
        for group in groups:
            sums[group.block or 0] += group.n_bytes
        return list(accumulate(sums, initial=0))

    def _prefix_layouts(self, groups: Iterable[TensorGroup], rules: RepackRules) -> list[Layout]:
        by_block: list[list[TensorGroup]] = [[] for _ in range(self._blocks)]
        for group in groups:
            by_block[group.block or 0].append(group)
        return list(accumulate(map(rules.layout, by_block), Layout.plus, initial=Layout()))

    def _running_largest(self, groups: Iterable[TensorGroup], *, from_end: bool = False) -> list[int]:
        largest = [0] * self._blocks
        for group in groups:
            block = group.block or 0
            largest[block] = max(largest[block], group.largest_bytes)
        if from_end:
            return list(accumulate(reversed(largest), max, initial=0))[::-1]
        return list(accumulate(largest, max, initial=0))


def _sum(groups: Iterable[TensorGroup]) -> int:
    return sum(group.n_bytes for group in groups)


_DEVICE_RULE: Final = "tensors of its layers, output layer and tied output included, expert tensors of n_cpu_moe not"
_MAPPED_RULE: Final = "mapped file: input tensors and layers on the CPU; evictable, yet needed for every token"
_UNMAPPED_RULE: Final = "input tensors and layers on the CPU, less what is repacked"
_REPACKED_RULE: Final = "second layout of matrices whose type this CPU repacks; a tied output is one more copy"
