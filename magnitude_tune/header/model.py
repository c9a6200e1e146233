"""The facts of a model, checked and derived from its raw headers."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Final, NamedTuple

from magnitude_tune.header.facts import Facts
from magnitude_tune.header.kinds import kind_of
from magnitude_tune.header.layers import Layers, derive_layers
from magnitude_tune.header.patterns import ENCODERS, KNOWN, NO_CACHE, logical_blocks
from magnitude_tune.header.raw import missing_bytes
from magnitude_tune.header.roles import group_tensors
from magnitude_tune.header.shapes import model_shapes
from magnitude_tune.header.types import FILE_TYPES
from magnitude_tune.header.values import (
    ArraySummary,
    FileKind,
    ModelHeader,
    MoeFacts,
    RawHeader,
    RawTensor,
    ShardFile,
    TensorGroup,
)

__all__ = ["describe"]

# llama.cpp's LLAMA_MAX_LAYERS and LLAMA_MAX_EXPERTS.
_MAX_BLOCKS: Final = 512
_MAX_EXPERTS: Final = 1024
_ANY_BLOCK: Final = 10_000
_INT64_MAX: Final = 2**63 - 1
_NO_FLASH: Final = frozenset({"grok"})


class _Shape(NamedTuple):
    """What follows from the architecture's keys and the tensor table together."""

    n_blocks: int
    n_trunk: int
    n_embd: int
    layers: Layers
    groups: tuple[TensorGroup, ...]
    tied_output: bool


def describe(shards: tuple[RawHeader, ...], content_hash: str) -> ModelHeader:
    """The facts of a model from the raw headers of all its shards, the first one first.

    Raises:
        HeaderError: a fact that the engine needs is missing or cannot be.
    """
    first = shards[0]
    facts = Facts(first.metadata, first.path)
    tensors = tuple(tensor for shard in shards for tensor in shard.tensors)
    kind = kind_of(first.metadata, has_tensors=bool(tensors))
    shape = _model_shape(facts, shards) if kind is FileKind.MODEL else _other_shape(facts, shards)
    unknown = tuple(sorted({f"unknown({tensor.type_id})" for tensor in tensors if tensor.type_name is None}))
    return ModelHeader(
        path=first.path,
        kind=kind,
        shards=tuple(ShardFile(shard.path, shard.file_bytes, missing_bytes(shard)) for shard in shards),
        version=first.version,
        byte_order=first.byte_order,
        name=facts.text("general.name") or None,
        architecture=facts.architecture,
        file_type=_file_type(facts, shape.groups),
        block_count=shape.n_blocks,
        nextn_predict_layers=shape.n_blocks - shape.n_trunk,
        n_embd=shape.n_embd,
        n_vocab=_n_vocab(facts, tensors),
        context_length=facts.count("context_length", 0) or None,
        layers=shape.layers.blocks,
        n_ff=shape.layers.n_ff,
        sliding_window=shape.layers.sliding_window,
        moe=_moe(facts, tensors, shape.layers.n_ff),
        recurrent=shape.layers.recurrent,
        causal=facts.architecture not in NO_CACHE and facts.flag("attention.causal", default=True),
        flash_attn=facts.architecture not in _NO_FLASH,
        tied_output=shape.tied_output,
        has_chat_template=_has_chat_template(first),
        has_end_token=any(facts.whole(f"tokenizer.ggml.{name}_token_id") is not None for name in ("eos", "eot")),
        n_merges=facts.length("tokenizer.ggml.merges") or 0,
        n_tensors=len(tensors),
        n_params=_total(facts, "parameters", [group.n_params for group in shape.groups]),
        tensor_bytes=_total(facts, "bytes", [group.n_bytes for group in shape.groups]),
        file_bytes=sum(shard.file_bytes for shard in shards),
        groups=shape.groups,
        content_hash=content_hash,
        shapes=model_shapes(tensors, first.metadata, facts.architecture, max(shape.n_blocks, _decoder_blocks(facts))),
        notes=_notes(facts, shape, shards, unknown),
        unknown_types=unknown,
    )


def _model_shape(facts: Facts, shards: tuple[RawHeader, ...]) -> _Shape:
    if not facts.architecture:
        raise facts.wrong("the key 'general.architecture' is missing")
    n_blocks = logical_blocks(facts, facts.required("block_count"))
    if n_blocks > _MAX_BLOCKS:
        raise facts.wrong(f"{facts.key('block_count')!r} is {n_blocks}; engines read up to {_MAX_BLOCKS} blocks")
    n_next = facts.count("nextn_predict_layers", 0)
    if n_next >= n_blocks:
        raise facts.wrong(f"{facts.key('nextn_predict_layers')!r} is {n_next} of {n_blocks} blocks")
    n_trunk = n_blocks - n_next
    n_embd = facts.required("embedding_length")
    names = {tensor.name for shard in shards for tensor in shard.tensors}
    tied = "output.weight" not in names and "token_embd.weight" in names and facts.architecture not in ENCODERS
    return _Shape(
        n_blocks=n_blocks,
        n_trunk=n_trunk,
        n_embd=n_embd,
        layers=derive_layers(facts, n_blocks, n_trunk, n_embd),
        # The decoder of an encoder-decoder model may have more blocks than the encoder.
        groups=group_tensors(
            shards,
            n_blocks=max(n_blocks, facts.count("decoder_block_count", 0)),
            first_unused=max(n_trunk, facts.count("decoder_block_count", 0)),
            tied_output=tied,
        ),
        tied_output=tied,
    )


def _other_shape(facts: Facts, shards: tuple[RawHeader, ...]) -> _Shape:
    """Projectors, adapters and the like: only what their keys happen to say."""
    n_blocks = min(facts.count("block_count", 0), _MAX_BLOCKS)
    groups = group_tensors(shards, n_blocks=_ANY_BLOCK, first_unused=_ANY_BLOCK, tied_output=False)
    layers = Layers(blocks=(), n_ff=(), sliding_window=0, recurrent=None)
    n_embd = facts.count("embedding_length", 0)
    return _Shape(n_blocks, n_blocks, n_embd, layers=layers, groups=groups, tied_output=False)


def _decoder_blocks(facts: Facts) -> int:
    return min(facts.count("decoder_block_count", 0), _MAX_BLOCKS)


def _total(facts: Facts, unit: str, parts: list[int]) -> int:
    total = sum(parts)
    if total > _INT64_MAX:
        raise facts.wrong(f"its tensors claim more than 2^63 {unit} together")
    return total


def _n_vocab(facts: Facts, tensors: tuple[RawTensor, ...]) -> int:
    """As the engine counts: tokens, else the key, else the rows of the embedding."""
    told = facts.length("tokenizer.ggml.tokens") or facts.count("vocab_size", 0)
    return told or _second_dimension(tensors, "token_embd.weight")


def _second_dimension(tensors: tuple[RawTensor, ...], ending: str) -> int:
    return next((t.shape[1] for t in tensors if t.name.endswith(ending) and len(t.shape) > 1), 0)


def _moe(facts: Facts, tensors: tuple[RawTensor, ...], n_ff: tuple[int, ...]) -> MoeFacts | None:
    """Widths are those of the first expert matrices stored; keys where the experts are split or fused."""
    n_experts = facts.count("expert_count", 0)
    if not n_experts:
        return None
    n_used = facts.count("expert_used_count", 0)
    if n_experts > _MAX_EXPERTS:
        raise facts.wrong(f"{facts.key('expert_count')!r} is {n_experts}; engines read up to {_MAX_EXPERTS} experts")
    if not 0 < n_used <= n_experts:
        raise facts.wrong(f"{facts.key('expert_used_count')!r} is {n_used} of {n_experts} experts")
    told = facts.count("expert_feed_forward_length", 0) or max(n_ff, default=0)
    told_shared = facts.count("expert_shared_feed_forward_length", 0) or facts.count("expert_shared_count", 0) * told
    return MoeFacts(
        expert_count=n_experts,
        expert_used_count=n_used,
        n_ff_expert=_second_dimension(tensors, ".ffn_up_exps.weight") or told,
        n_ff_shared=_second_dimension(tensors, ".ffn_up_shexp.weight") or told_shared,
    )


def _file_type(facts: Facts, groups: tuple[TensorGroup, ...]) -> str | None:
    """The mix by the file's own word, else the type that holds most bytes (as llama.cpp guesses)."""
    told = facts.whole("general.file_type")
    if told is not None and told in FILE_TYPES:
        return FILE_TYPES[told]
    sizes: Counter[str] = Counter()
    for group in groups:
        sizes[group.type_name] += group.n_bytes
    return f"mostly {sizes.most_common(1)[0][0]}" if sizes else None


def _has_chat_template(first: RawHeader) -> bool:
    template = first.metadata.get("tokenizer.chat_template")
    return template.length > 0 if isinstance(template, ArraySummary) else bool(template)


def _notes(facts: Facts, shape: _Shape, shards: tuple[RawHeader, ...], unknown: tuple[str, ...]) -> tuple[str, ...]:
    first = shards[0]
    notes = []
    if first.byte_order != sys.byteorder:
        notes.append(f"The file is {first.byte_order}-endian and this machine is not: engines here refuse it.")
    if unknown:
        notes.append(
            f"Tensors of unknown type ({', '.join(unknown)}) are sized by the gap to the next one; "
            "the engine may not load them."
        )
    window = facts.count("attention.sliding_window", 0)
    if window and shape.layers.blocks and not shape.layers.sliding_window and facts.architecture not in NO_CACHE:
        notes.append(f"A window of {window} tokens is named, but the engine lets no block of this model slide.")
    if shape.layers.blocks and facts.architecture not in KNOWN:
        notes.append(
            f"The architecture {facts.architecture!r} is not known here: what its blocks keep is read from its keys "
            "alone, and an engine that knows it may keep more."
        )
    blocks = [group.block for group in shape.groups if group.block is not None]
    if shape.layers.blocks and max(blocks, default=-1) + 1 < shape.n_trunk:
        notes.append(
            f"The header counts {shape.n_blocks} blocks, the tensors end with block {max(blocks, default=-1)}."
        )
    notes.extend(_trailing(shard) for shard in shards if _trailing_bytes(shard) > 0)
    return tuple(notes)


def _trailing_bytes(shard: RawHeader) -> int:
    """Bytes after the last tensor and its padding; none where a type is unknown, as the last one takes all."""
    if not shard.tensors or any(tensor.type_name is None for tensor in shard.tensors):
        return 0
    end = shard.data_start + max(tensor.offset + tensor.n_bytes for tensor in shard.tensors)
    return shard.file_bytes - (-(-end // shard.alignment) * shard.alignment)


def _trailing(shard: RawHeader) -> str:
    return f"{_trailing_bytes(shard)} bytes follow the last tensor; no engine reads them."
