"""What a machine is: facts with their sources. Absent is None, never zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from magnitude_tune.findings import Finding
from magnitude_tune.fingerprint.fact import Fact
from magnitude_tune.magnitude import PoolKind, pool_floor

if TYPE_CHECKING:
    from magnitude_tune.fingerprint.details import Details

__all__ = [
    "HOST_BUFFER_BACKENDS",
    "HOST_POOL",
    "Cpu",
    "Device",
    "EngineDevice",
    "EngineFacts",
    "EngineName",
    "Fact",
    "Fingerprint",
    "Memory",
    "Pool",
]

HOST_BUFFER_BACKENDS: Final = frozenset({"cuda", "rocm", "vulkan", "sycl"})
"""Backends that keep host weights in pinned buffers of their own, and copy in the background."""

HOST_POOL: Final = "ram"
"""Name of the pool of this host's RAM, also where a GPU shares it."""

EngineName = Literal["llama_cpp_python", "llama_server", "llama_bench", "served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The processor as this process may use it.

    Args:
        usable_cores: min(distinct performance cores in the affinity mask, floor(quota)), at least 1.
        performance_cores: distinct performance cores in the affinity mask.
        logical_cpus: online logical CPUs of the machine.
        affinity_cpus: logical CPUs this process may run on.
        quota_cores: the tightest CPU quota of this cgroup and its ancestors, in cores; None without one.
        features: lower-case instruction-set flags (`avx2`, `avx512f`, `amx_int8`, `asimddp`).
        bandwidth: memory bandwidth in bytes/second over all usable cores.
        flops: peak floating-point operations/second over all usable cores.
    """

    brand: str | None
    architecture: str
    usable_cores: int
    performance_cores: int
    logical_cpus: int
    affinity_cpus: int
    smt: bool | None
    quota_cores: float | None
    features: frozenset[str]
    max_hertz: float | None
    bandwidth: Fact
    flops: Fact
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Host memory in bytes, as limited by cgroups. `limit_source` names the file that limits, if one does.

    `address_space_bytes` and `locked_bytes` are this process's RLIMIT_AS and RLIMIT_MEMLOCK, which its children
    inherit; None where there is no limit. Nothing available lies above the first.
    """

    total_bytes: int
    available_bytes: int
    host_total_bytes: int
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    limit_source: str | None = None
    address_space_bytes: int | None = None
    locked_bytes: int | None = None
    sources: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory that one or several devices share."""

    name: str
    kind: PoolKind
    total_bytes: int
    available_bytes: int

    @property
    def floor_bytes(self) -> int:
        """Bytes that nobody may plan with."""
        return pool_floor(self.kind, self.total_bytes)

    @property
    def usable_bytes(self) -> int:
        """Available bytes beyond the floor."""
        return max(0, self.available_bytes - self.floor_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator: a GPU, or a device over RPC. Numbered and named as the engine does (`CUDA0`, `RPC0`).

    Args:
        backend: `cuda`, `rocm`, `metal`, `vulkan`, `sycl`, `rpc`.
        pool: the name of the pool its memory comes from.
        total_bytes, free_bytes: None where the probe could not say.
        cap_bytes: most that the device itself may take of its pool (Metal's working-set limit); None without one.
        integrated: shares the host's memory without being worth a split with a discrete card.
        bandwidth: bytes/second. flops: peak half-precision operations/second.
        link_bandwidth: bytes/second between host and device; None where unknown.
        compute_capability: what code must be built for: CUDA's `8.9`, AMD's `gfx1100`.
        bus: the link at its best, `PCIe 4.0 x16`. runtime: the driver's programming interface, `CUDA 12.4`.
    """

    name: str
    backend: str
    pool: str
    description: str
    total_bytes: int | None
    free_bytes: int | None
    bandwidth: Fact
    flops: Fact
    link_bandwidth: Fact | None = None
    cap_bytes: int | None = None
    unified: bool = False
    integrated: bool = False
    compute_capability: str | None = None
    bus: str | None = None
    driver: str | None = None
    runtime: str | None = None
    source: str = "unknown"


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """An accelerator as an engine lists it; bytes as the engine reports them.

    `integrated`: the engine says that it shares the host's memory (`uma: 1`); False also where it says nothing.
    """

    name: str
    description: str
    total_bytes: int
    free_bytes: int
    integrated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """An engine found here and what it can do.

    Args:
        path: the library's or the program's file.
        build: the engine's own word for its build (`0.3.36`, `b1-abc`).
        ggml_version: the version of its ggml library: rules that changed between builds are tied to this.
        problem: why it cannot be used, None if it can.
        backends: registered backends in lower case (`cpu`, `cuda`, `rpc`, `vulkan`).
        extra_buffers: weight layouts it would repack into on this CPU, best first (`amx`, `cpu_repack`); empty if it
            has none, or if they end in an illegal instruction here.
        extra_buffers_problem: why extra buffers are off although the engine has them, None if they are not.
        gpu_offload: whether it can offload layers to any device.
        prompt_cache: whether it has a host prompt cache (`cache_ram`).
        flags: long options its `--help` knows, without dashes; empty for a library. For llama-bench also the words that
            an option takes: `flash-attn=on`.
        cuda_archs: architectures its CUDA code was compiled for (`890` is capability 8.9); empty if it does not say.
    """

    name: EngineName
    path: str
    build: str
    ggml_version: str | None
    problem: str | None = None
    backends: tuple[str, ...] = ("cpu",)
    devices: tuple[EngineDevice, ...] = ()
    extra_buffers: tuple[str, ...] = ()
    extra_buffers_problem: str | None = None
    gpu_offload: bool = False
    prompt_cache: bool = False
    flags: frozenset[str] = frozenset()
    cuda_archs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """One machine. `notes` are probes that failed or facts that had to be guessed; `details` are read on demand.

    `machine_hash` names the machine for stored measurements: the same after a reboot and under load, another after
    a change of hardware or of limits.
    """

    hostname: str
    system: str
    cpu: Cpu
    memory: Memory
    pools: tuple[Pool, ...]
    devices: tuple[Device, ...]
    engines: tuple[EngineFacts, ...] = ()
    disk_bandwidth: Fact | None = None
    notes: tuple[Finding, ...] = ()
    details: Details | None = None
    machine_hash: str = ""
    stored: bool = False
    """Read from a file: not this machine, so nothing can be launched or measured on it."""

    def pool(self, name: str) -> Pool:
        """The pool of that name."""
        return next(pool for pool in self.pools if pool.name == name)

    @property
    def host_pool(self) -> Pool:
        """The pool the CPU's memory comes from; a unified pool where host and GPU share one."""
        return next(pool for pool in self.pools if pool.kind in ("host", "unified"))
