"""The graphs of mixtures of experts and of latent attention, beside what the engine printed for them.

Printed figures are those of llama-cpp-python 0.3.36 (ggml 0.25.3): MiB with four decimals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import tiny_models
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.footprint.batch import Batch, cells
from magnitude_tune.footprint.graph.dims import PLACEHOLDERS
from magnitude_tune.footprint.graph.frame import Frame, Layer, Options
from magnitude_tune.footprint.graph.layout import lay_out
from magnitude_tune.footprint.graph.recipes.registry import recipe_of
from magnitude_tune.footprint.graph.replay import Replay
from magnitude_tune.footprint.graph.scheduler import schedule
from magnitude_tune.footprint.placement import Placement, Span
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import Attention, LayerKv
from magnitude_tune.units import MIB

# Of the small models on the CPU: one slot, 512 tokens, flash attention; four slots, 100 tokens, without it.
_PRINTED: Final = {
    "qwen2moe": ("9.0469", "4.5983"),
    "qwen3moe": ("9.0117", "4.4938"),
    "gpt-oss": ("12.7696", "4.6898"),
    "deepseek2": ("11.3047", "9.3330"),
    "deepseek2-mha": ("9.0117", "4.8447"),
    "llama4": ("12.5215", "5.3738"),
    "llama-moe": ("9.0117", "4.4938"),
    "glm4moe": ("12.0117", "4.6006"),
    "dots1": ("12.0117", "4.6982"),
    "deepseek": ("12.0117", "4.5983"),
    "bailingmoe": ("9.0117", "4.5975"),
    "bailingmoe2": ("11.5117", "4.5975"),
    "ernie4_5-moe": ("12.0117", "4.6006"),
    "exaone-moe": ("12.7696", "4.7967"),
    "minimax-m2": ("9.0117", "4.4938"),
    "grok": ("43.0078", "4.4938"),
    "dbrx": ("8.5430", "4.2985"),
    "arctic": ("9.0430", "4.4938"),
    "olmoe": ("9.0117", "4.5914"),
    "hunyuan-moe": ("9.0117", "4.5975"),
    "afmoe": ("12.2696", "4.6898"),
    "smallthinker": ("12.0508", "5.3734"),
    "laguna": ("12.7696", "4.6898"),
    "cohere2moe": ("12.7696", "4.6898"),
    "hy_v3": ("12.0117", "4.5975"),
    "phimoe": ("9.0117", "4.4938"),
    "granitemoe": ("9.0117", "4.5975"),
    "grovemoe": ("9.0117", "4.4938"),
    "mimo2": ("9.7696", "4.6898"),
    "qwen3vlmoe": ("12.0489", "5.1785"),
    "rnd1": ("5.6289", "0.9240"),
    "llada-moe": ("5.6289", "0.9247"),
    "step35": ("12.7696", "4.6898"),
    "deepseek2-lite": ("11.2930", "9.3307"),
    "mistral4": ("11.3067", "9.3334"),
    "deepseek32": ("35.0742", "12.4633"),
    "glm-dsa": ("35.0742", "12.4633"),
}

_LENGTH = st.one_of(st.integers(min_value=0, max_value=9), st.integers(min_value=0, max_value=1 << 40))
_SHAPE = st.lists(_LENGTH, min_size=0, max_size=4).map(tuple)
_NAMES: Final = (
    *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "attn_output", "attn_q_norm", "attn_k_norm", "attn_q_a"),
    *("attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_k_b", "attn_v_b", "attn_kv_b", "indexer.attn_k"),
    *("indexer.attn_q_b", "indexer.proj", "ffn_norm", "ffn_norm_exps", "post_attention_norm", "post_ffw_norm"),
    *("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps", "ffn_up_chexps"),
    *("ffn_up_shexp", "ffn_down_shexp", "ffn_up", "ffn_gate", "ffn_down", "exp_probs_b", "attn_sinks"),
)
_TENSORS = st.dictionaries(
    st.sampled_from([f"{name}.{kind}" for name in _NAMES for kind in ("weight", "bias", "scale")]),
    _SHAPE,
    max_size=12,
)
_NUMBERS = st.dictionaries(
    st.sampled_from(
        (
            *("expert_used_count", "expert_group_count", "expert_group_used_count", "expert_gating_func"),
            *("rope.dimension_count", "attention.key_length_mla", "attention.value_length_mla", "swiglu_clamp_exp"),
            *("attention.kv_lora_rank", "attention.temperature_scale", "expert_weights_scale", "residual_scale"),
            *("attention.indexer.key_length", "attention.indexer.head_count", "attention.indexer.top_k"),
        )
    ),
    st.integers(min_value=-5, max_value=1 << 40),
)


@pytest.mark.parametrize("architecture", _PRINTED)
def test_compute_buffers_are_those_that_the_engine_printed(architecture: str, tmp_path: Path) -> None:
    """To the last printed digit, for one sequence and for four."""
    header = read_model(tiny_models.write(architecture, "small", tmp_path))
    window = header.sliding_window
    host = Placement(host_blocks=header.block_count, output_place=0, spans=())
    batches = (
        Batch(512, 1, cells(4096, 1, False, 512, window), True, "f16", "f16"),
        Batch(100, 4, cells(8192, 4, False, 100, window), False, "f16", "f16"),
    )
    replay = Replay(header)
    predicted = [replay.buffers(host, batch, batch.n_slots, pipelined=False)[0] for batch in batches]
    assert tuple(f"{n_bytes / MIB:.4f}" for n_bytes in predicted) == _PRINTED[architecture]


# What a server with one RPC device printed (ggml 0.20.0) for the whole model on the device, by `n_cpu_moe`.
_EXPERTS_ON_HOST: Final = {
    0: ("5.0117", "8.5098"),
    2: ("5.0117", "8.0410"),
    5: ("5.0117", "6.5098"),
}


@pytest.mark.parametrize("n_cpu_moe", _EXPERTS_ON_HOST)
def test_experts_that_stay_on_the_cpu_are_computed_there(n_cpu_moe: int, tmp_path: Path) -> None:
    """Both buffers are those that the engine printed."""
    header = read_model(tiny_models.write("qwen3moe", "small", tmp_path))
    whole = Placement(0, 1, (Span(1, 0, header.block_count, True),))
    batch = Batch(512, 1, cells(4096, 1, False, 512, 0), True, "f16", "f16")
    replay = Replay(header, (20, 0))
    predicted = replay.buffers(whole, batch, 1, pipelined=False, n_cpu_moe=n_cpu_moe)
    assert tuple(f"{n_bytes / MIB:.4f}" for n_bytes in predicted) == _EXPERTS_ON_HOST[n_cpu_moe]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(tuple(_PRINTED)), _TENSORS, _NUMBERS, st.booleans(), st.sampled_from([(20, 0), (25, 3)]))
def test_no_shape_or_number_of_a_file_breaks_a_recipe(
    architecture: str,
    tensors: dict[str, tuple[int, ...]],
    numbers: dict[str, int],
    flash_attn: bool,
    ggml: tuple[int, int],
) -> None:
    """Tensors that are missing, flat, empty or absurdly large, and numbers to match, still make some graph."""
    kv = LayerKv(Attention.FULL, 4, 2, 128, 128)
    layers = tuple(Layer(block, tensors, kv, 0, block == 1, slides=False) for block in range(2))
    options = Options(flash_attn, True, False, False, True, 0, ggml)
    frame = Frame(layers, {"token_embd.weight": (64, 100)}, numbers, PLACEHOLDERS, options)
    recipe_of(architecture).build(frame)
    layout = lay_out(schedule(frame.graph, 1, pipelined=False), 1, frozenset({"add"}))
    assert layout.events[0]
