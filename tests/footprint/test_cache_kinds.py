"""Caches of every kind, in bytes that ggml 0.25.3 printed for small models of these shapes (n_ctx 1000, 4 slots)."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape
from magnitude_tune.units import MIB


def _terms(make: SimpleNamespace, layers: list[LayerKv], **changes: Any) -> Counter[str]:
    header = {name: changes.pop(name) for name in ("sliding_window", "recurrent") if name in changes}
    devices = [make.device("CUDA0", "cuda", "vram0")] if changes.get("devices") else []
    model = footprint_model(make.header(layers, **header), make.machine(devices), None)
    sums: Counter[str] = Counter()
    for term in model.footprint(make.settings(**{"n_ctx": 1000, "n_parallel": 4, **changes})).terms:
        sums[term.name] += term.reserved_bytes
    return sums


def _mla(indexer: int = 0) -> LayerKv:
    return LayerKv(Attention.MLA, 1, 1, 576, 0, indexer)


@pytest.mark.parametrize(
    ("layers", "changes", "cache_mib"),
    [
        ([_mla(128)] * 4, {}, 4.5 + 1.0),
        ([LayerKv(Attention.FULL, 2, 2, 256, 256, 64, 128)] * 4, {}, 4.0 + 1.5),
        ([LayerKv(Attention.FULL, 2, 2, 256, 128, padded_v=256)] * 4, {"flash_attn": False}, 4.0),
        ([LayerKv(Attention.NONE, 2, 0, 0, 0, padded_v=256)] * 4, {"flash_attn": False}, 2.0),
        ([LayerKv(Attention.NONE, 2, 0, 0, 0, padded_v=256)] * 4, {"flash_attn": True}, 0.0),
    ],
)
def test_every_part_of_a_cell_is_counted(
    make: SimpleNamespace, layers: list[LayerKv], changes: dict[str, Any], cache_mib: float
) -> None:
    """Keys alone with MLA, keys and values of indexers, V as wide as the widest without flash attention."""
    assert _terms(make, layers, **changes)["kv_cache"] == cache_mib * MIB


def test_an_indexer_sees_every_token_where_its_layer_slides(make: SimpleNamespace) -> None:
    """Of 8192 cells a sliding layer with a window of 128 keeps 768, its indexer all."""
    layer = LayerKv(Attention.SLIDING, 1, 1, 64, 64, 32)
    cache = _terms(make, [layer], sliding_window=128, n_ctx=8192, n_parallel=1)["kv_cache"]
    assert cache == 2 * (768 * 128 + 8192 * 32)


@pytest.mark.parametrize("unified", [False, True])
def test_compressed_caches_are_per_slot_and_padded(make: SimpleNamespace, unified: bool) -> None:
    """deepseek4: sliding keys, cells of a quarter and a 128th of the context, f32 states: for each of 4 slots."""
    layers = [
        LayerKv(Attention.SLIDING, 8, 1, 64, 0),
        LayerKv(Attention.SLIDING, 8, 1, 64, 0, 128, extra_state=6144, compress_ratio=4),
        LayerKv(Attention.SLIDING, 8, 1, 64, 0, extra_state=16384, compress_ratio=128),
    ]
    sums = _terms(make, layers, sliding_window=300, n_ctx=4096, kv_unified=unified, n_ubatch=256)
    full = 4096 if unified else 1024
    sliding = 768
    assert sums["kv_cache"] == 4 * 2 * (3 * sliding * 64 + max(256, full // 4) * (64 + 128) + 256 * 64)
    assert sums["recurrent_state"] == 4 * 4 * (6144 + 16384)


def test_states_are_aligned_as_the_buffer_aligns_tensors(make: SimpleNamespace) -> None:
    """Two tensors a layer, each rounded up to 32 bytes on the CPU and to 128 on CUDA."""
    layers = [LayerKv(Attention.RECURRENT, 0, 0, 0, 0)] * 3
    shape = RecurrentShape(r=9, s=33)
    assert _terms(make, layers, recurrent=shape, n_parallel=1)["recurrent_state"] == 3 * (64 + 160)
    on_card = _terms(make, layers, recurrent=shape, n_parallel=1, n_gpu_layers=4, devices=("CUDA0",))
    assert on_card["recurrent_state"] == 3 * (128 + 256)


def test_cuda_fills_up_the_last_row_of_quantised_caches(make: SimpleNamespace) -> None:
    """K and V of 128 elements in q8_0: 384 more at the end of each tensor, aligned to 128 bytes."""
    layers = [LayerKv(Attention.FULL, 2, 2, 128, 128)] * 2
    types = {"type_k": "q8_0", "type_v": "q8_0", "n_parallel": 1}
    host = _terms(make, layers, **types)["kv_cache"]
    card = _terms(make, layers, **types, n_gpu_layers=3, devices=("CUDA0",))["kv_cache"]
    assert host == 2 * 2 * 1024 * 136
    assert card - host == 2 * 2 * 512
