"""A plan, a machine and an engine that does what a test says: for the plumbing of a bench, not for its figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from magnitude_tune.bench.disturbance import Reading, Watch
from magnitude_tune.engines.sessions import Opened
from magnitude_tune.engines.values import BufferLine, Launch, MemoryReading, Sample
from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.footprint.values import Footprint, Term
from magnitude_tune.header.values import FileKind, ModelHeader
from magnitude_tune.request import Settings, Workload
from magnitude_tune.resolver.values import Magnitudes, PoolUse, Resolution
from magnitude_tune.throughput.values import Interval, Speed
from magnitude_tune.units import GIB, MIB

SETTINGS = Settings(n_gpu_layers=0, n_threads=2, n_threads_batch=2, n_batch=512, n_ubatch=128, n_ctx=4096, repack=True)


@dataclass
class FakeSession:
    """An engine whose rates are given one by one; the last one stays. Time passes on its own clock.

    `before` is called with the number of the piece of work, from 0, before it is done: a test interrupts there.
    """

    pp_rates: list[float] = field(default_factory=lambda: [200.0])
    tg_rates: list[float] = field(default_factory=lambda: [40.0])
    buffers: tuple[BufferLine, ...] = (BufferLine("CPU_Mapped", "model", 241 * MIB),)
    peak_bytes: int = 300 * MIB
    before: Callable[[int], None] = lambda _: None
    ready_seconds: float = 1.0
    pid: int = 4242
    now: float = 0.0
    closed: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)
    opened: list[tuple[EngineFacts, Launch, str]] = field(default_factory=list)

    def clock(self) -> float:
        """Seconds on the engine's clock."""
        return self.now

    def prompt(self, n_prompt: int, depth: int = 0) -> Sample:
        """Read at the next prompt rate."""
        return self._work("prompt", n_prompt, depth, self.pp_rates)

    def generate(self, n_gen: int, depth: int = 0) -> Sample:
        """Write at the next generation rate."""
        return self._work("generate", n_gen, depth, self.tg_rates)

    def _work(self, name: str, n_tokens: int, depth: int, rates: list[float]) -> Sample:
        self.before(len(self.asked))
        warming_up = len(self.asked) < 2
        self.asked.append((name, n_tokens))
        rate = rates[0] if warming_up or len(rates) == 1 else rates.pop(0)
        self.now += (n_tokens + depth) / rate
        return Sample(n_tokens, n_tokens / rate)

    def memory(self) -> MemoryReading:
        """The memory that the test set."""
        return MemoryReading(MIB, self.peak_bytes, self.peak_bytes, 0)

    def close(self) -> None:
        """Remember that it was ended."""
        self.closed = True

    def opener(self, engine: EngineFacts, launch: Launch, machine_hash: str) -> Opened:
        """Open this session, whatever is asked."""
        self.opened.append((engine, launch, machine_hash))
        return Opened(self, launch)


def interval(value: float) -> Interval:
    """A prediction within a quarter either way."""
    return Interval(value, 0.75 * value, 1.25 * value, "shipped")


def a_resolution() -> Resolution:
    """A plan for which 200 t/s, 40 t/s and 1 GiB are predicted."""
    turn = 512 / 200 + 128 / 40
    term = Term(
        name="weights",
        device="CPU",
        pool="ram",
        reserved_bytes=GIB,
        resident_bytes=GIB,
        certainty="exact",
        rule="file",
        low_bytes=GIB,
        high_bytes=GIB,
    )
    return Resolution(
        settings=SETTINGS,
        free_settings=SETTINGS,
        magnitude=Magnitudes(4.0, 3.9, 3.0),
        predicted=Speed(
            pp=interval(200.0),
            tg=interval(40.0),
            ttft_seconds=interval(2.6),
            turn_seconds=interval(turn),
            ready_seconds=interval(1.0),
        ),
        workload=Workload(),
        footprint=Footprint((term,)),
        pools=(
            PoolUse(
                name="ram",
                kind="host",
                total_bytes=8 * GIB,
                available_bytes=6 * GIB,
                floor_bytes=256 * MIB,
                budget_bytes=5 * GIB,
                reserved_bytes=GIB,
                executed=4.0,
                needed=3.0,
            ),
        ),
        reasons=(),
        given_up=(),
        findings=(),
        log_lines=(),
        curve=(),
        n_candidates=1,
    )


def a_machine(available_bytes: int | None = None) -> Fingerprint:
    """Four cores, 8 GiB of which 6 GiB are free unless said otherwise, one device over loopback RPC."""
    available = 6 * GIB if available_bytes is None else available_bytes
    fact = Fact(1e9, "guessed")
    return Fingerprint(
        hostname="host",
        system="Linux",
        cpu=Cpu(
            brand="A CPU",
            architecture="x86_64",
            usable_cores=4,
            performance_cores=4,
            logical_cpus=4,
            affinity_cpus=4,
            smt=False,
            quota_cores=None,
            features=frozenset(),
            max_hertz=None,
            bandwidth=fact,
            flops=fact,
        ),
        memory=Memory(total_bytes=8 * GIB, available_bytes=available, host_total_bytes=8 * GIB),
        pools=(Pool("ram", "host", 8 * GIB, available),),
        devices=(
            Device(
                name="RPC0",
                backend="rpc",
                pool="ram",
                description="127.0.0.1:50052",
                total_bytes=8 * GIB,
                free_bytes=6 * GIB,
                bandwidth=fact,
                flops=fact,
            ),
        ),
        machine_hash="machine",
    )


def a_header() -> ModelHeader:
    """The facts of a model that a measurement keeps."""
    return ModelHeader(
        path="model.gguf",
        kind=FileKind.MODEL,
        shards=(),
        version=3,
        byte_order="little",
        name="A model",
        architecture="gemma3",
        file_type="Q4_K_M",
        block_count=18,
        nextn_predict_layers=0,
        n_embd=640,
        n_vocab=262144,
        context_length=32768,
        layers=(),
        n_ff=(),
        sliding_window=512,
        moe=None,
        recurrent=None,
        causal=True,
        flash_attn=True,
        tied_output=True,
        has_chat_template=True,
        has_end_token=True,
        n_tensors=1,
        n_params=268_000_000,
        tensor_bytes=246_000_000,
        file_bytes=253_000_000,
        groups=(),
        content_hash="model",
    )


def an_engine() -> EngineFacts:
    """The embedded engine."""
    return EngineFacts(name="llama_cpp_python", path="lib", build="0.3.36", ggml_version="0.25.3")


class StubWatch(Watch):
    """A machine whose others are as busy as a test says: cores from each reading to the next, then none."""

    def __init__(self, root: Path, clock: Callable[[], float], busy: Iterator[float]) -> None:
        super().__init__(root=root, clock=clock, cpus=frozenset(range(4)))
        self._others, self._last, self._busy = 0.0, 0.0, busy

    def read(self, groups: Iterable[int] = ()) -> Reading:
        """Counters in which the others have used their cores since the last reading."""
        reading = super().read(groups)
        span, self._last = reading.at_seconds - self._last, reading.at_seconds
        if span > 0:
            self._others += span * next(self._busy, 0.0)
        return replace(reading, busy_seconds=self._others, steal_seconds=0.0, own_seconds=0.0)
