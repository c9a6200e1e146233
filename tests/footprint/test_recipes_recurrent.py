"""The graphs of models with a recurrent state, beside what the engine printed for them.

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
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import Attention, LayerKv
from magnitude_tune.units import MIB

# Of the small models on the CPU: one slot, 512 tokens, flash attention; four slots, 100 tokens, without it.
_PRINTED: Final = {
    "mamba": ("6.5450", "1.4419"),
    "mamba2": ("7.2823", "2.0269"),
    "jamba": ("11.5294", "4.3958"),
    "granitehybrid": ("12.1827", "4.5915"),
    "falcon-h1": ("12.2847", "4.5915"),
    "nemotron_h": ("11.2901", "4.3958"),
    "nemotron_h_moe": ("11.2901", "4.5911"),
    "plamo2": ("10.5489", "4.2985"),
    "lfm2": ("8.5118", "4.4938"),
    "lfm2moe": ("8.5587", "4.4938"),
    "qwen3next": ("9.0430", "4.5976"),
    "qwen35": ("8.5294", "4.5926"),
    "qwen35moe": ("9.0489", "4.5987"),
    "rwkv6": ("7.1290", "1.8388"),
    "kimi-linear": ("11.3028", "9.3326"),
    "bailingmoe3": ("11.3047", "9.3330"),
    "minimax-01": ("20.0587", "4.5518"),
    "rwkv7": ("9.7520", "2.3882"),
    "rwkv6qwen2": ("6.9395", "1.8935"),
    "arwkv7": ("9.3145", "2.3842"),
}

_LENGTH = st.one_of(st.integers(min_value=0, max_value=9), st.integers(min_value=0, max_value=1 << 40))
_SHAPE = st.lists(_LENGTH, min_size=0, max_size=4).map(tuple)
_NAMES: Final = (
    *("ssm_in", "ssm_x", "ssm_dt", "ssm_conv1d", "ssm_out", "ssm_norm", "ssm_dt_norm", "ssm_ba", "attn_qkv"),
    *("attn_q", "attn_output", "attn_gate", "ffn_up", "ffn_down", "ffn_gate_inp", "ffn_up_exps", "ffn_latent_down"),
    *("shortconv.conv", "shortconv.in_proj", "time_mix_w1", "time_mix_w2", "time_mix_first", "time_mix_key"),
    *("time_mix_g1", "time_mix_g2", "time_mix_lerp_fused", "time_mix_ln", "channel_mix_key"),
)
_TENSORS = st.dictionaries(
    st.one_of(
        st.sampled_from([f"{name}.{kind}" for name in _NAMES for kind in ("weight", "bias")]),
        st.sampled_from(["ssm_a", "ssm_d"]),
    ),
    _SHAPE,
    max_size=12,
)
_NUMBERS = st.dictionaries(
    st.sampled_from(
        (
            *("ssm.time_step_rank", "ssm.group_count", "ssm.state_size", "ssm.inner_size", "wkv.head_size"),
            *("expert_used_count", "expert_weights_scale", "rope.scaling.finetuned"),
        )
    ),
    st.integers(min_value=-5, max_value=1 << 40),
)


@pytest.mark.parametrize("architecture", _PRINTED)
def test_compute_buffers_are_those_that_the_engine_printed(architecture: str, tmp_path: Path) -> None:
    """To the last printed digit, for one sequence and for four."""
    header = read_model(tiny_models.write(architecture, "small", tmp_path))
    host = Placement(host_blocks=header.block_count, output_place=0, spans=())
    batches = (
        Batch(512, 1, cells(4096, 1, False, 512, 0), True, "f16", "f16"),
        Batch(100, 4, cells(8192, 4, False, 100, 0), False, "f16", "f16"),
    )
    replay = Replay(header)
    predicted = [replay.buffers(host, batch, batch.n_slots, pipelined=False)[0] for batch in batches]
    assert tuple(f"{n_bytes / MIB:.4f}" for n_bytes in predicted) == _PRINTED[architecture]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(tuple(_PRINTED)), _TENSORS, _NUMBERS, st.booleans(), st.sampled_from([(20, 0), (25, 3)]))
def test_no_shape_or_number_of_a_file_breaks_a_recipe(
    architecture: str,
    tensors: dict[str, tuple[int, ...]],
    numbers: dict[str, int],
    flash_attn: bool,
    ggml: tuple[int, int],
) -> None:
    """Tensors that are missing, flat, empty or absurdly large, and numbers to match, still make some graph."""
    kv = LayerKv(Attention.HYBRID, 4, 2, 128, 128)
    layers = tuple(Layer(block, tensors, kv, 0, block == 1, slides=False) for block in range(2))
    options = Options(flash_attn, True, False, False, True, 0, ggml)
    frame = Frame(layers, {"token_embd.weight": (64, 100)}, numbers, PLACEHOLDERS, options)
    recipe_of(architecture).build(frame)
    layout = lay_out(schedule(frame.graph, 1, pipelined=False), 1, frozenset({"add"}))
    assert layout.events[0]
