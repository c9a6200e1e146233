"""Compute buffers and the output buffer.

The engine plans one graph for a whole micro batch and reuses memory within it; `graph/` replays that plan, so a
buffer's size is the engine's own. Beside it stands what a device's library takes when it computes.
Source: `sched_reserve` in src/llama-context.cpp.
"""

from __future__ import annotations

import re
from typing import Final

from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS
from magnitude_tune.footprint.batch import Batch
from magnitude_tune.footprint.graph.replay import NEWEST_GGML, Replay
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement, Span
from magnitude_tune.header.values import Attention, ModelHeader

__all__ = ["Compute"]

_CUDA_BACKENDS: Final = frozenset({"cuda", "rocm"})
_OFFLOAD_MIN_BATCH: Final = 32
_VERSION: Final = re.compile(r"0\.(\d{1,6})\.(\d{1,6})")
_PLAIN_KV: Final = frozenset({"f32", "f16", "bf16"})


class Compute:
    """Compute buffers for any placement of one model."""

    def __init__(self, header: ModelHeader, backends: tuple[str, ...], ggml_version: str | None = None) -> None:
        self._replay = Replay(header, _minor_version(ggml_version))
        self._backends = backends
        self._n_vocab = max(0, header.n_vocab)
        # A model with an encoder keeps embeddings beside the logits.
        self._n_encoded = max(0, header.n_embd) if header.architecture == "t5" else 0
        attending = [layer for layer in header.layers if layer.attention is not Attention.RECURRENT]
        self._kv_width = max((layer.k + layer.v for layer in attending), default=0)
        self._rule = _RULE if self._replay.known else _UNKNOWN_RULE

    def parts(self, placement: Placement, batch: Batch, largest_on_host: int, n_cpu_moe: int = 0) -> list[Part]:
        """Compute buffers of the host and of each used device, and the output buffer.

        `n_cpu_moe`: so many first blocks have their experts on the CPU; that ends pipelining.
        """
        pipelined = n_cpu_moe <= 0 and self._runs_pipelined(placement)
        if self._copies_to_devices(placement, batch):
            n_cpu_moe = 0
        host, *devices = self._replay.buffers(placement, batch, batch.n_slots, pipelined=pipelined, n_cpu_moe=n_cpu_moe)
        parts = [Part("compute", HOST, host, host, "bounded", self._rule)]
        for index, (span, n_bytes) in enumerate(zip(placement.spans, devices, strict=True)):
            extra = self._device_extra(span, batch, largest_on_host if index == 0 else 0)
            parts.append(Part("compute", span.place, n_bytes + extra, n_bytes + extra, "bounded", self._rule))
        output = 4 * batch.n_slots * (self._n_vocab + self._n_encoded)
        parts.append(Part("output", HOST, output, output, "exact", "4 B x n_vocab x rows of logits kept"))
        return parts

    def _device_extra(self, span: Span, batch: Batch, largest_on_host: int) -> int:
        """What a device computes with beside the graph's own tensors."""
        backend, extra = self._backend(span), 0
        if batch.n_tokens >= _OFFLOAD_MIN_BATCH and backend in HOST_BUFFER_BACKENDS:
            # Large batches copy a matrix that stays on the host to the first device.
            extra += largest_on_host
        quantised = batch.type_k not in _PLAIN_KV or batch.type_v not in _PLAIN_KV
        if backend in _CUDA_BACKENDS and quantised and batch.flash_attn and span.end > span.first:
            # CUDA's flash attention reads quantised caches through an f16 copy of one layer.
            extra += 2 * max(batch.cells.full, batch.cells.sliding) * batch.cells.streams * self._kv_width
        return extra

    def _copies_to_devices(self, placement: Placement, batch: Batch) -> bool:
        """Whether large batches are computed on the devices even with matrices that stay on the host."""
        return batch.n_tokens >= _OFFLOAD_MIN_BATCH and all(
            self._backend(span) in HOST_BUFFER_BACKENDS for span in placement.spans
        )

    def _runs_pipelined(self, placement: Placement) -> bool:
        spans = placement.spans
        return (
            len(spans) > 1
            and placement.all_offloaded
            and all(self._backend(span) in HOST_BUFFER_BACKENDS for span in spans)
        )

    def _backend(self, span: Span) -> str:
        return self._backends[span.place - 1]


def _minor_version(ggml_version: str | None) -> tuple[int, int]:
    """Minor version and patch of `0.25.3`; the newest where it is not known."""
    match = _VERSION.match(ggml_version or "")
    return (int(match[1]), int(match[2])) if match else NEWEST_GGML


_RULE: Final = "the engine's graph for one micro batch (n_ubatch tokens), replayed: memory is reused within it"
_UNKNOWN_RULE: Final = "as of an ordinary transformer: the architecture is not known; the engine's graph may be larger"
