"""The CPU backend's work buffer: where a matmul puts its input in the weights' own format, and attention its tiles.

No engine prints it. It grows to the largest operation met and stays. Rules: `ggml_graph_plan` in ggml's
src/ggml-cpu/ggml-cpu.c.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.footprint.batch import cells
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.header.values import Attention, ModelHeader, Role
from magnitude_tune.request import Settings

__all__ = ["WorkBuffer"]

_BLOCK_OF_INPUT: Final = {"f32": (0, 1), "f16": (2, 1), "bf16": (2, 1), "q4_1": (36, 32), "q5_1": (36, 32)}
_OF_QUANTISED: Final = {"q4_0": (34, 32), "q5_0": (34, 32), "q8_0": (34, 32), "iq4_nl": (34, 32), "mxfp4": (34, 32)}
_OF_OTHERS: Final = (292, 256)
"""Bytes and elements of a block of a matmul's input, which is converted to suit the type of the weights."""

_TILE: Final = 64
"""Queries and keys that flash attention takes at once."""

_MATMUL_TILE_BYTES: Final = 512 * 1024
_STACK_BYTES: Final = 64 * 1024
_ROW_MAPPING_BYTES: Final = 8
_MATRICES: Final = frozenset({Role.ATTENTION, Role.DENSE_FFN, Role.EXPERT_FFN, Role.SHARED_EXPERT, Role.RECURRENT})


class WorkBuffer:
    """Bytes of the work buffer and of the threads' stacks of one model."""

    def __init__(self, header: ModelHeader, usable_cores: int) -> None:
        self._cores = max(1, usable_cores)
        kinds = {group.type_name for group in header.groups if group.role in _MATRICES}
        blocks = [_BLOCK_OF_INPUT.get(kind) or _OF_QUANTISED.get(kind, _OF_OTHERS) for kind in kinds]
        self._bytes, self._elements = max(blocks, key=lambda block: block[0] / block[1], default=(0, 1))
        attending = [layer for layer in header.layers if layer.attention is not Attention.RECURRENT]
        heads = [(layer, max(1, layer.head_count_kv)) for layer in attending]
        q = max((layer.head_count * layer.k // n for layer, n in heads), default=0)
        inner = header.recurrent.r // 3 if header.recurrent else 0
        self._dense = max(header.n_embd, q, inner, *header.n_ff, 0)
        self._tiles = max((4 * _TILE * 2 * (layer.k + layer.v) // n for layer, n in heads), default=0)
        self._window = header.sliding_window
        self._has_full = any(layer.attention is not Attention.SLIDING for layer in attending)
        self._heads = max((layer.head_count for layer in attending), default=0) if header.causal else 0
        moe = header.moe
        self._experts = max(header.n_embd, moe.expert_used_count * moe.n_ff_expert) if moe else 0
        self._mapping = moe.expert_count * moe.expert_used_count * _ROW_MAPPING_BYTES if moe else 0

    def scores_bytes(self, settings: Settings, n_ctx: int, n_tokens: int) -> int:
        """Without flash attention: all heads' scores of a micro batch, in the type of the V cache."""
        if settings.flash_attn or settings.type_v not in ("f16", "bf16"):
            return 0
        size = cells(n_ctx, settings.n_parallel, settings.kv_unified, n_tokens, self._window)
        return 2 * max(0, n_tokens) * max(0, self._heads) * (size.full if self._has_full else size.sliding)

    def part(self, n_tokens: int, n_threads: int, scores: int, *, dense: bool, experts: bool) -> Part | None:
        """The term for a micro batch of `n_tokens`; None where the CPU computes no block.

        Candidates are priced before their threads are known: what is reserved holds all usable cores.
        """
        per_token = max(self._dense if dense else 0, self._experts if experts else 0)
        if not per_token:
            return None
        matmul = max(0, n_tokens) * (per_token * self._bytes // self._elements + (self._mapping if experts else 0))
        matmul = max(matmul, scores if dense else 0)
        reserved = self._with_threads(matmul, max(self._cores, n_threads))
        return Part("work", HOST, reserved, self._with_threads(matmul, n_threads), "bounded", _RULE, 0, reserved)

    def _with_threads(self, matmul: int, n_threads: int) -> int:
        threads = max(1, n_threads)
        return max(matmul + threads * _MATMUL_TILE_BYTES, threads * (self._tiles + 8 * _TILE * _TILE)) + (
            threads * _STACK_BYTES
        )


_RULE: Final = (
    "n_ubatch x widest input of a matmul on the CPU in the weights' own format (without flash attention: heads x cells "
    "x 2 B, if more), + 0.5 MiB a thread for tiles; "
    "reserved for all usable cores"
)
