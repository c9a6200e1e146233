"""Compute buffers and the output buffer.

The engine plans one graph for a whole micro batch and reuses memory within it; `graph/` replays that plan. Where an
architecture has a recipe, the figures of the CPU and of devices over RPC are the engine's own: engines there print
them. No accelerator has confirmed its figure yet: operations that it lacks and its alignment may change it, and its
library takes memory of its own when it computes. Source: `sched_reserve` in src/llama-context.cpp.
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
from magnitude_tune.request import PLAIN_KV_TYPES

__all__ = ["Compute"]

_CUDA_BACKENDS: Final = frozenset({"cuda", "rocm"})
_OFFLOAD_MIN_BATCH: Final = 32
_VERSION: Final = re.compile(r"0\.(\d{1,6})\.(\d{1,6})")
_PRINTING_BACKENDS: Final = frozenset({"cpu", "rpc"})
"""Backends whose buffers were compared with what engines print."""

_ACCELERATOR_DOUBT: Final = (95, 105)
"""Percent of a replayed buffer between which an accelerator's is taken to lie: a guess."""

_UNKNOWN_DOUBT: Final = (15, 150)
"""Percent of an ordinary transformer's buffer between which that of an unknown architecture is taken to lie.

Nine in ten buffers of the architectures that have a recipe lie there, when each is replayed as if it had none
(`tests/footprint/test_unknown_architectures.py`): without a cache far lower, with T5 or an indexer far higher.
"""


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

    def parts(self, placement: Placement, batch: Batch, largest_on_host: int, n_cpu_moe: int = 0) -> list[Part]:
        """Compute buffers of the host and of each used device, and the output buffer.

        `n_cpu_moe`: so many first blocks have their experts on the CPU; that ends pipelining.
        """
        pipelined = n_cpu_moe <= 0 and self._runs_pipelined(placement)
        if self._copies_to_devices(placement, batch):
            n_cpu_moe = 0
        host, *devices = self._replay.buffers(placement, batch, batch.n_slots, pipelined=pipelined, n_cpu_moe=n_cpu_moe)
        parts = [self._part(HOST, "cpu", host, 0)]
        for index, (span, n_bytes) in enumerate(zip(placement.spans, devices, strict=True)):
            extra = self._device_extra(span, batch, largest_on_host if index == 0 else 0)
            parts.append(self._part(span.place, self._backend(span), n_bytes, extra))
        output = 4 * batch.n_slots * (self._n_vocab + self._n_encoded)
        parts.append(Part("output", HOST, output, output, "exact", "4 B x n_vocab x rows of logits kept"))
        return parts

    def _part(self, place: int, backend: str, n_bytes: int, extra: int) -> Part:
        """The term of a replayed buffer; `extra`: what the device's library may take beside it, at most."""
        if self._replay.known and backend in _PRINTING_BACKENDS:
            return Part("compute", place, n_bytes, n_bytes, "exact", _RULE)
        percent, rule = (_ACCELERATOR_DOUBT, _DEVICE_RULE) if self._replay.known else (_UNKNOWN_DOUBT, _UNKNOWN_RULE)
        low, high = (-(-n_bytes * part // 100) for part in percent)
        return Part("compute", place, high + extra, n_bytes + extra, "estimated", rule, min(low, n_bytes), high + extra)

    def _device_extra(self, span: Span, batch: Batch, largest_on_host: int) -> int:
        """What a device computes with beside the graph's own tensors."""
        backend, extra = self._backend(span), 0
        if batch.n_tokens >= _OFFLOAD_MIN_BATCH and backend in HOST_BUFFER_BACKENDS:
            # Large batches copy a matrix that stays on the host to the first device.
            extra += largest_on_host
        quantised = batch.type_k not in PLAIN_KV_TYPES or batch.type_v not in PLAIN_KV_TYPES
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
_DEVICE_RULE: Final = f"{_RULE}; +-5 % for what this device does otherwise, and at most what its library copies"
_UNKNOWN_RULE: Final = "as of an ordinary transformer, 15 to 150 %: nine in ten that are known lie there"
