"""Seconds for one token and for one prompt: bytes over bandwidth, operations over peak, steps and crossings.

A plan holds what a placement of the layers costs on the host and on each device; threads, depth and batches come last,
because they change more often than placements do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnitude_tune.request import Settings
from magnitude_tune.throughput.costs import Cost, ModelCosts, kv_bytes_per_element
from magnitude_tune.throughput.rates import DeviceRates, HostRates

__all__ = ["BatchSeconds", "Plan", "Stage", "TokenSeconds", "batches", "make_plan", "prompt_seconds", "token_seconds"]

OFFLOADED_BATCH: Final = 32
"""Batches from this size on use host weights on the device (GGML_OP_OFFLOAD_MIN_BATCH)."""

_CELL_PADDING: Final = 256
_ACTIVATION_BYTES: Final = 4.0
_SCORE_PASSES: Final = 4.0
"""Without flash attention each score is written, read and rewritten by the softmax, and read again."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Blocks that run one after another on one device (None is the host), with what they cost."""

    device: DeviceRates | None
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement: its stages, the output layer's, and the crossings between devices (device, times)."""

    stages: tuple[Stage, ...]
    output: Stage
    crossings: tuple[tuple[DeviceRates, int], ...]
    copier: DeviceRates | None
    repacked: bool
    n_embd: int
    n_vocab: int
    window: int
    used_share: float


@dataclass(frozen=True, slots=True)
class TokenSeconds:
    """One generated token: arithmetic of one core, memory at the host's whole bandwidth, host steps, all else."""

    core: float
    memory: float
    steps: float
    elsewhere: float

    def total(self, host: HostRates, n_threads: int) -> float:
        """Seconds with that many threads: the slower of arithmetic and memory, which overlap, and the rest."""
        cores, share, longer = host.threads(n_threads)
        return longer * (max(self.core / cores, self.memory / share) + self.steps) + self.elsewhere


@dataclass(frozen=True, slots=True)
class BatchSeconds:
    """One batch of a prompt, and how often it comes; the parts are those of a token."""

    times: int
    seconds: TokenSeconds


def make_plan(costs: ModelCosts, devices: Sequence[DeviceRates], settings: Settings, *, can_repack: bool) -> Plan:
    """Place a model's blocks as the engine does.

    Index block_count is the output layer; layers from max(block_count + 1 - n_gpu_layers, 0) on are offloaded, shared
    out over `devices` in order by `tensor_split` (llama.cpp rules, section 4). The experts of the first `n_cpu_moe`
    blocks stay on the host. Host weights are repacked only where no device could want to copy them: the engine then
    keeps them in the device's host buffer instead.
    """
    n_all = costs.block_count + 1
    first = max(n_all - settings.n_gpu_layers, 0) if devices else n_all
    on_host = min(first, costs.block_count)
    stages = [Stage(None, costs.between(0, on_host))] if on_host else []
    output = Stage(None, costs.output)
    crossings: list[tuple[DeviceRates, int]] = []
    start = first
    for device, end in zip(devices, _ends(first, n_all, settings.tensor_split, len(devices)), strict=False):
        if end <= start:
            continue
        blocks_end = min(end, costs.block_count)
        kept = min(max(settings.n_cpu_moe, start), blocks_end)
        crossings.append((device, 1 + 2 * (kept - start)))
        stages += _device_stages(costs, device, (start, kept, blocks_end))
        if end == n_all:
            output = Stage(device, costs.output)
        start = end
    copiers = [device for device, _ in crossings if device.copies_host_weights]
    return Plan(
        stages=tuple(stages),
        output=output,
        crossings=tuple(crossings),
        copier=copiers[0] if copiers else None,
        repacked=can_repack and settings.repack and not copiers,
        n_embd=costs.n_embd,
        n_vocab=costs.n_vocab,
        window=costs.window,
        used_share=costs.used_share,
    )


def _ends(first: int, n_all: int, split: tuple[int, ...], n_devices: int) -> list[int]:
    """Where each device's run of layers ends; without a split the layers are shared out evenly."""
    parts = split if len(split) == n_devices and sum(split) > 0 else (1,) * n_devices
    total, reached = sum(parts), 0
    ends = []
    for part in parts:
        reached += part
        ends.append(first + round((n_all - first) * reached / total))
    return ends


def _device_stages(costs: ModelCosts, device: DeviceRates, bounds: tuple[int, int, int]) -> list[Stage]:
    start, kept, end = bounds
    if kept == start:
        return [Stage(device, costs.between(start, end))]
    experts = costs.experts_between(start, kept)
    return [Stage(device, costs.between(start, end).without(experts)), Stage(None, experts)]


def token_seconds(plan: Plan, host: HostRates, settings: Settings, depth: int) -> TokenSeconds:
    """One generated token after `depth` tokens: weights and cache read once, arithmetic, steps, crossings.

    Bytes are the dense part, the used share of the experts, and the cache up to `depth` rounded up to 256 cells.
    """
    k_bytes, v_bytes = kv_bytes_per_element(settings.type_k), kv_bytes_per_element(settings.type_v)
    cells = (depth // _CELL_PADDING + 1) * _CELL_PADDING
    near = min(cells, plan.window + 1)
    core = memory = 0.0
    steps, elsewhere = host.kind.token_overhead_seconds, 0.0
    for stage in (*plan.stages, plan.output):
        cost, device = stage.cost, stage.device
        weights = cost.dense_bytes + cost.expert_read_bytes
        cached = (cost.k * cells + cost.sliding_k * near) * k_bytes + (cost.v * cells + cost.sliding_v * near) * v_bytes
        flops = cost.dense_flops + cost.expert_flops
        attention = cost.attention_flops * cells + cost.sliding_attention_flops * near
        if device is None:
            core += (_repacked_flops(plan, cost, flops, host.repack_tg_gain) + attention) / host.core_tg
            memory += (weights + cached) / host.bandwidth
            steps += cost.blocks * host.kind.layer_overhead_seconds
        else:
            busy = max((weights + cached) / device.bandwidth, (flops + attention) / device.flops_tg)
            elsewhere += busy + cost.blocks * device.kind.layer_overhead_seconds
    for device, times in plan.crossings:
        crossing = device.latency_seconds + plan.n_embd * _ACTIVATION_BYTES / device.link_bandwidth
        elsewhere += times * crossing + device.kind.token_overhead_seconds
    elsewhere += _logits_seconds(plan)
    return TokenSeconds(core, memory, steps, elsewhere)


def prompt_seconds(
    plan: Plan, host: HostRates, settings: Settings, n_prompt: int, depth: int
) -> tuple[BatchSeconds, ...]:
    """A prompt of `n_prompt` tokens after `depth` tokens, batch by batch; the output layer runs once, at its end."""
    groups = batches(n_prompt, settings.n_batch, settings.n_ubatch)
    u = groups[0][0] if groups else 1
    full = depth + (n_prompt + u) / 2
    cells = (full, min(full, plan.window + u))
    timed = [BatchSeconds(times, _batch_seconds(plan, host, settings, size, cells)) for size, times in groups]
    return (*timed, BatchSeconds(1, _output_seconds(plan, host)))


def batches(n_prompt: int, n_batch: int, n_ubatch: int) -> tuple[tuple[int, int], ...]:
    """How a prompt is cut: (size, times), first into n_batch tokens, each of those into n_ubatch."""
    if n_prompt <= 0:
        return ()
    whole, rest = divmod(n_prompt, max(n_batch, 1))
    counts: dict[int, int] = {}
    for tokens, times in ((max(n_batch, 1), whole), (rest, 1)):
        if tokens and times:
            full, last = divmod(tokens, max(n_ubatch, 1))
            for size, number in ((n_ubatch, full * times), (last, times)):
                if size > 0 and number:
                    counts[size] = counts.get(size, 0) + number
    return tuple(counts.items())


def _batch_seconds(plan: Plan, host: HostRates, settings: Settings, u: int, cells: tuple[float, float]) -> TokenSeconds:
    """One batch of `u` tokens whose tokens attend `cells` on average (full, sliding)."""
    touched = 1.0 - (1.0 - plan.used_share) ** u
    copier = plan.copier if u >= OFFLOADED_BATCH else None
    score_bytes = 0.0 if settings.flash_attn else _ACTIVATION_BYTES * _SCORE_PASSES * u
    core = memory = 0.0
    steps, elsewhere = host.kind.token_overhead_seconds, 0.0
    for stage in plan.stages:
        cost, device = stage.cost, stage.device
        weights = cost.dense_bytes + cost.expert_bytes * touched
        scores = score_bytes * (cost.heads * cells[0] + cost.sliding_heads * cells[1])
        attention = u * (cost.attention_flops * cells[0] + cost.sliding_attention_flops * cells[1])
        if device is None:
            flops = cost.dense_flops * (u + host.kind.half_batch_tokens) + cost.expert_flops * (
                u + host.kind.half_batch_tokens * touched / plan.used_share
            )
            steps += cost.blocks * host.kind.layer_overhead_seconds
            if copier is not None:
                elsewhere += weights / copier.link_bandwidth + flops / copier.flops_pp
                core += attention / host.core_pp
                memory += scores / host.bandwidth
            else:
                core += (_repacked_flops(plan, cost, flops, host.repack_pp_gain) + attention) / host.core_pp
                memory += (weights + scores) / host.bandwidth
        else:
            h = device.kind.half_batch_tokens
            flops = cost.dense_flops * (u + h) + cost.expert_flops * (u + h * touched / plan.used_share)
            busy = max((flops + attention) / device.flops_pp, (weights + scores) / device.bandwidth)
            elsewhere += busy + cost.blocks * device.kind.layer_overhead_seconds
    for device, times in plan.crossings:
        crossing = device.latency_seconds + u * plan.n_embd * _ACTIVATION_BYTES / device.link_bandwidth
        elsewhere += times * crossing + device.kind.token_overhead_seconds
    return TokenSeconds(core, memory, steps, elsewhere)


def _output_seconds(plan: Plan, host: HostRates) -> TokenSeconds:
    """The output layer for the prompt's last token."""
    cost, device = plan.output.cost, plan.output.device
    if device is None:
        flops = _repacked_flops(plan, cost, cost.dense_flops, host.repack_tg_gain)
        return TokenSeconds(flops / host.core_tg, cost.dense_bytes / host.bandwidth, 0.0, 0.0)
    busy = max(cost.dense_bytes / device.bandwidth, cost.dense_flops / device.flops_tg)
    return TokenSeconds(0.0, 0.0, 0.0, busy + _logits_seconds(plan))


def _logits_seconds(plan: Plan) -> float:
    device = plan.output.device
    return plan.n_vocab * _ACTIVATION_BYTES / device.link_bandwidth if device else 0.0


def _repacked_flops(plan: Plan, cost: Cost, flops: float, gain: float) -> float:
    """Operations that count: those on repacked weights go `gain` times as fast."""
    if not plan.repacked:
        return flops
    all_flops = cost.dense_flops + cost.expert_flops
    if all_flops <= 0.0:
        return flops
    part = (cost.dense_repack_flops + cost.expert_repack_flops) / all_flops
    return flops * (1.0 - part + part / gain)
