"""What `fingerprint` shows beyond what planning needs; light values, read only when asked for. Absent is None."""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.fingerprint.fact import Fact

__all__ = ["Cache", "Details", "Filesystem", "HugePages", "MemoryNode", "Pressure", "ThreadRate"]


class Cache(NamedTuple):
    """Caches of one level, kind (`data` or `unified`) and size: bytes each, how many, and how many CPUs share one."""

    level: int
    kind: str
    size_bytes: int
    instances: int
    shared_by: int


class MemoryNode(NamedTuple):
    """A memory node: its physical cores and bytes; `allowed` where this process may take memory from it."""

    number: int
    cores: int
    total_bytes: int | None
    free_bytes: int | None
    allowed: bool


class Pressure(NamedTuple):
    """How long work stood still for `cpu`, `memory` or `io`: shares of the last 10 and 60 s, seconds since boot.

    `some` is time in which at least one task waited, `full` time in which all of them did.
    """

    resource: str
    some_10s: float
    some_60s: float
    full_10s: float | None
    full_60s: float | None
    some_seconds: float


class HugePages(NamedTuple):
    """Transparent huge pages (`always`, `madvise`, `never`), and pages reserved for programs that ask for them."""

    transparent: str | None
    reserved: int | None
    free: int | None
    page_bytes: int | None


class Filesystem(NamedTuple):
    """What a model file lies on: type, mount point, device, and bytes/second that its reads reach."""

    kind: str
    mount: str
    device: str
    read_rate: Fact | None


class ThreadRate(NamedTuple):
    """Memory bandwidth in bytes/second that a number of threads reach together."""

    threads: int
    rate: Fact


class Details(NamedTuple):
    """More about one machine.

    Args:
        packages, physical_cores, efficiency_cores: counts over all online CPUs, whatever the affinity allows.
        threads_per_core: logical CPUs on the core that has most.
        affinity: CPUs this process may run on, as a kernel list (`0-3,8`).
        bandwidths: at one, half and all usable cores, in that order.
        load: runnable tasks over 1, 5 and 15 minutes.
        steal_share: share of CPU time since boot that the host of this virtual machine gave to others.
        virtual_machine: `kvm`, `vmware`, `hyper-v`, ...; `none` on hardware.
        container: `docker`, `podman`, `lxc`, ...; None outside one.
        filesystem: under the model that was named; None where none was.
        sources: where each fact was read, by its name.
    """

    packages: int | None = None
    physical_cores: int | None = None
    efficiency_cores: int | None = None
    threads_per_core: int | None = None
    affinity: str | None = None
    caches: tuple[Cache, ...] = ()
    nodes: tuple[MemoryNode, ...] = ()
    bandwidths: tuple[ThreadRate, ...] = ()
    load: tuple[float, float, float] | None = None
    steal_share: float | None = None
    pressure: tuple[Pressure, ...] = ()
    huge_pages: HugePages | None = None
    virtual_machine: str | None = None
    container: str | None = None
    wsl: bool = False
    filesystem: Filesystem | None = None
    sources: tuple[tuple[str, str], ...] = ()
