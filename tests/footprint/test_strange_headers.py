"""Whatever a file's header says: its footprint is a figure, or one of our errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnitude_tune.errors import MagnitudeTuneError
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.model import describe
from magnitude_tune.header.patterns import KNOWN
from magnitude_tune.header.values import ArraySummary, RawHeader, RawTensor

_KEYS = (
    *("block_count", "embedding_length", "context_length", "feed_forward_length", "nextn_predict_layers"),
    *("vocab_size", "expert_count", "expert_used_count", "decoder_block_count", "leading_dense_block_count"),
    *(f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "value_length", "causal")),
    *(f"attention.{name}" for name in ("key_length_mla", "value_length_mla", "key_length_swa", "shared_kv_layers")),
    *(f"attention.{name}" for name in ("sliding_window", "sliding_window_pattern", "recurrent_layers")),
    *(f"attention.{name}" for name in ("compress_ratios", "indexer.key_length", "indexer.types", "indexer.kpool")),
    *("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count", "wkv.head_size", "shortconv.l_cache"),
    *("kda.head_dim", "token_shift_count", "full_attention_interval", "num_loops", "ple.layers", "ple.conv_kernel"),
    *("ple.ngram_size", "hyper_connection.count"),
)
_NUMBERS = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 64, 300, 2**16, 2**31, 2**32 - 1, 2**63, -1, -5]), st.booleans())
_VALUES = st.one_of(
    st.sampled_from([1, 2, 4, 4, 4, 64]),
    _NUMBERS,
    st.lists(st.sampled_from([0, 1, 4, 128]), min_size=4, max_size=4).map(tuple),
    st.lists(_NUMBERS, max_size=6).map(tuple),
    st.sampled_from([1.5, float("nan"), "four", ArraySummary("u32", 10**9)]),
)
_NAMES = (
    *(
        "token_embd.weight",
        "output.weight",
        "rope_freqs.weight",
        "token_embd_norm.weight",
        "per_layer_token_embd.weight",
    ),
    *("blk.0.attn_q.weight", "blk.3.ffn_up_exps.weight", "blk.9.ssm_in.weight", "blk.511.attn_k_b.weight", "?"),
)
_TENSORS = st.builds(
    RawTensor,
    st.sampled_from(_NAMES),
    st.lists(st.sampled_from([0, 1, 8, 30, 64, 2**20]), max_size=4).map(tuple),
    st.just(0),
    st.sampled_from(["f32", "f16", "q4_0", "q8_0", "q4_k", None]),
    st.sampled_from([0, 32, 2**40]),
    st.sampled_from([0, 1, 100, 2**30, 2**50]),
)


@st.composite
def _raw_headers(draw: st.DrawFn) -> RawHeader:
    architecture = draw(st.sampled_from([*sorted(KNOWN), "somebody-else"]))
    keys: dict[str, Any] = {"block_count": 4, "embedding_length": 64, "attention.head_count": 4}
    keys |= draw(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=8))
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": v for key, v in keys.items()}}
    tensors = draw(st.lists(_TENSORS, min_size=1, max_size=6))
    return RawHeader("model.gguf", 3, "little", 32, metadata, tuple(tensors), 1024, 2**20)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    raw=_raw_headers(),
    plan=st.fixed_dictionaries(
        {
            "n_gpu_layers": st.sampled_from([-1, 0, 1, 3, 99]),
            "n_cpu_moe": st.sampled_from([0, 2]),
            "n_parallel": st.sampled_from([1, 4]),
            "kv_unified": st.booleans(),
            "flash_attn": st.booleans(),
            "repack": st.booleans(),
            "load_mode": st.sampled_from(["mmap", "none"]),
            "type_k": st.sampled_from(["f16", "q4_0"]),
        }
    ),
)
def test_a_header_ends_in_a_footprint_or_in_our_error(
    make: SimpleNamespace, raw: RawHeader, plan: dict[str, Any]
) -> None:
    """Absurd counts, zero heads, arrays of any length: no term is negative, and nothing else is raised."""
    try:
        header = describe((raw,), "0")
        model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
        terms = model.footprint(make.settings(devices=("CUDA0",), **plan)).terms
    except MagnitudeTuneError:
        return
    assert all(term.reserved_bytes >= 0 and term.resident_bytes >= 0 for term in terms)
    assert sum(term.reserved_bytes for term in terms) == sum(model.reserved(make.settings(devices=("CUDA0",), **plan)))
