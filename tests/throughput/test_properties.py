"""What holds for any model, machine and setting."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.header.values import Attention, LayerKv, MoeFacts, RecurrentShape, Role
from magnitude_tune.request import Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import speed_model

KINDS = ("cuda", "vulkan", "metal", "rpc")

layers_kv = st.builds(
    LayerKv,
    attention=st.sampled_from(Attention),
    head_count=st.sampled_from((0, 1, 8, 128)),
    head_count_kv=st.sampled_from((0, 1, 8)),
    k=st.sampled_from((0, 64, 1024, 1 << 20)),
    v=st.sampled_from((0, 64, 1024)),
    indexer=st.sampled_from((0, 128)),
)


@st.composite
def groups(draw: st.DrawFn, build: Any, blocks: int) -> tuple[Any, ...]:
    """Tensors of any role, in any block or none, of any size."""
    return tuple(
        build.group(
            draw(st.one_of(st.none(), st.integers(0, blocks))),
            draw(st.sampled_from(Role)),
            draw(st.sampled_from((0, 1, 10**6, 10**9, 10**13))),
            draw(st.sampled_from(("f32", "q4_k", "q8_0", "unknown(153)"))),
        )
        for _ in range(draw(st.integers(0, 6)))
    )


@st.composite
def headers(draw: st.DrawFn, build: Any) -> Any:
    """Any header that the contracts allow: no heads, no experts, no tensors, huge vocabularies."""
    blocks = draw(st.integers(0, 5))
    return build.header(
        block_count=blocks,
        nextn_predict_layers=draw(st.integers(0, blocks)),
        layers=tuple(draw(layers_kv) for _ in range(blocks)),
        groups=draw(groups(build, blocks)),
        n_vocab=draw(st.sampled_from((0, 259, 262_144, 1 << 40))),
        n_embd=draw(st.sampled_from((0, 640, 1 << 30))),
        sliding_window=draw(st.sampled_from((0, 1, 512))),
        moe=draw(st.sampled_from((None, MoeFacts(0, 0, 0), MoeFacts(8, 0, 0), MoeFacts(1024, 8, 64)))),
        recurrent=draw(st.sampled_from((None, RecurrentShape(0, 0), RecurrentShape(10**5, 10**6)))),
        tied_output=draw(st.booleans()),
        file_bytes=draw(st.sampled_from((0, 10**6, 10**13))),
    )


@st.composite
def machines(draw: st.DrawFn, build: Any) -> Any:
    """Any host with up to two accelerators."""
    devices = [
        build.accelerator(
            f"D{i}",
            backend=draw(st.sampled_from(KINDS)),
            pool=draw(st.sampled_from(("ram", f"D{i}"))),
            bandwidth=Fact(draw(st.sampled_from((0.0, 1e9, 3e12))), draw(st.sampled_from(("guessed: x", "table")))),
            flops=Fact(draw(st.sampled_from((0.0, 1e11, 1e15))), "table"),
            link_bandwidth=draw(st.sampled_from((None, Fact(1e8, "stated")))),
            unified=draw(st.booleans()),
        )
        for i in range(draw(st.integers(0, 2)))
    ]
    return build.machine(
        *devices,
        cores=draw(st.sampled_from((1, 2, 8, 128))),
        bandwidth=draw(st.sampled_from((0.0, 1e9, 5e11))),
        flops=draw(st.sampled_from((0.0, 1e10, 1e13))),
        source=draw(st.sampled_from(("guessed", "measured", "profile"))),
    )


@st.composite
def any_settings(draw: st.DrawFn, build: Any, names: tuple[str, ...], n_layers: int) -> Any:
    """Any settings for these devices."""
    return build.settings(
        n_gpu_layers=draw(st.integers(-1, n_layers + 2)) if names else 0,
        devices=names,
        tensor_split=draw(st.sampled_from(((), tuple(range(len(names))), (1,) * len(names)))),
        n_threads=draw(st.sampled_from((1, 2, 8, 1000))),
        n_threads_batch=draw(st.sampled_from((1, 3, 1000))),
        n_batch=draw(st.sampled_from((1, 32, 2048))),
        n_ubatch=draw(st.sampled_from((1, 31, 32, 512))),
        n_cpu_moe=draw(st.integers(0, n_layers)),
        flash_attn=draw(st.booleans()),
        repack=draw(st.booleans()),
        type_k=draw(st.sampled_from(("f16", "q4_0"))),
        load_mode=draw(st.sampled_from(("mmap", "none"))),
    )


@given(st.data())
def test_every_figure_is_finite_positive_and_inside_its_interval(
    build: Any, shipped: Coefficients, data: st.DataObject
) -> None:
    """Whatever the header, the machine and the settings: finite and positive figures, low <= value <= high."""
    header = data.draw(headers(build))
    machine = data.draw(machines(build))
    names = tuple(device.name for device in machine.devices)
    settings = data.draw(any_settings(build, names, header.all_layers))
    engine = data.draw(st.sampled_from((None, build.engine(), build.engine("amx", "cpu_repack"))))
    model = speed_model(header, machine, engine, shipped)
    workload = Workload(data.draw(st.sampled_from((0, 1, 512, 100_000))), data.draw(st.sampled_from((1, 128))))
    speed = model.speed(settings, workload)
    for figure in (speed.pp, speed.tg, speed.ttft_seconds, speed.turn_seconds, speed.ready_seconds):
        assert 0 < figure.low <= figure.value <= figure.high
        assert math.isfinite(figure.high)
        assert figure.basis == "shipped"
    assert speed.n_runs == 0


@given(st.data())
def test_the_same_question_has_the_same_answer(build: Any, shipped: Coefficients, data: st.DataObject) -> None:
    """What is remembered between questions never changes an answer."""
    header = data.draw(headers(build))
    machine = data.draw(machines(build))
    names = tuple(device.name for device in machine.devices)
    several = [data.draw(any_settings(build, names, header.all_layers)) for _ in range(4)]
    kept = speed_model(header, machine, None, shipped)
    for settings in (*several, *several):
        fresh = speed_model(header, machine, None, shipped)
        assert kept.speed(settings, Workload()) == fresh.speed(settings, Workload())


@given(st.data(), st.floats(1.0, 100.0))
def test_more_bandwidth_or_peak_is_never_slower(
    build: Any, shipped: Coefficients, data: st.DataObject, gain: float
) -> None:
    """A host or a device with more bandwidth or a higher peak never takes longer."""
    header = data.draw(headers(build))
    machine = data.draw(machines(build))
    settings = data.draw(any_settings(build, tuple(d.name for d in machine.devices), header.all_layers))
    cpu, devices = machine.cpu, machine.devices
    better = [
        replace(machine, cpu=replace(cpu, bandwidth=Fact(cpu.bandwidth.value * gain, cpu.bandwidth.source))),
        replace(machine, cpu=replace(cpu, flops=Fact(cpu.flops.value * gain, cpu.flops.source))),
        replace(machine, devices=tuple(replace(d, bandwidth=_times(d.bandwidth, gain)) for d in devices)),
        replace(machine, devices=tuple(replace(d, flops=_times(d.flops, gain)) for d in devices)),
    ]
    before = speed_model(header, machine, None, shipped)
    for other in better:
        after = speed_model(header, other, None, shipped)
        assert after.tg_seconds(settings, 2) <= before.tg_seconds(settings, 2) * (1 + 1e-9)
        assert after.pp_seconds(settings, 2, 600) <= before.pp_seconds(settings, 2, 600) * (1 + 1e-9)


def _times(fact: Fact, gain: float) -> Fact:
    return Fact(fact.value * gain, fact.source)


@given(st.data())
def test_more_threads_up_to_the_cores_are_never_slower(build: Any, shipped: Coefficients, data: st.DataObject) -> None:
    """From one thread to the usable cores no step is slower; from there on none is faster."""
    header = data.draw(headers(build))
    machine = data.draw(machines(build))
    settings = data.draw(any_settings(build, tuple(d.name for d in machine.devices), header.all_layers))
    model = speed_model(header, machine, None, shipped)
    cores = machine.cpu.usable_cores
    for times in (
        [model.tg_seconds(settings, n) for n in range(1, cores + 4)],
        [model.pp_seconds(settings, n, 300) for n in range(1, cores + 4)],
    ):
        assert times[:cores] == sorted(times[:cores], reverse=True)
        assert times[cores - 1 :] == sorted(times[cores - 1 :])


@given(st.integers(1, 16), st.floats(1.0, 50.0))
def test_more_layers_on_a_faster_device_are_never_slower(
    build: Any, shipped: Coefficients, n_gpu_layers: int, gain: float
) -> None:
    """Once a card is in use, each further layer on it generates at least as fast if it beats the CPU."""
    card = build.accelerator(bandwidth=Fact(60e9 * gain, "device table"), flops=Fact(1e12 * gain, "device table"))
    model = speed_model(build.header(), build.machine(card), build.engine(), shipped)
    few, more = (
        model.tg_seconds(build.settings(n_gpu_layers=n, devices=("CUDA0",)), 8)
        for n in (n_gpu_layers, n_gpu_layers + 1)
    )
    assert more <= few * (1 + 1e-9)


@given(st.integers(1, 4000), st.integers(1, 4000))
def test_a_longer_prompt_is_never_read_sooner(build: Any, shipped: Coefficients, one: int, other: int) -> None:
    """The time of a prompt grows with its length."""
    model = speed_model(build.header(), build.machine(build.accelerator()), build.engine(), shipped)
    for settings in (build.settings(), build.settings(n_gpu_layers=17, devices=("CUDA0",))):
        short, long = (model.pp_seconds(settings, 8, n) for n in sorted((one, other)))
        assert short <= long * (1 + 1e-9)
