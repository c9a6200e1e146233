"""Properties that hold for any model, any split and any settings."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.errors import HeaderError, MagnitudeTuneError, UsageError
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint, FootprintModel
from magnitude_tune.header.values import Attention, LayerKv, ModelHeader, MoeFacts, RecurrentShape, Role
from magnitude_tune.request import KV_TYPES, Settings

_COUNTS = st.sampled_from([0, 1, 2, 7, 32, 64, 256, 1000, 4096])
_TYPE_NAMES = st.sampled_from(["q4_0", "q8_0", "q4_k", "q6_k", "f16", "f32", "mxfp4", "unknown(153)"])
_DEVICE_SETS = (
    (("CUDA0", "cuda", "vram0"), ("CUDA1", "cuda", "vram1"), ("CUDA2", "cuda", "vram2")),
    (("RPC0", "rpc", "ram"), ("Vulkan0", "vulkan", "vram0")),
    (("MTL0", "metal", "ram"),),
    (),
)


@st.composite
def _layers(draw: st.DrawFn) -> LayerKv:
    return LayerKv(
        attention=draw(st.sampled_from(Attention)),
        head_count=draw(_COUNTS),
        head_count_kv=draw(_COUNTS),
        k=draw(_COUNTS),
        v=draw(_COUNTS),
        indexer=draw(st.sampled_from([0, 0, 128])),
    )


@st.composite
def _models(draw: st.DrawFn, make: SimpleNamespace) -> ModelHeader:
    layers = draw(st.lists(_layers(), max_size=6))
    blocks = st.one_of(st.none(), st.integers(-1, len(layers) + 1))
    n_bytes = st.integers(0, 10**9)
    groups = draw(
        st.lists(
            st.builds(
                make.group,
                blocks,
                st.sampled_from(Role),
                n_bytes,
                _TYPE_NAMES,
                largest=st.integers(0, 10**8),
                repackable=st.integers(0, 10**6),
            ),
            max_size=12,
        )
    )
    return make.header(
        layers,
        groups,
        nextn_predict_layers=draw(st.integers(0, 8)),
        n_embd=draw(_COUNTS),
        n_vocab=draw(_COUNTS),
        context_length=draw(st.one_of(st.none(), st.integers(0, 100000))),
        n_ff=tuple(draw(st.lists(_COUNTS, max_size=8))),
        sliding_window=draw(_COUNTS),
        moe=draw(st.one_of(st.none(), st.builds(MoeFacts, _COUNTS, _COUNTS, _COUNTS, _COUNTS))),
        recurrent=draw(st.one_of(st.none(), st.builds(RecurrentShape, _COUNTS, _COUNTS))),
        causal=draw(st.booleans()),
        tied_output=draw(st.booleans()),
    )


@st.composite
def _plans(draw: st.DrawFn, make: SimpleNamespace) -> tuple[FootprintModel, ModelHeader, Settings]:
    header = draw(_models(make))
    devices = [make.device(*names) for names in draw(st.sampled_from(_DEVICE_SETS))]
    engine = draw(st.sampled_from([None, make.engine("llama_server"), make.engine("llama_cpp_python")]))
    used = tuple(device.name for device in devices if draw(st.booleans()))
    settings = make.settings(
        n_gpu_layers=draw(st.integers(-1, 9)),
        n_ctx=draw(st.integers(0, 40000)),
        n_parallel=draw(st.integers(1, 6)),
        kv_unified=draw(st.booleans()),
        n_batch=draw(st.sampled_from([32, 512, 2048])),
        n_ubatch=draw(st.sampled_from([32, 512, 2048])),
        flash_attn=draw(st.booleans()),
        type_k=draw(st.sampled_from(KV_TYPES)),
        type_v=draw(st.sampled_from(KV_TYPES)),
        load_mode=draw(st.sampled_from(["mmap", "none"])),
        repack=draw(st.booleans()),
        cache_ram=draw(st.sampled_from([0, 256])),
        n_cpu_moe=draw(st.integers(0, 9)),
        devices=used,
        tensor_split=tuple(draw(st.lists(st.integers(0, 5), max_size=len(used)))),
    )
    return footprint_model(header, make.machine(devices), engine), header, settings


def _terms(footprint: Footprint) -> Counter[tuple[str, str]]:
    sums: Counter[tuple[str, str]] = Counter()
    for term in footprint.terms:
        sums[term.name, term.device] += term.reserved_bytes
    return sums


def _never_lower(before: Counter[tuple[str, str]], after: Counter[tuple[str, str]], names: set[str]) -> bool:
    return all(after[key] >= n_bytes for key, n_bytes in before.items() if key[0] in names)


@given(data=st.data())
def test_reserved_is_the_sum_of_the_terms(make: SimpleNamespace, data: st.DataObject) -> None:
    """The cheap sums equal those of the terms, per pool and per device; no term is negative."""
    model, _, settings = data.draw(_plans(make))
    footprint = model.footprint(settings)
    assert model.reserved(settings) == tuple(footprint.reserved_of_pool(pool) for pool in model.pools)
    assert model.reserved_by_device(settings) == tuple(footprint.reserved_of_device(name) for name in model.devices)
    assert all(term.reserved_bytes >= 0 and term.resident_bytes >= 0 for term in footprint.terms)
    assert sum(model.reserved(settings)) == sum(term.reserved_bytes for term in footprint.terms)


@given(data=st.data())
def test_more_context_batch_or_slots_never_take_less(make: SimpleNamespace, data: st.DataObject) -> None:
    """More context or batch lowers no term. Twice the slots lower neither cache, state nor output.

    Slots of their own shorten each stream, and with it the masks in the compute buffer: the engine does so too.
    """
    model, _, settings = data.draw(_plans(make))
    settings = replace(settings, n_ctx=max(1, settings.n_ctx))
    terms = _terms(model.footprint(settings))
    everything = {name for name, _ in terms}
    longer = replace(settings, n_ctx=settings.n_ctx + data.draw(st.integers(0, 5000)))
    assert _never_lower(terms, _terms(model.footprint(longer)), everything)
    wider = replace(settings, n_batch=settings.n_batch * 2, n_ubatch=settings.n_ubatch * data.draw(st.integers(1, 3)))
    assert _never_lower(terms, _terms(model.footprint(wider)), everything)
    more = replace(settings, n_parallel=settings.n_parallel * 2)
    assert _never_lower(terms, _terms(model.footprint(more)), {"kv_cache", "recurrent_state", "output"})


@given(data=st.data())
def test_more_bits_never_shrink_the_cache(make: SimpleNamespace, data: st.DataObject) -> None:
    """From 4 bits to 32, the cache only grows."""
    model, _, settings = data.draw(_plans(make))
    growing = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "f32")
    sizes = [
        sum(
            n_bytes
            for (name, _), n_bytes in _terms(model.footprint(replace(settings, type_k=t, type_v=t))).items()
            if name == "kv_cache"
        )
        for t in growing
    ]
    assert sizes == sorted(sizes)


@given(data=st.data())
def test_moving_a_layer_moves_exactly_its_bytes(make: SimpleNamespace, data: st.DataObject) -> None:
    """One more offloaded layer takes from the CPU what it adds to the device: weights, cache and state alike."""
    sizes = data.draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=6))
    layers = data.draw(st.lists(_layers(), min_size=len(sizes), max_size=len(sizes)))
    groups = [make.group(block, Role.DENSE_FFN, size) for block, size in enumerate(sizes)]
    groups += [make.group(None, Role.TOKEN_EMBEDDING, 11), make.group(None, Role.OUTPUT, 13)]
    header = make.header(layers, groups, sliding_window=64, recurrent=RecurrentShape(32, 64))
    model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
    by_layers = [
        _terms(model.footprint(make.settings(n_gpu_layers=n, devices=("CUDA0",), n_ctx=512)))
        for n in range(len(sizes) + 2)
    ]
    moved = [13, *reversed(sizes)]
    for n, n_bytes in enumerate(moved):
        before, after = by_layers[n], by_layers[n + 1]
        assert after["weights", "CUDA0"] - before["weights", "CUDA0"] == n_bytes
        assert before["weights", "CPU"] - after["weights", "CPU"] == n_bytes
        for name in ("kv_cache", "recurrent_state"):
            assert sum(before[name, device] for device in ("CPU", "CUDA0")) == sum(
                after[name, device] for device in ("CPU", "CUDA0")
            )


@given(data=st.data())
def test_a_split_shares_layers_out_and_loses_none(make: SimpleNamespace, data: st.DataObject) -> None:
    """Whole numbers of layers in `tensor_split` are met exactly, in device order, counted from the back."""
    counts = data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
    n_blocks = data.draw(st.integers(max(0, sum(counts) - 1), 14))
    groups = [make.group(block, Role.DENSE_FFN, 1) for block in range(n_blocks)] + [make.group(None, Role.OUTPUT, 1)]
    header = make.header([make.layer(Attention.FULL, 1, 1, 32)] * n_blocks, groups)
    devices = [make.device(f"CUDA{i}", "cuda", f"vram{i}") for i in range(3)]
    names = tuple(device.name for device in devices)
    settings = make.settings(n_gpu_layers=sum(counts), devices=names, tensor_split=tuple(counts))
    terms = _terms(footprint_model(header, make.machine(devices), None).footprint(settings))
    assert [terms["weights", name] for name in names] == counts
    assert terms["weights", "CPU"] == n_blocks + 1 - sum(counts)


_ODD = st.sampled_from([-(10**9), -1, 0, 1, 10**6, 10**12])


@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "block_count": _ODD,
            "nextn_predict_layers": _ODD,
            "n_embd": _ODD,
            "n_vocab": _ODD,
            "context_length": st.one_of(st.none(), _ODD),
            "sliding_window": _ODD,
            "n_ff": st.lists(_ODD, max_size=3).map(tuple),
            "layers": st.lists(_layers(), max_size=3).map(tuple),
            "moe": st.builds(MoeFacts, _ODD, _ODD, _ODD, _ODD),
            "recurrent": st.builds(RecurrentShape, _ODD, _ODD),
        },
    ),
    flash_attn=st.booleans(),
)
def test_no_header_raises_anything_but_our_errors(
    make: SimpleNamespace, changes: dict[str, Any], flash_attn: bool
) -> None:
    """Absurd, negative, missing and contradictory facts end in figures or in one of our errors."""
    header = replace(make.gemma3_270m(), **changes)
    try:
        model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
        settings = make.settings(n_gpu_layers=9, devices=("CUDA0",), n_ctx=0, flash_attn=flash_attn)
        assert all(n_bytes >= 0 for n_bytes in model.reserved(settings))
    except MagnitudeTuneError:
        pass


def test_unplannable_values_say_what_to_do(make: SimpleNamespace) -> None:
    """Unknown devices, cache types and shares, and block counts beyond reason, are errors with a hint."""
    model = footprint_model(make.gemma3_270m(), make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
    for changes in ({"devices": ("CUDA7",)}, {"type_k": "q3_x"}, {"devices": ("CUDA0",), "tensor_split": (1, 2)}):
        with pytest.raises(UsageError) as caught:
            model.reserved(make.settings(n_gpu_layers=3, **changes))
        assert caught.value.hint
    with pytest.raises(HeaderError, match="block_count"):
        footprint_model(replace(make.gemma3_270m(), block_count=10**12), make.machine(), None)
