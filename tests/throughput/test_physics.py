"""Seconds by hand: bytes over bandwidth, operations over peak, where each of them lives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magnitude_tune.fingerprint.values import Fact
from magnitude_tune.header.values import Attention, LayerKv, RecurrentShape, Role
from magnitude_tune.request import ALL_LAYERS, Workload
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import PhysicsModel, speed_model
from magnitude_tune.throughput.physics import batches

NO_KV = (LayerKv(Attention.NONE, 0, 0, 0, 0),)


def model(
    build: Any, coefficients: Coefficients, header: Any, machine: Any, engine: Any = None, **more: Any
) -> PhysicsModel:
    """A speed model; an engine without extra buffers where none is given."""
    made = speed_model(header, machine, engine or build.engine(), coefficients, **more)
    assert isinstance(made, PhysicsModel)
    return made


def test_a_token_reads_each_weight_once_over_its_bandwidth(build: Any, shipped: Coefficients) -> None:
    """On perfect hardware a token takes blocks plus output matrix over the bandwidth; the embedding is not read."""
    header = build.header(layers=NO_KV * 16)
    perfect = model(build, build.plain(shipped), header, build.machine(bandwidth=50e9))
    assert perfect.tg_seconds(build.settings(), 8) == pytest.approx((16 * 50e6 + 100e6) / 50e9, rel=1e-6)


def test_a_tied_output_is_read_whole(build: Any, shipped: Coefficients) -> None:
    """With tied embeddings the token embedding is read as the output matrix."""
    groups = (
        build.group(0, Role.DENSE_FFN, 50_000_000),
        build.group(None, Role.TOKEN_EMBEDDING, 200_000_000),
        build.group(None, Role.PER_LAYER_EMBEDDING, 900_000_000),
        build.group(None, Role.INPUT_OTHER, 900_000_000),
        build.group(0, Role.UNUSED, 900_000_000),
    )
    header = build.header(block_count=1, layers=NO_KV, groups=groups, tied_output=True)
    perfect = model(build, build.plain(shipped), header, build.machine(bandwidth=50e9))
    assert perfect.tg_seconds(build.settings(), 8) == pytest.approx(250e6 / 50e9, rel=1e-6)


def test_prediction_blocks_at_the_end_are_not_run(build: Any, shipped: Coefficients) -> None:
    """Multi-token-prediction blocks count in block_count but cost nothing."""
    plain = build.plain(shipped)
    with_them = build.header(layers=NO_KV * 16, nextn_predict_layers=2)
    seconds = model(build, plain, with_them, build.machine(bandwidth=50e9)).tg_seconds(build.settings(), 8)
    assert seconds == pytest.approx((14 * 50e6 + 100e6) / 50e9, rel=1e-6)


def test_b48_only_the_used_share_of_the_experts_is_read(build: Any, shipped: Coefficients) -> None:
    """Field report B48: dense part plus used/total of the experts over the bandwidth of where they live."""
    header = build.experts_header(n_dense=1_000_000_000, n_expert=19_200_000_000, used=8, total=256)
    header = replace(header, layers=NO_KV * 40)
    card = build.accelerator(bandwidth=Fact(512e9, "device table"), link_bandwidth=Fact(1e15, "stated"))
    machine = build.machine(card, bandwidth=60e9)
    perfect = model(build, build.plain(shipped), header, machine)
    everything = build.settings(n_gpu_layers=41, devices=("CUDA0",))
    used = 19.2e9 * 8 / 256
    assert perfect.tg_seconds(everything, 8) == pytest.approx((1e9 + used) / 512e9, rel=1e-4)
    on_host = replace(everything, n_cpu_moe=40)
    assert perfect.tg_seconds(on_host, 8) == pytest.approx(1e9 / 512e9 + used / 60e9, rel=1e-4)
    half = replace(everything, n_cpu_moe=20)
    assert perfect.tg_seconds(half, 8) == pytest.approx((1e9 + used / 2) / 512e9 + used / 2 / 60e9, rel=1e-4)


def test_b48_the_shipped_interval_holds_what_was_measured(build: Any, shipped: Coefficients) -> None:
    """Field report B48: 35B-A3B (21 GB, 1.8 GB of it a token) on a 512 GB/s card made 77.6 tokens/s, not 34.7."""
    header = build.experts_header(n_dense=1_200_000_000, n_expert=19_800_000_000, used=8, total=256)
    card = build.accelerator(bandwidth=Fact(512e9, "device table"))
    speed = model(build, shipped, header, build.machine(card)).speed(
        build.settings(n_gpu_layers=41, devices=("CUDA0",)), Workload()
    )
    assert speed.tg.holds(77.6)
    assert not speed.tg.holds(34.7)


def test_b23_threads_help_until_the_bandwidth_is_drawn(build: Any, shipped: Coefficients) -> None:
    """Field report B23: decoding rises with threads, then is exactly flat up to the usable cores."""
    speed = model(build, shipped, build.header(), build.machine(cores=16, bandwidth=40e9, flops=2e12))
    rates = [1 / speed.tg_seconds(build.settings(), n) for n in range(1, 17)]
    assert rates[1] > 1.3 * rates[0]
    best = max(rates)
    fewest = next(n for n, rate in enumerate(rates, 1) if rate >= 0.97 * best)
    assert fewest <= 4
    assert rates[fewest:] == pytest.approx([best] * (16 - fewest), rel=0.03)
    assert rates == sorted(rates)


def test_one_core_draws_only_its_share_of_the_bandwidth(build: Any, shipped: Coefficients) -> None:
    """Where memory binds, one of 8 cores draws the stated share, and as many as fill the bandwidth draw all of it."""
    header = build.header(layers=NO_KV * 16)
    share = shipped.cpu.core_bandwidth_share
    perfect = model(build, build.plain(shipped), header, build.machine(cores=8))
    times = [perfect.tg_seconds(build.settings(), n) for n in (1, 2, 3, 8)]
    assert times[0] / times[-1] == pytest.approx(1 / share, rel=1e-6)
    assert times[1] / times[-1] == pytest.approx(1 / (2 * share), rel=1e-6)
    assert times[2] == times[3]


def test_b04_threads_beyond_the_usable_cores_never_help(build: Any, shipped: Coefficients) -> None:
    """Field reports B04 and B23: all hyperthreads of 8 cores (or of 16 with SMT8) decode slower than the cores."""
    for cores, threads in ((8, 16), (16, 128)):
        speed = model(build, shipped, build.header(), build.machine(cores=cores))
        for quantity in (speed.tg_seconds, lambda s, n, m=speed: m.pp_seconds(s, n, 512)):
            assert quantity(build.settings(), threads) > 1.5 * quantity(build.settings(), cores)


def test_threads_do_not_matter_when_all_layers_are_offloaded(build: Any, shipped: Coefficients) -> None:
    """Field report B23: with a full offload one thread decodes within 3 % of all of them."""
    speed = model(build, shipped, build.header(), build.machine(build.accelerator()))
    offloaded = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    assert speed.tg_seconds(offloaded, 1) == pytest.approx(speed.tg_seconds(offloaded, 8), rel=0.03)


def test_the_output_layer_is_offloaded_first(build: Any, shipped: Coefficients) -> None:
    """One layer on the card is the output layer (B20): 100 MB move, and any number above block_count moves all."""
    card = build.accelerator(link_bandwidth=Fact(1e15, "stated"))
    header = build.header(layers=NO_KV * 16)
    perfect = model(build, build.plain(shipped), header, build.machine(card, bandwidth=50e9))
    one = perfect.tg_seconds(build.settings(n_gpu_layers=1, devices=("CUDA0",)), 8)
    assert one == pytest.approx(800e6 / 50e9 + 100e6 / 500e9, rel=1e-3)
    whole = [
        perfect.tg_seconds(build.settings(n_gpu_layers=n, devices=("CUDA0",)), 8) for n in (17, 99, ALL_LAYERS, -1)
    ]
    assert whole == pytest.approx([900e6 / 500e9] * 4, rel=1e-3)


def test_layers_are_split_in_order_of_the_devices(build: Any, shipped: Coefficients) -> None:
    """With a split of 5 and 12 the first card holds blocks 0 to 4, the last one the rest and the output."""
    cards = (
        build.accelerator("CUDA0", link_bandwidth=Fact(1e15, "stated")),
        build.accelerator("CUDA1", bandwidth=Fact(1000e9, "device table"), link_bandwidth=Fact(1e15, "stated")),
    )
    perfect = model(build, build.plain(shipped), build.header(layers=NO_KV * 16), build.machine(*cards))
    split = build.settings(n_gpu_layers=17, devices=("CUDA0", "CUDA1"), tensor_split=(5, 12))
    assert perfect.tg_seconds(split, 8) == pytest.approx(250e6 / 500e9 + 650e6 / 1000e9, rel=1e-3)


def test_crossings_cost_time(build: Any, shipped: Coefficients) -> None:
    """Activations go over the link of each device in use: a slow one costs what they weigh, for each token."""
    header = build.header()
    split = build.settings(n_gpu_layers=17, devices=("CUDA0", "CUDA1"), tensor_split=(9, 8))
    times = []
    for rate in (1e15, 1e7):
        cards = build.accelerator("CUDA0", link_bandwidth=Fact(rate, "stated")), build.accelerator("CUDA1")
        speed = model(build, shipped, header, build.machine(*cards))
        times.append((speed.tg_seconds(split, 8), speed.pp_seconds(split, 8, 512)))
    assert times[1][0] - times[0][0] == pytest.approx(2048 * 4 / 1e7, rel=1e-6)
    assert times[1][1] - times[0][1] == pytest.approx(512 * 2048 * 4 / 1e7, rel=1e-6)


def test_a_device_over_a_network_pays_its_round_trips(build: Any, shipped: Coefficients) -> None:
    """The same device is slower over RPC on another host than over RPC on this one."""
    far = build.accelerator("RPC0", backend="rpc", pool="RPC0", link_bandwidth=None)
    near = build.accelerator("RPC0", backend="rpc", pool="ram", link_bandwidth=None)
    times = []
    for device in (far, near):
        speed = model(build, shipped, build.header(), build.machine(device))
        offloaded = build.settings(n_gpu_layers=9, devices=("RPC0",))
        times.append((speed.tg_seconds(offloaded, 8), speed.pp_seconds(offloaded, 8, 512)))
    assert times[0][0] > times[1][0]
    assert times[0][1] > times[1][1]


def test_depth_reads_the_cache_and_its_type_counts(build: Any, shipped: Coefficients) -> None:
    """At depth the cache is read in steps of 256 cells; q8_0 reads 34 bytes for 32 elements."""
    perfect = model(build, build.plain(shipped), build.header(), build.machine(bandwidth=50e9))
    per_cell = 16 * 1024 * 2 / 50e9
    plain = build.settings()
    growth = perfect.tg_seconds(plain, 8, depth=4095) - perfect.tg_seconds(plain, 8)
    assert growth == pytest.approx((4096 - 256) * per_cell, rel=1e-6)
    small = replace(plain, type_k="q8_0", type_v="q8_0")
    growth = perfect.tg_seconds(small, 8, depth=4095) - perfect.tg_seconds(small, 8)
    assert growth == pytest.approx((4096 - 256) * per_cell * 17 / 32, rel=1e-6)


def test_a_sliding_window_bounds_what_depth_costs(build: Any, shipped: Coefficients) -> None:
    """Blocks with a window of 512 stop growing beyond it."""
    sliding = (LayerKv(Attention.SLIDING, 32, 8, 512, 512),) * 16
    header = build.header(layers=sliding, sliding_window=512)
    speed = model(build, shipped, header, build.machine())
    assert speed.tg_seconds(build.settings(), 8, depth=8000) == speed.tg_seconds(build.settings(), 8, depth=1000)
    assert speed.pp_seconds(build.settings(), 8, 512, depth=8000) == speed.pp_seconds(
        build.settings(), 8, 512, depth=1000
    )


def test_recurrent_state_is_read_and_written(build: Any, shipped: Coefficients) -> None:
    """A recurrent block moves its f32 state twice for each token."""
    recurrent = (LayerKv(Attention.RECURRENT, 0, 0, 0, 0),) * 16
    header = build.header(layers=recurrent, recurrent=RecurrentShape(1000, 1_000_000))
    perfect = model(build, build.plain(shipped), header, build.machine(bandwidth=50e9))
    expected = (900e6 + 16 * 8 * 1_001_000) / 50e9
    assert perfect.tg_seconds(build.settings(), 8) == pytest.approx(expected, rel=1e-6)


def test_a_prompt_does_two_operations_a_weight_and_the_output_once(build: Any, shipped: Coefficients) -> None:
    """On perfect hardware a prompt takes its operations over the peak; the output matrix works for one token."""
    header = build.header(layers=NO_KV * 16)
    perfect = model(build, build.plain(shipped), header, build.machine(bandwidth=1e15, flops=1e12))
    seconds = perfect.pp_seconds(build.settings(), 8, 512)
    assert seconds == pytest.approx(512 * 2 * 16 * 100e6 / 1e12, rel=1e-3)


def test_small_batches_read_the_weights_again_and_again(build: Any, shipped: Coefficients) -> None:
    """Where memory binds, halving the batch doubles the time of a prompt."""
    header = build.header(layers=NO_KV * 16)
    perfect = model(build, build.plain(shipped), header, build.machine(bandwidth=1e9, flops=1e15))
    small, large = (perfect.pp_seconds(build.settings(n_ubatch=u), 8, 512) for u in (64, 128))
    output = 100e6 / 1e9
    assert small - output == pytest.approx(2 * (large - output), rel=1e-6)


def test_larger_batches_help_cards_up_to_512_and_cpus_little(build: Any, shipped: Coefficients) -> None:
    """Batches of 512 read a prompt of 2048 faster than of 256 by over 5 % on a card and by under 3 % on a CPU."""
    on_card = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    speed = model(build, shipped, build.header(), build.machine(build.accelerator()))
    card = [speed.pp_seconds(replace(on_card, n_ubatch=u), 8, 2048) for u in (64, 256, 512, 1024, 2048)]
    assert card == sorted(card, reverse=True)
    assert card[1] > 1.05 * card[2]
    assert card[3] < 1.05 * card[4]
    cpu = [speed.pp_seconds(build.settings(n_ubatch=u), 8, 2048) for u in (64, 256, 512)]
    assert 1.05 * cpu[2] < cpu[0] < 1.15 * cpu[2]
    assert cpu[1] < 1.03 * cpu[2]


def test_host_weights_go_over_the_link_for_batches_of_32(build: Any, shipped: Coefficients) -> None:
    """With a card in use, batches of 32 and more take host weights over the link, smaller ones stay on the CPU."""
    half = build.settings(n_gpu_layers=9, devices=("CUDA0",))
    slow, fast = (
        model(build, shipped, build.header(), build.machine(build.accelerator(link_bandwidth=Fact(rate, "stated"))))
        for rate in (1e9, 1e11)
    )
    assert slow.pp_seconds(half, 8, 512) > 2 * fast.pp_seconds(half, 8, 512)
    least, tiny = replace(half, n_ubatch=32), replace(half, n_ubatch=31)
    assert slow.pp_seconds(least, 8, 512) > 2 * fast.pp_seconds(least, 8, 512)
    assert slow.pp_seconds(tiny, 8, 512) < 1.5 * fast.pp_seconds(tiny, 8, 512)
    assert slow.pp_seconds(tiny, 1, 512) > 2 * slow.pp_seconds(tiny, 8, 512)


def test_host_weights_stay_on_the_host_beside_rpc(build: Any, shipped: Coefficients) -> None:
    """A device over RPC does not take host weights: threads still decide how fast the host's part of a prompt is."""
    remote = build.accelerator("RPC0", backend="rpc", pool="ram")
    speed = model(build, shipped, build.header(), build.machine(remote))
    half = build.settings(n_gpu_layers=9, devices=("RPC0",))
    assert speed.pp_seconds(half, 1, 512) > 2 * speed.pp_seconds(half, 8, 512)


def test_repacking_is_worth_more_than_a_tie(build: Any, shipped: Coefficients) -> None:
    """Repacked weights make the reference turn over 3 % faster on a CPU whose engine has a layout for them."""
    speed = model(build, shipped, build.header(), build.machine(), engine=build.engine("cpu_repack"))
    turns = [
        speed.pp_seconds(build.settings(repack=repack), 8, 512)
        + 128 * speed.tg_seconds(build.settings(repack=repack), 8)
        for repack in (False, True)
    ]
    assert turns[1] < 0.97 * turns[0]


@pytest.mark.parametrize("extra_buffers", [(), ("amx",)])
def test_repacking_gains_nothing_without_a_layout(
    build: Any, shipped: Coefficients, extra_buffers: tuple[str, ...]
) -> None:
    """No extra buffers, or none for these types: repacking changes nothing."""
    groups = tuple(build.group(i, Role.DENSE_FFN, 50_000_000, "q5_0") for i in range(16))
    header = build.header(groups=groups)
    speed = model(build, shipped, header, build.machine(), engine=build.engine(*extra_buffers))
    on, off = build.settings(repack=True), build.settings(repack=False)
    assert speed.pp_seconds(on, 8, 512) == speed.pp_seconds(off, 8, 512)
    assert speed.tg_seconds(on, 8) == speed.tg_seconds(off, 8)


def test_a_cards_host_buffer_takes_the_weights_before_repacking(build: Any, shipped: Coefficients) -> None:
    """With a CUDA card in use the host's weights are not repacked."""
    speed = model(build, shipped, build.header(), build.machine(build.accelerator()), engine=build.engine("cpu_repack"))
    on, off = (
        build.settings(n_gpu_layers=9, devices=("CUDA0",), repack=repack, n_ubatch=31) for repack in (True, False)
    )
    assert speed.tg_seconds(on, 1) == speed.tg_seconds(off, 1)
    assert speed.pp_seconds(on, 1, 512) == speed.pp_seconds(off, 1, 512)


def test_beside_rpc_the_hosts_weights_are_repacked(build: Any, shipped: Coefficients) -> None:
    """A device over RPC has no host buffer: what stays on the host is repacked and faster."""
    remote = build.accelerator("RPC0", backend="rpc", pool="ram")
    speed = model(build, shipped, build.header(), build.machine(remote), engine=build.engine("cpu_repack"))
    on, off = (build.settings(n_gpu_layers=9, devices=("RPC0",), repack=repack) for repack in (True, False))
    assert speed.tg_seconds(on, 1) < speed.tg_seconds(off, 1)
    assert speed.pp_seconds(on, 8, 512) < speed.pp_seconds(off, 8, 512)


def test_flash_attention_is_faster_at_depth(build: Any, shipped: Coefficients) -> None:
    """Without flash attention prompts pay for their scores and for what the mask hides."""
    speed = model(build, shipped, build.header(), build.machine())
    on, off = (speed.pp_seconds(build.settings(flash_attn=flash), 8, 512, depth=4096) for flash in (True, False))
    assert on < off


def test_a_measured_bandwidth_is_brought_to_the_data_sheets_scale(build: Any, shipped: Coefficients) -> None:
    """A copy measures less than the data sheet says; the same figure is worth more as a measurement."""
    sheet, measured = (
        model(build, shipped, build.header(), build.machine(bandwidth=20e9, source=source)).tg_seconds(
            build.settings(), 8
        )
        for source in ("data sheet", "measured 2026-11-30")
    )
    assert measured < sheet


def test_a_guessed_bandwidth_widens_the_interval(build: Any, shipped: Coefficients) -> None:
    """The same figures as a guess leave the value where it is and more doubt around it."""
    offloaded = build.settings(n_gpu_layers=17, devices=("CUDA0",))
    known, guessed = (
        model(build, shipped, build.header(), build.machine(build.accelerator(bandwidth=Fact(5e11, source)))).speed(
            offloaded, Workload()
        )
        for source in ("device table", "guessed: an entry-level card is assumed")
    )
    assert guessed.tg.value == known.tg.value
    assert guessed.tg.high > 1.1 * known.tg.high
    assert guessed.pp.low < known.pp.low / 1.05


@pytest.mark.parametrize(
    ("n_prompt", "n_batch", "n_ubatch", "expected"),
    [
        (512, 2048, 512, ((512, 1),)),
        (512, 2048, 128, ((128, 4),)),
        (513, 2048, 512, ((512, 1), (1, 1))),
        (1000, 400, 300, ((300, 2), (200, 1), (100, 2))),
        (100, 64, 512, ((64, 1), (36, 1))),
        (0, 64, 64, ()),
        (10, 0, 0, ((1, 10),)),
    ],
)
def test_prompts_are_cut_as_the_engine_cuts_them(
    n_prompt: int, n_batch: int, n_ubatch: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """A prompt is cut into n_batch tokens first and each of those into n_ubatch; every token comes once."""
    assert batches(n_prompt, n_batch, n_ubatch) == expected
    assert sum(size * times for size, times in expected) == n_prompt
