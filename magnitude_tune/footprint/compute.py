"""Compute buffers: the engine reuses memory between the phases of its graph, so the largest phase counts.

Formulas, fitted to ggml 0.20.0 and 0.25.3 and equal to their printed figures for dense models (u = tokens of a micro
batch, all sizes f32 unless said otherwise):

    inputs   8 u + 8 u per cache for K indices and as many for V (per element of V without flash attention)
    masks    u x cells of a stream, for full and for sliding layers: f16 with flash attention, else f32
    attn     u (3 n_embd + 2 q); without flash attention u (3 n_embd + q + 4 kv + cells x heads)
    ffn      u (3 n_embd + q + 3 n_ff), 2 n_ff where one fits into the hole that q left;
             on a device u (2 n_embd + 3 n_ff), + q where no block is on the CPU
    experts  of the k used, u (3 n_embd + q) and
             u max(2 k n_ff_exp, k n_embd)     where their product fits into a hole,
             u 3 k n_ff_exp                    where their outputs fit over gate and up,
             u (3 k n_ff_exp + k n_embd)       else;
             a shared expert as ffn, + 2 u experts for the router
    output   n_out x n_vocab + 2 u n_embd; on a device that holds no block n_out (n_vocab + n_embd)

Source: `sched_reserve` in src/llama-context.cpp and ggml-alloc.c; largest = inputs + masks + max(ffn, attn, experts),
or output if that is larger.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS
from magnitude_tune.footprint.batch import Batch
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement, Span
from magnitude_tune.header.values import Attention, ModelHeader, MoeFacts, Role

__all__ = ["Compute", "Phases", "Widths"]

_PIPELINE_COPIES: Final = 4
_CUDA_BACKENDS: Final = frozenset({"cuda", "rocm"})
_OFFLOAD_MIN_BATCH: Final = 32
_ROTATION_BYTES: Final = 64 * 1024
_PLAIN_KV: Final = frozenset({"f32", "f16", "bf16"})


class Widths(NamedTuple):
    """The widths of a model that decide its compute buffers, in elements: the largest over its blocks."""

    n_embd: int
    n_vocab: int
    n_ff: int
    q: int
    k: int
    v: int
    heads: int
    experts: int
    recurrent: int
    has_full: bool
    has_sliding: bool

    @classmethod
    def of(cls, header: ModelHeader, has_full: bool, has_sliding: bool) -> Widths:
        """The widths of a header; whatever is missing is 0."""
        n_embd = max(0, header.n_embd)
        moe_blocks = {group.block for group in header.groups if group.role is Role.EXPERT_FFN}
        dense = [width for block, width in enumerate(header.n_ff) if block not in moe_blocks]
        attending = [layer for layer in header.layers if layer.attention is not Attention.RECURRENT]
        moe = header.moe
        q = max(
            (_query_width(layer.head_count, layer.head_count_kv, layer.k, n_embd) for layer in attending), default=0
        )
        state = header.recurrent
        return cls(
            n_embd=n_embd,
            n_vocab=max(0, header.n_vocab),
            n_ff=max((*dense, 0)),
            q=q,
            k=max((layer.k for layer in attending), default=0),
            v=max((layer.v for layer in attending), default=0),
            heads=max((layer.head_count for layer in attending), default=0),
            experts=_expert_width(moe, n_embd, q) if moe else 0,
            # Of a recurrent block only the state's shape is known: r is three times the convolved width.
            recurrent=4 * (state.r // 3) + 3 * n_embd if state else 0,
            has_full=has_full,
            has_sliding=has_sliding,
        )


class Phases(NamedTuple):
    """Bytes of the phases of one graph, on the host and on a device."""

    shared: int
    embedding: int
    host_layers: int
    device_layers: int
    device_alone: int
    output: int
    output_alone: int
    cuda_copies: int


class Compute:
    """Compute buffers for any placement of one model."""

    def __init__(self, widths: Widths, backends: tuple[str, ...]) -> None:
        self._widths = widths
        self._backends = backends

    def phases(self, batch: Batch) -> Phases:
        """What does not depend on the placement: worked out once for each batch."""
        return _phases_of(self._widths, batch)

    def parts(self, placement: Placement, batch: Batch, phases: Phases, largest_on_host: int) -> list[Part]:
        """Compute buffers of the host and of each used device, and the output buffer."""
        on_host = placement.host_blocks > 0 or largest_on_host > 0
        host = phases.shared + (phases.host_layers if on_host else phases.embedding)
        if placement.output_place == HOST:
            host = max(host, phases.output)
        parts = [Part("compute", HOST, host, host, "bounded", _RULE)]
        copies = _PIPELINE_COPIES if self._runs_pipelined(placement) else 1
        for index, span in enumerate(placement.spans):
            n_bytes = self._device_bytes(phases, span, copies, has_host_blocks=placement.host_blocks > 0)
            if index == 0 and batch.n_tokens >= _OFFLOAD_MIN_BATCH and self._backend(span) in HOST_BUFFER_BACKENDS:
                n_bytes += largest_on_host
            parts.append(Part("compute", span.place, n_bytes, n_bytes, "bounded", _RULE))
        output = 4 * batch.n_slots * self._widths.n_vocab
        parts.append(Part("output", HOST, output, output, "exact", "4 B x n_vocab x rows of logits kept"))
        return parts

    def _device_bytes(self, phases: Phases, span: Span, copies: int, *, has_host_blocks: bool) -> int:
        if span.end <= span.first:
            return phases.output_alone
        layers = phases.device_layers if has_host_blocks else phases.device_alone
        n_bytes = copies * phases.shared + layers
        if self._backend(span) in _CUDA_BACKENDS:
            n_bytes += phases.cuda_copies
        return max(n_bytes, phases.output) if span.holds_output else n_bytes

    def _runs_pipelined(self, placement: Placement) -> bool:
        spans = placement.spans
        return (
            len(spans) > 1
            and placement.all_offloaded
            and all(self._backend(span) in HOST_BUFFER_BACKENDS for span in spans)
        )

    def _backend(self, span: Span) -> str:
        return self._backends[span.place - 1]


def _phases_of(widths: Widths, batch: Batch) -> Phases:
    u, w = batch.n_tokens, widths
    caches = w.has_full + w.has_sliding
    n_kv = max(batch.cells.full if w.has_full else 0, batch.cells.sliding if w.has_sliding else 0)
    if not caches:
        n_kv = u  # no cache: tokens of the batch attend to each other
    masked = (batch.cells.full if w.has_full else 0) + (batch.cells.sliding if w.has_sliding else 0) if caches else u
    v_index = 1 if batch.flash_attn else max(1, w.v)
    inputs = u * (8 + 8 * caches * (1 + v_index))
    masks = (2 if batch.flash_attn else 4) * u * masked
    ffn = (2 if w.n_ff <= w.q else 3) * w.n_ff
    host = [ffn + 3 * w.n_embd + w.q, w.experts, w.recurrent]
    device = [3 * w.n_ff + 2 * w.n_embd, w.experts, w.recurrent]
    alone = [3 * w.n_ff + 2 * w.n_embd + w.q, w.experts, w.recurrent]
    if w.heads:
        attention = 2 * w.q if batch.flash_attn else w.q + 2 * (w.k + w.v) + n_kv * w.heads
        host.append(attention + 3 * w.n_embd)
        device.append(attention + 2 * w.n_embd)
        alone.append(attention + 2 * w.n_embd)
    quantised = batch.type_k not in _PLAIN_KV or batch.type_v not in _PLAIN_KV
    rotated = 4 * u * w.k + _ROTATION_BYTES if quantised and caches else 0
    return Phases(
        shared=inputs + masks,
        embedding=4 * u * 2 * w.n_embd,
        host_layers=4 * u * max(host) + rotated,
        device_layers=4 * u * max(device) + rotated,
        device_alone=4 * u * max(alone) + rotated,
        output=4 * (batch.n_slots * w.n_vocab + 2 * u * w.n_embd),
        output_alone=4 * batch.n_slots * (w.n_vocab + w.n_embd),
        # CUDA's flash attention reads quantised caches through an f16 copy of one layer.
        cuda_copies=2 * n_kv * batch.cells.streams * (w.k + w.v) if quantised and batch.flash_attn else 0,
    )


def _expert_width(moe: MoeFacts, n_embd: int, q: int) -> int:
    used, base = max(0, moe.expert_used_count), 3 * n_embd + q
    inner, outer = used * max(0, moe.n_ff_expert), used * n_embd
    if inner <= max(n_embd, q):
        width = base + max(2 * inner, outer)
    elif outer <= 2 * inner:
        width = base + 3 * inner
    else:
        width = base + 3 * inner + outer
    shared = base + 3 * moe.n_ff_shared + 2 * max(0, moe.expert_count) if moe.n_ff_shared > 0 else 0
    return max(width, shared)


def _query_width(heads: int, heads_kv: int, k: int, n_embd: int) -> int:
    """Elements of Q per token: heads times the head size that K declares."""
    return heads * k // heads_kv if heads_kv > 0 and k > 0 else n_embd


_RULE: Final = "inputs + masks + the largest phase of the graph for one micro batch (n_ubatch tokens)"
