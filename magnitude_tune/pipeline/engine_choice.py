"""Which engine, and which of the machine's accelerators it can use."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, get_args

from magnitude_tune.errors import MissingPartError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.values import Device, EngineFacts, EngineName, Fingerprint

__all__ = ["choose_engine", "machine_for_engine"]

_ORDER = get_args(EngineName)
# Measures, but serves nobody: used only where it is asked for by name.
_ON_REQUEST = ("llama_bench",)

_WHERE_FROM: Final = {"llama_cpp_python": "pip install 'magnitude-tune[engine]'"}


def choose_engine(
    machine: Fingerprint, wanted: str | None, place: Place | None = None
) -> tuple[EngineFacts | None, tuple[Finding, ...]]:
    """The engine to plan for, and what there is to say about it.

    Without a wish: the first usable one that can use the machine's accelerators, else the first usable one (the
    embedded engine comes first). None where no engine is known: plans then hold for the newest llama-server.

    Raises:
        MissingPartError: the wanted engine is not among those found on this machine.
    """
    in_order = sorted(machine.engines, key=lambda engine: _ORDER.index(engine.name))
    engines = [
        engine for engine in in_order if engine.name == wanted or (wanted is None and engine.name not in _ON_REQUEST)
    ]
    if wanted is not None and not engines and machine.engines:
        found = ", ".join(sorted({engine.name for engine in machine.engines}))
        raise MissingPartError(
            f"engine {wanted} was not found (found here: {found})",
            where=str(place) if place else None,
            hint=_WHERE_FROM.get(wanted, "name its program with --engine-path"),
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
    """Accelerators that the engine lists, or (on a stored machine, where nothing could be asked) has a backend for.

    A card that the engine reaches by two backends is used by the first; one that its build has no code for, by none.
    """
    if not engine.gpu_offload:
        return ()
    if machine.stored and not engine.devices:
        found = [device for device in machine.devices if device.backend in engine.backends]
    else:
        by_name = {device.name: device for device in machine.devices}
        found = [by_name[listed.name] for listed in engine.devices if listed.name in by_name]
    used: list[Device] = []
    for device in found:
        twice = device.backend != "rpc" and any(
            device.pool == other.pool and other.backend not in (device.backend, "rpc") for other in used
        )
        if not twice and _has_code_for(engine, device):
            used.append(device)
    return tuple(used)


def _has_code_for(engine: EngineFacts, device: Device) -> bool:
    """Whether the build has CUDA code that the device can run, as far as both are known.

    Code of an older architecture may run by translation; with none as old as the device, its first kernel ends the
    engine ("no device code compatible with CUDA arch").
    """
    if device.backend != "cuda" or not engine.cuda_archs or device.compute_capability is None:
        return True
    major, _, minor = device.compute_capability.partition(".")
    if not (major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        return True
    return min(engine.cuda_archs) <= int(major) * 100 + int(minor) * 10


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
    without_code = [device for device in machine.devices if not _has_code_for(engine, device)]
    findings = [_no_code(engine, device) for device in without_code]
    accelerators = [device for device in machine.devices if _is_worth_using(device) and device not in without_code]
    if not accelerators or any(device.backend != "rpc" for device in usable_devices(machine, engine)):
        return tuple(findings)
    names = ", ".join(f"{device.name} ({device.description})" for device in accelerators)
    why = "has no GPU backend" if not engine.gpu_offload else f"has no backend for {accelerators[0].backend}"
    unused = Finding(
        Rule.ENGINE_WITHOUT_GPU,
        f"{engine.name} {engine.build} {why}: {names} stays unused",
        fix="install a build of the engine with a GPU backend",
        setting="n_gpu_layers",
    )
    return (*findings, unused)


def _is_worth_using(device: Device) -> bool:
    """Every card, and graphics on the processor's die that the device table knows; others gain little on the CPU."""
    return device.backend != "rpc" and not (device.integrated and device.flops.source.startswith("guessed"))


def _no_code(engine: EngineFacts, device: Device) -> Finding:
    built = ", ".join(f"{arch // 100}.{arch // 10 % 10}" for arch in engine.cuda_archs)
    return Finding(
        Rule.ENGINE_WITHOUT_GPU,
        f"{engine.name} {engine.build} was built for CUDA {built}: it has no code for {device.name} "
        f"({device.description}), which is {device.compute_capability}, and leaves it unused",
        fix="install a build whose CMAKE_CUDA_ARCHITECTURES holds the card's",
        setting="n_gpu_layers",
    )
