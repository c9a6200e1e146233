"""What the process takes besides tensors: checkpoints, prompt cache, work buffer, devices' overhead."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from magnitude_tune.footprint.checkpoints import Checkpoints
from magnitude_tune.footprint.host import HostCosts
from magnitude_tune.footprint.parts import Part
from magnitude_tune.footprint.placement import place_layers
from magnitude_tune.header.values import Attention, MoeFacts, RecurrentShape
from magnitude_tune.units import MIB


def _parts(
    make: SimpleNamespace,
    header: Any,
    engine: Any = None,
    *,
    backend: str | None = None,
    cores: int = 2,
    cpus: int = 2,
    **changes: Any,
) -> dict[str, Part]:
    """Host parts by name, all blocks on the CPU or on one device of that backend."""
    settings = make.settings(n_threads=2, n_threads_batch=2, **changes)
    places = [1] if backend else []
    placement = place_layers(
        header.block_count, header.block_count + 1 if backend else 0, places, (), (1,) * len(places)
    )
    cpu = replace(make.machine().cpu, usable_cores=cores, affinity_cpus=cpus)
    costs = HostCosts(header, engine, (backend,) if backend else (), cpu)
    return {part.name: part for part in costs.parts(placement, settings, settings.n_ctx)}


def test_a_checkpoint_is_the_window_of_the_sliding_layers(make: SimpleNamespace) -> None:
    """The real server's log says 7.506 MiB for 15 sliding layers of 512 cells and 1 KiB; a few bytes a cell beside."""
    one = Checkpoints(make.gemma3_270m()).n_bytes(4096, "f16", "f16")
    assert one == pytest.approx(7.506 * MIB, rel=0.001)
    assert one >= 15 * 512 * 1024


def test_a_short_slot_holds_less_than_the_window(make: SimpleNamespace) -> None:
    """A checkpoint never holds more cells than a slot has."""
    checkpoints = Checkpoints(make.gemma3_270m())
    assert checkpoints.n_bytes(256, "f16", "f16") < checkpoints.n_bytes(512, "f16", "f16") / 1.9
    assert checkpoints.n_bytes(512, "f16", "f16") == checkpoints.n_bytes(8192, "f16", "f16")


def test_a_hybrid_checkpoint_is_the_state_of_one_slot(make: SimpleNamespace) -> None:
    """The field report's 149.63 MiB a slot: 48 recurrent layers' f32 state, whatever the context and cache type."""
    recurrent = [make.layer(Attention.RECURRENT, 0, 0, 0)] * 48
    full = [make.layer(Attention.FULL, 8, 8, 128)] * 16
    header = make.header([*recurrent, *full], [], recurrent=RecurrentShape(3 * 10240, 48 * 128 * 128))
    checkpoints = Checkpoints(header)
    assert checkpoints.n_bytes(262144, "q8_0", "q8_0") == 48 * 4 * (3 * 10240 + 48 * 128 * 128)
    assert checkpoints.n_bytes(4096, "f16", "f16") / MIB == pytest.approx(149.63, abs=0.01)


def test_models_that_keep_everything_make_no_checkpoints(make: SimpleNamespace) -> None:
    """The server makes none where every layer keeps the whole context, however many it may make."""
    header = make.header([make.layer(Attention.FULL, 8, 8, 128)] * 4, [])
    assert "checkpoints" not in _parts(make, header, ctx_checkpoints=32)


def test_checkpoints_are_held_for_each_slot(make: SimpleNamespace) -> None:
    """What is reserved is their number times slots; a prompt leaves two, and none are there at start."""
    header = make.gemma3_270m()
    one = Checkpoints(header).n_bytes(4096, "f16", "f16")
    part = _parts(make, header, ctx_checkpoints=4, n_parallel=2)["checkpoints"]
    assert (part.reserved, part.resident, part.low, part.high) == (8 * one, 4 * one, 0, 8 * one)
    embedded = make.engine("llama_cpp_python")
    assert "checkpoints" not in _parts(make, header, embedded, ctx_checkpoints=4)


def test_a_build_that_looks_at_the_limit_too_late_holds_one_conversation_more(make: SimpleNamespace) -> None:
    """From ggml 0.20 on the limit of the prompt cache is strict; before, a whole conversation was saved first."""
    header = make.gemma3_270m()
    strict = _parts(make, header, make.engine(), cache_ram=256)["prompt_cache"]
    assert strict.reserved == 256 * MIB
    old = replace(make.engine(), ggml_version="0.9.5")
    loose = _parts(make, header, old, cache_ram=256)["prompt_cache"]
    full = 8192 * 3 * 1024
    assert loose.reserved - 256 * MIB >= full + Checkpoints(header).n_bytes(8192, "f16", "f16")
    unknown = replace(make.engine(), ggml_version=None)
    assert _parts(make, header, unknown, cache_ram=256)["prompt_cache"].reserved == 256 * MIB


def test_the_process_grows_with_tensors_and_with_threads_for_http(make: SimpleNamespace) -> None:
    """9 KiB a tensor in any engine; the server alone has threads for HTTP and, a slot, every token to sample from."""
    header = make.header([make.layer(Attention.FULL, 8, 8, 128)] * 4, [], n_tensors=100)
    more = replace(header, n_tensors=1100)
    embedded = make.engine("llama_cpp_python")
    for engine in (make.engine(), embedded):
        grown = _parts(make, more, engine)["process"].resident - _parts(make, header, engine)["process"].resident
        assert grown == 1000 * 9 * 1024
    plain = _parts(make, header, make.engine())["process"].resident
    assert _parts(make, header, make.engine(), cpus=67)["process"].resident - plain == 61 * 130 * 1024
    assert _parts(make, header, make.engine(), n_parallel=3)["process"].resident - plain == 2 * (130 * 1024 + 12 * 1000)
    assert (
        _parts(make, header, embedded, cpus=67)["process"].resident
        == _parts(make, header, embedded)["process"].resident
    )


def test_the_work_buffer_holds_the_widest_input(make: SimpleNamespace) -> None:
    """A micro batch of 2048 tokens of 2048 values, as blocks of 292 bytes for 256 values, is 4.56 MiB."""
    header = make.gemma3_270m()
    part = _parts(make, header, n_ubatch=2048, n_batch=2048)["work"]
    threads = 2 * (512 + 64) * 1024
    assert part.reserved == part.resident == 2048 * (2048 * 292 // 256) + threads
    more = _parts(make, header, n_ubatch=2048, n_batch=2048, cores=64)["work"]
    assert more.reserved - part.reserved == 62 * (512 + 64) * 1024
    assert more.resident == part.resident


def test_attention_scores_are_converted_without_flash_attention(make: SimpleNamespace) -> None:
    """512 tokens of 4 heads over 4096 cells, as f16: 16 MiB, as a real run showed beside its printed buffers."""
    header = make.gemma3_270m()
    threads = 2 * (512 + 64) * 1024
    off = _parts(make, header, n_ctx=4096, flash_attn=False)["work"]
    assert off.reserved == 16 * MIB + threads
    assert _parts(make, header, n_ctx=8192, flash_attn=False)["work"].reserved == 32 * MIB + threads
    assert _parts(make, header, n_ctx=4096, flash_attn=False, type_v="f32")["work"].reserved < off.reserved / 4


def test_nothing_is_computed_where_every_block_is_on_a_device(make: SimpleNamespace) -> None:
    """Without a block on the CPU there is no work buffer; experts kept there have one."""
    assert "work" not in _parts(make, make.gemma3_270m(), backend="cuda", devices=("CUDA0",))
    moe = make.header([make.layer(Attention.FULL, 8, 8, 128)] * 4, [], n_embd=2048, moe=MoeFacts(128, 8, 768))
    assert "work" not in _parts(make, moe, backend="cuda")
    kept = _parts(make, moe, backend="cuda", n_cpu_moe=4)["work"]
    assert kept.reserved >= 512 * 128 * 8 * 8


@pytest.mark.parametrize("backend", ["cuda", "rocm", "vulkan", "metal", "sycl", "musa"])
def test_the_overhead_of_a_device_is_an_interval_with_its_source(make: SimpleNamespace, backend: str) -> None:
    """Budgets hold the upper end of what was seen on any card."""
    part = _parts(make, make.gemma3_270m(), backend=backend)["device_overhead"]
    assert part.certainty == "estimated"
    assert part.low is not None
    assert part.low < part.resident < part.reserved == part.high
    assert part.rule


def test_a_device_over_rpc_has_no_overhead_here(make: SimpleNamespace) -> None:
    """The server that owns it is another process."""
    assert "device_overhead" not in _parts(make, make.gemma3_270m(), backend="rpc")


def test_damaged_headers_price_to_something(make: SimpleNamespace) -> None:
    """Zero heads, absurd experts or missing widths raise nothing and are never negative."""
    layers = [make.layer(Attention.SLIDING, 0, 0, 0)] * 2
    header = make.header(layers, [], n_embd=0, n_ff=(), sliding_window=512, moe=MoeFacts(0, 0, 0))
    for part in _parts(make, header, ctx_checkpoints=4, cache_ram=256).values():
        assert part.reserved >= part.resident >= 0
