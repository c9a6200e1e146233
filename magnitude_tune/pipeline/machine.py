"""This machine, or a stored one, with the engines found on it and the devices that only an engine can see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.stored import load_machine
from magnitude_tune.fingerprint.values import (
    HOST_POOL,
    Device,
    EngineDevice,
    EngineFacts,
    Fact,
    Fingerprint,
    Pool,
)

__all__ = ["find_machine"]

_ENGINE_BACKENDS = {"CUDA": "cuda", "ROCm": "rocm", "Vulkan": "vulkan", "SYCL": "sycl", "RPC": "rpc", "Metal": "metal"}


def find_machine(
    *,
    machine: str | None = None,
    sysroot: str | None = None,
    engine_path: str | None = None,
    rpc: Sequence[str] = (),
    in_depth: bool = False,
    model: Path | None = None,
) -> Fingerprint:
    """The stored machine of that name or file, else the one of a sysroot, else this one.

    `in_depth` reads also what no plan needs. Of a `model` on this machine, the rate of its disk is taken as measured
    earlier; with `in_depth` it is measured now.

    Raises:
        UsageError: options that exclude each other, or an unknown machine.
        InputFileError: a machine file that cannot be read.
    """
    if in_depth and model is not None and (machine is not None or sysroot is not None):
        raise UsageError(
            "a model's disk can be measured on this machine only",
            where="--model",
            hint="leave out --machine and --sysroot",
        )
    if machine is None:
        root = Path("/") if sysroot is None else _root(sysroot)
        found = collect(root=root, in_depth=in_depth, model=model)
        return _with_engines(found, engine_path=engine_path, rpc=tuple(rpc))
    if sysroot is not None or engine_path is not None or rpc:
        raise UsageError(
            "--machine plans for a stored machine",
            where="--machine",
            hint="leave out --sysroot, --engine-path and --rpc, which look at this one",
        )
    return load_machine(machine)


def _with_engines(found: Fingerprint, *, engine_path: str | None, rpc: tuple[str, ...]) -> Fingerprint:
    """A machine found here, or below a sysroot, with the engines of this one."""
    from magnitude_tune.engines.find import find_engines
    from magnitude_tune.engines.illegal import without_crashing_buffers

    engines = find_engines(engine_path=engine_path, rpc=rpc)
    if found.stored:
        # The engines here would run there, the accelerators here would not.
        return replace(found, engines=tuple(replace(engine, devices=()) for engine in engines))
    engines = without_crashing_buffers(engines, found.machine_hash)
    return with_engine_devices(replace(found, engines=engines, machine_hash=_hash_with(found.machine_hash, rpc)))


def _hash_with(machine_hash: str, rpc: tuple[str, ...]) -> str:
    """With devices on other hosts it is another machine: what was measured with them says nothing without them."""
    if not rpc:
        return machine_hash
    from magnitude_tune.engines.rpc import is_loopback

    remote = sorted(address for address in rpc if not is_loopback(address))
    if not remote:
        return machine_hash
    import hashlib

    return hashlib.sha256("|".join((machine_hash, *remote)).encode()).hexdigest()[: len(machine_hash)]


def _root(sysroot: str) -> Path:
    root = Path(sysroot)
    if not (root / "proc").is_dir() and not (root / "sys").is_dir():
        raise UsageError(
            "there is neither proc nor sys in this folder",
            where=f"--sysroot {sysroot}",
            hint="name a folder that holds proc and sys",
        )
    return root


def with_engine_devices(machine: Fingerprint) -> Fingerprint:
    """Add what only the engines see: devices over RPC, and cards that no probe of ours found.

    A card that both see keeps the smaller of the two readings of its free memory.
    """
    devices = list(machine.devices)
    pools = list(machine.pools)
    for listed in _listed(machine.engines):
        known = next((i for i, device in enumerate(devices) if device.name == listed.name), None)
        if known is not None:
            devices[known] = _with_less_free(devices[known], listed)
            pools = [_with_less_available(pool, devices[known]) for pool in pools]
            continue
        device, pool = _from_engine(listed, machine)
        devices.append(device)
        if pool is not None:
            pools.append(pool)
    return replace(machine, devices=tuple(devices), pools=tuple(pools))


def _listed(engines: Iterable[EngineFacts]) -> Iterable[EngineDevice]:
    seen: set[str] = set()
    for engine in engines:
        for device in engine.devices:
            if device.name not in seen and engine.problem is None:
                seen.add(device.name)
                yield device


def _twin(listed: EngineDevice, machine: Fingerprint) -> Device | None:
    """The card we know under another backend's name: Vulkan0 beside CUDA0, the same number of the same model."""
    number = "".join(filter(str.isdigit, listed.name))
    for device in machine.devices:
        same_model = device.description == listed.description
        if same_model and device.backend != "rpc" and "".join(filter(str.isdigit, device.name)) == number:
            return device
    return None


def _rates(listed: EngineDevice) -> tuple[Fact, Fact]:
    """Bandwidth and peak from the device table, else modest guesses that say so."""
    from magnitude_tune.fingerprint.device_table import guessed_rates, known_device

    known = known_device(listed.description, listed.total_bytes)
    if known is None:
        return guessed_rates(listed.description, shares_host=False)
    return known.bandwidth, known.flops


def _with_less_free(device: Device, listed: EngineDevice) -> Device:
    if device.free_bytes is None:
        return replace(device, free_bytes=listed.free_bytes)
    return replace(device, free_bytes=min(device.free_bytes, listed.free_bytes))


def _with_less_available(pool: Pool, device: Device) -> Pool:
    if pool.name != device.pool or pool.kind != "card" or device.free_bytes is None:
        return pool
    return replace(pool, available_bytes=min(pool.available_bytes, device.free_bytes))


def _from_engine(listed: EngineDevice, machine: Fingerprint) -> tuple[Device, Pool | None]:
    """A device as an engine lists it; a loopback RPC device shares this host's RAM, so it brings no pool."""
    prefix = listed.name.rstrip("0123456789")
    backend = _ENGINE_BACKENDS.get(prefix, prefix.lower())
    if (twin := _twin(listed, machine)) is not None:
        return replace(_with_less_free(twin, listed), name=listed.name, backend=backend), None
    bandwidth, flops = _rates(listed)
    pool: Pool | None = Pool(listed.name.lower(), "card", listed.total_bytes, listed.free_bytes)
    if backend == "rpc":
        from magnitude_tune.engines.rpc import address_of, is_loopback

        address = address_of(listed)
        if address is not None and is_loopback(address):
            cpu, pool = machine.cpu, None
            bandwidth = Fact(cpu.bandwidth.value, f"this host's: {cpu.bandwidth.source}")
            flops = Fact(cpu.flops.value, f"this host's: {cpu.flops.source}")
        else:
            pool = Pool(listed.name.lower(), "remote", listed.total_bytes, listed.free_bytes)
    device = Device(
        name=listed.name,
        backend=backend,
        pool=HOST_POOL if pool is None else pool.name,
        description=listed.description,
        total_bytes=listed.total_bytes,
        free_bytes=listed.free_bytes,
        bandwidth=bandwidth,
        flops=flops,
        source="listed by the engine",
    )
    return device, pool
