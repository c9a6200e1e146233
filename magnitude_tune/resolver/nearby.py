"""Plans beside the chosen one that are worth a word: the last layer brought in, experts or whole blocks offloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.magnitude import magnitude_of_bytes, share
from magnitude_tune.request import Settings, Workload, layers_per_device
from magnitude_tune.resolver.candidates import MU_SLACK
from magnitude_tune.resolver.choose import Limits
from magnitude_tune.resolver.kv_types import can_cache_in
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.units import MIB

__all__ = ["Nearby"]

_CONTEXT_STEP: Final = 256


class Nearby(NamedTuple):
    """The chosen settings, and what they were chosen under."""

    subject: Subject
    settings: Settings
    workload: Workload
    m: float
    limits: Limits

    def unused(self) -> str:
        """MiB of each used accelerator's memory that magnitude and others would still allow: `CUDA0 412 MiB`."""
        footprint, machine = self.subject.footprint, self.subject.machine
        reserved = dict(zip(footprint.pools, footprint.reserved(self.settings), strict=True))
        limits = dict(zip(footprint.pools, self.limits.pools, strict=True))
        left = []
        for device in machine.devices:
            if device.name in self.settings.devices:
                budget = min(limits[device.pool], share(self.m) * machine.pool(device.pool).total_bytes)
                left.append(f"{device.name} {max(0, int(budget - reserved[device.pool])) // MIB} MiB")
        return ", ".join(left)

    def one_layer_short(self) -> tuple[Finding, ...]:
        """A finding where a single layer stays on the CPU, with the context or the KV type that would bring it in."""
        settings, header = self.settings, self.subject.header
        if not settings.devices or settings.n_gpu_layers != header.all_layers - 1:
            return ()
        every = self._offloading(header.all_layers, settings.n_cpu_moe)
        step = _CONTEXT_STEP * (1 if settings.kv_unified else settings.n_parallel)
        ways = []
        most = _most(lambda steps: self._fits(replace(every, n_ctx=steps * step)), (settings.n_ctx - 1) // step)
        if most:
            ways.append(f"n_ctx of {most * step}")
        quantised = replace(every, type_k="q8_0", type_v="q8_0", flash_attn=True)
        plain = (settings.type_k, settings.type_v) == ("f16", "f16")
        if plain and header.flash_attn and can_cache_in(header, "q8_0") and self._fits(quantised):
            ways.append("KV cache in q8_0")
        if not ways:
            return ()
        message = f"one of {header.all_layers} layers stays on the CPU; unused: {self.unused()}"
        return (Finding(Rule.ONE_LAYER_SHORT, message, fix=f"a {' or a '.join(ways)} would bring it in"),)

    def alternative(self) -> str:
        """For a model with experts: whole blocks instead of experts on the CPU, or the reverse, and its price."""
        settings, header = self.settings, self.subject.header
        if header.moe is None or not settings.devices:
            return ""
        if settings.n_cpu_moe:
            n = _most(lambda n: self._fits(self._offloading(n, 0)), header.all_layers)
            other, what = self._offloading(n, 0), f"n_gpu_layers={n} with all of their experts"
            possible = n >= len(settings.devices)
        else:
            n = _most(
                lambda n: self._fits(self._offloading(header.all_layers, header.block_count - n)), header.block_count
            )
            other = self._offloading(header.all_layers, header.block_count - n)
            what = f"n_gpu_layers={header.all_layers} with n_cpu_moe={header.block_count - n}"
            possible = settings.n_gpu_layers < header.all_layers and self._fits(other)
        if not possible:
            return ""
        longer = 100 * (self._turn_seconds(other) / self._turn_seconds(settings) - 1)
        return f"{what} would take {longer:.0f} % longer" if longer >= 1 else f"{what} would be as fast"

    def _offloading(self, n_gpu_layers: int, n_cpu_moe: int) -> Settings:
        """The same settings with other counts, the layers shared out as they are."""
        split = self.settings.tensor_split
        counts = layers_per_device(n_gpu_layers, split) if split else ()
        return replace(self.settings, n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe, tensor_split=counts)

    def _fits(self, settings: Settings) -> bool:
        footprint, machine = self.subject.footprint, self.subject.machine
        reserved = footprint.reserved(settings)
        totals = [machine.pool(name).total_bytes for name in footprint.pools]
        devices = zip(footprint.reserved_by_device(settings), self.limits.devices, strict=True)
        return (
            max(map(magnitude_of_bytes, reserved, totals)) <= self.m + MU_SLACK
            and self.limits.hold_bytes(reserved)
            and all(n_bytes <= cap for n_bytes, cap in devices)
        )

    def _turn_seconds(self, settings: Settings) -> float:
        speed = self.subject.speed
        pp_seconds = speed.pp_seconds(settings, settings.n_threads_batch, self.workload.n_prompt)
        return pp_seconds + self.workload.n_gen * speed.tg_seconds(settings, settings.n_threads)


def _most(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, where every smaller one does; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
