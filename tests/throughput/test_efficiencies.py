"""The script that derives the efficiencies, on a small table made by the speed model itself."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "throughput_efficiencies.py"
COLUMNS = [
    "device_kind",
    "n_devices",
    "model",
    "params_b",
    "model_bytes_gib",
    "n_prompt",
    "n_gen",
    "depth",
    "ngl",
    "threads",
    "n_batch",
    "n_ubatch",
    "flash_attn",
    "tps_mean",
    "engine",
    "n_cpu_moe",
    "active_params_b",
    "device_norm",
    "use",
]


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("throughput_efficiencies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _row(kind: str, device: str, rate: float, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {"device_kind": kind, "device_norm": device, "tps_mean": rate, "engine": "llama.cpp", "use": "first"}
    return row | {"n_devices": 1, "params_b": 7, "model_bytes_gib": 4, "depth": 0, "ngl": 99, **more}


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _devices(tmp_path: Path) -> Path:
    figures = {"mem_bandwidth_gbs": 400, "fp16_tflops": 0.5, "fp32_tflops": 20, "cores": 8}
    names = ["old card", "new card", "chip", "small", "processor"]
    return _write(tmp_path / "devices.csv", [{"device": name, **figures} for name in names])


def _benchmarks(tmp_path: Path, rate: float) -> Path:
    kinds = {"gpu": ["old card", "new card"], "apple": ["chip"], "igpu": ["small"], "cpu": ["processor"]}
    rows = []
    for kind, names in kinds.items():
        for name in names:
            threads = (1, 8) if kind == "cpu" else ("",)
            for n in threads:
                rows.append(_row(kind, name, rate, n_gen=128, threads=n))
                rows.append(_row(kind, name, 30 * rate, n_prompt=512, threads=n))
    rows.append(_row("gpu", "old card", 1, n_gen=128, engine="exllama"))
    rows.append(_row("gpu", "old card", 1, n_gen=128, ngl=12))
    rows.append(_row("cpu", "processor", 1, n_gen=128))
    rows.append(_row("gpu", "old card", "absurd", n_gen=128))
    return _write(tmp_path / "benchmarks.csv", rows)


def test_it_finds_the_efficiency_that_made_the_table(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are predicted exactly afterwards, unusable ones are counted by rule, and the output is the same twice."""
    files = [str(_benchmarks(tmp_path, 50.0)), str(_devices(tmp_path))]
    assert script.main(files) == 0
    first = capsys.readouterr().out
    assert script.main(files) == 0
    assert capsys.readouterr().out == first
    for reason in ("another engine", "not wholly offloaded", "no threads known", "no rate"):
        assert f"dropped     1: {reason}" in first
    gpu = next(line for line in first.splitlines() if line.startswith("gpu   tg"))
    assert float(gpu.split()[4].rstrip("%")) < 2.0
    assert '"tg_factor_90": 1.5' in first


def test_the_better_of_half_and_single_precision_counts(script: ModuleType) -> None:
    """A card that runs halves at a 64th of the rate is rated by its single precision."""
    device = {"mem_bandwidth_gbs": "320", "fp16_tflops": "0.18", "fp32_tflops": "11.3", "cores": ""}
    assert script.machine_of("gpu", device).devices[0].flops.value == pytest.approx(11.3e12)


def test_it_explains_itself_without_files(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Without its two tables it says how it is used."""
    assert script.main([]) == 2
    assert "Usage:" in capsys.readouterr().err
