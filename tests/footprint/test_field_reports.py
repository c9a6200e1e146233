"""Field reports about layers and memory, each with the bytes that are right."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.values import Attention, MoeFacts, RecurrentShape, Role
from magnitude_tune.units import GIB, MIB


def _bytes(footprint: Footprint, name: str, device: str | None = None) -> int:
    return sum(term.reserved_bytes for term in footprint.terms if term.name == name and device in (None, term.device))


@pytest.mark.parametrize(
    ("n_ctx", "n_parallel", "unified", "expected"),
    [(4096, 1, False, 4096), (4096, 4, False, 4096), (1024, 4, True, 1024), (32768 * 20, 20, False, 655360)],
)
def test_b02_slots_share_the_context_out_and_never_multiply_it(
    make: SimpleNamespace, n_ctx: int, n_parallel: int, unified: bool, expected: int
) -> None:
    """Cells follow the context that was asked for, whoever shares it: 20 slots of 32768 are 655360 cells, 50 GiB."""
    layers = [make.layer(Attention.FULL, 8, 8, 64)] * 40
    model = footprint_model(make.header(layers), make.machine(), None)
    footprint = model.footprint(make.settings(n_ctx=n_ctx, n_parallel=n_parallel, kv_unified=unified))
    assert _bytes(footprint, "kv_cache") == expected * 40 * 2048
    assert expected != 655360 or _bytes(footprint, "kv_cache") == 50 * GIB


def test_b05_sliding_layers_of_a_27b_model_keep_a_window(make: SimpleNamespace) -> None:
    """gemma3-27b at 131072 tokens needs 10.61 GiB of cache, not 62."""
    layers = [make.layer(Attention.FULL if il % 6 == 5 else Attention.SLIDING, 32, 16, 128) for il in range(62)]
    model = footprint_model(make.header(layers, sliding_window=1024), make.machine(), None)
    kv = _bytes(model.footprint(make.settings(n_ctx=131072)), "kv_cache")
    assert kv / GIB == pytest.approx(10.61, abs=0.005)


def test_b05_gpt_oss_20b_keeps_a_window_on_every_other_layer(make: SimpleNamespace) -> None:
    """gpt-oss-20b at 131072 tokens needs 3.02 GiB of cache."""
    layers = [make.layer(Attention.FULL if il % 2 else Attention.SLIDING, 64, 8, 64) for il in range(24)]
    model = footprint_model(make.header(layers, sliding_window=128), make.machine(), None)
    kv = _bytes(model.footprint(make.settings(n_ctx=131072)), "kv_cache")
    assert kv / GIB == pytest.approx(3.02, abs=0.005)


@pytest.mark.parametrize(("n_parallel", "mib"), [(1, 27), (2, 42), (4, 72), (8, 72)])
def test_b05_slots_that_share_nothing_each_keep_a_window(make: SimpleNamespace, n_parallel: int, mib: int) -> None:
    """gemma3-270m at 4096 tokens: 27, 42, 72 and 72 MiB for 1, 2, 4 and 8 slots with streams of their own."""
    model = footprint_model(make.gemma3_270m(), make.machine(), None)
    kv = _bytes(model.footprint(make.settings(n_ctx=4096, n_parallel=n_parallel)), "kv_cache")
    assert kv == mib * MIB


def test_b06_recurrent_blocks_keep_a_state_not_a_cache(make: SimpleNamespace) -> None:
    """A hybrid with 16 attending blocks of 64 needs 16.00 GiB of cache and 149.63 MiB of state a slot."""
    layers = [
        make.layer(Attention.FULL, 16, 4, 256) if il % 4 == 3 else make.layer(Attention.RECURRENT, 0, 0, 0)
        for il in range(64)
    ]
    shape = RecurrentShape(r=3 * (6144 + 2 * 16 * 128), s=6144 * 128)
    model = footprint_model(make.header(layers, recurrent=shape), make.machine(), None)
    settings = make.settings(n_ctx=262144, n_parallel=4, kv_unified=True)
    footprint = model.footprint(settings)
    assert _bytes(footprint, "kv_cache") == 16 * GIB
    assert _bytes(footprint, "recurrent_state") / MIB == pytest.approx(4 * 149.625, abs=0.01)


@pytest.mark.parametrize(("blocks", "n_ctx", "gib"), [(28, 131072, 14), (32, 1048576, 128)])
def test_b07_the_trained_context_is_priced_as_what_it_is(
    make: SimpleNamespace, blocks: int, n_ctx: int, gib: int
) -> None:
    """Trained contexts of 131072 and 1048576 tokens would need 14 and 128 GiB."""
    layers = [make.layer(Attention.FULL, 32, 8, 128)] * blocks
    model = footprint_model(make.header(layers, context_length=n_ctx), make.machine(), None)
    assert _bytes(model.footprint(make.settings(n_ctx=n_ctx)), "kv_cache") == gib * GIB


def test_b15_b20_blocks_for_drafting_count_as_layers_but_are_not_loaded(make: SimpleNamespace) -> None:
    """65 blocks, one of them for multi-token prediction: 66 is everything, the last block has neither bytes nor KV."""
    layers = [
        make.layer(Attention.FULL, 16, 4, 256) if il % 4 == 3 else make.layer(Attention.RECURRENT, 0, 0, 0)
        for il in range(64)
    ]
    layers.append(make.layer(Attention.NONE, 16, 4, 0))
    groups = [make.group(block, Role.ATTENTION, 100) for block in range(65)]
    groups.append(make.group(None, Role.OUTPUT, 7))
    header = make.header(layers, groups, nextn_predict_layers=1)
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    model = footprint_model(header, machine, None)

    def on_card(n_gpu_layers: int) -> int:
        settings = make.settings(
            n_gpu_layers=n_gpu_layers, devices=("CUDA0",), n_ctx=262144, type_k="q8_0", type_v="q8_0"
        )
        return _bytes(model.footprint(settings), "weights", "CUDA0")

    assert [on_card(n) for n in (0, 1, 2, 3, 65, 66, 99)] == [0, 7, 7, 107, 6307, 6407, 6407]
    full = make.settings(n_gpu_layers=66, devices=("CUDA0",), n_ctx=262144, type_k="q8_0", type_v="q8_0")
    assert _bytes(model.footprint(full), "kv_cache") / MIB == pytest.approx(544 * 16, abs=0.01)


@pytest.mark.parametrize(("blocks", "n_next"), [(28, 0), (65, 1)])
def test_b20_the_output_layer_counts_and_goes_first(make: SimpleNamespace, blocks: int, n_next: int) -> None:
    """Full offload is block_count + 1: 29 and 66; one layer is the output alone, and 28 leaves a block behind."""
    groups = [make.group(block, Role.ATTENTION, 100) for block in range(blocks)] + [make.group(None, Role.OUTPUT, 7)]
    header = make.header([make.layer(Attention.FULL, 8, 2, 64)] * blocks, groups, nextn_predict_layers=n_next)
    model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)

    def on_host(n_gpu_layers: int) -> int:
        settings = make.settings(n_gpu_layers=n_gpu_layers, devices=("CUDA0",))
        return _bytes(model.footprint(settings), "weights", "CPU")

    trunk = 100 * (blocks - n_next)
    assert header.all_layers == blocks + 1
    assert [on_host(n) for n in (0, 1, blocks, blocks + 1, -1)] == [trunk + 7, trunk, 100, 0, 0]


def test_b47_a_671b_model_weighs_all_its_experts(make: SimpleNamespace) -> None:
    """62 blocks, 3 dense of 0.5 GiB and 59 of 9.1 GiB: 538.4 GiB counted from the last block back, not 37 B active."""
    sizes = [GIB // 2] * 3 + [round(9.1 * GIB)] * 59
    groups = [make.group(block, Role.EXPERT_FFN if block > 2 else Role.DENSE_FFN, n) for block, n in enumerate(sizes)]
    header = make.header([make.layer(Attention.FULL, 128, 128, 128)] * 62, groups)
    model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
    for n_gpu_layers in (0, 1, 10, 60, 63):
        footprint = model.footprint(make.settings(n_gpu_layers=n_gpu_layers, devices=("CUDA0",)))
        on_card = _bytes(footprint, "weights", "CUDA0")
        assert on_card == sum(sizes[63 - n_gpu_layers :] if n_gpu_layers else [])
        assert on_card + _bytes(footprint, "weights", "CPU") == sum(sizes)
    assert sum(sizes) / GIB == pytest.approx(538.4, abs=0.01)


def test_b47_experts_count_in_full_and_can_stay_on_the_cpu(make: SimpleNamespace) -> None:
    """3 dense blocks and 59 with experts: layers have their own sizes, n_cpu_moe moves expert bytes and no others."""
    layers = [make.layer(Attention.FULL, 32, 8, 128)] * 62
    groups = [make.group(block, Role.DENSE_FFN, 500) for block in range(3)]
    groups += [make.group(block, Role.EXPERT_FFN, 9000) for block in range(3, 62)]
    groups += [make.group(block, Role.ATTENTION, 100) for block in range(3, 62)]
    header = make.header(layers, groups, moe=MoeFacts(expert_count=64, expert_used_count=4, n_ff_expert=512))
    model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)

    def split(**changes: int) -> tuple[int, int]:
        footprint = model.footprint(make.settings(devices=("CUDA0",), **changes))
        return _bytes(footprint, "weights", "CPU"), _bytes(footprint, "weights", "CUDA0")

    assert split(n_gpu_layers=63) == (0, 1500 + 59 * 9100)
    assert split(n_gpu_layers=61) == (1000, 500 + 59 * 9100)
    assert split(n_gpu_layers=63, n_cpu_moe=10) == (7 * 9000, 1500 + 59 * 9100 - 7 * 9000)
    assert split(n_gpu_layers=11, n_cpu_moe=10) == (1500 + 49 * 9100, 10 * 9100)
    assert split(n_gpu_layers=11, n_cpu_moe=99) == (1500 + 49 * 9100 + 10 * 9000, 1000)


def test_b49_the_embedding_stays_and_a_tied_output_is_a_copy(make: SimpleNamespace) -> None:
    """Tensors of 3021.88 MiB with tied output: 1481.88 MiB on the card, 1804 on the host; untied adds nothing back."""
    rest = round(3021.88 * MIB) - 1804 * MIB
    groups = [
        make.group(None, Role.TOKEN_EMBEDDING, 264 * MIB),
        make.group(None, Role.PER_LAYER_EMBEDDING, 1540 * MIB),
        make.group(0, Role.DENSE_FFN, rest),
    ]
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    for tied, on_card in ((True, rest + 264 * MIB), (False, rest)):
        header = make.header([make.layer(Attention.FULL, 8, 2, 256)], groups, tied_output=tied)
        footprint = footprint_model(header, machine, None).footprint(make.settings(n_gpu_layers=2, devices=("CUDA0",)))
        assert _bytes(footprint, "weights", "CUDA0") == on_card
        assert _bytes(footprint, "weights", "CPU") == 1804 * MIB


def test_b52_declared_head_sizes_win(make: SimpleNamespace) -> None:
    """A qwen3 head with 8 KV heads of 128 at 40960 tokens needs 4.375 GiB, whatever embedding / heads says."""
    layers = [make.layer(Attention.FULL, 16, 8, 128)] * 28
    model = footprint_model(make.header(layers, n_embd=1024), make.machine(), None)
    assert _bytes(model.footprint(make.settings(n_ctx=40960)), "kv_cache") == int(4.375 * GIB)


@pytest.mark.parametrize(
    ("kv_type", "mib"),
    [
        ("f32", 2048),
        ("f16", 1024),
        ("bf16", 1024),
        ("q8_0", 544),
        ("q5_1", 384),
        ("q5_0", 352),
        ("q4_1", 320),
        ("q4_0", 288),
        ("iq4_nl", 288),
    ],
)
def test_b59_every_type_of_the_cache_has_its_bytes_per_element(make: SimpleNamespace, kv_type: str, mib: int) -> None:
    """32 blocks with 8 KV heads of 128 at 8192 tokens, in every type the engine knows."""
    model = footprint_model(make.header([make.layer(Attention.FULL, 32, 8, 128)] * 32), make.machine(), None)
    footprint = model.footprint(make.settings(n_ctx=8192, type_k=kv_type, type_v=kv_type))
    assert _bytes(footprint, "kv_cache") == mib * MIB


def test_b72_an_encoder_keeps_no_cache(make: SimpleNamespace) -> None:
    """A bert of 24 blocks at 8192 tokens: weights and compute, 1 to 2 GiB in all, not 13.8."""
    weights = round(1.07 * GIB)
    header = make.header(
        [make.layer(Attention.NONE, 16, 16, 0)] * 24,
        [make.group(0, Role.DENSE_FFN, weights, "f16")],
        causal=False,
        n_vocab=30522,
        n_ff=(4096,) * 24,
    )
    footprint = footprint_model(header, make.machine(), None).footprint(make.settings(n_ctx=8192))
    assert _bytes(footprint, "kv_cache") == 0
    assert 1 * GIB < sum(term.reserved_bytes for term in footprint.terms) < 2 * GIB


def test_mla_caches_only_the_compressed_key(make: SimpleNamespace) -> None:
    """MLA keeps 576 elements a token and layer and no V, with or without flash attention."""
    layers = [make.layer(Attention.MLA, 128, 1, 576, 0)] * 61
    model = footprint_model(make.header(layers), make.machine(), None)
    for flash_attn in (True, False):
        settings = make.settings(n_ctx=8192, flash_attn=flash_attn)
        assert _bytes(model.footprint(settings), "kv_cache") == 61 * 8192 * 576 * 2


def test_without_flash_attention_v_has_the_widest_layers_rows(make: SimpleNamespace) -> None:
    """V is stored transposed without flash attention: every layer's rows are as wide as the widest layer's."""
    layers = [make.layer(Attention.FULL, 8, n, 64)._replace(padded_v=512) for n in (8, 2)]
    model = footprint_model(make.header(layers), make.machine(), None)
    on, off = (_bytes(model.footprint(make.settings(n_ctx=256, flash_attn=fa)), "kv_cache") for fa in (True, False))
    assert on == 256 * 2 * (2 * 512 + 2 * 128)
    assert off == 256 * 2 * (512 + 128 + 2 * 512)


def test_the_prompt_cache_is_reserved_where_the_engine_has_one(make: SimpleNamespace) -> None:
    """`cache_ram` MiB are held for llama-server and before an engine is installed, and mean nothing to the embedded."""
    for engine, expected in ((None, 1024), (make.engine("llama_server"), 1024), (make.engine("llama_cpp_python"), 0)):
        model = footprint_model(make.gemma3_270m(), make.machine(), engine)
        assert _bytes(model.footprint(make.settings(cache_ram=1024)), "prompt_cache") == expected * MIB
