"""The plumbing of a bench, with an engine that does what the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from bench.stand_ins import FakeSession

from magnitude_tune.bench.disturbance import Watch
from magnitude_tune.bench.findings import run_findings
from magnitude_tune.bench.launch import launch_of, ready_timeout_seconds, shortfalls
from magnitude_tune.bench.run import Subject, run_bench
from magnitude_tune.bench.values import BenchResult, Progress
from magnitude_tune.engines.crashes import engine_crash
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import BufferLine, Launch, Sample
from magnitude_tune.errors import EngineError
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import EngineFacts, Fact, Pool
from magnitude_tune.request import LoadMode, Workload
from magnitude_tune.units import GIB, MIB

WatchWith = Callable[..., Watch]


def measured(subject: Subject, session: FakeSession, watch: Watch, budget_seconds: float = 1000.0) -> BenchResult:
    """Bench the session on its own clock."""
    return run_bench(subject, session.opener, budget_seconds=budget_seconds, watch=watch, clock=session.clock)


def with_workload(subject: Subject, workload: Workload, n_ctx: int = 4096) -> Subject:
    """The subject with another turn and context."""
    resolution = subject.resolution
    settings = replace(resolution.settings, n_ctx=n_ctx)
    return replace(subject, resolution=resolution._replace(workload=workload, settings=settings))


def test_a_steady_engine_is_warmed_up_and_measured_in_turn(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """Warm-up first and untimed, then prompt and generation in turn, three of each, and the process is ended."""
    result = measured(subject, session, watch_with())
    assert session.asked == [("prompt", 128), ("generate", 8), *[("prompt", 512), ("generate", 128)] * 3]
    assert [round(sample.rate) for sample in result.measurement.tg_samples] == [40, 40, 40]
    assert result.measurement.complete
    assert session.closed


def test_the_measurement_names_what_it_is_of(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """Model, machine, engine, magnitudes, memory and readiness are kept with the samples."""
    measurement = measured(subject, session, watch_with()).measurement
    assert (measurement.model_hash, measurement.machine_hash) == ("model", "machine")
    assert (measurement.engine, measurement.engine_build) == ("llama_cpp_python", "0.3.36")
    assert (measurement.magnitude_requested, measurement.magnitude_executed) == (4.0, 3.9)
    assert measurement.model_type == "gemma3 268.00M Q4_K_M"
    assert measurement.ready_seconds == 1.0
    assert measurement.memory is not None
    assert measurement.memory.peak_resident_bytes == 300 * MIB


def test_the_engine_gets_the_plan_and_the_magnitudes(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """The launch carries every setting of the plan and tells the engine's process the magnitudes."""
    measured(subject, session, watch_with())
    ((engine, launch, machine_hash),) = session.opened
    assert (engine, machine_hash) == (subject.engine, "machine")
    assert launch.settings == subject.resolution.settings
    assert launch.environment == {"MAGNITUDE_LEVEL": "3.9", "MAGNITUDE_REQUESTED": "4"}


def test_the_promise_is_kept_when_the_figures_lie_in_their_intervals(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """An engine as fast as predicted, within the memory reserved, keeps every promise."""
    promise = measured(subject, session, watch_with()).promise
    assert {item.quantity: item.verdict for item in promise.items} == dict.fromkeys(
        ("pp", "tg", "turn_seconds", "ready_seconds", "peak_bytes"), "kept"
    )
    assert promise.verdict == "kept"
    turn = promise.item("turn_seconds").measured
    assert turn is not None
    assert turn.median == pytest.approx(512 / 200 + 128 / 40)


def test_a_slower_engine_breaks_the_promise(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """Half the predicted rate, measured closely, is a broken promise and names the side."""
    session.tg_rates = [20.0, 20.2, 19.9, 20.1]
    item = measured(subject, session, watch_with()).promise.item("tg")
    assert (item.verdict, item.reason) == ("broken", "below the predicted interval")


def test_an_interval_across_the_bound_decides_nothing(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """A median just outside, with a measured interval that reaches inside, is undecided."""
    session.tg_rates = [29.0, 31.0, 29.5, 29.5]
    item = measured(subject, session, watch_with()).promise.item("tg")
    assert item.measured is not None
    assert item.measured.high > item.predicted.low > item.measured.median
    assert item.verdict == "undecided"


def test_more_memory_than_reserved_breaks_the_promise(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """A peak above what the plan reserved is broken, whatever the speed."""
    session.peak_bytes = 2 * GIB
    promise = measured(subject, session, watch_with()).promise
    assert promise.item("peak_bytes").verdict == "broken"
    assert promise.verdict == "broken"


def test_memory_of_a_server_on_loopback_is_not_the_engines(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """Bytes on a loopback RPC device are held by its server, and bench fills no prompt cache: the rest is the bound."""
    resolution = subject.resolution
    (term,) = resolution.footprint.terms
    served = term._replace(name="kv_cache", device="RPC0", reserved_bytes=3 * GIB)
    cache = term._replace(name="prompt_cache", reserved_bytes=8 * GIB)
    footprint = resolution.footprint._replace(terms=(term, served, cache))
    subject = replace(subject, resolution=resolution._replace(footprint=footprint))
    session.peak_bytes = 2 * GIB
    item = measured(subject, session, watch_with()).promise.item("peak_bytes")
    assert item.predicted.value == GIB
    assert item.verdict == "broken"


@pytest.mark.parametrize(("load_mode", "verdict"), [("mmap", "kept"), ("none", "broken")])
def test_mapped_pages_of_offloaded_tensors_may_show(
    subject: Subject, session: FakeSession, watch_with: WatchWith, load_mode: LoadMode, verdict: str
) -> None:
    """While a mapped file loads, pages of tensors that go to a device show in the process; read, they would not."""
    resolution = subject.resolution
    (term,) = resolution.footprint.terms
    offloaded = term._replace(name="weights", device="CUDA0", pool="cuda0", reserved_bytes=3 * GIB)
    resolution = resolution._replace(
        footprint=resolution.footprint._replace(terms=(term, offloaded)),
        settings=replace(resolution.settings, load_mode=load_mode),
    )
    session.peak_bytes = 2 * GIB
    item = measured(replace(subject, resolution=resolution), session, watch_with()).promise.item("peak_bytes")
    assert item.verdict == verdict


def test_b37_an_unstable_run_has_no_verdict(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """B37: Rates that spread by more than a tenth give figures but no verdict."""
    session.tg_rates = [30.0, 50.0, 40.0] * 10
    item = measured(subject, session, watch_with()).promise.item("tg")
    assert item.verdict == "undecided"
    assert "spread" in item.reason


def test_the_budget_ends_the_run_with_one_sample_of_each_at_least(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """A model too slow for the budget still gives one sample of each test, without a verdict."""
    session.pp_rates, session.tg_rates = [1.0], [0.1]
    result = measured(subject, session, watch_with(), budget_seconds=5.0)
    assert (len(result.measurement.pp_samples), len(result.measurement.tg_samples)) == (1, 1)
    assert result.measurement.complete
    assert "a verdict needs 3" in result.promise.item("tg").reason


def test_an_unstable_engine_stops_at_the_budget(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """The budget bounds the time of a run that never settles."""
    session.pp_rates = [100.0, 300.0] * 30
    measured(subject, session, watch_with(), budget_seconds=20.0)
    assert session.now < 30.0


def test_a_contaminated_sample_is_repeated(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """A neighbour during the first prompt costs one more prompt; the figures and the verdict stay clean."""
    warm_up = 0.0
    result = measured(subject, session, watch_with(warm_up, 3.5))
    assert [name for name, _ in session.asked].count("prompt") == 1 + 4
    assert [(left.test, left.reason) for left in result.measurement.left_out] == [("pp", "disturbed")]
    assert result.measurement.disturbance.clean
    assert result.promise.verdict == "kept"
    (finding,) = result.findings
    assert finding.rule is Rule.DISTURBED_MEASUREMENT
    assert "repeated" in finding.message


def test_a_machine_that_is_never_quiet_gives_marked_figures(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """Where all samples are contaminated they are used and marked: no verdict, and the disturbance is not clean."""
    result = measured(subject, session, watch_with(*[3.5] * 50))
    assert len(result.measurement.pp_samples) == 6
    assert not result.measurement.disturbance.clean
    assert result.measurement.disturbance.other_cores == pytest.approx(3.5)
    assert result.promise.item("pp").verdict == "undecided"
    assert {finding.rule for finding in result.findings} == {Rule.DISTURBED_MEASUREMENT}


def test_an_interrupt_keeps_what_was_measured(subject: Subject, session: FakeSession, watch_with: WatchWith) -> None:
    """Ctrl-C after the first samples gives an incomplete result with its figures, and ends the process."""

    def interrupt(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    session.before = interrupt
    result = measured(subject, session, watch_with())
    assert not result.measurement.complete
    assert (len(result.measurement.pp_samples), len(result.measurement.tg_samples)) == (2, 1)
    assert result.promise.verdict == "undecided"
    assert session.closed


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_interrupt_before_the_first_sample_has_nothing_to_keep(
    subject: Subject, session: FakeSession, watch_with: WatchWith, number: int
) -> None:
    """Ctrl-C while warming up is passed on, and the process is ended all the same."""

    def interrupt(at: int) -> None:
        if at == number:
            raise KeyboardInterrupt

    session.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        measured(subject, session, watch_with())
    assert session.closed


def dying_at(piece: int) -> Callable[[int], None]:
    """Ends the engine, as the kernel's out-of-memory killer does, before that piece of work."""

    def die(number: int) -> None:
        if number == piece:
            raise engine_crash("llama-server", -9, "")

    return die


def test_a_crash_before_the_first_sample_is_an_error_and_leaves_no_process(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """An engine that dies while warming up is an error of the engine, not a measurement of zero."""
    session.before = dying_at(1)
    with pytest.raises(EngineError, match="out of memory"):
        measured(subject, session, watch_with())
    assert session.closed


def test_b86_a_crash_in_the_middle_keeps_the_samples_and_names_it(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """An engine that dies after some samples leaves an incomplete run without a verdict, and its cause."""
    session.before = dying_at(5)
    result = measured(subject, session, watch_with())
    assert session.closed
    assert not result.measurement.complete
    assert (len(result.measurement.pp_samples), len(result.measurement.tg_samples)) == (2, 1)
    assert result.measurement.memory is None
    assert result.ending is not None
    assert (result.ending.kind, "out of memory" in result.ending.what) == ("crashed", True)
    assert [finding.rule for finding in result.findings] == [Rule.ENGINE_ENDED]
    assert result.promise.verdict == "undecided"


def test_b14_a_large_model_on_a_slow_disk_is_waited_for(subject: Subject) -> None:
    """The time to load follows the bytes to read and the disk's rate: 60 GB at 100 MB/s get 1800 s and two minutes."""
    slow = Fact(100e6, "measured")
    assert ready_timeout_seconds(60_000_000_000, slow) == pytest.approx(1920.0)
    assert ready_timeout_seconds(60_000_000_000, None) > ready_timeout_seconds(60_000_000_000, slow)
    assert 120 < ready_timeout_seconds(253_000_000, Fact(2e9, "measured")) < 125
    assert launch_of(subject).ready_timeout_seconds == ready_timeout_seconds(subject.header.file_bytes, None)


def test_b34_a_plan_that_lost_more_than_its_floor_no_longer_fits(subject: Subject) -> None:
    """1 GiB reserved still fits 1 GiB, as the floor gives way. Below that the pool is named."""
    resolution = subject.resolution
    assert shortfalls(resolution, (Pool("ram", "host", 8 * GIB, GIB),)) == ()
    (short,) = shortfalls(resolution, (Pool("ram", "host", 8 * GIB, GIB - 1), Pool("other", "card", GIB, 0)))
    assert (short.name, short.reserved_bytes, short.available_bytes) == ("ram", GIB, GIB - 1)


def test_a_run_without_repacking_says_so_and_decides_nothing_about_speed(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """Where repacked weights crashed, the settings that ran are kept, found, and not held against the prediction."""
    crash = engine_crash("llama_cpp_python", -4, "")

    def opener(engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
        plain = replace(launch, settings=replace(launch.settings, repack=False))
        return Opened(session, plain, crash)

    result = run_bench(subject, opener, watch=watch_with(), clock=session.clock)
    assert result.measurement.settings.repack is False
    assert result.promise.item("tg").verdict == "undecided"
    assert [finding.rule for finding in result.findings] == [Rule.ILLEGAL_INSTRUCTION_REMEMBERED]
    assert "illegal instruction" in result.findings[0].message


@pytest.mark.parametrize(
    ("buffers", "differs"),
    [
        ((BufferLine("CPU", "model", 10), BufferLine("RPC0[127.0.0.1:50052]", "model", 99)), False),
        ((BufferLine("CPU_Mapped", "model", 100),), True),
        ((BufferLine("CPU", "model", 100), BufferLine("RPC0[127.0.0.1:50052]", "compute", 5)), True),
        ((BufferLine("CPU", "model", 1), BufferLine("CUDA_Host", "model", 99)), True),
        ((), True),
    ],
    ids=["weights on the device", "all on the host", "only scratch on the device", "pinned host memory", "no lines"],
)
def test_offload_is_confirmed_from_the_buffer_lines(
    subject: Subject, session: FakeSession, watch_with: WatchWith, buffers: tuple[BufferLine, ...], differs: bool
) -> None:
    """Layers are on a device where its own buffers hold weights or cache; otherwise that is a finding."""
    resolution = subject.resolution
    settings = replace(resolution.settings, n_gpu_layers=9, devices=("RPC0",))
    session.buffers = buffers
    result = measured(replace(subject, resolution=resolution._replace(settings=settings)), session, watch_with())
    assert [finding.rule for finding in result.findings] == ([Rule.OFFLOAD_DIFFERS] if differs else [])


@pytest.mark.parametrize(("affinity_cpus", "clean"), [(2, False), (4, True)])
def test_a_neighbour_on_cores_that_the_engine_leaves_free_disturbs_nothing(
    subject: Subject, session: FakeSession, watch_with: WatchWith, affinity_cpus: int, clean: bool
) -> None:
    """Two threads on the two fast cores: what others do on the two slow ones is no doubt about the samples."""
    cpu = replace(subject.machine.cpu, performance_cores=2, affinity_cpus=affinity_cpus)
    subject = replace(subject, machine=replace(subject.machine, cpu=cpu))
    measurement = measured(subject, session, watch_with(*[1.5] * 40)).measurement
    assert measurement.disturbance.other_cores == pytest.approx(1.5)
    assert measurement.disturbance.clean is clean


def test_b67_a_run_that_heats_up_is_a_finding_with_its_sustained_rate(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """B67: The report's falling samples give drift, peak and sustained rate."""
    steady = measured(subject, session, watch_with()).measurement
    falling = tuple(Sample(128, 128 / rate) for rate in (21.09, 18.93, 18.78, 17.46, 18.05))
    (finding,) = run_findings(replace(steady, tg_samples=falling))
    assert "tg fell by 14.4%" in finding.message
    assert "17.8 t/s sustained after a peak of 21.1" in finding.message


def test_a_context_smaller_than_the_turn_is_measured_as_far_as_it_goes(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """Prompts longer than a slot's context are cut to it, and the turn is still that of the workload."""
    small = with_workload(subject, Workload(n_prompt=2048, n_gen=128), n_ctx=256)
    result = measured(small, session, watch_with())
    assert result.measurement.n_prompt == 256
    turn = result.promise.item("turn_seconds").measured
    assert turn is not None
    assert turn.median == pytest.approx(2048 / 200 + 128 / 40)


def test_progress_is_told_from_loading_to_the_end(
    subject: Subject, session: FakeSession, watch_with: WatchWith
) -> None:
    """The stages come in order, and each sample moves the figures on."""
    told: list[Progress] = []
    run_bench(subject, session.opener, report=told.append, watch=watch_with(), clock=session.clock)
    assert [progress.stage for progress in told] == ["loading", "warming up", *["measuring"] * 6]
    assert [progress.n_samples for progress in told] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert told[-1].tg == pytest.approx(40.0)
