"""Which engine, and which of the machine's accelerators it can use."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.values import Device, EngineFacts, EngineName, Fingerprint

__all__ = ["choose_engine", "machine_for_engine"]

_ORDER = get_args(EngineName)
# Measures, but serves nobody: used only where it is asked for by name.
_ON_REQUEST = ("llama_bench",)


def choose_engine(
    machine: Fingerprint, wanted: str | None, place: Place | None = None
) -> tuple[EngineFacts | None, tuple[Finding, ...]]:
    """The engine to plan for, and what there is to say about it.

    Without a wish: the first usable one that can use the machine's accelerators, else the first usable one (the
    embedded engine comes first). None where no engine is known: plans then hold for the newest llama-server.

    Raises:
        UsageError: the wanted engine is not among those found on this machine.
    """
    in_order = sorted(machine.engines, key=lambda engine: _ORDER.index(engine.name))
    engines = [
        engine for engine in in_order if engine.name == wanted or (wanted is None and engine.name not in _ON_REQUEST)
    ]
    if wanted is not None and not engines and machine.engines:
        found = ", ".join(sorted({engine.name for engine in machine.engines}))
        raise UsageError(
            f"engine {wanted} is not installed", where=str(place) if place else None, hint=f"found here: {found}"
        )
    usable = [engine for engine in engines if engine.problem is None]
    if not usable:
        return None, tuple(_unusable(engine) for engine in engines) or _no_engine(machine)
    able = [engine for engine in usable if usable_devices(machine, engine)]
    engine = (able or usable)[0]
    return engine, _about_gpu(machine, engine)


def machine_for_engine(machine: Fingerprint, engine: EngineFacts | None) -> Fingerprint:
    """The machine with only the accelerators that the engine can use, in the engine's order."""
    if engine is None:
        return machine
    return replace(machine, devices=usable_devices(machine, engine))


def usable_devices(machine: Fingerprint, engine: EngineFacts) -> tuple[Device, ...]:
    """Accelerators that the engine lists, or (on a stored machine, where nothing could be asked) has a backend for."""
    if not engine.gpu_offload:
        return ()
    if machine.stored and not engine.devices:
        return tuple(device for device in machine.devices if device.backend in engine.backends)
    by_name = {device.name: device for device in machine.devices}
    return tuple(by_name[listed.name] for listed in engine.devices if listed.name in by_name)


def _unusable(engine: EngineFacts) -> Finding:
    return Finding(
        Rule.ENGINE_UNUSABLE,
        f"{engine.name} {engine.build} cannot be used: {engine.problem}",
        fix="install a build for this machine; settings are planned as for llama-server",
    )


def _no_engine(machine: Fingerprint) -> tuple[Finding, ...]:
    if machine.stored:
        return ()
    return (
        Finding(
            Rule.NO_ENGINE,
            "no engine found: settings are planned as for llama-server",
            fix="pip install 'magnitude-tune[engine]', or name a llama-server with --engine-path",
        ),
    )


def _about_gpu(machine: Fingerprint, engine: EngineFacts) -> tuple[Finding, ...]:
    accelerators = [device for device in machine.devices if device.backend != "rpc"]
    if not accelerators or any(device.backend != "rpc" for device in usable_devices(machine, engine)):
        return ()
    names = ", ".join(f"{device.name} ({device.description})" for device in accelerators)
    why = "has no GPU backend" if not engine.gpu_offload else f"has no backend for {accelerators[0].backend}"
    return (
        Finding(
            Rule.ENGINE_WITHOUT_GPU,
            f"{engine.name} {engine.build} {why}: {names} stays unused",
            fix="install a build of the engine with a GPU backend",
            setting="n_gpu_layers",
        ),
    )
