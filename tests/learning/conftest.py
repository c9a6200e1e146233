"""Small tables of benchmarks and data sheets."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

SHEETS = (
    ("NVIDIA GeForce RTX 3090", "gpu", "NVIDIA", 936, 142.0, 35.6, 1),
    ("NVIDIA GeForce RTX 3080", "gpu", "NVIDIA", 760, 119.0, 29.8, 1),
    ("NVIDIA GeForce RTX 4090", "gpu", "NVIDIA", 1008, 330.0, 82.6, 1),
    ("NVIDIA GeForce RTX 4080", "gpu", "NVIDIA", 717, 195.0, 48.7, 1),
    ("AMD Radeon RX 7900 XTX", "gpu", "AMD", 960, 122.8, 61.4, 1),
    ("AMD Radeon RX 7600", "gpu", "AMD", 288, 43.5, 21.7, 1),
    ("Apple M2 Max (30-core GPU)", "apple", "Apple", 400, 10.7, 10.7, 1),
    ("Apple M1 (7-core GPU)", "apple", "Apple", 68, 4.6, 2.3, 1),
    ("Intel Core i7-8700", "cpu", "Intel", 42.7, "", 0.83, 6),
    ("AMD Ryzen 9 7950X", "cpu", "AMD", 83.2, "", 2.3, 16),
)
SHEET_COLUMNS = ("device", "kind", "vendor", "mem_bandwidth_gbs", "fp16_tflops", "fp32_tflops", "cores")
BACKENDS = {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "metal"}
MODELS = (("llama", 8.03, 4.58, "Q4_K_M"), ("llama", 1.24, 1.22, "Q8_0"), ("qwen3moe", 30.53, 17.3, "Q4_K_M"))


def row(device: str = "NVIDIA GeForce RTX 3090", rate: float | str = 50.0, **cells: Any) -> dict[str, Any]:
    """One row: generation of an 8B model on a card, unless told otherwise."""
    facts: dict[str, Any] = {
        "source_id": "here",
        "device_kind": "gpu",
        "backend": "cuda",
        "arch": "llama",
        "params_b": 8.03,
        "active_params_b": "",
        "is_moe": 0,
        "quant": "Q4_K_M",
        "model_bytes_gib": 4.58,
        "test": "tg128",
        "n_prompt": 0,
        "n_gen": 128,
        "depth": 0,
        "ngl": 99,
        "n_cpu_moe": "",
        "threads": "",
        "cpu_name": "",
        "model": "llama 8B",
        "tps_mean": rate,
        "device_norm": device,
        "sweep": "",
    }
    return {**facts, **cells}


def table_rows() -> list[dict[str, Any]]:
    """Generation and prompts of three models on every device, with a rate of its own for each."""
    rows = []
    for place, (device, kind, vendor, bandwidth, half, single, cores) in enumerate(SHEETS):
        for arch, params, gib, quant in MODELS:
            active = 3.3 if arch == "qwen3moe" else params
            facts = {
                "device_kind": kind,
                "backend": "cpu" if kind == "cpu" else BACKENDS[vendor],
                "arch": arch,
                "model": arch,
                "params_b": params,
                "active_params_b": active,
                "is_moe": int(arch == "qwen3moe"),
                "quant": quant,
                "model_bytes_gib": gib,
                "threads": cores if kind == "cpu" else "",
            }
            share = 0.5 + 0.02 * place
            generation = share * float(bandwidth) / (gib * 1.074 * active / params)
            prompt = share * 0.5 * float(half or single) * 1e3 / (2 * active)
            rows.append(row(device, round(generation, 2), **facts))
            rows.append(row(device, round(prompt, 1), **facts, test="pp512", n_prompt=512, n_gen=0))
    return rows


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write one table."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


class Tables:
    """The factories above in one place."""

    row = staticmethod(row)
    rows = staticmethod(table_rows)
    write = staticmethod(write)


@pytest.fixture(scope="session")
def tables() -> type[Tables]:
    """Factories of tables."""
    return Tables


@pytest.fixture
def sheets(tmp_path: Path) -> Path:
    """Data sheets of ten devices."""
    return write(tmp_path / "devices.csv", [dict(zip(SHEET_COLUMNS, cells, strict=True)) for cells in SHEETS])


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows as a benchmark table."""

    def put(*rows: dict[str, Any]) -> Path:
        return write(tmp_path / "benchmarks.csv", rows)

    return put
