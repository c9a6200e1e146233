"""Small models of memory and speed with known sums, to test choosing apart from predicting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from magnitude_tune.fingerprint.values import (
    Cpu,
    Device,
    EngineFacts,
    Fact,
    Fingerprint,
    Memory,
    Pool,
)
from magnitude_tune.footprint.values import Footprint, Term
from magnitude_tune.header.values import Attention, FileKind, LayerKv, ModelHeader, MoeFacts, ShardFile
from magnitude_tune.request import Settings, Workload
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.throughput.values import Interval, Speed
from magnitude_tune.units import GIB, MIB


def a_header(block_count: int = 28, **changes: Any) -> ModelHeader:
    """A dense model of `block_count` blocks."""
    layer = LayerKv(Attention.FULL, 16, 8, 1024, 1024)
    header = ModelHeader(
        path="model.gguf",
        kind=FileKind.MODEL,
        shards=(ShardFile("model.gguf", 4 * GIB),),
        version=3,
        byte_order="little",
        name="stand-in",
        architecture="llama",
        file_type=None,
        block_count=block_count,
        nextn_predict_layers=0,
        n_embd=2048,
        n_vocab=32000,
        context_length=32768,
        layers=(layer,) * block_count,
        n_ff=(8192,) * block_count,
        sliding_window=0,
        moe=None,
        recurrent=None,
        causal=True,
        flash_attn=True,
        tied_output=False,
        has_chat_template=True,
        has_end_token=True,
        n_tensors=1,
        n_params=1,
        tensor_bytes=4 * GIB,
        file_bytes=4 * GIB,
        groups=(),
        content_hash="0" * 64,
    )
    return replace(header, **changes)


A_MOE = MoeFacts(expert_count=64, expert_used_count=8, n_ff_expert=1024)


def a_machine(
    *,
    cores: int = 8,
    total: int = 32 * GIB,
    available: int | None = None,
    cards: tuple[tuple[int, int], ...] = (),
) -> Fingerprint:
    """A host with cards of (total, available) bytes each."""
    fact = Fact(50e9, "profile")
    pools = [Pool("ram", "host", total, total if available is None else available)]
    devices = []
    for number, (card_total, card_available) in enumerate(cards):
        pools.append(Pool(f"cuda{number}", "card", card_total, card_available))
        devices.append(
            Device(
                name=f"CUDA{number}",
                backend="cuda",
                pool=f"cuda{number}",
                description="a card",
                total_bytes=card_total,
                free_bytes=card_available,
                bandwidth=Fact(1e12, "profile"),
                flops=Fact(1e14, "profile"),
            )
        )
    cpu = Cpu(
        brand=None,
        architecture="x86_64",
        usable_cores=cores,
        performance_cores=cores,
        logical_cpus=cores,
        affinity_cpus=cores,
        smt=False,
        quota_cores=None,
        features=frozenset({"avx2"}),
        max_hertz=None,
        bandwidth=fact,
        flops=fact,
    )
    return Fingerprint(
        hostname="host",
        system="Linux",
        cpu=cpu,
        memory=Memory(total_bytes=total, available_bytes=pools[0].available_bytes, host_total_bytes=total),
        pools=tuple(pools),
        devices=tuple(devices),
    )


def an_engine(**changes: Any) -> EngineFacts:
    """A llama-server with CUDA, repacking and a prompt cache."""
    engine = EngineFacts(
        name="llama_server",
        path="/opt/llama-server",
        build="b1",
        ggml_version=None,
        backends=("cpu", "cuda"),
        extra_buffers=("cpu_repack",),
        gpu_offload=True,
        prompt_cache=True,
    )
    return replace(engine, **changes)


@dataclass(frozen=True)
class PlainFootprint:
    """Each layer weighs the same; the ubatch, the context, a repacked copy and the prompt cache come on top."""

    header: ModelHeader
    machine: Fingerprint
    layer_bytes: int = 128 * MIB
    base_bytes: int = 64 * MIB

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(pool.name for pool in self.machine.pools)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.name for device in self.machine.devices if device.cap_bytes is not None)

    def footprint(self, settings: Settings) -> Footprint:
        on_gpu = settings.n_gpu_layers
        split = settings.tensor_split or ((on_gpu,) if on_gpu else ())
        on_cpu = self.header.all_layers - on_gpu
        per_token = {"f16": 1024, "q8_0": 544, "q4_0": 288}[settings.type_k]
        terms = [
            ("weights", "CPU", "ram", on_cpu * self.layer_bytes),
            ("repacked", "CPU", "ram", on_cpu * self.layer_bytes if settings.repack else 0),
            ("compute", "CPU", "ram", settings.n_ubatch * 64 * 1024),
            ("kv_cache", "CPU", "ram", settings.n_ctx * per_token * on_cpu),
            ("prompt_cache", "CPU", "ram", settings.cache_ram * MIB),
            ("process", "CPU", "ram", self.base_bytes),
        ]
        for name, layers in zip(settings.devices, split, strict=True):
            pool = next(device.pool for device in self.machine.devices if device.name == name)
            terms.append(("weights", name, pool, layers * self.layer_bytes))
            terms.append(("compute", name, pool, settings.n_ubatch * 64 * 1024))
            terms.append(("kv_cache", name, pool, settings.n_ctx * per_token * layers))
        return Footprint(
            tuple(
                Term(
                    name=name,
                    device=device,
                    pool=pool,
                    reserved_bytes=n,
                    resident_bytes=n,
                    certainty="exact",
                    rule="stand-in",
                    low_bytes=n,
                    high_bytes=n,
                )
                for name, device, pool, n in terms
            )
        )

    def reserved(self, settings: Settings) -> tuple[int, ...]:
        footprint = self.footprint(settings)
        return tuple(footprint.reserved_of_pool(pool) for pool in self.pools)

    def reserved_by_device(self, settings: Settings) -> tuple[int, ...]:
        footprint = self.footprint(settings)
        return tuple(footprint.reserved_of_device(device) for device in self.devices)


@dataclass(frozen=True)
class PlainSpeed:
    """A layer takes 1 ms on one core and 0.05 ms on a card; threads help up to `saturation`."""

    header: ModelHeader
    saturation: int = 4

    def tg_seconds(self, settings: Settings, n_threads: int) -> float:
        on_cpu = self.header.all_layers - settings.n_gpu_layers
        return on_cpu * 1e-3 / min(n_threads, self.saturation) + settings.n_gpu_layers * 5e-5 + 1e-5

    def pp_seconds(self, settings: Settings, n_threads_batch: int, n_prompt: int) -> float:
        on_cpu = self.header.all_layers - settings.n_gpu_layers
        per_token = on_cpu * 2e-4 / n_threads_batch * (0.5 if settings.repack else 1) + settings.n_gpu_layers * 1e-6
        return n_prompt * (per_token + 1e-6) * (1 + 20 / settings.n_ubatch)

    def speed(self, settings: Settings, workload: Workload) -> Speed:
        tg = 1 / self.tg_seconds(settings, settings.n_threads)
        prompt = self.pp_seconds(settings, settings.n_threads_batch, workload.n_prompt)

        def wide(value: float) -> Interval:
            return Interval(value, value / 2, value * 2, "shipped")

        return Speed(
            pp=wide(workload.n_prompt / prompt),
            tg=wide(tg),
            ttft_seconds=wide(prompt),
            turn_seconds=wide(prompt + workload.n_gen / tg),
            ready_seconds=wide(1.0),
        )


def a_subject(
    header: ModelHeader | None = None, machine: Fingerprint | None = None, engine: EngineFacts | None = None
) -> Subject:
    """A model on a machine with the plain models of memory and speed."""
    header = header or a_header()
    machine = machine or a_machine()
    return Subject(
        header=header,
        machine=machine,
        engine=engine or an_engine(),
        footprint=PlainFootprint(header, machine),
        speed=PlainSpeed(header),
    )
