"""Models, machines and coefficients for the speed model's tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.header.values import Attention, FileKind, LayerKv, ModelHeader, MoeFacts, Role, TensorGroup
from magnitude_tune.request import Settings
from magnitude_tune.throughput.coefficients import Coefficients, parse_coefficients
from magnitude_tune.units import GIB

SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"


def group(block: int | None, role: Role, n_bytes: int, type_name: str = "q4_k", n_params: int | None = None) -> Any:
    """Matrices of one role in one block; all of it can be repacked if the type can."""
    params = n_bytes * 2 if n_params is None else n_params
    return TensorGroup(block, role, type_name, 1, params, n_bytes, n_bytes, n_bytes)


def header(**changes: Any) -> ModelHeader:
    """A dense model of 16 equal blocks of 50 MB with an output matrix of 100 MB, unless told otherwise."""
    blocks = changes.get("block_count", 16)
    groups = [
        *(group(i, Role.ATTENTION, 10_000_000) for i in range(blocks)),
        *(group(i, Role.DENSE_FFN, 40_000_000) for i in range(blocks)),
        group(None, Role.TOKEN_EMBEDDING, 80_000_000),
        group(None, Role.OUTPUT, 100_000_000),
    ]
    facts: dict[str, Any] = {
        "path": "model.gguf",
        "kind": FileKind.MODEL,
        "shards": (),
        "version": 3,
        "byte_order": "little",
        "name": None,
        "architecture": "llama",
        "file_type": None,
        "block_count": blocks,
        "nextn_predict_layers": 0,
        "n_embd": 2048,
        "n_vocab": 32_000,
        "context_length": 8192,
        "layers": (LayerKv(Attention.FULL, 32, 8, 512, 512),) * blocks,
        "n_ff": (8192,) * blocks,
        "sliding_window": 0,
        "moe": None,
        "recurrent": None,
        "causal": True,
        "flash_attn": True,
        "tied_output": False,
        "has_chat_template": True,
        "has_end_token": True,
        "n_tensors": 100,
        "n_params": 2_000_000_000,
        "tensor_bytes": 980_000_000,
        "file_bytes": 981_000_000,
        "groups": tuple(groups),
        "content_hash": "",
    }
    return ModelHeader(**{**facts, **changes})


def experts_header(n_dense: int, n_expert: int, used: int, total: int, blocks: int = 40) -> ModelHeader:
    """A model with that many bytes of dense weights and of experts, shared out evenly over its blocks."""
    groups = [group(i, Role.ATTENTION, n_dense // blocks) for i in range(blocks)]
    groups += [group(i, Role.EXPERT_FFN, n_expert // blocks) for i in range(blocks)]
    return header(block_count=blocks, groups=tuple(groups), moe=MoeFacts(total, used, 512))


def accelerator(name: str = "CUDA0", **changes: Any) -> Device:
    """A card of 500 GB/s and 50 TFLOPS."""
    facts: dict[str, Any] = {
        "name": name,
        "backend": "cuda",
        "pool": name,
        "description": name,
        "total_bytes": 24 * GIB,
        "free_bytes": 24 * GIB,
        "bandwidth": Fact(500e9, "device table"),
        "flops": Fact(50e12, "device table"),
        "link_bandwidth": Fact(12e9, "stated"),
    }
    return Device(**{**facts, **changes})


def machine(
    *devices: Device, cores: int = 8, bandwidth: float = 60e9, flops: float = 1e12, **facts: Any
) -> Fingerprint:
    """A host with that many usable cores and those accelerators."""
    cpu = Cpu(
        brand=None,
        architecture="x86_64",
        usable_cores=cores,
        performance_cores=cores,
        logical_cpus=2 * cores,
        affinity_cpus=2 * cores,
        smt=True,
        quota_cores=None,
        features=frozenset(("avx2",)),
        max_hertz=4e9,
        bandwidth=Fact(bandwidth, facts.pop("source", "data sheet")),
        flops=Fact(flops, "data sheet"),
    )
    cards = {device.pool for device in devices} - {"ram"}
    return Fingerprint(
        hostname="here",
        system="Linux",
        cpu=cpu,
        memory=Memory(total_bytes=64 * GIB, available_bytes=60 * GIB, host_total_bytes=64 * GIB),
        pools=(Pool("ram", "host", 64 * GIB, 60 * GIB), *(Pool(name, "card", 24 * GIB, 23 * GIB) for name in cards)),
        devices=devices,
        **facts,
    )


def settings(**changes: Any) -> Settings:
    """Everything on the CPU with 8 threads, unless told otherwise."""
    facts: dict[str, Any] = {
        "n_gpu_layers": 0,
        "n_threads": 8,
        "n_threads_batch": 8,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_ctx": 8192,
    }
    return Settings(**{**facts, **changes})


def plain(coefficients: Coefficients) -> Coefficients:
    """Perfect devices: every efficiency 1, no overheads, arithmetic of one token free."""
    free = {"layer_overhead_seconds": 0.0, "expert_overhead_seconds": 0.0, "link_latency_seconds": 0.0}
    perfect = {"tg_efficiency": 1.0, "tg_compute_efficiency": 1e9, "pp_efficiency": 1.0, "half_batch_tokens": 0.0}
    kinds = {
        name: kind._replace(token_overhead_seconds=1e-12, **free, **perfect)
        for name, kind in coefficients.kinds.items()
    }
    return coefficients._replace(kinds=kinds, learned=None)


class Build:
    """The factories above in one place."""

    accelerator = staticmethod(accelerator)
    experts_header = staticmethod(experts_header)
    group = staticmethod(group)
    header = staticmethod(header)
    machine = staticmethod(machine)
    plain = staticmethod(plain)
    settings = staticmethod(settings)

    @staticmethod
    def engine(*extra_buffers: str) -> EngineFacts:
        """An engine with these layouts to repack into."""
        return EngineFacts(
            name="llama_server", path="server", build="1", ggml_version="0.25.3", extra_buffers=extra_buffers
        )


@pytest.fixture(scope="session")
def build() -> type[Build]:
    """Factories of models, machines and settings."""
    return Build


@pytest.fixture(scope="session")
def document() -> Callable[[], dict[str, Any]]:
    """Reads the shipped document anew each time, so that a test may change it."""
    return lambda: json.loads(SHIPPED.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def shipped(document: Callable[[], dict[str, Any]]) -> Coefficients:
    """The shipped coefficients."""
    return parse_coefficients(document(), "throughput.json")
