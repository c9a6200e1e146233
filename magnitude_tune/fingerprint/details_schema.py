"""What the details of a stored machine must look like. Imports pydantic: only `schema` imports this."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from magnitude_tune.fingerprint.details import (
    Cache,
    Details,
    Filesystem,
    HugePages,
    MemoryNode,
    Pressure,
    ThreadRate,
)
from magnitude_tune.fingerprint.values import Fact

__all__ = ["DetailsIn"]

Bytes = Annotated[int, Field(ge=0, lt=1 << 60)]
Number = Annotated[int, Field(ge=0, lt=1 << 32)]
Count = Annotated[int, Field(ge=0, le=1 << 16)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(max_length=4096)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class _FactIn(_Strict):
    value: Annotated[float, Field(gt=0)]
    source: Text

    def value_of(self) -> Fact:
        return Fact(float(self.value), self.source)


class _CacheIn(_Strict):
    level: Annotated[int, Field(ge=1, le=9)]
    kind: Text
    size_bytes: Bytes
    instances: Count
    shared_by: Count

    def value_of(self) -> Cache:
        return Cache(**dict(self))


class _NodeIn(_Strict):
    number: Count
    cores: Count
    total_bytes: Bytes | None = None
    free_bytes: Bytes | None = None
    allowed: bool

    def value_of(self) -> MemoryNode:
        return MemoryNode(**dict(self))


class _PressureIn(_Strict):
    resource: Text
    some_10s: Share
    some_60s: Share
    full_10s: Share | None = None
    full_60s: Share | None = None
    some_seconds: Amount

    def value_of(self) -> Pressure:
        return Pressure(**dict(self))


class _HugePagesIn(_Strict):
    transparent: Text | None = None
    reserved: Number | None = None
    free: Number | None = None
    page_bytes: Bytes | None = None

    def value_of(self) -> HugePages:
        return HugePages(**dict(self))


class _FilesystemIn(_Strict):
    kind: Text
    mount: Text
    device: Text
    read_rate: _FactIn | None = None

    def value_of(self) -> Filesystem:
        return Filesystem(**{**dict(self), "read_rate": self.read_rate.value_of() if self.read_rate else None})


class _ThreadRateIn(_Strict):
    threads: Count
    rate: _FactIn

    def value_of(self) -> ThreadRate:
        return ThreadRate(self.threads, self.rate.value_of())


class DetailsIn(_Strict):
    """Details as a stored machine may have them; every key may be absent."""

    packages: Count | None = None
    physical_cores: Count | None = None
    efficiency_cores: Count | None = None
    threads_per_core: Count | None = None
    affinity: Text | None = None
    caches: list[_CacheIn] = []
    nodes: list[_NodeIn] = []
    bandwidths: list[_ThreadRateIn] = []
    load: Annotated[list[Amount], Field(min_length=3, max_length=3)] | None = None
    steal_share: Share | None = None
    pressure: list[_PressureIn] = []
    huge_pages: _HugePagesIn | None = None
    virtual_machine: Text | None = None
    container: Text | None = None
    wsl: bool = False
    filesystem: _FilesystemIn | None = None
    sources: dict[str, Text] = {}

    def value_of(self) -> Details:
        """The value that these keys describe."""
        return Details(
            **{
                **dict(self),
                "caches": tuple(cache.value_of() for cache in self.caches),
                "nodes": tuple(node.value_of() for node in self.nodes),
                "bandwidths": tuple(rate.value_of() for rate in self.bandwidths),
                "load": (self.load[0], self.load[1], self.load[2]) if self.load else None,
                "pressure": tuple(pressure.value_of() for pressure in self.pressure),
                "huge_pages": self.huge_pages.value_of() if self.huge_pages else None,
                "filesystem": self.filesystem.value_of() if self.filesystem else None,
                "sources": tuple(self.sources.items()),
            }
        )
