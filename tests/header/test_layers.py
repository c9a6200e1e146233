"""What the blocks of rarer architectures keep, each confirmed by the buffers that ggml 0.25.3 made for such a model."""

from __future__ import annotations

from typing import Any

import pytest

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.facts import Facts
from magnitude_tune.header.layers import Layers, derive_layers
from magnitude_tune.header.patterns import KNOWN, logical_blocks
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape

_LETTERS = {
    Attention.FULL: "F",
    Attention.SLIDING: "S",
    Attention.MLA: "M",
    Attention.RECURRENT: "R",
    Attention.HYBRID: "H",
    Attention.SHARED: "=",
    Attention.NONE: "-",
}
_MLA = {
    "attention.head_count": 1,
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
}
_INDEXED = {**_MLA, "attention.indexer.key_length": 128}
_SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 128, "ssm.group_count": 2}


def layers_of(architecture: str, n_next: int = 0, n_embd: int = 256, **keys: Any) -> Layers:
    """Four blocks of 256 with two heads, unless told otherwise (dots written as two underscores)."""
    told = {"block_count": 4, "attention.head_count": 2, **{key.replace("__", "."): v for key, v in keys.items()}}
    metadata = {"general.architecture": architecture, **{f"{architecture}.{key}": v for key, v in told.items()}}
    facts = Facts(metadata, "model.gguf")
    n_blocks = logical_blocks(facts, told["block_count"])
    return derive_layers(facts, n_blocks, n_blocks - n_next, n_embd)


def letters(layers: Layers) -> str:
    """One letter for each block's class."""
    return "".join(_LETTERS[layer.attention] for layer in layers.blocks)


def dotted(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys as arguments."""
    return {key.replace(".", "__"): value for key, value in keys.items()}


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("deepseek32", _INDEXED, [(576, 0, 128, 0)] * 4),
        ("glm-dsa", {**_INDEXED, "attention.indexer.types": (1, 0, 0, 1)}, [(576, 0, n, 0) for n in (128, 0, 0, 128)]),
        ("glm-dsa", {**_INDEXED, "context_length": 1048576}, [(576, 0, n, 0) for n in (128, 128, 128, 0)]),
        ("glm-dsa", {"attention.indexer.key_length": 128}, [(256, 256, 128, 128)] * 4),
        ("minimax-m3", {"attention.indexer.key_length": 64, "leading_dense_block_count": 3}, [(256, 256, 0, 0)] * 3),
        ("hy_v4", _INDEXED, [(576, 0, 0, 0)] * 4),
        ("llama", {"attention.indexer.key_length": 64}, [(256, 256, 0, 0)] * 4),
    ],
)
def test_indexers_keep_a_key_and_where_values_are_cached_a_value(
    architecture: str, keys: dict[str, Any], expected: list[tuple[int, ...]]
) -> None:
    """K, V and what the indexer keeps of each block; blocks that borrow another's indexer keep none."""
    blocks = layers_of(architecture, **dotted(keys)).blocks
    assert [(layer.k, layer.v, layer.indexer, layer.indexer_v) for layer in blocks][: len(expected)] == expected


def test_the_last_sparse_block_has_an_indexer_with_a_value() -> None:
    """MiniMax-M3 caches one key and one value head for each sparse block."""
    keys = {"attention.indexer.key_length": 64, "leading_dense_block_count": 3}
    assert layers_of("minimax-m3", **dotted(keys)).blocks[3] == LayerKv(Attention.FULL, 2, 2, 256, 256, 64, 128, 256)


def test_compressed_caches_come_beside_the_sliding_one() -> None:
    """DeepSeek-V4 caches keys only; blocks of ratio 4 and 128 keep compressed cells and the state being compressed."""
    keys = {"attention.compress_ratios": (0, 0, 4, 128), "attention.sliding_window": 300}
    layers = layers_of(
        "deepseek4",
        n_embd=512,
        attention__head_count=8,
        attention__head_count_kv=1,
        attention__indexer__key_length=128,
        **dotted(keys),
    )
    assert letters(layers) == "SSSS"
    assert [(layer.k, layer.v, layer.padded_v) for layer in layers.blocks] == [(64, 0, 0)] * 4
    assert [layer.compress_ratio for layer in layers.blocks] == [0, 0, 4, 128]
    assert [layer.indexer for layer in layers.blocks] == [0, 0, 128, 0]
    states = [0, 0, 2 * 8 * 2 * (64 + 128), 2 * 128 * 64]
    assert [layer.extra_state for layer in layers.blocks] == states


def test_hybrids_with_indexers_keep_keys_only() -> None:
    """GLM-5-Next keeps keys, gates and pooled values; Qwen4-Exp one key, and a history where n-grams are convolved."""
    heads_kv = (1, 0, 1, 1)
    glm = layers_of(
        "glm5-next",
        attention__head_count_kv=heads_kv,
        attention__indexer__kpool=4,
        kda__head_dim=128,
        **dotted(_INDEXED),
    )
    assert letters(glm) == "MRMM"
    assert [layer.indexer for layer in glm.blocks] == [384, 0, 384, 384]
    keys = {"full_attention_interval": 2, "attention.indexer.key_length": 128, "ple.layers": (0,)}
    keys |= {"ple.conv_kernel": 4, "ple.ngram_size": 3, "hyper_connection.count": 4, "embedding_length": 256}
    qwen = layers_of("qwen4exp", **dotted({**keys, **_SSM}))
    assert letters(qwen) == "RFRF"
    assert [(layer.indexer, layer.indexer_v) for layer in qwen.blocks] == [(0, 0), (128, 0)] * 2
    assert [layer.extra_state for layer in qwen.blocks] == [3 * 3 * 4 * 256, 0, 0, 0]


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("nemotron_h", {**_SSM, "wkv.head_size": 128, "kda.head_dim": 128}, RecurrentShape(3 * 1024, 512 * 128)),
        ("kimi-linear", {**_SSM, "kda.head_dim": 128}, RecurrentShape(3 * 3 * 256, 128 * 128 * 2)),
        ("lfm2", {**_SSM, "shortconv.l_cache": 3}, RecurrentShape(2 * 256, 0)),
        ("jamba", _SSM, RecurrentShape(3 * 512, 512 * 128)),
        ("plamo2", _SSM, RecurrentShape(3 * 1024, 512 * 128)),
        ("somebody-else", {"wkv.head_size": 64}, RecurrentShape(2 * 256, 64 * 256)),
    ],
)
def test_states_follow_the_keys_that_the_architecture_reads(
    architecture: str, keys: dict[str, Any], expected: RecurrentShape
) -> None:
    """Keys of another kind's state change nothing; of an unknown architecture every key is believed."""
    assert layers_of(architecture, attention__head_count_kv=(2, 0, 2, 2), **dotted(keys)).recurrent == expected


def test_v_is_padded_to_the_widest_block_wherever_a_cache_exists() -> None:
    """Blocks that share or attend to nothing count for the width; those without KV heads are padded all the same."""
    keys = {"attention.value_length_swa": 64, "attention.key_length_swa": 64, "attention.shared_kv_layers": 1}
    keys |= {"attention.sliding_window": 64, "attention.sliding_window_pattern": (True, False, True, False)}
    gemma = layers_of("gemma4", **dotted(keys))
    assert letters(gemma) == "SFS="
    assert [(layer.v, layer.padded_v) for layer in gemma.blocks] == [(128, 256), (256, 256), (128, 256), (0, 0)]
    deci = layers_of("deci", attention__head_count_kv=(2, 0, 1, 2))
    assert letters(deci) == "F-FF"
    assert [(layer.v, layer.padded_v) for layer in deci.blocks] == [(256, 256), (0, 256), (128, 256), (256, 256)]


def test_blocks_that_the_engine_adds_have_caches_of_their_own() -> None:
    """Nanbeige's loops repeat its blocks; Granite-Switch adds one with a single head."""
    assert [layer.k for layer in layers_of("nanbeige", num_loops=2, attention__head_count_kv=(2, 1, 2, 2)).blocks] == [
        *(256, 128, 256, 256),
        *(256, 128, 256, 256),
    ]
    assert [layer.k for layer in layers_of("graniteswitch").blocks] == [256, 256, 256, 256, 128]
    with pytest.raises(HeaderError, match="num_loops"):
        layers_of("nanbeige", num_loops=0)


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("bert", {}, "----"),
        ("t5encoder", {}, "FFFF"),
        ("gemma4-assistant", {"attention.sliding_window": 8, "attention.sliding_window_pattern": (1, 0, 1, 0)}, "===="),
        ("llama-embed", {"attention.causal": False}, "FFFF"),
        ("glm4moe", {}, "FFF-"),
        ("hy_v4", _MLA, "MMMM"),
        ("falcon-h1", _SSM, "HHHF"),
        (
            "dots3note",
            {**_MLA, "attention.sliding_window": 8, "attention.sliding_window_pattern": (0, 1, 0, 1)},
            "MSM-",
        ),
        ("nemotron_h", {**_SSM, "attention.head_count_kv": (2, 0, 0, 2), "feed_forward_length": (0, 0, 9, 0)}, "FR-F"),
        ("somebody-else", {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}, "SFS-"),
    ],
)
def test_each_kind_is_classed_as_the_engine_makes_its_memory(
    architecture: str, keys: dict[str, Any], expected: str
) -> None:
    """With one block that predicts further tokens: some architectures give it a place in the cache, most do not."""
    n_next = 0 if architecture in {"bert", "t5encoder", "gemma4-assistant", "llama-embed"} else 1
    assert letters(layers_of(architecture, n_next, **dotted(keys))) == expected


@pytest.mark.parametrize("architecture", sorted(KNOWN))
def test_no_known_architecture_needs_more_than_the_least_keys(architecture: str) -> None:
    """Every architecture of the engine is classed from head counts alone."""
    assert len(layers_of(architecture).blocks) >= 4
