"""The real 270M model against the buffer lines that real engines printed for it (ggml 0.20.0 and 0.25.3)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnitude_tune.engines.find import find_engines
from magnitude_tune.engines.sessions import open_session
from magnitude_tune.engines.values import Launch
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.read import read_model
from magnitude_tune.units import MIB

# Settings that differ from n_ctx 8192, n_ubatch 512, one slot, f16 -> MiB as printed:
# KV of full and of sliding layers, compute, output.
_CPU_LINES: list[tuple[dict[str, Any], tuple[float, float], float, float]] = [
    ({}, (24, 15), 26.77, 1.00),
    ({"n_ubatch": 64}, (24, 11.25), 3.31, 1.00),
    ({"n_ubatch": 128}, (24, 11.25), 6.63, 1.00),
    ({"n_ubatch": 1024}, (24, 22.5), 54.54, 1.00),
    ({"n_ubatch": 2048}, (24, 37.5), 113.08, 1.00),
    ({"n_ctx": 2048}, (6, 15), 20.77, 1.00),
    ({"n_ctx": 4096}, (12, 15), 22.77, 1.00),
    ({"n_ctx": 32768}, (96, 15), 50.77, 1.00),
    ({"n_parallel": 2}, (24, 30), 22.77, 2.00),
    ({"n_parallel": 2, "kv_unified": True}, (24, 22.5), 27.27, 2.00),
    ({"n_parallel": 4}, (24, 60), 20.77, 4.00),
    ({"n_parallel": 4, "kv_unified": True}, (24, 37.5), 28.27, 4.00),
    ({"type_k": "q8_0", "type_v": "q8_0"}, (12.75, 7.96875), 27.30, 1.00),
    ({"flash_attn": False}, (24, 15), 91.76, 1.00),
    ({"flash_attn": False, "n_ctx": 4096}, (12, 15), 51.76, 1.00),
    ({"flash_attn": False, "n_ubatch": 2048}, (24, 37.5), 379.05, 1.00),
]

# n_gpu_layers on one RPC device -> MiB: weights, KV and compute of CPU and device.
_RPC_LINES = [
    (1, (235.16, 170.00), (39, 0), (26.77, 1.00)),
    (10, (202.39, 202.77), (16, 23), (26.77, 23.52)),
    (18, (173.81, 231.35), (1, 38), (26.77, 23.52)),
    (19, (170.00, 235.16), (0, 39), (11.52, 25.52)),
]


def _mib(footprint: Footprint, name: str, device: str = "CPU") -> float:
    return sum(t.reserved_bytes for t in footprint.terms if t.name == name and t.device == device) / MIB


def _is_close_compute(predicted: float, printed: float) -> bool:
    """Within 5 % or 0.25 MiB, and never under by more than 2 %."""
    return abs(predicted - printed) <= max(0.05 * printed, 0.25) and predicted >= 0.98 * printed - 0.005


@pytest.mark.parametrize(("changes", "kv", "compute", "output"), _CPU_LINES)
def test_cpu_lines_are_met(
    make: SimpleNamespace, changes: dict[str, Any], kv: tuple[float, float], compute: float, output: float
) -> None:
    """Weights, cache and output equal the engine's lines at their precision; compute is within its tolerance."""
    footprint = footprint_model(make.gemma3_270m(), make.machine(), None).footprint(make.settings(**changes))
    assert _mib(footprint, "weights") == pytest.approx(235.16, abs=0.005)
    assert _mib(footprint, "kv_cache") == pytest.approx(sum(kv), abs=0.005)
    assert _mib(footprint, "output") == pytest.approx(output, abs=0.005)
    assert _is_close_compute(_mib(footprint, "compute"), compute)


@pytest.mark.parametrize(("n_gpu_layers", "weights", "kv", "compute"), _RPC_LINES)
def test_rpc_lines_are_met(
    make: SimpleNamespace,
    n_gpu_layers: int,
    weights: tuple[float, float],
    kv: tuple[float, float],
    compute: tuple[float, float],
) -> None:
    """Each side of a split has the weights, cache and compute buffer that the engine printed for it."""
    machine = make.machine([make.device("RPC0", "rpc", "ram")])
    settings = make.settings(n_gpu_layers=n_gpu_layers, devices=("RPC0",))
    footprint = footprint_model(make.gemma3_270m(), machine, None).footprint(settings)
    for index, device in enumerate(("CPU", "RPC0")):
        assert _mib(footprint, "weights", device) == pytest.approx(weights[index], abs=0.006)
        assert _mib(footprint, "kv_cache", device) == pytest.approx(kv[index], abs=0.005)
        assert _is_close_compute(_mib(footprint, "compute", device), compute[index])


@pytest.mark.parametrize(
    ("split", "weights", "kv", "compute"),
    [
        ((9, 10), (170.00, 32.39, 202.77), (0, 16, 23), (11.52, 25.52, 25.52)),
        ((6, 6), (195.15, 21.34, 188.67), (14, 13, 12), (26.77, 23.52, 23.52)),
    ],
)
def test_two_devices_share_the_layers_as_printed(
    make: SimpleNamespace,
    split: tuple[int, int],
    weights: tuple[float, ...],
    kv: tuple[float, ...],
    compute: tuple[float, ...],
) -> None:
    """Two RPC devices with `tensor_split`: each has the lines that llama-server printed for it."""
    machine = make.machine([make.device(name, "rpc", "ram") for name in ("RPC0", "RPC1")])
    settings = make.settings(n_gpu_layers=sum(split), devices=("RPC0", "RPC1"), tensor_split=split)
    footprint = footprint_model(make.gemma3_270m(), machine, None).footprint(settings)
    for index, device in enumerate(("CPU", "RPC0", "RPC1")):
        assert _mib(footprint, "weights", device) == pytest.approx(weights[index], abs=0.006)
        assert _mib(footprint, "kv_cache", device) == pytest.approx(kv[index], abs=0.005)
        assert _is_close_compute(_mib(footprint, "compute", device), compute[index])


def test_repacked_copies_are_met(make: SimpleNamespace) -> None:
    """With a mapped file both layouts exist; without one only the rest and the copy (AMX, with and without a split)."""
    machine = make.machine([make.device("RPC0", "rpc", "ram")])
    model = footprint_model(make.gemma3_270m(), machine, make.engine())
    mapped = model.footprint(make.settings(repack=True))
    assert _mib(mapped, "weights") == pytest.approx(235.16, abs=0.005)
    assert _mib(mapped, "repacked") == pytest.approx(213.91, abs=0.005)
    unmapped = model.footprint(make.settings(repack=True, load_mode="none"))
    assert _mib(unmapped, "weights") == pytest.approx(211.79, abs=0.005)
    assert _mib(unmapped, "repacked") == pytest.approx(213.91, abs=0.005)
    split = model.footprint(make.settings(repack=True, n_gpu_layers=10, devices=("RPC0",)))
    assert _mib(split, "repacked") == pytest.approx(11.71, abs=0.005)


@pytest.mark.parametrize(
    ("engine", "changes", "peak"),
    [
        ("llama_cpp_python", {}, 360.1),
        ("llama_server", {}, 367),
        ("llama_server", {"repack": True}, 580),
        ("llama_server", {"repack": True, "load_mode": "none"}, 558),
        ("llama_server", {"load_mode": "none"}, 367),
    ],
)
def test_resident_memory_is_within_a_tenth(
    make: SimpleNamespace, engine: str, changes: dict[str, Any], peak: float
) -> None:
    """The resident sum is within 10 % of the peak resident memory of real runs (512 tokens read, 32 written)."""
    model = footprint_model(make.gemma3_270m(), make.machine(), make.engine(engine))
    footprint = model.footprint(make.settings(**changes))
    assert sum(term.resident_bytes for term in footprint.terms) / MIB == pytest.approx(peak, rel=0.1)


@pytest.mark.engine
def test_a_running_engine_confirms_every_term(make: SimpleNamespace, real_model: Path) -> None:
    """The embedded engine here: weights, cache and output equal, compute close, peak resident within 10 %."""
    engine = next((found for found in find_engines() if found.name == "llama_cpp_python"), None)
    if engine is None or engine.problem:
        pytest.skip("llama-cpp-python is not installed or cannot run here")
    settings = make.settings(n_ctx=5000, n_batch=256, n_ubatch=256, n_threads=2, n_threads_batch=2)
    footprint = footprint_model(read_model(real_model), make.machine(), engine).footprint(settings)
    session = open_session(engine, Launch(model_path=str(real_model), settings=settings))
    try:
        session.prompt(512)
        session.generate(4)
        peak = session.memory().peak_resident_bytes
    finally:
        session.close()
    printed: Counter[str] = Counter()
    for line in session.buffers:
        printed[line.kind] += line.n_bytes
    for name, kind in (("weights", "model"), ("kv_cache", "kv"), ("output", "output")):
        assert _mib(footprint, name) == pytest.approx(printed[kind] / MIB, abs=0.011)
    assert _is_close_compute(_mib(footprint, "compute"), printed["compute"] / MIB)
    assert sum(term.resident_bytes for term in footprint.terms) == pytest.approx(peak, rel=0.1)
