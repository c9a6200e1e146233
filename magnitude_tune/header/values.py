"""What a model file says: the raw header as written, and the facts we rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

__all__ = [
    "ArraySummary",
    "Attention",
    "FileKind",
    "LayerKv",
    "ModelHeader",
    "ModelShapes",
    "MoeFacts",
    "RawHeader",
    "RawTensor",
    "RecurrentShape",
    "Role",
    "Scalar",
    "ShardFile",
    "TensorGroup",
]

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """An array whose body was not kept (tokenizer tables): its element type and length."""

    element_type: str
    length: int


class RawTensor(NamedTuple):
    """One row of the tensor table. `shape` is in GGUF order (ne0 first); `type_name` is None for unknown types."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str | None
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RawHeader:
    """Everything one GGUF file says, unknown keys kept.

    Offsets and sizes are in bytes; tensor offsets count from `data_start`, which counts from the file's start.
    """

    path: str
    version: int
    byte_order: Literal["little", "big"]
    alignment: int
    metadata: Mapping[str, Scalar | tuple[Scalar, ...] | ArraySummary]
    tensors: tuple[RawTensor, ...]
    data_start: int
    file_bytes: int


class FileKind(StrEnum):
    """What a GGUF file is for."""

    MODEL = "model"
    PROJECTOR = "projector"
    ADAPTER = "adapter"
    IMATRIX = "imatrix"
    VOCAB_ONLY = "vocab_only"
    METADATA_ONLY = "metadata_only"


class Role(StrEnum):
    """What a tensor is for; `n_cpu_moe` moves EXPERT_FFN, the input layer keeps the embeddings on the CPU."""

    TOKEN_EMBEDDING = "token_embedding"
    INPUT_OTHER = "input_other"
    PER_LAYER_EMBEDDING = "per_layer_embedding"
    ATTENTION = "attention"
    DENSE_FFN = "dense_ffn"
    EXPERT_FFN = "expert_ffn"
    SHARED_EXPERT = "shared_expert"
    RECURRENT = "recurrent"
    NORM = "norm"
    ROPE = "rope"  # frequencies that every place with blocks keeps a copy of
    OUTPUT = "output"
    UNUSED = "unused"
    OTHER = "other"


class Attention(StrEnum):
    """How a block attends, and so what it keeps per token."""

    FULL = "full"
    SLIDING = "sliding"
    MLA = "mla"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"  # attention and recurrent state in one block, as in falcon-h1
    SHARED = "shared"  # reads the KV of an earlier block
    NONE = "none"  # neither: MLP-only blocks and encoders without a cache


class TensorGroup(NamedTuple):
    """Tensors of one block, role and type, summed.

    Args:
        block: the block they belong to; None for the input and output layers.
        type_name: ggml's name in lower case (`q4_k`); `unknown(153)` where we do not know it.
        n_bytes: as stored, without padding.
        largest_bytes: the largest single tensor.
        repackable_bytes: the part in matrices that a matmul reads and whose rows (ne1) are a multiple of 8;
            whether they are repacked depends on type and CPU.
        row_multiple: a power of two up to 64 that divides the rows of each repackable matrix.
        padding_bytes: what a buffer adds that aligns each tensor to 32 bytes (CPU, RPC).
        cuda_padding_bytes: what CUDA's buffer adds: 128 bytes alignment, quantised rows filled up to 512 elements.
        shard: the file they lie in, by its place in `shards`.
        first_byte, end_byte: from the first of them to the end of the last, in that file; both 0 where unknown.
        slices: matrices in each tensor that a plain matmul reads as a stack of them; 1 for all other tensors.
    """

    block: int | None
    role: Role
    type_name: str
    n_tensors: int
    n_params: int
    n_bytes: int
    largest_bytes: int
    repackable_bytes: int
    row_multiple: int = 64
    padding_bytes: int = 0
    cuda_padding_bytes: int = 0
    shard: int = 0
    first_byte: int = 0
    end_byte: int = 0
    slices: int = 1


class LayerKv(NamedTuple):
    """What one block caches: elements per token of K and of V, both 0 where it caches nothing.

    MLA caches K only: `v` is 0.

    Args:
        indexer: the extra key of sparse attention, elements per token.
        indexer_v: the values that some engines' indexer caches keep besides.
        padded_v: elements of V without flash attention, when each block's are as wide as the widest's.
        extra_state: f32 elements of recurrent state besides `RecurrentShape`, per sequence.
        compress_ratio: tokens per cell of a compressed cache beside the sliding one (deepseek4); 0: none.
    """

    attention: Attention
    head_count: int
    head_count_kv: int
    k: int
    v: int
    indexer: int = 0
    indexer_v: int = 0
    padded_v: int = 0
    extra_state: int = 0
    compress_ratio: int = 0


class RecurrentShape(NamedTuple):
    """State of one recurrent block and sequence: f32 elements of the convolution (r) and of the state (s)."""

    r: int
    s: int


class MoeFacts(NamedTuple):
    """Mixture of experts: how many there are, how many a token uses, and their inner width."""

    expert_count: int
    expert_used_count: int
    n_ff_expert: int
    n_ff_shared: int = 0


class ModelShapes(NamedTuple):
    """Shapes (ne0 first) of all tensors by name, and the architecture's own keys without its prefix.

    Args:
        block_kinds: the distinct blocks: names without `blk.N.` (`attn_q.weight`; `enc.` and `dec.` stay in front).
        kind_of_block: for each block its place in `block_kinds`.
        outer: tensors outside the blocks.
        hparams: numbers, booleans and short arrays of them, as written: nothing is checked.
    """

    block_kinds: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    kind_of_block: tuple[int, ...] = ()
    outer: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    hparams: Mapping[str, Scalar | tuple[Scalar, ...]] = MappingProxyType({})

    def of_block(self, block: int) -> Mapping[str, tuple[int, ...]]:
        """Shapes of one block; none where the file does not tell."""
        return self.block_kinds[self.kind_of_block[block]] if block < len(self.kind_of_block) else {}


_NO_SHAPES: Final = ModelShapes()


class ShardFile(NamedTuple):
    """One file of the model."""

    path: str
    n_bytes: int
    missing_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHeader:
    """Validated facts of a model, summed over its shards. Lengths are per block where a tuple.

    Args:
        path: the first shard, as it was named (links are not resolved).
        block_count: as written: it includes `nextn_predict_layers`, the multi-token-prediction blocks at the end.
        context_length: trained context in tokens; None where the file does not say.
        layers: one per block.
        n_ff: feed-forward width per block (of one expert's in MoE blocks: see `moe`).
        sliding_window: tokens; 0 where no block slides.
        causal: False for embedding and encoder models, which read each input in one piece. What a block caches is in
            `layers`: some of them keep a KV cache all the same.
        flash_attn: whether the engine can use flash attention with this architecture.
        tied_output: there is no output matrix; the engine duplicates the token embedding.
        groups: bytes and parameters by block, role and type.
        notes: what is odd but legal, in whole sentences (unknown tensor types among them).
        n_merges: merge rules of the tokenizer, 0 where it has none; the engine keeps a map of them.
        shapes: what the compute graph is made of; empty where only sums are known.
    """

    path: str
    kind: FileKind
    shards: tuple[ShardFile, ...]
    version: int
    byte_order: Literal["little", "big"]
    name: str | None
    architecture: str
    file_type: str | None
    block_count: int
    nextn_predict_layers: int
    n_embd: int
    n_vocab: int
    context_length: int | None
    layers: tuple[LayerKv, ...]
    n_ff: tuple[int, ...]
    sliding_window: int
    moe: MoeFacts | None
    recurrent: RecurrentShape | None
    causal: bool
    flash_attn: bool
    tied_output: bool
    has_chat_template: bool
    has_end_token: bool
    n_tensors: int
    n_params: int
    tensor_bytes: int
    file_bytes: int
    groups: tuple[TensorGroup, ...]
    content_hash: str
    notes: tuple[str, ...] = ()
    unknown_types: tuple[str, ...] = ()
    n_merges: int = 0
    shapes: ModelShapes = _NO_SHAPES

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per parameter, over all tensors."""
        return 8 * self.tensor_bytes / self.n_params if self.n_params else 0.0

    @property
    def all_layers(self) -> int:
        """`n_gpu_layers` of a full offload: the blocks and the output layer."""
        return self.block_count + 1

    @property
    def complete(self) -> bool:
        """Whether every byte that the header announces is there."""
        return not any(shard.missing_bytes for shard in self.shards)

    @property
    def head_count(self) -> tuple[int, ...]:
        """Attention heads per block."""
        return tuple(layer.head_count for layer in self.layers)

    @property
    def head_count_kv(self) -> tuple[int, ...]:
        """Key and value heads per block."""
        return tuple(layer.head_count_kv for layer in self.layers)
