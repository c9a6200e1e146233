"""What each architecture's blocks attend to, keep and consist of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import Attention, ModelHeader, RecurrentShape, Role

Tiny = Callable[[str], Path]

LETTERS = {
    "F": Attention.FULL,
    "S": Attention.SLIDING,
    "M": Attention.MLA,
    "R": Attention.RECURRENT,
    "H": Attention.HYBRID,
    "=": Attention.SHARED,
    "-": Attention.NONE,
}

CLASSES = {
    "bert": "----",
    "deepseek2": "MMMM",
    "deepseek32": "MMM-",
    "falcon-h1": "HHHH",
    "gemma2": "SFSF",
    "gemma3": "SSSSSFS",
    "gemma3n": "SSSSF" * 4 + "==",
    "gemma4": "SFS=",
    "glm4moe": "FFF-",
    "gpt-oss": "SFSF",
    "grok": "FFFF",
    "jamba": "RFRR",
    "lfm2": "RRFR",
    "llama": "FFFF",
    "mamba": "RRRR",
    "minimax-m3": "FFFF",
    "nemotron_h": "R-FR",
    "phi3": "FFFF",
    "qwen3": "FFFF",
    "qwen3next": "RRRF",
    "rwkv7": "RRRR",
}

# Elements per token of K, V and the indexer, of each block that caches anything (32 wide, 4 heads, 2 of them KV).
CACHED = {
    "deepseek2": {(24, 0, 0)},
    "deepseek32": {(24, 0, 8)},
    "falcon-h1": {(16, 16, 0)},
    "gemma2": {(32, 32, 0)},
    "gemma3": {(32, 16, 0)},
    "gemma4": {(16, 16, 0), (32, 32, 0)},
    "llama": {(16, 16, 0)},
    "minimax-m3": {(16, 16, 0), (16, 16, 8)},
    "qwen3": {(32, 32, 0)},
}

STATES = {
    "falcon-h1": RecurrentShape(r=3 * (64 + 2 * 16), s=16 * 64),
    "jamba": RecurrentShape(r=3 * 64, s=16 * 64),
    "lfm2": RecurrentShape(r=32 * 2, s=0),
    "mamba": RecurrentShape(r=3 * 64, s=16 * 64),
    "nemotron_h": RecurrentShape(r=3 * (64 + 2 * 2 * 16), s=16 * 64),
    "qwen3next": RecurrentShape(r=3 * (64 + 2 * 2 * 16), s=16 * 64),
    "rwkv7": RecurrentShape(r=2 * 32, s=32 * 8),
}

WINDOWS = {"gemma2": 4096, "gemma3": 128, "gemma3n": 128, "gemma4": 64, "gpt-oss": 128}


def roles(header: ModelHeader) -> set[Role]:
    """Roles of all tensors."""
    return {group.role for group in header.groups}


def test_the_blocks_attend_as_the_engine_lets_them(tiny: Tiny, architecture: str) -> None:
    """Each block's class follows the engine's rule for the architecture."""
    header = read_model(tiny(architecture))
    assert [layer.attention for layer in header.layers] == [LETTERS[letter] for letter in CLASSES[architecture]]
    assert header.sliding_window == WINDOWS.get(architecture, 0)


def test_the_cached_elements_follow_the_head_sizes(tiny: Tiny, architecture: str) -> None:
    """Blocks cache key length times KV heads, with the sliding lengths where they slide and no V with MLA."""
    header = read_model(tiny(architecture))
    cached = {(layer.k, layer.v, layer.indexer) for layer in header.layers if layer.k}
    if architecture in CACHED:
        assert cached == CACHED[architecture]
    classes = {Attention.NONE, Attention.RECURRENT, Attention.SHARED}
    assert all((layer.k == 0) == (layer.attention in classes) for layer in header.layers)


def test_the_recurrent_state_has_the_engines_shape(tiny: Tiny, architecture: str) -> None:
    """The state of a recurrent block is what llama_hparams::n_embd_r and n_embd_s give, and none without one."""
    assert read_model(tiny(architecture)).recurrent == STATES.get(architecture)


def test_the_sums_over_groups_are_the_sums_over_tensors(tiny: Tiny, architecture: str) -> None:
    """Groups lose no tensor, parameter or byte, and nothing is repacked that is not there."""
    header = read_model(tiny(architecture))
    assert sum(group.n_tensors for group in header.groups) == header.n_tensors
    assert sum(group.n_params for group in header.groups) == header.n_params
    assert sum(group.n_bytes for group in header.groups) == header.tensor_bytes
    assert all(group.repackable_bytes <= group.n_bytes for group in header.groups)
    assert all(group.largest_bytes * group.n_tensors >= group.n_bytes for group in header.groups)
    assert header.complete
    assert Role.OTHER not in roles(header)


def test_general_facts_are_read_under_the_own_prefix(tiny: Tiny, architecture: str) -> None:
    """Widths, context and vocabulary come from the architecture's own keys (field report B54)."""
    header = read_model(tiny(architecture))
    assert (header.architecture, header.n_embd, header.context_length) == (architecture, 32, 4096)
    assert (header.n_vocab, header.file_type, header.name) == (48, "Q8_0", f"Tiny {architecture}")
    assert header.has_chat_template
    assert header.has_end_token
    assert header.causal == (architecture != "bert")
    assert header.flash_attn == (architecture != "grok")


def test_experts_are_counted_and_placed(tiny: Tiny) -> None:
    """Expert matrices and their biases are moved together; the router and the shared expert stay."""
    header = read_model(tiny("deepseek2"))
    assert header.moe is not None
    assert (header.moe.expert_count, header.moe.expert_used_count) == (8, 2)
    assert (header.moe.n_ff_expert, header.moe.n_ff_shared) == (16, 24)
    experts = [group for group in header.groups if group.role is Role.EXPERT_FFN]
    assert {group.block for group in experts} == {1, 2, 3}
    assert sum(group.n_tensors for group in experts) == 6
    assert {group.type_name for group in experts} == {"q8_0", "f32"}
    shared = [group for group in header.groups if group.role is Role.SHARED_EXPERT]
    assert sum(group.n_tensors for group in shared) == 3


def test_only_matmul_matrices_with_rows_by_eight_are_repackable(tiny: Tiny) -> None:
    """Norms, convolutions and matrices with 30 rows stay as they are; 3-D experts are repacked."""
    mamba = {group.type_name: group for group in read_model(tiny("jamba")).groups if group.role is Role.RECURRENT}
    assert mamba["q8_0"].repackable_bytes == mamba["q8_0"].n_bytes
    assert mamba["f32"].repackable_bytes == 0
    by_type = {
        (group.role, group.type_name): group for group in read_model(tiny("deepseek2")).groups if group.block in {0, 1}
    }
    assert by_type[Role.DENSE_FFN, "f16"].repackable_bytes == 0
    assert by_type[Role.EXPERT_FFN, "q8_0"].repackable_bytes == by_type[Role.EXPERT_FFN, "q8_0"].n_bytes
    assert by_type[Role.EXPERT_FFN, "f32"].repackable_bytes == 0


@pytest.mark.parametrize(("architecture", "tied"), [("gemma3", True), ("llama", False), ("bert", False)])
def test_a_tied_output_makes_the_embedding_repackable(tiny: Tiny, architecture: str, tied: bool) -> None:
    """The embedding is looked up by row; only where it is the output too does a matmul read it."""
    header = read_model(tiny(architecture))
    assert header.tied_output == tied
    embedding = next(group for group in header.groups if group.role is Role.TOKEN_EMBEDDING)
    assert embedding.repackable_bytes == (embedding.n_bytes if tied else 0)


def test_prediction_blocks_are_counted_but_unused(tiny: Tiny) -> None:
    """Blocks for multi-token prediction count as blocks, cache nothing and are not loaded."""
    header = read_model(tiny("glm4moe"))
    assert (header.block_count, header.nextn_predict_layers, header.all_layers) == (4, 1, 5)
    assert {group.role for group in header.groups if group.block == 3} == {Role.UNUSED}
    assert all(group.repackable_bytes == 0 for group in header.groups if group.role is Role.UNUSED)


def test_a_bare_window_is_noted_and_ignored(tiny: Tiny) -> None:
    """An architecture that the engine does not let slide keeps full attention, and a note says so."""
    for architecture in ("llama", "phi3"):
        assert any("window" in note for note in read_model(tiny(architecture)).notes)
    assert not read_model(tiny("gemma3")).notes
