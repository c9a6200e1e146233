"""Time of one prediction: preparing a model on a machine, and pricing one more setting.

    python tests/benchmarks/prediction_time.py

A card and a host, a model of 32 blocks, the shipped coefficients. A setting is priced anew each time: another number of
threads, batch and placement than any before. The target is 50 microseconds.
"""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path
from statistics import median

from magnitude_tune.learning.cases import machine_of, settings_of
from magnitude_tune.learning.shapes import ModelKey, rebuilt
from magnitude_tune.learning.table import DeviceRow, Row
from magnitude_tune.throughput.coefficients import parse_coefficients
from magnitude_tune.throughput.model import speed_model

SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"
ROUNDS = 15


def main() -> None:
    """Measure and print medians over rounds."""
    card = DeviceRow("NVIDIA GeForce RTX 3090", "gpu", "NVIDIA", 936e9, 142e12, 1)
    key = ModelKey("llama", 8.03, 8.03, 4.9e9, "Q4_K_M")
    row = Row(
        kind="tg", quantity="tg", device=card, device_kind="gpu", backend="cuda", model=key, rate=1.0, n_prompt=0,
        depth=0, n_gpu_layers=None, n_cpu_moe=0, n_threads=8, n_batch=2048, n_ubatch=512, flash_attn=True, cpu_name="",
        sweep=(),
    )  # fmt: skip
    machine, header = machine_of(row), rebuilt(key)
    base = settings_of(row, machine)
    from dataclasses import replace

    several = [
        replace(base, n_gpu_layers=n, n_ubatch=ubatch, n_threads=threads)
        for n, ubatch, threads in product(range(34), (128, 512), (2, 4, 8))
    ]
    parsing, preparing, one = [], [], []
    text = SHIPPED.read_text(encoding="utf-8")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        coefficients = parse_coefficients(json.loads(text), "shipped")
        parsed = time.perf_counter()
        model = speed_model(header, machine, None, coefficients)
        prepared = time.perf_counter()
        for settings in several:
            model.tg_seconds(settings, settings.n_threads)
            model.pp_seconds(settings, settings.n_threads, 512)
        done = time.perf_counter()
        parsing.append(parsed - started)
        preparing.append(prepared - parsed)
        one.append((done - prepared) / len(several) / 2)
    for name, seconds in (("read coefficients", parsing), ("prepare a model", preparing), ("one prediction", one)):
        print(f"{name:18} {1e6 * median(seconds):8.1f} microseconds")


if __name__ == "__main__":
    main()
