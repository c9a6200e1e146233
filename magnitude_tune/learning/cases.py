"""From a row of the table to what the speed model needs: a machine, a model and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from magnitude_tune.fingerprint.values import Cpu, Device, Fact, Fingerprint, Memory, Pool
from magnitude_tune.learning.shapes import rebuilt
from magnitude_tune.learning.table import DeviceRow, Row
from magnitude_tune.request import ALL_LAYERS, Settings
from magnitude_tune.throughput.coefficients import Coefficients
from magnitude_tune.throughput.model import PhysicsModel
from magnitude_tune.throughput.values import Interval

__all__ = ["Models", "machine_of", "settings_of"]

_BACKENDS: Final = {"gpu": "cuda", "igpu": "vulkan", "apple": "metal"}
_VENDOR_BACKENDS: Final = {"AMD": "rocm", "Intel": "vulkan"}
_SHEET: Final = "device table"
_HOST_BANDWIDTH: Final = 50e9
_HOST_SHARE: Final = 0.6
"""What the cores of a chip draw of the bandwidth that they share with its graphics (an M2 Max: 240 of 400 GB/s)."""
_HOST_FLOPS: Final = 5e11
_HOST_CORES: Final = 8
_ARM: Final = re.compile(
    r"apple|\bpi\b|raspberry|cix|altra|neoverse|graviton|tegra|jetson|pixel|snapdragon|qualcomm|cortex|radxa|risc|spacemit",
    re.I,
)


class Models:
    """Speed models of rows, each prepared once."""

    def __init__(self, coefficients: Coefficients, devices: Mapping[str, DeviceRow]) -> None:
        self._coefficients = coefficients
        processors = [row for row in devices.values() if row.kind == "cpu"]
        self._hosts = {_plain(row.name): row for row in processors}
        self._chips = {row.name.removesuffix(" CPU"): row for row in processors if row.name.endswith(" CPU")}
        self._machines: dict[tuple[object, ...], Fingerprint] = {}
        self._models: dict[tuple[object, ...], PhysicsModel] = {}

    def machine(self, row: Row) -> Fingerprint:
        """The machine that a row was measured on, as far as the tables know it."""
        host = self._host(row) if row.device_kind != "cpu" else None
        key = (row.device, row.device_kind, row.backend, host, host is None and row.n_threads)
        if key not in self._machines:
            self._machines[key] = machine_of(row, host)
        return self._machines[key]

    def _host(self, row: Row) -> DeviceRow | None:
        """The processor beside an accelerator: as the row names it, or the other part of the same chip."""
        return self._hosts.get(_plain(row.cpu_name)) or self._chips.get(row.device.name.partition(" (")[0])

    def model(self, row: Row) -> PhysicsModel:
        """The prepared speed model of a row."""
        machine = self.machine(row)
        key = (row.model, id(machine), row.n_prompt)
        if key not in self._models:
            header = rebuilt(row.model)
            self._models[key] = PhysicsModel(header, machine, None, self._coefficients, n_prompt=max(row.n_prompt, 1))
        return self._models[key]

    def interval(self, row: Row) -> Interval:
        """The predicted rate of a row with its 90 % interval, tokens/second."""
        settings = settings_of(row, self.machine(row))
        return self.model(row).rate_interval(settings, row.quantity, row.depth)


def machine_of(row: Row, host: DeviceRow | None = None) -> Fingerprint:
    """A machine with the device's data-sheet figures; a modest host beside it where none is known."""
    device, on_cpu = row.device, row.device_kind == "cpu"
    processor = device if on_cpu else host
    shares = row.device_kind in ("igpu", "apple")
    if processor is not None:
        bandwidth, flops = Fact(processor.bandwidth, _SHEET), Fact(processor.flops, _SHEET)
    else:
        rate = _HOST_SHARE * device.bandwidth if shares else _HOST_BANDWIDTH
        bandwidth = Fact(rate, "guessed: no host is named")
        flops = Fact(_HOST_FLOPS, "guessed: no host is named")
    cores = processor.cores if processor is not None else max(_HOST_CORES, row.n_threads or 0)
    name = processor.name if processor is not None else row.cpu_name
    cpu = Cpu(
        brand=name,
        architecture="aarch64" if _ARM.search(name) else "x86_64",
        usable_cores=cores,
        performance_cores=cores,
        logical_cpus=cores,
        affinity_cpus=cores,
        smt=None,
        quota_cores=None,
        features=frozenset(),
        max_hertz=None,
        bandwidth=bandwidth,
        flops=flops,
    )
    backend = row.backend or _VENDOR_BACKENDS.get(device.vendor) or _BACKENDS.get(row.device_kind, "cuda")
    accelerator = Device(
        name="D0",
        backend=backend,
        pool="ram" if shares else "D0",
        description=device.name,
        total_bytes=None,
        free_bytes=None,
        bandwidth=Fact(device.bandwidth, _SHEET),
        flops=Fact(device.flops, _SHEET),
        unified=shares,
    )
    return Fingerprint(
        hostname="table",
        system="",
        cpu=cpu,
        memory=Memory(total_bytes=1, available_bytes=1, host_total_bytes=1),
        pools=(Pool("ram", "host", 1, 1), Pool("D0", "card", 1, 1)),
        devices=() if on_cpu else (accelerator,),
    )


def settings_of(row: Row, machine: Fingerprint) -> Settings:
    """A row's settings; all cores where its threads are unknown, and llama-bench's defaults elsewhere."""
    threads = row.n_threads or machine.cpu.usable_cores
    on_cpu = row.device_kind == "cpu"
    return Settings(
        n_gpu_layers=0 if on_cpu else ALL_LAYERS if row.n_gpu_layers is None else row.n_gpu_layers,
        n_threads=threads,
        n_threads_batch=threads,
        n_batch=row.n_batch,
        n_ubatch=row.n_ubatch,
        n_ctx=8192,
        flash_attn=row.flash_attn,
        n_cpu_moe=row.n_cpu_moe,
        devices=() if on_cpu else ("D0",),
    )


def _plain(name: str) -> str:
    words = re.sub(r"\((?:r|tm)\)|@.*|\bcpu\b|\d+-core|processor", " ", name.lower())
    return " ".join(words.split())
