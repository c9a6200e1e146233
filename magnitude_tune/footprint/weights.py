"""Weights: which tensors lie where, and which are copied into a layout of the CPU's liking.

Rules: llama.cpp's `load_tensors` (src/llama-model.cpp) and `create_tensor` (src/llama-model-loader.cpp). Input tensors
stay on the CPU; block and output tensors follow their layer; a tied output is a second copy of the token embedding
wherever the output's buffer cannot look up rows, which is every buffer but the CPU's plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS
from magnitude_tune.footprint.builds import BuildRules
from magnitude_tune.footprint.mapped import MappedRanges, Parts
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement, Span
from magnitude_tune.footprint.repack import Layout, RepackRules
from magnitude_tune.header.values import ModelHeader, Role, TensorGroup
from magnitude_tune.request import LoadMode
from magnitude_tune.units import MIB

__all__ = ["CUDA_LIKE", "Weights"]

_INPUT_ROLES: Final = frozenset({Role.TOKEN_EMBEDDING, Role.INPUT_OTHER, Role.PER_LAYER_EMBEDDING})
CUDA_LIKE: Final = frozenset({"cuda", "rocm", "sycl"})
"""Backends whose buffers align tensors to 128 bytes and fill quantised rows up to 512 elements."""

_TIED_TWICE: Final = frozenset({"gemma3n", "gemma4"})
"""Architectures that ask for the tied output before the embedding: without mmap the CPU then holds both."""

_READS_EMBEDDING: Final = frozenset({"bitnet"})
"""Architectures that make logits with the token embedding itself, where it lies: there is no copy of it."""

_PINNED_STAGING: Final = 4 * 64 * MIB


class _Sums(NamedTuple):
    """Bytes in one kind of buffer: before each block (and of all), of experts likewise, output and rope apart."""

    blocks: list[int]
    experts: list[int]
    output: int
    rope: int


class Weights:
    """Bytes of weights for any placement, from sums over the blocks made once."""

    def __init__(
        self, header: ModelHeader, rules: RepackRules, backends: tuple[str, ...], build: BuildRules | None = None
    ) -> None:
        self._backends = backends
        self._build = build or BuildRules()
        self._loaded_blocks = max(0, header.block_count - max(0, header.nextn_predict_layers))
        self._blocks = header.block_count
        loaded = [group for group in header.groups if self._is_loaded(group)]
        outer = [group for group in loaded if group.block is None]
        inputs = [group for group in outer if group.role in _INPUT_ROLES]
        rope = [group for group in outer if group.role is Role.ROPE]
        outputs = [group for group in outer if group.role not in _INPUT_ROLES and group.role is not Role.ROPE]
        in_blocks = [group for group in loaded if group.block is not None]
        experts = [group for group in in_blocks if group.role is Role.EXPERT_FFN]
        copies = header.tied_output and header.architecture not in _READS_EMBEDDING
        tied = [group for group in inputs if copies and group.role is Role.TOKEN_EMBEDDING]
        self._input_bytes = sum(map(_in_cpu_buffer, inputs))
        self._on_cpu = self._sums(in_blocks, experts, outputs, rope, _in_cpu_buffer)
        # A tied output is a second copy on a device; on the CPU the embedding is read where it is.
        self._plain = self._sums(in_blocks, experts, [*outputs, *tied], rope, _in_cpu_buffer)
        self._cuda = self._sums(in_blocks, experts, [*outputs, *tied], rope, _in_cuda_buffer)
        self._tied_twice = sum(map(_in_cpu_buffer, tied)) if header.architecture in _TIED_TWICE else 0
        self._tied_layout = rules.layout(tied)
        self._output_layout = rules.layout(outputs)
        self._largest_output = max((group.largest_bytes for group in (*outputs, *tied)), default=0)
        self._layouts = self._prefix_layouts(in_blocks, rules)
        self._expert_layouts = self._prefix_layouts(experts, rules)
        self._largest = self._running_largest(in_blocks)
        self._largest_from_end = self._running_largest(in_blocks, from_end=True)
        self._largest_expert = max((group.largest_bytes for group in experts), default=0)
        parts = Parts(inputs, outputs, rope, self._by_block(in_blocks), self._by_block(experts))
        self._mapped = MappedRanges(parts, lambda _: True, self._is_lazy)
        self._mapped_unpacked = MappedRanges(parts, rules.leaves, self._is_lazy)

    def parts(self, placement: Placement, n_cpu_moe: int, repack: bool, load_mode: LoadMode) -> list[Part]:
        """Weights, repacked copies and staging buffers of one placement."""
        first_gpu = placement.host_blocks
        moe_end = min(max(n_cpu_moe, 0), self._blocks)
        on_cpu = self._on_cpu
        host = self._input_bytes + on_cpu.blocks[first_gpu] + (on_cpu.rope if first_gpu else 0)
        layout = self._layouts[first_gpu]
        if moe_end > first_gpu:
            host += on_cpu.experts[moe_end] - on_cpu.experts[first_gpu]
            layout = layout.plus(self._expert_layouts[moe_end]).minus(self._expert_layouts[first_gpu])
        parts = []
        for span in placement.spans:
            n_bytes = self._of_span(span, moe_end)
            parts.append(Part("weights", span.place, n_bytes, n_bytes, "exact", _DEVICE_RULE))
        if placement.output_place == HOST:
            host += on_cpu.output
            layout = layout.plus(self._output_layout).plus(self._tied_layout)
        if not repack or self._has_pinned_buffers(placement):
            layout = Layout()
        held = self._held(placement, moe_end, host, layout, load_mode)
        parts = [held, *parts]
        if layout.copy:
            parts.insert(1, Part("repacked", HOST, layout.copy, layout.copy, "exact", _REPACKED_RULE))
        return [*parts, *self._staging(placement, layout, host, load_mode)]

    def largest_on_host(self, placement: Placement, n_cpu_moe: int) -> int:
        """The largest single block tensor that the CPU keeps: an offloaded matmul copies it to the device."""
        experts = self._largest_expert if n_cpu_moe > placement.host_blocks else 0
        return max(self._largest[placement.host_blocks], experts)

    def _of_span(self, span: Span, moe_end: int) -> int:
        sums = self._cuda if self._backends[span.place - 1] in CUDA_LIKE else self._plain
        kept = sums.experts[max(span.first, min(span.end, moe_end))] - sums.experts[span.first]
        n_bytes = sums.blocks[span.end] - sums.blocks[span.first] - kept
        n_bytes += sums.rope if span.end > span.first else 0
        return n_bytes + (sums.output if span.holds_output else 0)

    def _held(self, placement: Placement, moe_end: int, host: int, layout: Layout, load_mode: LoadMode) -> Part:
        """The CPU's own tensors: reserved is what they need, resident what is mapped for them."""
        if load_mode != "mmap":
            # A tied output's copy has its source in the token embedding, which stays where it is.
            held = host - layout.source + layout.tied_source
            held += self._tied_twice if placement.output_place == HOST and not layout.tied_source else 0
            return Part("weights", HOST, held, held, "exact", _UNMAPPED_RULE)
        ranges = self._mapped_unpacked if layout.copy else self._mapped
        mapped = host
        if ranges.known:
            mapped = ranges.n_bytes(placement.host_blocks, moe_end, output_on_host=placement.output_place == HOST)
        return Part("weights", HOST, host, mapped, "exact", _MAPPED_RULE)

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
            # Only what is read before others are filled can hide its read buffer in memory that is needed later
            # anyway. In the order of the buffers' names, CPU_REPACK comes last.
            late = 0 if self._build.packs_first else layout.largest_repack
            first = max(layout.largest_amx, layout.largest_repack) if self._build.packs_first else layout.largest_amx
            early = max(0, first - (host - layout.source + layout.tied_source))
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

    def _is_lazy(self, group: TensorGroup) -> bool:
        threshold = self._build.lazy_above_bytes
        return threshold is not None and group.role is Role.PER_LAYER_EMBEDDING and group.largest_bytes > threshold

    def _sums(
        self,
        in_blocks: list[TensorGroup],
        experts: list[TensorGroup],
        outputs: list[TensorGroup],
        rope: list[TensorGroup],
        size: Callable[[TensorGroup], int],
    ) -> _Sums:
        return _Sums(
            self._prefix(in_blocks, size), self._prefix(experts, size), sum(map(size, outputs)), sum(map(size, rope))
        )

    def _prefix(self, groups: Iterable[TensorGroup], size: Callable[[TensorGroup], int]) -> list[int]:
        """Bytes of all blocks before each block, and of all of them."""
        sums = [0] * self._blocks
        for group in groups:
            sums[group.block or 0] += size(group)
        return list(accumulate(sums, initial=0))

    def _by_block(self, groups: Iterable[TensorGroup]) -> list[list[TensorGroup]]:
        by_block: list[list[TensorGroup]] = [[] for _ in range(self._blocks)]
        for group in groups:
            by_block[group.block or 0].append(group)
        return by_block

    def _prefix_layouts(self, groups: Iterable[TensorGroup], rules: RepackRules) -> list[Layout]:
        return list(accumulate(map(rules.layout, self._by_block(groups)), Layout.plus, initial=Layout()))

    def _running_largest(self, groups: Iterable[TensorGroup], *, from_end: bool = False) -> list[int]:
        largest = [0] * self._blocks
        for group in groups:
            block = group.block or 0
            largest[block] = max(largest[block], group.largest_bytes)
        if from_end:
            return list(accumulate(reversed(largest), max, initial=0))[::-1]
        return list(accumulate(largest, max, initial=0))


def _in_cpu_buffer(group: TensorGroup) -> int:
    return group.n_bytes + group.padding_bytes


def _in_cuda_buffer(group: TensorGroup) -> int:
    return group.n_bytes + group.cuda_padding_bytes


_DEVICE_RULE: Final = "tensors of its layers, output layer and tied output included, expert tensors of n_cpu_moe not"
_MAPPED_RULE: Final = "mapped files, from the first to the last tensor on the CPU that is not repacked; evictable"
_UNMAPPED_RULE: Final = "input tensors and layers on the CPU, less what is repacked"
_REPACKED_RULE: Final = "second layout of matrices whose type this CPU repacks; a tied output is one more copy"
