"""What blocks cache besides keys and values: indexers of sparse attention, compressed caches, n-gram histories.

From llama.cpp 0.5.0: src/llama-kv-cache-dsa.cpp, -msa, -dsv4, src/llama-memory-hybrid-idx.cpp and `create_memory` in
src/llama-model.cpp.
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.header.facts import Facts
from magnitude_tune.header.values import Attention, LayerKv

__all__ = ["Indexers"]

_WITH_INDEXER: Final = frozenset(
    {"deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "minimax-m3", "qwen4exp"}
)
_GLM_LONG_CONTEXT: Final = 1048576
_COMPRESSED: Final = 4
_HEAVILY_COMPRESSED: Final = 128


class Indexers:
    """The additions to each block's cache."""

    def __init__(self, facts: Facts, n_blocks: int, n_trunk: int) -> None:
        self._facts = facts
        self._architecture = facts.architecture
        self._n_trunk = n_trunk
        self._size = facts.count("attention.indexer.key_length", 0) if self._architecture in _WITH_INDEXER else 0
        self._owns = self._owners(n_blocks)
        self._ratios = self._told("attention.compress_ratios", n_blocks) if self._architecture == "deepseek4" else ()
        self._histories = self._with_history()

    def added(self, block: int, layer: LayerKv, head_size: int, value_cached: bool) -> LayerKv:
        """The layer with its indexer, compressed cache and history.

        Args:
            head_size: elements of one head's value.
            value_cached: whether the model caches values at all; without, its indexer caches none either.
        """
        if self._ratios:
            return self._compressed(block, layer)
        if block in self._histories and layer.attention is Attention.RECURRENT:
            return layer._replace(extra_state=self._history())
        if not self._size or not self._owns[block] or layer.attention in {Attention.NONE, Attention.RECURRENT}:
            return layer
        if self._architecture == "glm5-next" and self._facts.count("attention.indexer.kpool", 0):
            # Keys, gates and pooled values.
            return layer._replace(indexer=3 * self._size)
        keys_only = not value_cached or self._architecture == "qwen4exp"
        return layer._replace(indexer=self._size, indexer_v=0 if keys_only else head_size)

    def _owners(self, n_blocks: int) -> tuple[bool, ...]:
        """Which blocks have an indexer of their own; others borrow another's."""
        facts = self._facts
        if self._architecture == "minimax-m3":
            n_dense = facts.count("leading_dense_block_count", 0)
            return tuple(block >= n_dense for block in range(n_blocks))
        if self._architecture == "hy_v4" and not facts.count("attention.indexer.top_k", 0):
            return (False,) * n_blocks
        if self._architecture in {"deepseek32", "qwen4exp"} or not facts.has("attention.indexer.types"):
            return tuple(self._owns_by_default(block) for block in range(n_blocks))
        return tuple(bool(own) for own in self._told("attention.indexer.types", n_blocks))

    def _owns_by_default(self, block: int) -> bool:
        if block >= self._n_trunk or self._architecture in {"hy_v4", "dots3note"}:
            return False
        if self._architecture == "glm-dsa" and self._facts.count("context_length", 0) >= _GLM_LONG_CONTEXT:
            return block < 2 or block % 4 == 2
        return True

    def _told(self, name: str, n_blocks: int) -> tuple[int, ...]:
        """One number a block from an array or one for all; 0 for blocks that an array leaves out."""
        told = self._facts.counts(name)
        if told is None:
            return (0,) * n_blocks
        return (
            (told + (0,) * n_blocks)[:n_blocks]
            if isinstance(told, tuple)
            else (told,) * self._n_trunk + (0,) * (n_blocks - self._n_trunk)
        )

    def _compressed(self, block: int, layer: LayerKv) -> LayerKv:
        """deepseek4: beside the sliding cache one of fewer cells, with f32 state of what is being compressed."""
        ratio = self._ratios[block]
        state = 0
        if ratio == _COMPRESSED:
            state = 2 * 2 * _COMPRESSED * 2 * (layer.k + self._size)
        elif ratio == _HEAVILY_COMPRESSED:
            state = 2 * _HEAVILY_COMPRESSED * layer.k
        else:
            ratio = 0
        return layer._replace(
            indexer=self._size if ratio == _COMPRESSED else 0,
            extra_state=state if block < self._n_trunk else 0,
            compress_ratio=ratio,
        )

    def _with_history(self) -> frozenset[int]:
        told = self._facts.counts("ple.layers") if self._architecture == "qwen4exp" else None
        return frozenset(told) if isinstance(told, tuple) else frozenset()

    def _history(self) -> int:
        """qwen4exp: embeddings of the last n-grams' tokens, for the convolution over them."""
        facts = self._facts
        kernel, size = facts.count("ple.conv_kernel", 0), facts.count("ple.ngram_size", 0)
        streams = facts.count("hyper_connection.count", 0)
        return max(0, kernel - 1) * size * streams * facts.count("embedding_length", 0)
