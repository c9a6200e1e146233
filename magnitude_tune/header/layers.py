"""What each block keeps per token and per sequence.

From llama.cpp 0.5.0: src/llama-hparams.cpp (n_embd_k_gqa, n_embd_v_gqa, n_embd_r, n_embd_s, has_kv) and
src/llama-model.cpp (load_hparams, create_memory).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.header.facts import Facts
from magnitude_tune.header.patterns import HYBRID_BLOCKS, NO_CACHE, recurrent_blocks, sliding_blocks
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape

__all__ = ["Layers", "derive_layers"]

_GEMMA3N_BLOCKS_WITH_KV: Final = 20


class Layers(NamedTuple):
    """The blocks of a model, and what they have in common."""

    blocks: tuple[LayerKv, ...]
    n_ff: tuple[int, ...]
    sliding_window: int
    recurrent: RecurrentShape | None


class _HeadSizes(NamedTuple):
    """Elements of one head's key and value, in full and in sliding blocks; `value_cached`: not with MLA."""

    key: int
    value: int
    key_sliding: int
    value_sliding: int
    value_cached: bool


def derive_layers(facts: Facts, n_blocks: int, n_trunk: int, n_embd: int) -> Layers:
    """Attention class and cached elements of each block.

    Args:
        facts: the model's metadata.
        n_blocks: all blocks; those from `n_trunk` on predict further tokens (MTP) and cache nothing here.
        n_trunk: the blocks that generation runs through.
        n_embd: width of the embedding.

    Raises:
        HeaderError: a per-block array has the wrong length, or a value is no count.
    """
    none = (0,) * n_blocks
    heads = facts.per_block("attention.head_count", n_blocks, none)
    heads_kv = facts.per_block("attention.head_count_kv", n_blocks, heads)
    n_ff = facts.per_block("feed_forward_length", n_blocks, none)
    window, sliding = sliding_blocks(facts, n_blocks, n_trunk)
    recurrent = recurrent_blocks(facts, n_blocks, n_trunk, heads_kv, n_ff)
    sizes = _head_sizes(facts, heads[0], n_embd)
    blocks = []
    for block in range(n_blocks):
        attention = _attention(
            facts, block, n_trunk, recurrent=recurrent[block], sliding=sliding[block], heads_kv=heads_kv[block]
        )
        if attention is Attention.FULL and facts.architecture.startswith("nemotron_h") and n_ff[block]:
            attention = Attention.NONE
        if attention is Attention.FULL and not sizes.value_cached:
            attention = Attention.MLA
        blocks.append(_layer(facts, block, attention, sizes, (heads[block], heads_kv[block])))
    return Layers(
        blocks=tuple(blocks),
        n_ff=n_ff,
        sliding_window=window if any(layer.attention is Attention.SLIDING for layer in blocks) else 0,
        recurrent=_recurrent_shape(facts, heads[0], n_embd, sizes.key) if any(recurrent) else None,
    )


def _head_sizes(facts: Facts, head_count: int, n_embd: int) -> _HeadSizes:
    """Sizes are `n_embd / head_count` unless told; the first block's head count stands for all."""
    default = n_embd // head_count if head_count else 0
    key = facts.count("attention.key_length", default)
    value = facts.count("attention.value_length", default)
    mla = facts.count("attention.key_length_mla", 0) and facts.count("attention.value_length_mla", 0)
    return _HeadSizes(
        key=key,
        value=value,
        key_sliding=facts.count("attention.key_length_swa", key),
        value_sliding=facts.count("attention.value_length_swa", value),
        value_cached=not mla,
    )


def _attention(facts: Facts, block: int, n_trunk: int, *, recurrent: bool, sliding: bool, heads_kv: int) -> Attention:
    if facts.architecture in NO_CACHE or block >= n_trunk:
        return Attention.NONE
    if recurrent:
        return Attention.HYBRID if facts.architecture in HYBRID_BLOCKS else Attention.RECURRENT
    if not heads_kv:
        return Attention.NONE
    if block >= _first_shared(facts, n_trunk):
        return Attention.SHARED
    return Attention.SLIDING if sliding else Attention.FULL


def _first_shared(facts: Facts, n_trunk: int) -> int:
    """The first block that reads the KV of an earlier one."""
    if facts.architecture == "gemma3n":
        return _GEMMA3N_BLOCKS_WITH_KV
    if facts.architecture == "gemma4":
        return n_trunk - facts.count("attention.shared_kv_layers", 0)
    return n_trunk


def _layer(facts: Facts, block: int, attention: Attention, sizes: _HeadSizes, heads: tuple[int, int]) -> LayerKv:
    head_count, head_count_kv = heads
    if attention in {Attention.NONE, Attention.RECURRENT, Attention.SHARED}:
        return LayerKv(attention, head_count, head_count_kv, 0, 0)
    slides = attention is Attention.SLIDING
    key = sizes.key_sliding if slides else sizes.key
    value = sizes.value_sliding if slides else sizes.value
    return LayerKv(
        attention=attention,
        head_count=head_count,
        head_count_kv=head_count_kv,
        k=key * head_count_kv,
        v=value * head_count_kv if sizes.value_cached else 0,
        indexer=_indexer(facts, block),
    )


def _indexer(facts: Facts, block: int) -> int:
    """Elements of the extra key that sparse attention selects by; some blocks borrow another's."""
    size = facts.count("attention.indexer.key_length", 0)
    if not size or (facts.architecture == "minimax-m3" and block < facts.count("leading_dense_block_count", 0)):
        return 0
    own = facts.pattern("attention.indexer.types", block + 1)
    return size if own is None or own[block] else 0


def _recurrent_shape(facts: Facts, head_count: int, n_embd: int, head_size: int) -> RecurrentShape:
    """f32 elements per block and sequence (llama_hparams::n_embd_r and n_embd_s)."""
    if wkv := facts.count("wkv.head_size", 0):
        return RecurrentShape(r=facts.count("token_shift_count", 2) * n_embd, s=n_embd * wkv)
    if cache := facts.count("shortconv.l_cache", 0):
        return RecurrentShape(r=n_embd * (cache - 1), s=0)
    convolution = facts.count("ssm.conv_kernel", 0)
    if kda := facts.count("kda.head_dim", 0):
        return RecurrentShape(
            r=3 * (convolution - 1 if convolution else 3) * head_count * kda, s=kda * kda * head_count
        )
    inner, state = facts.count("ssm.inner_size", 0), facts.count("ssm.state_size", 0)
    if facts.architecture == "minimax-01":
        return RecurrentShape(r=0, s=head_size * head_size * head_count)
    channels = inner + 2 * facts.count("ssm.group_count", 0) * state
    return RecurrentShape(r=max(0, convolution - 1) * channels, s=state * inner)
