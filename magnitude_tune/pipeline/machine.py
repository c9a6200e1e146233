"""This machine, or a stored one, with the engines found on it and the devices that only an engine can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.stored import load_machine
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint

__all__ = ["find_machine"]


def find_machine(
    *,
    machine: str | None = None,
    sysroot: str | None = None,
    engine_path: str | None = None,
    rpc: Sequence[str] = (),
    in_depth: bool = False,
    model: Path | None = None,
    measure_disk: bool = False,
) -> Fingerprint:
    """The stored machine of that name or file, else the one of a sysroot, else this one.

    `in_depth` reads also what no plan needs. Of a `model` on this machine, the rate of its disk is taken as measured
    earlier; with `measure_disk` it is measured now where it has not been.

    Raises:
        UsageError: options that exclude each other, or an unknown machine.
        InputFileError: a machine file that cannot be read.
    """
    if measure_disk and model is not None and (machine is not None or sysroot is not None):
        raise UsageError(
            "a model's disk can be measured on this machine only",
            where="--model",
            hint="leave out --machine and --sysroot",
        )
    if machine is None:
        root = Path("/") if sysroot is None else _root(sysroot)
        found = collect(root=root, in_depth=in_depth, model=model, measure_disk=measure_disk)
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
        # The engines here would run there, the accelerators and this CPU's layouts would not be there.
        layouts = extra_buffers(None, found.cpu)
        return replace(found, engines=tuple(_elsewhere(engine, layouts) for engine in engines))
    engines = without_crashing_buffers(engines, found.machine_hash)
    machine = replace(found, engines=engines, machine_hash=_hash_with(found.machine_hash, rpc))
    if not any(engine.devices for engine in engines):
        return machine
    from magnitude_tune.pipeline.engine_devices import with_engine_devices

    return with_engine_devices(machine)


def _elsewhere(engine: EngineFacts, layouts: tuple[str, ...]) -> EngineFacts:
    return replace(engine, devices=(), extra_buffers=tuple(name for name in engine.extra_buffers if name in layouts))


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
