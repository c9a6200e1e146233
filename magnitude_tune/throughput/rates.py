"""What the host and each accelerator of a machine reach: facts of the machine times efficiencies.

Efficiencies enter here and nowhere else: everything after this works with effective rates.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import HOST_BUFFER_BACKENDS, Cpu, Device, Fact, Fingerprint
from magnitude_tune.throughput.coefficients import Coefficients, CpuCoefficients, KindCoefficients
from magnitude_tune.throughput.features import ModelTraits, device_words, host_words
from magnitude_tune.throughput.learned import Gains, corrected, scaled

__all__ = ["DeviceRates", "HostRates", "device_kind", "device_rates", "host_rates"]

"""Backends with a host buffer of their own: it takes the host's weights before any repacking is considered."""
_LEAST_RATE: Final = 1.0
_LOOPBACK_COPIES: Final = 4.0
"""Passes over memory of bytes that go through a loopback socket: into the kernel, out of it, and to their place."""


class HostRates(NamedTuple):
    """The host CPU as a model's arithmetic meets it.

    `bandwidth` is over all usable cores in bytes/second; `core_tg` and `core_pp` are one core's operations/second for
    one token and for a large batch; `core_share` is the most of the bandwidth that one core can draw. `gains`:
    what was learned about this model here; time is divided by them. `guessed`:
    whether bandwidth or peak is no more than a guess.
    """

    kind: KindCoefficients
    cores: int
    bandwidth: float
    core_tg: float
    core_pp: float
    core_share: float
    repack_tg_gain: float
    repack_pp_gain: float
    words: frozenset[str]
    gains: Gains
    guessed: bool

    def threads(self, n_threads: int) -> tuple[float, float, float]:
        """Cores at work, the share of the bandwidth they draw, and how much longer everything takes.

        Each core draws at most `core_share`, so the bandwidth saturates at 1 / core_share cores. Threads beyond the
        usable cores add nothing and wait for each other at every step: time grows as threads / cores (B04, B23).
        """
        cores = min(max(n_threads, 1), self.cores)
        return float(cores), min(1.0, cores * self.core_share), max(1.0, n_threads / self.cores)


class DeviceRates(NamedTuple):
    """One accelerator: effective bytes/second, operations/second for one token and for a batch, and its link.

    `copies_host_weights`: whether batches of 32 tokens and more use host weights on it; none over RPC does.
    `pins_host_weights`: whether host weights go to its own host buffer, where they are not repacked.
    """

    name: str
    kind_name: str
    kind: KindCoefficients
    bandwidth: float
    flops_tg: float
    flops_pp: float
    link_bandwidth: float
    copies_host_weights: bool
    pins_host_weights: bool
    words: frozenset[str]
    gains: Gains
    guessed: bool


def device_kind(device: Device) -> str:
    """The kind whose efficiency holds for a device."""
    if device.backend == "rpc":
        return "rpc"
    if device.backend == "metal":
        return "apple"
    return "igpu" if device.unified or device.integrated else "gpu"


def host_rates(cpu: Cpu, coefficients: Coefficients, model: ModelTraits) -> HostRates:
    """The host's rates for a model; a bandwidth measured by a copy is brought to the data sheet's scale first."""
    kind, special = coefficients.kinds["cpu"], coefficients.cpu
    cores = max(cpu.usable_cores, 1)
    sheet = _memory_rate(cpu.bandwidth, special), max(cpu.flops.value, _LEAST_RATE)
    bandwidth, flops = scaled(coefficients.learned, "cpu", sheet)
    core = flops / cores
    words = host_words(cpu)
    return HostRates(
        kind=kind,
        cores=cores,
        bandwidth=bandwidth * kind.tg_efficiency,
        core_tg=core * kind.tg_compute_efficiency,
        core_pp=core * kind.pp_efficiency,
        core_share=max(special.core_bandwidth_share, 1.0 / cores),
        repack_tg_gain=special.repack_tg_gain,
        repack_pp_gain=special.repack_pp_gain,
        words=words,
        gains=corrected(coefficients.learned, words, model),
        guessed=_guessed(cpu.bandwidth) or _guessed(cpu.flops),
    )


def device_rates(machine: Fingerprint, coefficients: Coefficients, model: ModelTraits) -> dict[str, DeviceRates]:
    """Rates of each accelerator for a model, by name."""
    return {device.name: _rates(device, machine, coefficients, model) for device in machine.devices}


def _rates(device: Device, machine: Fingerprint, coefficients: Coefficients, model: ModelTraits) -> DeviceRates:
    kind_name = device_kind(device)
    kind = coefficients.kinds[kind_name]
    sheet = _memory_rate(device.bandwidth, coefficients.cpu), max(device.flops.value, _LEAST_RATE)
    bandwidth, flops = scaled(coefficients.learned, kind_name, sheet)
    words = device_words(device, kind_name)
    return DeviceRates(
        name=device.name,
        kind_name=kind_name,
        kind=kind,
        bandwidth=bandwidth * kind.tg_efficiency,
        flops_tg=flops * kind.tg_compute_efficiency,
        flops_pp=flops * kind.pp_efficiency,
        link_bandwidth=_link(device, kind, machine, coefficients),
        copies_host_weights=kind_name != "rpc",
        pins_host_weights=device.backend in HOST_BUFFER_BACKENDS,
        words=words,
        gains=corrected(coefficients.learned, words, model),
        guessed=_guessed(device.bandwidth),
    )


def _link(device: Device, kind: KindCoefficients, machine: Fingerprint, coefficients: Coefficients) -> float:
    """The link's rate: as known, else through the host's memory where the two share it, else the kind's own."""
    if device.link_bandwidth is not None:
        return max(device.link_bandwidth.value, _LEAST_RATE)
    if device.pool in {pool.name for pool in machine.pools if pool.kind in ("host", "unified")}:
        return _memory_rate(machine.cpu.bandwidth, coefficients.cpu) / _LOOPBACK_COPIES
    return kind.link_bandwidth


def _memory_rate(fact: Fact, special: CpuCoefficients) -> float:
    gain = special.measured_bandwidth_gain if fact.source.startswith("measured") else 1.0
    return max(fact.value, _LEAST_RATE) * gain


def _guessed(fact: Fact) -> bool:
    return fact.source.startswith("guessed")
