"""Field reports about choosing by memory, each with its bytes, on the real models of memory and speed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resolver.real_subjects import a_model, a_real_subject
from resolver.stand_ins import A_MOE, a_machine

from magnitude_tune.engines.server_arguments import build_arguments
from magnitude_tune.engines.values import Launch
from magnitude_tune.errors import DoesNotFitError
from magnitude_tune.findings import Place, Rule
from magnitude_tune.magnitude import magnitude_of_bytes
from magnitude_tune.request import Pin, Request, Settings
from magnitude_tune.resolver.choose import limits_of
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Resolution
from magnitude_tune.units import GIB, MIB

WORDS = (
    "model host port offline no-webui warmup fit n-gpu-layers device split-mode main-gpu tensor-split n-cpu-moe "
    "threads threads-batch batch-size ubatch-size ctx-size parallel flash-attn cache-type-k cache-type-v kv-unified "
    "no-kv-unified cache-ram ctx-checkpoints load-mode repack no-repack"
)
FLAGS = frozenset(WORDS.split())


def pin(name: str, value: int | str | bool) -> Pin:
    return Pin(name, value, str(value), Place("agent.yaml", 4, 17))


def rules(resolution: Resolution) -> set[Rule]:
    return {finding.rule for finding in resolution.findings}


def reason(resolution: Resolution, name: str) -> str:
    return next(each.text for each in resolution.reasons if each.setting == name)


def arguments(chosen: Settings) -> dict[str, str]:
    """llama-server's arguments by option."""
    argv = build_arguments(Launch(model_path="m.gguf", settings=chosen), FLAGS, port=1).argv
    return {name: value for name, value in pairwise(argv) if name.startswith("--")}


@pytest.mark.parametrize(("trained", "blocks", "kv_gib"), [(131072, 28, 14.0), (1048576, 32, 128.0)])
def test_b07_unset_context_is_not_the_trained_one(trained: int, blocks: int, kv_gib: float) -> None:
    """The trained context alone would need 14 or 128 GiB of cache; 8192 tokens are planned for, and all three said."""
    header = a_model([100 * MIB] * blocks, context_length=trained)
    subject = a_real_subject(header, a_machine(total=16 * GIB))
    resolution = resolve(subject, Request())
    assert resolution.settings.n_ctx == 8192
    assert reason(resolution, "n_ctx") == f"none asked for: min(8192, trained {trained})"
    cache = [term for term in resolution.footprint.terms if term.name == "kv_cache"]
    assert sum(term.reserved_bytes for term in cache) == int(kv_gib * GIB) * 8192 // trained
    whole = subject.footprint.footprint(replace(resolution.settings, n_ctx=trained))
    assert sum(term.reserved_bytes for term in whole.terms if term.name == "kv_cache") == int(kv_gib * GIB)


def test_b08_a_card_is_planned_by_its_own_memory() -> None:
    """Windows would start 9000 MiB on a card of 8188 MiB and spill: over budget, though loading would succeed."""
    machine = replace(a_machine(total=64 * GIB, cards=((8188 * MIB, 8188 * MIB),)), system="Windows")
    subject = a_real_subject(a_model([240 * MIB] * 32), machine)
    everything = Request(pins=(pin("n_gpu_layers", 33),))
    with pytest.raises(DoesNotFitError, match="of cuda0"):
        resolve(subject, everything)
    chosen = resolve(subject, Request()).settings
    card = dict(zip(subject.footprint.pools, subject.footprint.reserved(chosen), strict=True))["cuda0"]
    whole = subject.footprint.reserved(replace(chosen, n_gpu_layers=33))
    assert whole[1] >= 9000 * MIB
    assert 0 < chosen.n_gpu_layers < 33
    assert card <= 8188 * MIB - machine.pool("cuda0").floor_bytes


def b25_subject(free: tuple[int, int] = (10 * GIB, 20 * GIB), small: int = 400 * MIB) -> Subject:
    """Ten blocks three times the size of the twenty after them, on two cards."""
    cards = ((12 * GIB, free[0]), (24 * GIB, free[1]))
    return a_real_subject(a_model([3 * small] * 10 + [small] * 20), a_machine(total=128 * GIB, cards=cards))


def test_b25_layers_are_shared_out_by_their_bytes() -> None:
    """Both cards hold their part; a split by memory alone would fill the first card beyond what it has."""
    subject = b25_subject()
    resolution = resolve(subject, Request())
    chosen = resolution.settings
    assert (chosen.n_gpu_layers, chosen.devices) == (31, ("CUDA0", "CUDA1"))
    assert sum(chosen.tensor_split) == 31
    assert arguments(chosen)["--tensor-split"] == ",".join(map(str, chosen.tensor_split))
    for use in resolution.pools:
        assert use.reserved_bytes <= use.available_bytes - use.floor_bytes
    for name in chosen.devices:
        terms = {term.name for term in resolution.footprint.terms if term.device == name}
        assert {"weights", "kv_cache", "compute", "device_overhead"} <= terms
    by_memory = subject.footprint.reserved(replace(chosen, tensor_split=(10, 21)))
    assert by_memory[1] > 10 * GIB


def test_b25_a_short_card_is_refused_though_the_sum_fits() -> None:
    """Ten large blocks on the card of 10 GiB are refused as they are pinned, with 30 GiB free in all."""
    with pytest.raises(DoesNotFitError, match="of cuda0"):
        resolve(b25_subject(), Request(pins=(pin("tensor_split", "10,21"), pin("n_gpu_layers", 31))))


def test_b25_the_sum_of_free_memory_is_no_budget() -> None:
    """Two cards of 10 GiB free do not hold 19.6 GiB of weights with caches and buffers: fewer layers are offloaded."""
    resolution = resolve(b25_subject((10 * GIB, 10 * GIB)), Request())
    assert 0 < resolution.settings.n_gpu_layers < 31
    for use in resolution.pools:
        assert use.reserved_bytes <= use.available_bytes - use.floor_bytes


def test_b32_quantised_values_without_flash_attention_never_start() -> None:
    """Flash attention is turned on, or V goes back to f16 where the architecture has none; both are said."""
    machine = a_machine(total=32 * GIB)
    request = Request(pins=(pin("type_v", "q8_0"), pin("flash_attn", value=False)))
    able = resolve(a_real_subject(a_model([100 * MIB] * 8), machine), request)
    assert (able.settings.type_v, able.settings.flash_attn) == ("q8_0", True)
    assert Rule.FLASH_ATTENTION_FORCED in rules(able)
    unable = resolve(a_real_subject(a_model([100 * MIB] * 8, flash_attn=False), machine), request)
    assert (unable.settings.type_v, unable.settings.flash_attn) == ("f16", False)
    adjusted = next(finding for finding in unable.findings if finding.rule is Rule.PIN_ADJUSTED)
    assert adjusted.message == "type_v cannot be q8_0 here: f16 runs"


@pytest.mark.parametrize(
    ("pair", "slow"),
    [(("q5_1", "q5_1"), True), (("q8_0", "q4_0"), True), (("q8_0", "q8_0"), False), (("f16", "f16"), False)],
)
def test_b81_unusual_pairs_of_kv_types_are_said(pair: tuple[str, str], slow: bool) -> None:
    """A default CUDA build attends pairs without a kernel on the CPU; without a card there is nothing to say."""
    request = Request(pins=(pin("type_k", pair[0]), pin("type_v", pair[1])))
    header = a_model([100 * MIB] * 8)
    card = resolve(a_real_subject(header, a_machine(cards=((24 * GIB, 24 * GIB),))), request)
    assert (Rule.SLOW_KV_PAIR in rules(card)) == slow
    assert Rule.SLOW_KV_PAIR not in rules(resolve(a_real_subject(header, a_machine()), request))


def b47_subject(ram: int) -> Subject:
    """671 billion weights: 3 dense blocks of 0.5 GiB, then 59 of 9.1 GiB, nearly all of it experts."""
    header = a_model([512 * MIB] * 62, [0] * 3 + [int(8.6 * GIB)] * 59, kv_width=512, moe=A_MOE)
    return a_real_subject(header, a_machine(total=ram, cores=32, cards=((24 * GIB, 24 * GIB),)))


def test_b47_all_experts_count_and_go_to_the_cpu_first() -> None:
    """All 539 GiB are placed, experts stay in host memory, and whole blocks are named as the alternative."""
    subject = b47_subject(768 * GIB)
    resolution = resolve(subject, Request())
    chosen = resolution.settings
    weights = {term.device: term.reserved_bytes for term in resolution.footprint.terms if term.name == "weights"}
    assert sum(weights.values()) >= subject.header.tensor_bytes
    assert weights["CPU"] > 500 * GIB
    assert chosen.n_cpu_moe > 0
    assert chosen.n_gpu_layers > 2
    assert "n_gpu_layers=2 with all of their experts would take" in reason(resolution, "n_cpu_moe")


def test_b47_experts_on_the_cpu_need_the_hosts_memory() -> None:
    """384 GiB of RAM do not hold the experts, however few layers the card is given."""
    with pytest.raises(DoesNotFitError, match="of ram"):
        resolve(b47_subject(384 * GIB), Request())


def test_b62_a_plan_beyond_the_card_is_cut_here_not_by_the_engine() -> None:
    """2499 MiB more planned than free: cut by as much and the floor, with `--fit off`; pinned, it is refused."""
    header = a_model([100 * MIB] * 40, [600 * MIB] * 40, moe=A_MOE)
    total = 32 * GIB
    roomy = a_real_subject(header, a_machine(total=128 * GIB, cards=((total, total),)))
    before = resolve(roomy, Request(magnitude=6.0)).settings
    planned = roomy.footprint.reserved(before)[1]
    free = planned - 2499 * MIB
    subject = a_real_subject(header, a_machine(total=128 * GIB, cards=((total, free),)))
    resolution = resolve(subject, Request(magnitude=6.0))
    reserved = next(use for use in resolution.pools if use.name == "cuda0")
    assert planned - reserved.reserved_bytes >= 2499 * MIB + reserved.floor_bytes
    assert arguments(resolution.settings)["--fit"] == "off"
    assert arguments(resolution.settings)["--n-cpu-moe"] == str(resolution.settings.n_cpu_moe)
    pins = (pin("n_gpu_layers", before.n_gpu_layers), pin("n_cpu_moe", before.n_cpu_moe))
    with pytest.raises(DoesNotFitError):
        resolve(subject, Request(magnitude=6.0, pins=(*pins, pin("n_ubatch", before.n_ubatch))))


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 40), st.integers(20, 700), st.integers(2048, 24576), st.sampled_from([1.0, 3.0, 4.0, 4.4]))
def test_b63_one_more_layer_never_fits_and_pays(blocks: int, mib: int, card: int, m: float) -> None:
    """With one more layer, all else equal, the plan exceeds the budget or gains less than 3 % of the turn time."""
    subject = a_real_subject(
        a_model([mib * MIB] * blocks), a_machine(total=64 * GIB, cards=((card * MIB, card * MIB),))
    )
    chosen = resolve(subject, Request(magnitude=m)).settings
    if chosen.n_gpu_layers == subject.header.all_layers:
        return
    more = replace(chosen, n_gpu_layers=chosen.n_gpu_layers + 1, devices=("CUDA0",))
    reserved = subject.footprint.reserved(more)
    totals = [pool.total_bytes for pool in subject.machine.pools]
    fits = limits_of(subject.machine, subject.footprint.pools, ()).hold_bytes(reserved)
    fits = fits and max(map(magnitude_of_bytes, reserved, totals)) <= m

    def turn(plan: Settings) -> float:
        pp = subject.speed.pp_seconds(plan, plan.n_threads_batch, 512)
        return pp + 128 * subject.speed.tg_seconds(plan, plan.n_threads)

    assert not fits or turn(more) > turn(chosen) / 1.03


def test_b63_unused_memory_and_the_missing_layer_are_said() -> None:
    """One layer short on a card: what is unused, and the context or KV type that would bring the layer in."""
    header = a_model([300 * MIB] * 28, kv_width=4096)
    for available in range(8 * 1024, 16 * 1024, 64):
        subject = a_real_subject(header, a_machine(total=64 * GIB, cards=((16 * GIB, available * MIB),)))
        resolution = resolve(subject, Request())
        if resolution.settings.n_gpu_layers == 28:
            break
    else:
        pytest.fail("no card leaves exactly one layer out")
    finding = next(finding for finding in resolution.findings if finding.rule is Rule.ONE_LAYER_SHORT)
    assert finding.message.startswith("one of 29 layers stays on the CPU; unused: CUDA0 ")
    assert finding.fix is not None
    assert "KV cache in q8_0" in finding.fix
    n_ctx = int(finding.fix.split()[3])
    assert resolve(subject, Request(n_ctx=n_ctx)).settings.n_gpu_layers == 29
    assert "unused: CUDA0" in reason(resolution, "n_gpu_layers")
