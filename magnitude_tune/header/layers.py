"""What each block keeps per token and per sequence.

From llama.cpp 0.5.0: src/llama-hparams.cpp (n_embd_k_gqa, n_embd_v_gqa, n_embd_r, n_embd_s, has_kv) and
src/llama-model.cpp (load_hparams, create_memory).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.header.facts import Facts
from magnitude_tune.header.indexers import Indexers
from magnitude_tune.header.patterns import (
    CACHED_PREDICTORS,
    HYBRID_BLOCKS,
    KNOWN,
    NO_CACHE,
    recurrent_blocks,
    sliding_blocks,
)
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape

__all__ = ["Layers", "derive_layers"]

_GEMMA3N_BLOCKS_WITH_KV: Final = 20
_MLA: Final = frozenset(
    {"bailingmoe3", "deepseek2", "deepseek32", "dots3note", "glm-dsa", "glm5-next", "hy_v4", "kimi-k3", "kimi-linear"}
    | {"mistral4"}
)
_WITHOUT_GROUPS: Final = frozenset({"jamba", "mamba"})
_KEYS_ONLY: Final = frozenset({"deepseek4"})
_READERS: Final = {
    "wkv.head_size": frozenset({"arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"}),
    "shortconv.l_cache": frozenset({"lfm2", "lfm2moe"}),
    "kda.head_dim": frozenset({"bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"}),
}
"""Who reads these keys: others may bring them, and keep another state all the same."""


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
        n_blocks: all blocks; those from `n_trunk` on predict further tokens (MTP) and mostly cache nothing here.
        n_trunk: the blocks that generation runs through.
        n_embd: width of the embedding.

    Raises:
        HeaderError: a per-block array has the wrong length, or a value is no count.
    """
    none = (0,) * n_blocks
    heads = _per_block(facts, "attention.head_count", n_blocks, none)
    heads_kv = _per_block(facts, "attention.head_count_kv", n_blocks, heads)
    n_ff = _per_block(facts, "feed_forward_length", n_blocks, none)
    if facts.architecture == "graniteswitch":
        # The added block routes with one head and has no feed-forward network.
        heads, heads_kv, n_ff = (*heads[:-1], 1), (*heads_kv[:-1], 1), (*n_ff[:-1], 0)
    window, sliding = sliding_blocks(facts, n_blocks, n_trunk)
    recurrent = recurrent_blocks(facts, n_blocks, n_trunk, heads_kv, n_ff)
    sizes = _head_sizes(facts, heads[0], n_embd)
    indexers = Indexers(facts, n_blocks, n_trunk)
    blocks = []
    for block in range(n_blocks):
        attention = _attention(
            facts, (block, n_blocks, n_trunk), recurrent=recurrent[block], sliding=sliding[block], n_ff=n_ff[block]
        )
        blocks.append(_layer(attention, sizes, (heads[block], heads_kv[block])))
    widest = _widest_v(sizes, heads_kv, sliding)
    return Layers(
        blocks=tuple(
            _without_heads(
                indexers.added(block, layer, sizes.value, sizes.value_cached)._replace(
                    padded_v=widest if _caches(layer) and sizes.value_cached else 0
                )
            )
            for block, layer in enumerate(blocks)
        ),
        n_ff=n_ff,
        sliding_window=window if any(layer.attention is Attention.SLIDING for layer in blocks) else 0,
        recurrent=_recurrent_shape(facts, heads[0], n_embd, sizes.key) if any(recurrent) else None,
    )


def _per_block(facts: Facts, name: str, n_blocks: int, default: tuple[int, ...]) -> tuple[int, ...]:
    """One count per block; blocks that the engine adds repeat those of the file."""
    n_stored = max(1, facts.count("block_count", n_blocks))
    stored = facts.per_block(name, n_stored, default[:n_stored])
    return (stored * -(-n_blocks // n_stored))[:n_blocks]


def _head_sizes(facts: Facts, head_count: int, n_embd: int) -> _HeadSizes:
    """Sizes are `n_embd / head_count` unless told; the first block's head count stands for all.

    Without heads in the first block the engine asks for no size at all, except for PLaMo 2.
    """
    default = n_embd // head_count if head_count else 0
    told = head_count or facts.architecture == "plamo2"
    key = facts.count("attention.key_length", default) if told else 0
    value = facts.count("attention.value_length", default) if told else 0
    mla = (facts.architecture in _MLA or facts.architecture not in KNOWN) and (
        facts.count("attention.key_length_mla", 0) and facts.count("attention.value_length_mla", 0)
    )
    return _HeadSizes(
        key=key,
        value=value,
        key_sliding=facts.count("attention.key_length_swa", key),
        value_sliding=facts.count("attention.value_length_swa", value),
        value_cached=not mla and facts.architecture not in _KEYS_ONLY,
    )


def _attention(facts: Facts, at: tuple[int, int, int], *, recurrent: bool, sliding: bool, n_ff: int) -> Attention:
    """The class of the block `at[0]`, of `at[1]` blocks, of which `at[2]` generate."""
    block, n_blocks, n_trunk = at
    architecture = facts.architecture
    if architecture in NO_CACHE or (block >= n_trunk and architecture not in CACHED_PREDICTORS):
        return Attention.NONE
    if architecture in HYBRID_BLOCKS:
        return Attention.HYBRID if block < n_trunk else Attention.FULL
    if recurrent:
        return Attention.RECURRENT
    if architecture.startswith("nemotron_h") and n_ff:
        return Attention.NONE
    if architecture == "gemma4-assistant" or block >= _first_shared(facts, n_blocks):
        return Attention.SHARED
    return Attention.SLIDING if sliding else Attention.FULL


def _first_shared(facts: Facts, n_blocks: int) -> int:
    """The first block that reads the KV of an earlier one."""
    if facts.architecture == "gemma3n":
        return _GEMMA3N_BLOCKS_WITH_KV
    if facts.architecture == "gemma4":
        return n_blocks - facts.count("attention.shared_kv_layers", 0)
    return n_blocks


def _layer(attention: Attention, sizes: _HeadSizes, heads: tuple[int, int]) -> LayerKv:
    head_count, head_count_kv = heads
    slides = attention is Attention.SLIDING
    k = (sizes.key_sliding if slides else sizes.key) * head_count_kv
    v = (sizes.value_sliding if slides else sizes.value) * head_count_kv if sizes.value_cached else 0
    layer = LayerKv(attention, head_count, head_count_kv, k, v)
    if not _caches(layer):
        return layer._replace(k=0, v=0)
    return layer._replace(attention=Attention.MLA) if attention is Attention.FULL and not sizes.value_cached else layer


def _caches(layer: LayerKv) -> bool:
    return layer.attention not in {Attention.NONE, Attention.RECURRENT, Attention.SHARED}


def _without_heads(layer: LayerKv) -> LayerKv:
    """A block that caches nothing still has room for the widest block's V where that is padded."""
    return layer._replace(attention=Attention.NONE) if _caches(layer) and not layer.head_count_kv else layer


def _widest_v(sizes: _HeadSizes, heads_kv: tuple[int, ...], sliding: tuple[bool, ...]) -> int:
    """Over all blocks, whether they cache anything or not (llama_hparams::n_embd_v_gqa_max)."""
    return max(
        (sizes.value_sliding if slides else sizes.value) * n for n, slides in zip(heads_kv, sliding, strict=True)
    )


def _recurrent_shape(facts: Facts, head_count: int, n_embd: int, head_size: int) -> RecurrentShape:
    """f32 elements per block and sequence (llama_hparams::n_embd_r and n_embd_s)."""
    if wkv := _told(facts, "wkv.head_size"):
        return RecurrentShape(r=facts.count("token_shift_count", 2) * n_embd, s=n_embd * wkv)
    if cache := _told(facts, "shortconv.l_cache"):
        return RecurrentShape(r=n_embd * (cache - 1), s=0)
    convolution = facts.count("ssm.conv_kernel", 0)
    if kda := _told(facts, "kda.head_dim"):
        return RecurrentShape(
            r=3 * (convolution - 1 if convolution else 3) * head_count * kda, s=kda * kda * head_count
        )
    inner, state = facts.count("ssm.inner_size", 0), facts.count("ssm.state_size", 0)
    if facts.architecture == "minimax-01":
        return RecurrentShape(r=0, s=head_size * head_size * head_count)
    n_groups = 0 if facts.architecture in _WITHOUT_GROUPS else facts.count("ssm.group_count", 0)
    channels = inner + 2 * n_groups * state
    return RecurrentShape(r=max(0, convolution - 1) * channels, s=state * inner)


def _told(facts: Facts, name: str) -> int:
    """The count of a key that only some architectures read; one that we do not know is taken at its word."""
    reads = facts.architecture in _READERS[name] or facts.architecture not in KNOWN
    return facts.count(name, 0) if reads else 0
