"""Models and machines made of plain values: what a header or a probe would have said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from magnitude_tune.fingerprint.values import Cpu, Device, EngineFacts, Fact, Fingerprint, Memory, Pool
from magnitude_tune.header.values import (
    Attention,
    FileKind,
    LayerKv,
    ModelHeader,
    Role,
    ShardFile,
    TensorGroup,
)
from magnitude_tune.request import Settings
from magnitude_tune.units import GIB

_GUESS = Fact(1e11, "test")


def _layer(attention: Attention, heads: int, heads_kv: int, head_size: int, v_size: int | None = None) -> LayerKv:
    v = heads_kv * (head_size if v_size is None else v_size)
    return LayerKv(attention=attention, head_count=heads, head_count_kv=heads_kv, k=heads_kv * head_size, v=v)


def _group(
    block: int | None,
    role: Role,
    n_bytes: int,
    type_name: str = "q4_k",
    *,
    largest: int | None = None,
    repackable: int = 0,
) -> TensorGroup:
    return TensorGroup(
        block=block,
        role=role,
        type_name=type_name,
        n_tensors=1,
        n_params=n_bytes,
        n_bytes=n_bytes,
        largest_bytes=n_bytes if largest is None else largest,
        repackable_bytes=repackable,
    )


def _header(layers: Sequence[LayerKv], groups: Sequence[TensorGroup] = (), **changes: Any) -> ModelHeader:
    n_bytes = sum(group.n_bytes for group in groups)
    header = ModelHeader(
        path="model.gguf",
        kind=FileKind.MODEL,
        shards=(ShardFile("model.gguf", n_bytes),),
        version=3,
        byte_order="little",
        name="test",
        architecture="llama",
        file_type=None,
        block_count=len(layers),
        nextn_predict_layers=0,
        n_embd=1024,
        n_vocab=1000,
        context_length=131072,
        layers=tuple(layers),
        n_ff=(2816,) * len(layers),
        sliding_window=0,
        moe=None,
        recurrent=None,
        causal=True,
        flash_attn=True,
        tied_output=False,
        has_chat_template=False,
        has_end_token=True,
        n_tensors=len(groups),
        n_params=n_bytes,
        tensor_bytes=n_bytes,
        file_bytes=n_bytes,
        groups=tuple(groups),
        content_hash="0",
    )
    return replace(header, **changes)


def _gemma3_270m() -> ModelHeader:
    """The real 270M model, as its file says: 18 blocks, every sixth with full attention, tied q8_0 embedding."""
    layers = [_layer(Attention.FULL if il % 6 == 5 else Attention.SLIDING, 4, 1, 256) for il in range(18)]
    groups = [
        _group(None, Role.TOKEN_EMBEDDING, 178257920, "q8_0", repackable=178257920),
        _group(None, Role.OUTPUT, 2560, "f32"),
    ]
    for block in range(18):
        # q4_k_m gives the finer type to v and ffn_down of the first and last eighth and of every third block between.
        fine = block < 2 or block >= 15 or (block - 2) % 3 == 2
        v = _group(block, Role.ATTENTION, 174080, "q8_0", repackable=174080)
        if not fine:
            v = _group(block, Role.ATTENTION, 112640, "q5_0", repackable=112640)
        down = _group(block, Role.DENSE_FFN, 1075200, "q6_k", repackable=1075200)
        if not fine:
            down = _group(block, Role.DENSE_FFN, 737280, "q4_k", repackable=737280)
        groups += [
            v,
            down,
            _group(block, Role.ATTENTION, 112640 + 450560, "q5_0", largest=450560, repackable=563200),
            _group(block, Role.ATTENTION, 368640, "q4_k", repackable=368640),
            _group(block, Role.DENSE_FFN, 2 * 901120, "q5_0", largest=901120, repackable=1802240),
            _group(block, Role.NORM, 2 * 1024 + 4 * 2560, "f32", largest=2560),
        ]
    return _header(
        layers,
        groups,
        architecture="gemma3",
        n_embd=640,
        n_vocab=262144,
        context_length=32768,
        n_ff=(2048,) * 18,
        sliding_window=512,
        tied_output=True,
    )


def _device(name: str, backend: str, pool: str, free_bytes: int = 24 * GIB, **changes: Any) -> Device:
    device = Device(
        name=name,
        backend=backend,
        pool=pool,
        description=name,
        total_bytes=free_bytes,
        free_bytes=free_bytes,
        bandwidth=_GUESS,
        flops=_GUESS,
    )
    return replace(device, **changes)


def _machine(
    devices: Sequence[Device] = (), features: Sequence[str] = ("avx2", "avx512f", "avx512_vnni", "amx_int8")
) -> Fingerprint:
    cards = tuple(Pool(d.pool, "card", d.total_bytes or 0, d.free_bytes or 0) for d in devices if d.pool != "ram")
    return Fingerprint(
        hostname="test",
        system="Linux",
        cpu=Cpu(
            brand=None,
            architecture="x86_64",
            usable_cores=8,
            performance_cores=8,
            logical_cpus=8,
            affinity_cpus=8,
            smt=False,
            quota_cores=None,
            features=frozenset(features),
            max_hertz=None,
            bandwidth=_GUESS,
            flops=_GUESS,
        ),
        memory=Memory(total_bytes=64 * GIB, available_bytes=60 * GIB, host_total_bytes=64 * GIB),
        pools=(Pool("ram", "host", 64 * GIB, 60 * GIB), *cards),
        devices=tuple(devices),
    )


def _engine(name: str = "llama_server", extra_buffers: tuple[str, ...] = ("amx", "cpu_repack")) -> EngineFacts:
    return EngineFacts(
        name="llama_cpp_python" if name == "llama_cpp_python" else "llama_server",
        path="engine",
        build="1",
        ggml_version="0.25.3",
        extra_buffers=extra_buffers,
        prompt_cache=name == "llama_server",
    )


def _settings(**changes: Any) -> Settings:
    settings = Settings(
        n_gpu_layers=0, n_threads=4, n_threads_batch=4, n_batch=2048, n_ubatch=512, n_ctx=8192, n_parallel=1
    )
    return replace(settings, **changes)


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Builders of values: `header`, `layer`, `group`, `machine`, `device`, `engine`, `settings`, `gemma3_270m`."""
    builders: dict[str, Callable[..., Any]] = {
        "header": _header,
        "layer": _layer,
        "group": _group,
        "machine": _machine,
        "device": _device,
        "engine": _engine,
        "settings": _settings,
        "gemma3_270m": _gemma3_270m,
    }
    return SimpleNamespace(**builders)
