"""The footprint of one model on one machine with one engine, for any settings."""

from __future__ import annotations

from operator import attrgetter
from typing import Final, NamedTuple

from magnitude_tune.errors import HeaderError, UsageError
from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.batch import Batch, cells, padded
from magnitude_tune.footprint.builds import build_rules
from magnitude_tune.footprint.compute import Compute
from magnitude_tune.footprint.host import HostCosts
from magnitude_tune.footprint.kv_cache import KvCache
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement, place_layers
from magnitude_tune.footprint.repack import RepackRules
from magnitude_tune.footprint.values import Footprint, FootprintModel
from magnitude_tune.footprint.weights import Weights
from magnitude_tune.header.values import Attention, ModelHeader
from magnitude_tune.request import DEFAULT_N_CTX, Settings

__all__ = ["footprint_model"]

_WHERE: Final = attrgetter("n_gpu_layers", "devices", "tensor_split", "n_cpu_moe")
_WEIGHTS: Final = attrgetter("n_gpu_layers", "devices", "tensor_split", "n_cpu_moe", "repack", "load_mode")
_BATCH: Final = attrgetter("n_ctx", "n_parallel", "kv_unified", "n_batch", "n_ubatch", "flash_attn", "type_k", "type_v")
_CONTEXT: Final = attrgetter(
    "n_gpu_layers",
    "devices",
    "tensor_split",
    "n_cpu_moe",
    "n_ctx",
    "n_parallel",
    "kv_unified",
    "n_batch",
    "n_ubatch",
    "flash_attn",
    "type_k",
    "type_v",
)
_MAX_BLOCKS: Final = 1 << 16
_HOST: Final = attrgetter(
    "n_gpu_layers",
    "devices",
    "tensor_split",
    "n_cpu_moe",
    "n_threads",
    "n_threads_batch",
    "n_batch",
    "n_ubatch",
    "n_ctx",
    "n_parallel",
    "kv_unified",
    "flash_attn",
    "type_k",
    "type_v",
    "cache_ram",
    "ctx_checkpoints",
)


def footprint_model(header: ModelHeader, machine: Fingerprint, engine: EngineFacts | None) -> FootprintModel:
    """Prepares everything that does not depend on settings.

    Args:
        header: the model.
        machine: its `devices` are exactly the accelerators this engine can use, in the engine's order.
        engine: None plans as for llama-server by the newest rules, with the extra buffers this CPU allows.

    Raises:
        HeaderError: the header counts blocks that no model has.
    """
    if not 0 <= header.block_count <= _MAX_BLOCKS:
        raise HeaderError(
            f"block_count is {header.block_count}; at most {_MAX_BLOCKS} can be planned for",
            where=header.path,
            hint="the file is damaged or not a model: download it again",
        )
    return _Model(header, machine, engine)


class _Priced(NamedTuple):
    """One section of the terms with its reserved bytes summed by pool and by device."""

    parts: tuple[Part, ...]
    by_pool: tuple[int, ...]
    by_device: tuple[int, ...]


class _Model:
    """Sections of terms, each remembered under the settings it depends on."""

    def __init__(self, header: ModelHeader, machine: Fingerprint, engine: EngineFacts | None) -> None:
        backends = tuple(device.backend for device in machine.devices)
        buffers = extra_buffers(engine, machine.cpu)
        self._header = header
        self._device_names = tuple(device.name for device in machine.devices)
        self._place_of = {device.name: place for place, device in enumerate(machine.devices, start=1)}
        self._free = {device.name: device.free_bytes or 0 for device in machine.devices}
        host_pool = machine.host_pool.name
        self._pool_names = tuple(pool.name for pool in machine.pools)
        self._pool_of_place = (host_pool, *(device.pool for device in machine.devices))
        self._pool_index = tuple(self._pool_names.index(name) for name in self._pool_of_place)
        rules = RepackRules(buffers, machine.cpu.features, header.n_vocab)
        build = build_rules(engine.ggml_version if engine else None)
        self._weights = Weights(header, rules, backends, build)
        self._kv = KvCache(header, backends)
        self._compute = Compute(header, backends, engine.ggml_version if engine else None)
        self._host = HostCosts(header, engine, backends, machine.cpu)
        self._placements: dict[tuple[object, ...], Placement] = {}
        self._batches: dict[tuple[object, ...], Batch] = {}
        self._weights_priced: dict[tuple[object, ...], _Priced] = {}
        self._context_priced: dict[tuple[object, ...], _Priced] = {}
        self._host_priced: dict[tuple[object, ...], _Priced] = {}
        self._asked: Settings | None = None
        self._answer: tuple[_Priced, _Priced, _Priced] | None = None

    @property
    def pools(self) -> tuple[str, ...]:
        """Pool names, in the order of `reserved`."""
        return self._pool_names

    @property
    def devices(self) -> tuple[str, ...]:
        """Accelerators, in the order of `reserved_by_device`."""
        return self._device_names

    def reserved(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per pool."""
        weights, context, host = self._sections(settings)
        return tuple(map(sum, zip(weights.by_pool, context.by_pool, host.by_pool, strict=True)))

    def reserved_by_device(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per accelerator."""
        weights, context, host = self._sections(settings)
        return tuple(map(sum, zip(weights.by_device, context.by_device, host.by_device, strict=True)))

    def footprint(self, settings: Settings) -> Footprint:
        """Every term."""
        return Footprint(
            tuple(
                part.term(
                    "CPU" if part.place == HOST else self._device_names[part.place - 1],
                    self._pool_of_place[part.place],
                )
                for section in self._sections(settings)
                for part in section.parts
            )
        )

    def _sections(self, settings: Settings) -> tuple[_Priced, _Priced, _Priced]:
        # Whoever prices a candidate asks for its pools and its devices, one after the other.
        if self._answer is None or settings is not self._asked:
            self._asked, self._answer = settings, self._looked_up(settings)
        return self._answer

    def _looked_up(self, settings: Settings) -> tuple[_Priced, _Priced, _Priced]:
        weights = self._weights_priced.get(key := _WEIGHTS(settings))
        if weights is None:
            placement = self._placement(settings)
            weights = self._price(
                self._weights.parts(placement, settings.n_cpu_moe, settings.repack, settings.load_mode)
            )
            self._weights_priced[key] = weights
        context = self._context_priced.get(key := _CONTEXT(settings))
        if context is None:
            context = self._context_priced[key] = self._price(self._context_parts(settings))
        host = self._host_priced.get(key := _HOST(settings))
        if host is None:
            parts = self._host.parts(self._placement(settings), settings, self._n_ctx(settings))
            host = self._host_priced[key] = self._price(parts)
        return weights, context, host

    def _context_parts(self, settings: Settings) -> list[Part]:
        batch = self._batches.get(key := _BATCH(settings))
        if batch is None:
            batch = self._batches[key] = self._batch(settings)
        placement = self._placement(settings)
        largest = self._weights.largest_on_host(placement, settings.n_cpu_moe)
        return [*self._kv.parts(placement, batch), *self._compute.parts(placement, batch, largest, settings.n_cpu_moe)]

    def _batch(self, settings: Settings) -> Batch:
        n_ctx = self._n_ctx(settings)
        # Without a cache a batch is not held to the context as it was asked for, only to what it is rounded up to.
        most = n_ctx if any(layer.attention is not Attention.NONE for layer in self._header.layers) else padded(n_ctx)
        n_ubatch = max(1, min(settings.n_ubatch, settings.n_batch, most))
        size = cells(n_ctx, settings.n_parallel, settings.kv_unified, n_ubatch, self._header.sliding_window)
        return Batch(n_ubatch, max(1, settings.n_parallel), size, settings.flash_attn, settings.type_k, settings.type_v)

    def _n_ctx(self, settings: Settings) -> int:
        return settings.n_ctx if settings.n_ctx > 0 else self._header.context_length or DEFAULT_N_CTX

    def _placement(self, settings: Settings) -> Placement:
        key = _WHERE(settings)
        placement = self._placements.get(key)
        if placement is None:
            try:
                places = [self._place_of[name] for name in settings.devices]
            except KeyError as error:
                raise UsageError(
                    f"device {error.args[0]} is not one this engine can use",
                    hint=f"devices here: {', '.join(self._device_names) or 'none'}",
                ) from None
            placement = place_layers(
                self._header.block_count,
                settings.n_gpu_layers,
                places,
                settings.tensor_split,
                [self._free[name] for name in settings.devices],
            )
            self._placements[key] = placement
        return placement

    def _price(self, parts: list[Part]) -> _Priced:
        by_pool = [0] * len(self._pool_names)
        by_device = [0] * len(self._device_names)
        for part in parts:
            by_pool[self._pool_index[part.place]] += part.reserved
            if part.place:
                by_device[part.place - 1] += part.reserved
        return _Priced(tuple(parts), tuple(by_pool), tuple(by_device))
