"""What the host and each accelerator of a machine reach: facts of the machine times the stated efficiencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magnitude_tune.fingerprint.values import Cpu, Device, Fact, Fingerprint
from magnitude_tune.throughput.coefficients import Coefficients, CpuCoefficients, KindCoefficients

__all__ = ["DeviceRates", "HostRates", "device_kind", "device_rates", "host_rates"]

_LEAST_RATE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """The host CPU as a model's arithmetic meets it.

    `bandwidth` is over all usable cores in bytes/second; `core_tg` and `core_pp` are one core's operations/second for
    one token and for a large batch; `core_share` is the most of the bandwidth that one core can draw.
    """

    kind: KindCoefficients
    cores: int
    bandwidth: float
    core_tg: float
    core_pp: float
    core_share: float
    repack_tg_gain: float
    repack_pp_gain: float

    def threads(self, n_threads: int) -> tuple[float, float, float]:
        """Cores at work, the share of the bandwidth they draw, and how much longer everything takes.

        A core draws at most `core_share`. Threads beyond the usable cores add nothing and wait for each other at every
        step: time grows as threads / cores.
        """
        cores = min(max(n_threads, 1), self.cores)
        return float(cores), min(1.0, cores * self.core_share), max(1.0, n_threads / self.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """One accelerator: effective bytes/second, operations/second for one token and for a batch, and its link.

    `copies_host_weights`: whether the engine sends it host weights for batches of 32 tokens and more; no device over
    RPC takes them.
    """

    name: str
    kind_name: str
    kind: KindCoefficients
    bandwidth: float
    flops_tg: float
    flops_pp: float
    link_bandwidth: float
    latency_seconds: float
    copies_host_weights: bool


def device_kind(device: Device) -> str:
    """The kind whose efficiency holds for a device."""
    if device.backend == "rpc":
        return "rpc"
    if device.backend == "metal":
        return "apple"
    return "igpu" if device.unified or device.integrated else "gpu"


def host_rates(cpu: Cpu, coefficients: Coefficients) -> HostRates:
    """The host's rates; a bandwidth measured by a copy is brought to the data sheet's scale first."""
    kind, special = coefficients.kinds["cpu"], coefficients.cpu
    cores = max(cpu.usable_cores, 1)
    core = max(cpu.flops.value, _LEAST_RATE) / cores
    return HostRates(
        kind=kind,
        cores=cores,
        bandwidth=_cpu_bandwidth(cpu.bandwidth, special) * kind.tg_efficiency,
        core_tg=core * kind.tg_compute_efficiency,
        core_pp=core * kind.pp_efficiency,
        core_share=max(special.core_bandwidth_share, 1.0 / cores),
        repack_tg_gain=special.repack_tg_gain,
        repack_pp_gain=special.repack_pp_gain,
    )


def device_rates(machine: Fingerprint, coefficients: Coefficients) -> dict[str, DeviceRates]:
    """Rates of each accelerator by name.

    A device over RPC whose memory is this host's runs on this host: its link is a loopback copy within the host's
    memory, and its bandwidth was measured as the host's was.
    """
    return {device.name: _rates(device, machine, coefficients) for device in machine.devices}


def _rates(device: Device, machine: Fingerprint, coefficients: Coefficients) -> DeviceRates:
    kind_name = device_kind(device)
    kind = coefficients.kinds[kind_name]
    shares_host = device.pool in _host_pools(machine)
    bandwidth = max(device.bandwidth.value, _LEAST_RATE)
    link = device.link_bandwidth.value if device.link_bandwidth else kind.link_bandwidth
    if kind_name == "rpc" and shares_host:
        bandwidth = _cpu_bandwidth(device.bandwidth, coefficients.cpu)
        link = link if device.link_bandwidth else _cpu_bandwidth(machine.cpu.bandwidth, coefficients.cpu) / 10
    elif device.link_bandwidth is None and shares_host:
        link = bandwidth / 2  # read once and written once within the same memory
    flops = max(device.flops.value, _LEAST_RATE)
    return DeviceRates(
        name=device.name,
        kind_name=kind_name,
        kind=kind,
        bandwidth=bandwidth * kind.tg_efficiency,
        flops_tg=flops * kind.tg_compute_efficiency,
        flops_pp=flops * kind.pp_efficiency,
        link_bandwidth=max(link, _LEAST_RATE),
        latency_seconds=kind.link_latency_seconds,
        copies_host_weights=kind_name != "rpc",
    )


def _host_pools(machine: Fingerprint) -> Sequence[str]:
    return [pool.name for pool in machine.pools if pool.kind in ("host", "unified")]


def _cpu_bandwidth(fact: Fact, special: CpuCoefficients) -> float:
    gain = special.measured_bandwidth_gain if fact.source.startswith("measured") else 1.0
    return max(fact.value, _LEAST_RATE) * gain
