"""The graphs of dense decoders and encoders, beside what the engine printed for them.

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
from magnitude_tune.footprint.graph.recipes.dense import FORMS
from magnitude_tune.footprint.graph.recipes.registry import recipe_of
from magnitude_tune.footprint.graph.replay import Replay
from magnitude_tune.footprint.graph.scheduler import schedule
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import Attention, LayerKv
from magnitude_tune.units import MIB

# Of the small models on the CPU: one slot, 512 tokens, flash attention; four slots, 100 tokens, without it.
_PRINTED: Final = {
    "llama": ("8.5117", "4.4938"),
    "qwen2": ("8.5117", "4.4938"),
    "qwen3": ("8.5117", "4.7867"),
    "gemma2": ("9.5196", "5.2758"),
    "gemma3": ("9.5196", "5.0805"),
    "phi3": ("8.5117", "4.3961"),
    "cohere2": ("10.5196", "5.1781"),
    "starcoder2": ("7.0117", "4.4938"),
    "gemma3n": ("50.0215", "9.9637"),
    "bert": ("3.2539", "0.7775"),
    "t5": ("176.5117", "197.3375"),
    "mistral3": ("8.5137", "4.4942"),
    "phi2": ("7.5117", "4.5914"),
    "falcon": ("7.2617", "4.5914"),
    "gptneox": ("7.5117", "4.3961"),
    "gpt2": ("7.0117", "4.6891"),
    "bloom": ("7.0098", "4.6887"),
    "stablelm": ("9.0117", "4.5914"),
    "command-r": ("9.0117", "4.5914"),
    "olmo": ("8.5117", "4.4938"),
    "olmo2": ("8.0117", "4.3961"),
    "exaone4": ("8.0117", "4.3961"),
    "glm4": ("8.5117", "4.4938"),
    "chatglm": ("8.5117", "4.2985"),
    "qwen2vl": ("8.5176", "4.4949"),
    "qwen3vl": ("12.0176", "5.1785"),
    "granite": ("8.5117", "4.4938"),
    "nemotron": ("7.0117", "4.4938"),
    "smollm3": ("8.5117", "4.4938"),
    "seed_oss": ("8.5117", "4.4938"),
    "bitnet": ("8.5117", "4.4938"),
    "hunyuan-dense": ("8.5117", "4.4938"),
    "dream": ("5.0039", "0.9179"),
}
# Their engine cannot keep the slots apart.
_UNIFIED: Final = frozenset({"t5"})
_ENCODERS: Final = (
    *("bert", "jina-bert-v2", "nomic-bert", "nomic-bert-moe", "jina-bert-v3", "modern-bert", "eurobert", "neo-bert"),
    *("gemma-embedding", "llama-embed", "t5", "t5encoder", "gemma3n", "gemma4"),
)

_LENGTH = st.one_of(st.integers(min_value=0, max_value=9), st.integers(min_value=0, max_value=1 << 40))
_SHAPE = st.lists(_LENGTH, min_size=0, max_size=4).map(tuple)
_NAMES: Final = (
    *("attn_norm", "attn_norm_2", "ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm"),
    *("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "attn_sub_norm", "ffn_sub_norm", "ffn_up", "ffn_gate"),
    *("ffn_down", "ffn_gate_inp", "ffn_up_exps", "inp_gate", "proj", "altup_router", "altup_predict_coef", "laurel_l"),
    *("dec.attn_q", "dec.attn_rel_b", "dec.cross_attn_k", "enc.attn_q", "enc.ffn_up", "dec.ffn_down"),
)
_TENSORS = st.dictionaries(
    st.sampled_from([f"{name}.{kind}" for name in _NAMES for kind in ("weight", "bias", "scale")]), _SHAPE, max_size=12
)
_OUTER = st.dictionaries(
    st.sampled_from(
        [
            *("token_embd.weight", "token_embd_norm.weight", "position_embd.weight", "token_types.weight"),
            *("altup_proj.weight", "altup_unembd_proj.weight", "per_layer_token_embd.weight", "output.weight"),
        ]
    ),
    _SHAPE,
)
_NUMBERS = st.dictionaries(
    st.sampled_from(
        [
            *("context_length", "block_count", "n_deepstack_layers", "embedding_length_per_layer_input"),
            *("attention.sliding_window", "use_parallel_residual", "expert_used_count", "residual_scale"),
        ]
    ),
    st.integers(min_value=-5, max_value=1 << 40),
)


@pytest.mark.parametrize("architecture", _PRINTED)
def test_compute_buffers_are_those_that_the_engine_printed(architecture: str, tmp_path: Path) -> None:
    """To the last printed digit, for one sequence and for four."""
    header = read_model(tiny_models.write(architecture, "small", tmp_path))
    host = Placement(host_blocks=header.block_count, output_place=0, spans=())
    window, unified = header.sliding_window, architecture in _UNIFIED
    batches = (
        Batch(512, 1, cells(4096, 1, False, 512, window), True, "f16", "f16"),
        Batch(100, 4, cells(8192, 4, unified, 100, window), False, "f16", "f16"),
    )
    replay = Replay(header)
    predicted = [replay.buffers(host, batch, batch.n_slots, pipelined=False)[0] for batch in batches]
    assert tuple(f"{n_bytes / MIB:.4f}" for n_bytes in predicted) == _PRINTED[architecture]


@settings(max_examples=150, deadline=None)
@given(
    architecture=st.sampled_from((*_ENCODERS, *FORMS)),
    tensors=_TENSORS,
    outer=_OUTER,
    numbers=_NUMBERS,
    flash_and_kv=st.tuples(
        st.booleans(),
        st.sampled_from((LayerKv(Attention.FULL, 4, 2, 128, 128), LayerKv(Attention.NONE, 0, 0, 0, 0))),
    ),
)
def test_no_shape_or_number_of_a_file_breaks_a_recipe(
    architecture: str,
    tensors: dict[str, tuple[int, ...]],
    outer: dict[str, tuple[int, ...]],
    numbers: dict[str, int],
    flash_and_kv: tuple[bool, LayerKv],
) -> None:
    """Tensors that are missing, flat, empty or absurdly large, and numbers to match, still make some graph."""
    flash_attn, kv = flash_and_kv
    layers = tuple(Layer(block, tensors, kv, 0, block == 1, slides=block == 0) for block in range(2))
    options = Options(flash_attn, True, False, False, True, 0, (25, 3))
    frame = Frame(layers, outer, numbers, PLACEHOLDERS, options)
    recipe_of(architecture).build(frame)
    layout = lay_out(schedule(frame.graph, 1, pipelined=False), 1, frozenset({"add"}))
    assert layout.events[0]
