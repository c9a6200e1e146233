"""The resolver on stand-in models of memory and speed: what is chosen, refused, pinned and said."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from resolver.stand_ins import A_MOE, PlainSpeed, a_header, a_machine, a_subject, an_engine

from magnitude_tune.errors import DoesNotFitError, UsageError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.header.values import Attention, LayerKv
from magnitude_tune.request import ALL_LAYERS, Pin, Request, Settings, Target
from magnitude_tune.resolver.resolve import resolve
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import GIB, MIB

HERE = Place("agent.yaml", 4, 17)


def pin(name: str, value: int | str | bool) -> Pin:
    return Pin(name, value, str(value), HERE)


def rules(findings: tuple[Finding, ...]) -> set[Rule]:
    return {finding.rule for finding in findings}


def a_card_machine(total: int = 24 * GIB, available: int | None = None) -> Subject:
    return a_subject(machine=a_machine(cards=((total, total if available is None else available),)))


def test_full_offload_counts_the_output_layer() -> None:
    """B20: a model of 28 blocks that fits a card gets 29 layers, never 28."""
    resolution = resolve(a_card_machine(), Request())
    assert resolution.settings.n_gpu_layers == 29
    assert resolution.settings.devices == ("CUDA0",)


def test_log_line_is_exact() -> None:
    """Every resolution logs its settings in the agreed words."""
    resolution = resolve(a_card_machine(), Request())
    settings = resolution.settings
    assert resolution.log_lines[0] == (
        f"INFO: magnitude resolved to n_gpu_layers=29, n_threads={settings.n_threads}, batch_size={settings.n_batch}"
    )
    assert f"n_ubatch={settings.n_ubatch}, " in resolution.log_lines[1]
    assert "devices=CUDA0" in resolution.log_lines[1]


def test_threads_stay_within_the_cap_and_saturate() -> None:
    """B23: four threads decode as fast as more, so four are chosen; prompt threads go up to the cap."""
    resolution = resolve(a_subject(machine=a_machine(cores=8)), Request(magnitude=2.0))
    assert resolution.settings.n_threads == 4
    assert resolution.settings.n_threads_batch == 6


@dataclass(frozen=True)
class TableSpeed(PlainSpeed):
    """Decodes at the rates of a table, whatever the layers."""

    rates: tuple[tuple[int, float], ...] = ((1, 4.0), (2, 8.0), (4, 12.0), (8, 12.1), (16, 9.0))

    def tg_seconds(self, settings: Settings, n_threads: int) -> float:  # noqa: ARG002 - the table ignores them
        return 1 / next(rate for n, rate in reversed(self.rates) if n <= n_threads)


def test_the_fewest_threads_nearly_as_fast_decode() -> None:
    """B23: 8.0, 12.0, 12.1, 9.0 tokens/s at 2, 4, 8, 16 threads: four decode, though eight are 0.8 % faster."""
    subject = a_subject(machine=a_machine(cores=16))
    settings = resolve(subject._replace(speed=TableSpeed(subject.header)), Request()).settings
    assert settings.n_threads == 4
    assert settings.n_threads_batch >= 4


def test_card_pressure_is_named_vram() -> None:
    """A card that others fill gives fewer layers, and says by how much the magnitude was scaled."""
    subject = a_card_machine(total=8 * GIB, available=2 * GIB)
    resolution = resolve(subject, Request())
    assert 0 < resolution.settings.n_gpu_layers < 29
    assert resolution.magnitude.executed == 0.3  # log2(8 / (8 - (2 - 0.08))) = 0.396
    assert resolution.log_lines[-1] == "WARN: magnitude scaled from 4.0 → 0.3 due to VRAM pressure"
    assert Rule.PRESSURE in rules(resolution.findings)


def test_busy_cores_take_threads_and_are_named_cpu() -> None:
    """Others keep 3 of 4 cores busy: one thread fits, and the magnitude says so."""
    subject = a_subject(machine=a_machine(cores=4))
    resolution = resolve(subject, Request(), busy_cores=3.0)
    assert (resolution.settings.n_threads, resolution.settings.n_threads_batch) == (1, 1)
    assert resolution.magnitude.executed == 0.4  # log2(4 / 3) = 0.415
    assert resolution.log_lines[-1] == "WARN: magnitude scaled from 4.0 → 0.4 due to CPU pressure"


def test_slightly_busy_cores_change_nothing() -> None:
    """Half a core of others' work leaves room for as many threads as before: no pressure."""
    resolution = resolve(a_subject(machine=a_machine(cores=4)), Request(), busy_cores=0.5)
    assert resolution.settings.n_threads_batch == 4
    assert resolution.magnitude.executed == 4.0


def test_all_cores_busy_still_run_one_thread() -> None:
    """One thread always fits."""
    assert resolve(a_subject(machine=a_machine(cores=4)), Request(), busy_cores=4.0).settings.n_threads_batch == 1


def test_pinned_threads_run_beside_busy_cores() -> None:
    """A pinned thread count is what runs, whatever others do."""
    request = Request(pins=(pin("n_threads", 4),))
    assert resolve(a_subject(machine=a_machine(cores=4)), request, busy_cores=3.0).settings.n_threads == 4


def test_pool_is_not_under_pressure_where_the_plan_is_the_same() -> None:
    """Less memory than the magnitude allows is no pressure while it changes nothing."""
    machine = a_machine(total=32 * GIB, available=20 * GIB)
    resolution = resolve(a_subject(machine=machine), Request())
    assert resolution.magnitude.executed == 4.0
    assert not any(line.startswith("WARN") for line in resolution.log_lines)


def test_a_full_card_is_left_out() -> None:
    """A card with nothing above its floor is not used, and a finding says so."""
    resolution = resolve(a_card_machine(total=8 * GIB, available=50 * MIB), Request())
    assert resolution.settings.n_gpu_layers == 0
    assert Rule.DEVICE_LEFT_OUT in rules(resolution.findings)


def test_nothing_fits_is_refused_with_numbers_and_a_way_out() -> None:
    """The refusal names the pool, the largest term and a context that would fit."""
    machine = a_machine(total=16 * GIB, available=5 * GIB)
    with pytest.raises(DoesNotFitError) as caught:
        resolve(a_subject(machine=machine), Request(n_ctx=65536))
    assert "5.00 GiB available of 16.00 GiB" in caught.value.what
    assert "the largest term is weights with 3.62 GiB" in caught.value.what
    assert caught.value.hint is not None
    n_ctx = int(caught.value.hint.split()[1])
    assert n_ctx % 256 == 0
    resolve(a_subject(machine=machine), Request(n_ctx=n_ctx))
    with pytest.raises(DoesNotFitError):
        resolve(a_subject(machine=machine), Request(n_ctx=n_ctx + 256))


def test_a_model_larger_than_memory_is_refused_with_its_disk_bound_speed() -> None:
    """B87: 40 GB mapped into 32 GB of RAM thrashes the disk; the refusal says how slow that would be."""
    machine = replace(a_machine(total=32 * GIB), disk_bandwidth=Fact(0.5e9, "profile"))
    subject = a_subject(a_header(320), machine)
    with pytest.raises(DoesNotFitError) as caught:
        resolve(subject, Request())
    missing = 321 * 128 * MIB - (1 - 2**-4) * 32 * GIB
    rate = 0.5e9 / missing
    assert f"it would be read from the disk for every token: about {rate:.2f} t/s" in caught.value.what


def test_refusal_names_the_magnitude_that_would_do() -> None:
    """Where memory is free but the magnitude is small, the magnitude is the way out."""
    with pytest.raises(DoesNotFitError) as caught:
        resolve(a_subject(machine=a_machine(total=8 * GIB)), Request(magnitude=0.5))
    assert caught.value.hint is not None
    m = float(caught.value.hint.split()[1])
    resolve(a_subject(machine=a_machine(total=8 * GIB)), Request(magnitude=m))


@pytest.mark.parametrize("value", [40, 29, ALL_LAYERS])
def test_any_number_above_the_blocks_means_all_layers(value: int) -> None:
    """40 layers of a 28-block model, 29 and `all` are the same; none is a mismatch where all layers fit."""
    resolution = resolve(a_card_machine(), Request(pins=(pin("n_gpu_layers", value),)))
    assert Rule.MISMATCH not in rules(resolution.findings)
    assert resolution.settings.n_gpu_layers == 29


def test_mismatch_is_exact_and_the_pinned_value_runs() -> None:
    """A pin with another effect is found, with its place, and is what runs."""
    resolution = resolve(a_card_machine(), Request(pins=(pin("n_gpu_layers", 20),)))
    mismatch = next(finding for finding in resolution.findings if finding.rule is Rule.MISMATCH)
    assert mismatch.message == "magnitude mismatch: expected 29, got 20"
    assert (mismatch.setting, mismatch.place) == ("n_gpu_layers", HERE)
    assert resolution.settings.n_gpu_layers == 20
    assert resolution.free_settings.n_gpu_layers == 29


def test_pinned_and_not_fitting_is_refused() -> None:
    """A pin that memory does not hold is refused, though the free choice fits."""
    subject = a_card_machine(total=4 * GIB)
    resolve(subject, Request())
    with pytest.raises(DoesNotFitError):
        resolve(subject, Request(pins=(pin("n_gpu_layers", 29),)))


def test_pinned_threads_beyond_the_cap_are_refused_by_name() -> None:
    """More threads than the magnitude allows do not fit; the text says which magnitude would."""
    with pytest.raises(DoesNotFitError, match=r"8 threads do not fit at magnitude 2\.0: 8 cores are usable"):
        resolve(a_subject(machine=a_machine(cores=8)), Request(magnitude=2.0, pins=(pin("n_threads", 8),)))


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(64, 64), (1000000000, 512)])
def test_batches_are_capped_at_the_context(n_batch: int, n_ubatch: int) -> None:
    """B82: 1 <= n_ubatch <= n_batch <= n_ctx whatever is pinned."""
    settings = resolve(a_subject(), Request(pins=(pin("n_batch", n_batch), pin("n_ubatch", n_ubatch)))).settings
    assert 1 <= settings.n_ubatch <= settings.n_batch <= settings.n_ctx


def test_embedding_models_read_each_input_in_one_piece() -> None:
    """B30: n_ubatch equals n_batch and holds the context of a slot."""
    header = a_header(causal=False, context_length=8192)
    settings = resolve(a_subject(header), Request(n_ctx=8192)).settings
    assert settings.n_ubatch == settings.n_batch == 8192


@pytest.mark.parametrize(("trained", "expected"), [(131072, 8192), (1048576, 8192), (2048, 2048), (None, 8192)])
def test_unset_context_is_never_blindly_the_trained_one(trained: int | None, expected: int) -> None:
    """B07: unset means min(8192, trained); an unknown trained context is a finding."""
    resolution = resolve(a_subject(a_header(context_length=trained)), Request())
    assert resolution.settings.n_ctx == expected
    assert (Rule.CONTEXT_DEFAULTED in rules(resolution.findings)) == (trained is None)


def test_repacked_copy_is_the_first_thing_given_up() -> None:
    """Memory for the weights but not for their copy: repacking goes, the layers stay."""
    machine = a_machine(total=16 * GIB, available=6 * GIB)
    resolution = resolve(a_subject(machine=machine), Request())
    assert not resolution.settings.repack
    assert resolution.given_up[0] == "repacked copy of the weights"
    assert resolve(a_subject(machine=a_machine(total=16 * GIB)), Request()).settings.repack


@pytest.mark.parametrize(("buffers", "repacks"), [(("amx", "cpu_repack"), False), (("cpu_repack",), True)])
def test_latent_attention_is_never_repacked_for_amx(buffers: tuple[str, ...], repacks: bool) -> None:
    """The engine aborts with MLA's stacked matrices in an AMX buffer: the plan leaves repacking off and says why."""
    layer = LayerKv(Attention.MLA, 16, 1, 576, 0)
    subject = a_subject(a_header(layers=(layer,) * 28), engine=an_engine(extra_buffers=buffers))
    resolution = resolve(subject, Request())
    assert resolution.settings.repack is repacks
    reason = next(reason.text for reason in resolution.reasons if reason.setting == "repack")
    assert ("MLA" in reason) is not repacks


def test_prompt_cache_is_sized_to_what_is_left() -> None:
    """B27: the cache takes the largest size that still fits; an engine without one gets none."""
    assert resolve(a_subject(machine=a_machine(total=64 * GIB)), Request()).settings.cache_ram == 8192
    assert resolve(a_subject(machine=a_machine(total=12 * GIB)), Request()).settings.cache_ram == 1024
    without = a_subject(machine=a_machine(total=64 * GIB), engine=an_engine(prompt_cache=False))
    assert resolve(without, Request()).settings.cache_ram == 0


def test_needed_leaves_the_prompt_cache_out() -> None:
    """Needed magnitude is the plan's own, without a cache that only fills what is left."""
    with_cache = resolve(a_subject(machine=a_machine(total=64 * GIB, cores=1)), Request())
    without = resolve(
        a_subject(machine=a_machine(total=64 * GIB, cores=1), engine=an_engine(prompt_cache=False)), Request()
    )
    assert with_cache.settings.cache_ram == 8192
    assert with_cache.magnitude.needed == without.magnitude.needed < 1


def test_concessions_only_where_allowed_and_always_reported() -> None:
    """A context that does not fit is made smaller only where the config allows it."""
    machine = a_machine(total=16 * GIB, available=5 * GIB)
    allowed = Request(n_ctx=65536, concessions=("smaller_context",))
    resolution = resolve(a_subject(machine=machine), allowed)
    assert resolution.settings.n_ctx < 65536
    assert resolution.settings.type_k == "f16"
    concession = next(finding for finding in resolution.findings if finding.rule is Rule.CONCESSION)
    assert f"context of {resolution.settings.n_ctx} instead of 65536 tokens" in concession.message


def test_quantised_cache_brings_flash_attention() -> None:
    """B32: a quantised V cache without flash attention would end the engine, so it is turned on and said."""
    request = Request(pins=(pin("type_v", "q8_0"), pin("flash_attn", value=False)))
    resolution = resolve(a_subject(), request)
    assert resolution.settings.flash_attn
    assert Rule.FLASH_ATTENTION_FORCED in rules(resolution.findings)


def test_experts_go_to_the_cpu_before_dense_layers_do() -> None:
    """B47: a MoE model offers n_cpu_moe beside fewer layers."""
    subject = a_subject(a_header(moe=A_MOE), a_machine(cards=((24 * GIB, 24 * GIB),)))
    assert resolve(subject, Request(pins=(pin("n_cpu_moe", 10),))).settings.n_cpu_moe == 10


def test_two_cards_are_fitted_each() -> None:
    """B25: layers go to cards by what each holds, never by the sum of free memory."""
    machine = a_machine(cards=((10 * GIB, 10 * GIB), (20 * GIB, 1 * GIB)))
    resolution = resolve(a_subject(a_header(80), machine), Request())
    for use in resolution.pools:
        assert use.reserved_bytes <= use.available_bytes - use.floor_bytes


def test_integrated_card_beside_a_discrete_one_is_not_used() -> None:
    """B71: the discrete card alone is the default."""
    machine = a_machine(cards=((8 * GIB, 8 * GIB), (8 * GIB, 8 * GIB)))
    shared = replace(machine.devices[1], integrated=True)
    machine = replace(machine, devices=(machine.devices[0], shared))
    resolution = resolve(a_subject(machine=machine), Request())
    assert resolution.settings.devices == ("CUDA0",)


def test_target_gives_the_least_magnitude_that_reaches_it() -> None:
    """The inverse of the dial: a tenth less would miss the target."""
    subject = a_subject(machine=a_machine(cores=8))
    resolution = resolve(subject, Request(target=Target("pp", ">=", 1000)))
    m = resolution.magnitude.requested
    assert resolution.predicted.pp.value >= 1000
    assert {Rule.TARGET_REACHED} == rules(resolution.findings)
    assert resolve(subject, Request(magnitude=round(m - 0.1, 1))).predicted.pp.value < 1000


def test_target_out_of_reach_says_how_far_it_goes() -> None:
    """A target that no magnitude reaches is a finding with the best there is."""
    resolution = resolve(a_subject(), Request(target=Target("tg", ">=", 1e9)))
    finding = next(finding for finding in resolution.findings if finding.rule is Rule.TARGET_OUT_OF_REACH)
    assert "this machine goes to 138 t/s, at magnitude" in finding.message
    asked = Request(magnitude=1.0, sources={"magnitude": HERE}, target=Target("tg", ">=", 1e9))
    assert "up to the magnitude asked for, 1, it goes to" in resolve(a_subject(), asked).findings[0].message


@pytest.mark.parametrize(("m", "rule"), [(4.5, Rule.OVERCOMMIT), (2.9, Rule.LIGHT_LOAD), (3.0, None), (4.4, None)])
def test_the_safe_band_is_said(m: float, rule: Rule | None) -> None:
    """Above 4.4 is overcommit, below 3.0 a light load; inside nothing is said."""
    found = rules(resolve(a_subject(), Request(magnitude=m)).findings)
    assert found & {Rule.OVERCOMMIT, Rule.LIGHT_LOAD} == ({rule} if rule else set())


def test_a_pinned_split_is_what_runs() -> None:
    """A pinned tensor_split leaves no other set of devices, and the same split is no mismatch."""
    machine = a_machine(cards=((24 * GIB, 24 * GIB), (12 * GIB, 12 * GIB)))
    even = resolve(a_subject(machine=machine), Request(pins=(pin("tensor_split", "1,1"),)))
    assert even.settings.devices == ("CUDA0", "CUDA1")
    assert even.settings.tensor_split == (15, 14)
    assert Rule.MISMATCH in rules(even.findings)
    second = resolve(a_subject(machine=machine), Request(pins=(pin("tensor_split", "0,1"),)))
    assert second.settings.devices == ("CUDA1",)
    tight = a_machine(cards=((6 * GIB, 6 * GIB), (2 * GIB, 2 * GIB)))
    free = resolve(a_subject(a_header(40), tight), Request()).settings
    assert len(free.devices) == 2
    same = resolve(a_subject(a_header(40), tight), Request(pins=(pin("tensor_split", "3,1"),)))
    assert same.settings.tensor_split == free.tensor_split
    assert Rule.MISMATCH not in rules(same.findings)


def test_full_cards_do_not_keep_the_others_from_working_together() -> None:
    """Four cards, two of them full: the other two share the model."""
    room = (2 * GIB + 512 * MIB, 2 * GIB + 512 * MIB)
    machine = a_machine(cards=(room, (8 * GIB, 0), room, (8 * GIB, 0)))
    resolution = resolve(a_subject(machine=machine), Request(n_ctx=1024))
    assert resolution.settings.devices == ("CUDA0", "CUDA2")
    assert resolution.settings.n_gpu_layers == 29


@pytest.mark.parametrize(
    ("name", "value", "runs"), [("n_gpu_layers", 30, "0"), ("repack", True, "off"), ("cache_ram", 1024, "0")]
)
def test_a_pin_that_cannot_run_is_said(name: str, value: int, runs: str) -> None:
    """No accelerator, no layout to repack into, no prompt cache: what runs is said, not that it runs as written."""
    engine = an_engine(extra_buffers=(), prompt_cache=False, gpu_offload=False)
    resolution = resolve(a_subject(engine=engine), Request(pins=(pin(name, value),)))
    adjusted = next(finding for finding in resolution.findings if finding.rule is Rule.PIN_ADJUSTED)
    assert adjusted.message == f"{name} cannot be {value} here: {runs} runs"
    assert not any(finding.fix and "used as written" in finding.fix for finding in resolution.findings)


def test_a_device_that_is_not_there_cannot_be_the_main_one() -> None:
    """main_gpu 7 on a machine with one card is said, and 0 runs."""
    resolution = resolve(a_card_machine(), Request(pins=(pin("main_gpu", 7),)))
    assert resolution.settings.main_gpu == 0
    assert Rule.PIN_ADJUSTED in rules(resolution.findings)
    assert Rule.MISMATCH not in rules(resolve(a_card_machine(), Request(pins=(pin("main_gpu", 0),))).findings)


def test_a_devices_own_cap_is_named_in_the_refusal() -> None:
    """The pool has room, the device may not take it: the text says so and never asks for negative bytes."""
    machine = a_machine(total=64 * GIB, cards=((64 * GIB, 64 * GIB),))
    capped = replace(machine, devices=(replace(machine.devices[0], cap_bytes=2 * GIB),))
    with pytest.raises(DoesNotFitError, match=r"CUDA0 may take 2\.00 GiB of its memory, the plan reserves"):
        resolve(a_subject(machine=capped), Request(pins=(pin("n_gpu_layers", 29),)))


def test_kv_types_fit_the_heads() -> None:
    """Heads of 80 elements hold no blocks of 32: not conceded, and refused where pinned."""
    odd = tuple(replace_layer(layer) for layer in a_header().layers)
    subject = a_subject(a_header(layers=odd), a_machine(total=16 * GIB, available=5 * GIB))
    with pytest.raises(DoesNotFitError):
        resolve(subject, Request(n_ctx=49152, concessions=("kv_quantisation",)))
    with pytest.raises(UsageError, match="this model's heads have 80"):
        resolve(subject, Request(pins=(pin("type_k", "q8_0"),)))
    fitting = resolve(a_subject(machine=subject.machine), Request(n_ctx=49152, concessions=("kv_quantisation",)))
    assert fitting.settings.type_v in ("q8_0", "q4_0")


def replace_layer(layer: LayerKv) -> LayerKv:
    return layer._replace(k=80 * layer.head_count_kv, v=80 * layer.head_count_kv)


def test_a_quota_is_not_pressed_on_by_other_cpus() -> None:
    """Two cores of quota on 64 CPUs of which 30 are busy: both are ours."""
    machine = a_machine(cores=2)
    shared = replace(machine, cpu=replace(machine.cpu, affinity_cpus=64, quota_cores=2.0))
    resolution = resolve(a_subject(machine=shared), Request(), busy_cores=30.0)
    assert resolution.settings.n_threads_batch == 2
    assert resolution.magnitude.executed == 4.0
