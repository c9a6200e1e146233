"""What a stored machine must look like. Imports pydantic: only `stored` imports this, inside a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from magnitude_tune.errors import InputFileError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.details_schema import DetailsIn
from magnitude_tune.fingerprint.values import (
    HOST_POOL,
    Cpu,
    Device,
    EngineDevice,
    EngineFacts,
    EngineName,
    Fact,
    Fingerprint,
    Memory,
    Pool,
)
from magnitude_tune.magnitude import PoolKind

__all__ = ["read_machine"]

Bytes = Annotated[int, Field(ge=0, lt=1 << 60)]
SomeBytes = Annotated[int, Field(gt=0, lt=1 << 60)]
Count = Annotated[int, Field(ge=1, le=1 << 16)]
Positive = Annotated[float, Field(gt=0)]
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class _FactIn(_Strict):
    value: Positive
    source: Text

    def value_of(self) -> Fact:
        return Fact(float(self.value), self.source)


class _CpuIn(_Strict):
    brand: Text | None = None
    architecture: Name
    usable_cores: Count
    performance_cores: Count
    logical_cpus: Count
    affinity_cpus: Count
    smt: bool | None = None
    quota_cores: Positive | None = None
    features: list[Text] = []
    max_hertz: Positive | None = None
    bandwidth: _FactIn
    flops: _FactIn
    sources: dict[str, Text] = {}

    def value_of(self) -> Cpu:
        return Cpu(
            **{
                **dict(self),
                "features": frozenset(self.features),
                "bandwidth": self.bandwidth.value_of(),
                "flops": self.flops.value_of(),
                "sources": tuple(self.sources.items()),
            }
        )


class _MemoryIn(_Strict):
    total_bytes: SomeBytes
    available_bytes: Bytes
    host_total_bytes: SomeBytes
    swap_total_bytes: Bytes | None = None
    swap_free_bytes: Bytes | None = None
    limit_source: Text | None = None
    address_space_bytes: Bytes | None = None
    locked_bytes: Bytes | None = None
    sources: dict[str, Text] = {}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.available_bytes <= self.total_bytes <= self.host_total_bytes:
            raise ValueError("available_bytes <= total_bytes <= host_total_bytes must hold")
        return self

    def value_of(self) -> Memory:
        return Memory(**{**dict(self), "sources": tuple(self.sources.items())})


class _PoolIn(_Strict):
    name: Name
    kind: PoolKind
    total_bytes: SomeBytes
    available_bytes: Bytes

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.available_bytes > self.total_bytes:
            raise ValueError("available_bytes <= total_bytes must hold")
        return self

    def value_of(self) -> Pool:
        return Pool(**dict(self))


class _DeviceIn(_Strict):
    name: Name
    backend: Name
    pool: Name
    description: Text
    total_bytes: SomeBytes | None = None
    free_bytes: Bytes | None = None
    cap_bytes: SomeBytes | None = None
    unified: bool = False
    integrated: bool = False
    bandwidth: _FactIn
    flops: _FactIn
    link_bandwidth: _FactIn | None = None
    compute_capability: Text | None = None
    bus: Text | None = None
    driver: Text | None = None
    runtime: Text | None = None
    source: Text = "unknown"

    def value_of(self) -> Device:
        link = self.link_bandwidth
        return Device(
            **{
                **dict(self),
                "bandwidth": self.bandwidth.value_of(),
                "flops": self.flops.value_of(),
                "link_bandwidth": link.value_of() if link else None,
            }
        )


class _EngineDeviceIn(_Strict):
    name: Name
    description: Text
    total_bytes: Bytes
    free_bytes: Bytes
    integrated: bool = False


class _EngineIn(_Strict):
    name: EngineName
    path: Text
    build: Text
    ggml_version: Text | None = None
    problem: Text | None = None
    backends: list[Text] = ["cpu"]
    devices: list[_EngineDeviceIn] = []
    extra_buffers: list[Text] = []
    extra_buffers_problem: Text | None = None
    gpu_offload: bool = False
    prompt_cache: bool = False
    flags: list[Text] = []
    cuda_archs: list[Count] = []

    def value_of(self) -> EngineFacts:
        return EngineFacts(
            **{
                **dict(self),
                "backends": tuple(self.backends),
                "devices": tuple(EngineDevice(**dict(device)) for device in self.devices),
                "extra_buffers": tuple(self.extra_buffers),
                "flags": frozenset(self.flags),
                "cuda_archs": tuple(self.cuda_archs),
            }
        )


class _NoteIn(_Strict):
    id: Text
    severity: Text | None = None
    message: Text
    file: Text | None = None
    line: int | None = None
    column: int | None = None
    fix: Text | None = None
    setting: Text | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.id not in {rule.id for rule in Rule}:
            raise ValueError(f"{self.id} is not the id of a finding")
        return self

    def value_of(self) -> Finding:
        place = None if self.file is None else Place(self.file, self.line, self.column)
        rule = next(rule for rule in Rule if rule.id == self.id)
        return Finding(rule, self.message, place=place, fix=self.fix, setting=self.setting)


class _MachineIn(_Strict):
    schema_version: int
    about: Text | None = None
    hash: Text = ""
    hostname: Text
    system: Name
    cpu: _CpuIn
    memory: _MemoryIn
    pools: list[_PoolIn]
    devices: list[_DeviceIn] = []
    engines: list[_EngineIn] = []
    disk_bandwidth: _FactIn | None = None
    notes: list[_NoteIn] = []
    details: DetailsIn | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError("pools: two pools have the same name")
        hosts = [pool for pool in self.pools if pool.kind in ("host", "unified")]
        if [pool.name for pool in hosts] != [HOST_POOL]:
            raise ValueError(f"pools: exactly one of kind host or unified is needed, named {HOST_POOL}")
        if len({device.name for device in self.devices}) != len(self.devices):
            raise ValueError("devices: two devices have the same name")
        for index, device in enumerate(self.devices):
            if device.pool not in names:
                raise ValueError(f"devices.{index}.pool: there is no pool named {device.pool!r}")
        return self

    def value_of(self) -> Fingerprint:
        return Fingerprint(
            hostname=self.hostname,
            system=self.system,
            cpu=self.cpu.value_of(),
            memory=self.memory.value_of(),
            pools=tuple(pool.value_of() for pool in self.pools),
            devices=tuple(device.value_of() for device in self.devices),
            engines=tuple(engine.value_of() for engine in self.engines),
            disk_bandwidth=self.disk_bandwidth.value_of() if self.disk_bandwidth else None,
            notes=tuple(note.value_of() for note in self.notes),
            details=self.details.value_of() if self.details else None,
            machine_hash=self.hash,
            stored=True,
        )


def read_machine(document: Mapping[str, object], where: str) -> Fingerprint:
    """Validate a document and turn it into a fingerprint.

    Raises:
        InputFileError: names the first wrong key, and how many more there are.
    """
    try:
        return _MachineIn.model_validate(dict(document)).value_of()
    except ValidationError as error:
        problems = error.errors(include_url=False)
        first = problems[0]
        key = ".".join(str(part) for part in first["loc"])
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputFileError(
            f"{_described(key, first)}{more}",
            where=where,
            hint="`magnitude-tune fingerprint --json` writes a machine in this form",
        ) from error


def _described(key: str, problem: Mapping[str, Any]) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"the key {key} is missing"
    if problem["type"] == "extra_forbidden":
        return f"the key {key} is not known"
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    value = problem["input"]
    shown = value if isinstance(value, int | bool) or (isinstance(value, float) and math.isfinite(value)) else None
    got = f", got {shown!r}" if shown is not None else f", got {str(value)[:60]!r}"
    return f"{key}: {message[:1].lower()}{message[1:]}{got}"
