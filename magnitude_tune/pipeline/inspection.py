"""The memory of exactly these settings: nothing is chosen, no engine is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from magnitude_tune.errors import UsageError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.values import Device, EngineFacts, EngineName, Fingerprint
from magnitude_tune.footprint.companions import with_companions
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.kinds import require_runnable
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.pipeline.companions import beside_of, findings_about, launched
from magnitude_tune.pipeline.engine_build import with_build
from magnitude_tune.pipeline.engine_choice import choose_engine, machine_for_engine
from magnitude_tune.pipeline.layers import build_request, flag_layer
from magnitude_tune.pipeline.machine import find_machine
from magnitude_tune.pipeline.plan_findings import about_plan, about_room
from magnitude_tune.pipeline.resolve import wanted_engine
from magnitude_tune.request import (
    DEFAULT_N_CTX,
    NO_COMPANIONS,
    PLAIN_KV_TYPES,
    Companions,
    Request,
    Settings,
    layers_per_device,
)
from magnitude_tune.resolver.kv_types import require_cacheable

__all__ = ["InspectOptions", "Planned", "plan_as_written"]

_N_BATCH: Final = 2048
_N_UBATCH: Final = 512
"""llama-server's own defaults."""


class InspectOptions(NamedTuple):
    """Settings to price and where; `devices` names accelerators with commas between them, or `none`."""

    flags: tuple[tuple[str, str], ...] = ()
    devices: str | None = None
    machine: str | None = None
    sysroot: str | None = None
    engine_path: str | None = None
    engine_build: str | None = None
    rpc: tuple[str, ...] = ()


class Planned(NamedTuple):
    """Settings as they were given, every other one at its default, and all terms of their memory."""

    settings: Settings
    companions: Companions
    footprint: Footprint
    machine: Fingerprint
    engine: EngineFacts | None
    findings: tuple[Finding, ...]


def plan_as_written(header: ModelHeader, options: InspectOptions) -> Planned:
    """Price one model with one set of settings.

    What is not given is as llama-server has it (n_batch 2048, n_ubatch 512, one slot, f16, mmap, repacking on), with
    n_ctx min(8192, trained), nothing offloaded and no prompt cache. n_ctx 0 is the trained one.

    Raises:
        UsageError: a wrong value, an unknown device or engine build, or a KV type that the model cannot have.
        HeaderError: the file is no model that an engine runs.
    """
    require_runnable(header)
    given = dict(options.flags)
    if given.get("n_gpu_layers", "").strip().lower() == "auto":
        raise UsageError(
            "nothing is chosen here: auto has no size",
            where="--n-gpu-layers",
            hint="state a number or all; resolve chooses",
        )
    request = build_request((flag_layer(given),))
    require_cacheable(request, header)
    found = find_machine(
        machine=options.machine,
        sysroot=options.sysroot,
        engine_path=options.engine_path,
        rpc=options.rpc,
        model=Path(header.path),
    )
    engine, machine, about_engine = _engine(found, request, options)
    if given.get("n_ctx", "").strip() == "0":
        request = replace(request, n_ctx=header.context_length)
    settings, about_settings = _settings(header, machine, request, options.devices)
    model = footprint_model(header, machine, engine)
    companions: Companions = NO_COMPANIONS
    about_companions: tuple[Finding, ...] = ()
    if request.companions.names and (beside := beside_of(request, header)) is not None:
        model = with_companions(model, header, machine, engine, beside)
        companions, about_companions = launched(beside, settings), findings_about(beside)
    footprint = model.footprint(settings)
    said = (*about_plan(request, header, engine, settings), *about_room(machine, footprint))
    findings = (*found.notes, *about_engine, *request.findings, *about_settings, *about_companions, *said)
    return Planned(settings, companions, footprint, machine, engine, findings)


def _engine(
    found: Fingerprint, request: Request, options: InspectOptions
) -> tuple[EngineFacts | None, Fingerprint, tuple[Finding, ...]]:
    """The engine found here, else the one that is named as it would be here; the machine as it uses it."""
    wanted = wanted_engine(request, rpc=bool(options.rpc), engine_path=options.engine_path is not None)
    here = wanted is None or any(engine.name == wanted for engine in found.engines)
    engine, findings = choose_engine(found, wanted, request.sources.get("engine")) if here else (None, ())
    machine = machine_for_engine(found, engine)
    if engine is None and wanted is not None:
        engine = _as_built_here(wanted, found)
    return with_build(engine, options.engine_build, found.cpu), machine, findings


def _as_built_here(name: str, machine: Fingerprint) -> EngineFacts:
    """An engine that is not installed, as a build for this very machine would be."""
    known: dict[str, EngineName] = {"llama_cpp_python": "llama_cpp_python", "llama_bench": "llama_bench"}
    return EngineFacts(
        name=known.get(name, "llama_server"),
        path="",
        build="newest",
        ggml_version=None,
        extra_buffers=extra_buffers(None, machine.cpu),
        gpu_offload=bool(machine.devices),
        prompt_cache=name == "llama_server",
    )


def _settings(
    header: ModelHeader, machine: Fingerprint, request: Request, devices: str | None
) -> tuple[Settings, tuple[Finding, ...]]:
    pins = {pin.name: pin.value for pin in request.pins}
    wanted = min(int(pins.pop("n_gpu_layers", 0)), header.all_layers)
    shares = pins.pop("tensor_split", None)
    used, findings = _used_devices(machine, wanted, devices)
    n_gpu_layers = wanted if used else 0
    names, split = _split(used, n_gpu_layers, None if shares is None else str(shares))
    cores = machine.cpu.usable_cores
    default = Settings(
        n_gpu_layers=n_gpu_layers,
        n_threads=cores,
        n_threads_batch=cores,
        n_batch=_N_BATCH,
        n_ubatch=_N_UBATCH,
        n_ctx=request.n_ctx or min(DEFAULT_N_CTX, header.context_length or DEFAULT_N_CTX),
        n_parallel=request.n_parallel,
        flash_attn=header.flash_attn,
        repack=True,
        devices=names,
        tensor_split=split,
    )
    # Pins were validated one by one by the names of these very fields.
    settings = replace(default, **pins)  # type: ignore[arg-type]
    if "n_ubatch" not in pins:
        settings = replace(settings, n_ubatch=min(settings.n_ubatch, settings.n_batch))
    return settings, (*findings, *_refused(settings))


def _used_devices(
    machine: Fingerprint, n_gpu_layers: int, named: str | None
) -> tuple[tuple[Device, ...], tuple[Finding, ...]]:
    """The named accelerators, else all that are worth using; a note where layers were asked for and there is none."""
    by_name = {device.name: device for device in machine.devices}
    if named is not None:
        names = [] if named.strip() == "none" else [name.strip() for name in named.split(",")]
        for name in names:
            if name not in by_name:
                raise UsageError(
                    f"device {name[:60]!r} is not one this engine can use",
                    where="--devices",
                    hint=f"devices here: {', '.join(by_name) or 'none'}",
                )
        used = tuple(device for device in machine.devices if device.name in names)
    else:
        used = tuple(device for device in machine.devices if not device.integrated) or machine.devices
    if n_gpu_layers <= 0:
        return (), ()
    if used:
        return used, ()
    message = f"n_gpu_layers {n_gpu_layers} has no effect: the engine has no accelerator to use here"
    fix = "name a machine with --machine, or a device over RPC with --rpc"
    return (), (Finding(Rule.PIN_ADJUSTED, message, Place("--n-gpu-layers"), fix, "n_gpu_layers"),)


def _split(used: Sequence[Device], n_gpu_layers: int, shares: str | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Devices that get layers and how many each gets: by the given shares, else by free memory as the engine does."""
    if shares is None:
        weights = [float(device.free_bytes or 0) for device in used]
    else:
        weights = [float(share) for share in shares.split(",")]
        if used and len(weights) > len(used):
            raise UsageError(
                f"tensor_split has {len(weights)} shares for {len(used)} devices",
                where="--tensor-split",
                hint=f"devices here: {', '.join(device.name for device in used)}",
            )
        weights += [0.0] * (len(used) - len(weights))
    if not used:
        return (), ()
    counts = layers_per_device(n_gpu_layers, weights)
    kept = [(device.name, count) for device, count in zip(used, counts, strict=True) if count]
    names = tuple(name for name, _ in kept)
    return names, tuple(count for _, count in kept) if len(kept) > 1 else ()


def _refused(settings: Settings) -> tuple[Finding, ...]:
    """What an engine would not start with, though its memory can be told."""
    if settings.flash_attn or settings.type_v in PLAIN_KV_TYPES:
        return ()
    message = f"the engine refuses a {settings.type_v} V cache without flash attention"
    return (Finding(Rule.ENGINE_REFUSES, message, Place("--type-v"), "use --flash-attn on, or f16", "type_v"),)
