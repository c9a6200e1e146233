"""Seconds for one token and for one prompt: bytes over bandwidth, operations over peak, steps and crossings.

A placement is priced for all thread counts at once: what the host does is kept as one core's arithmetic and the whole
bandwidth's memory time, and put together for a number of threads last.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.header.types import TENSOR_TYPES
from magnitude_tune.request import KV_TYPES, Settings
from magnitude_tune.throughput.costs import Cost
from magnitude_tune.throughput.placement import Plan, Stage
from magnitude_tune.throughput.rates import DeviceRates, HostRates

__all__ = ["BatchSeconds", "StepSeconds", "batches", "prompt_seconds", "token_seconds"]

OFFLOADED_BATCH: Final = 32
"""Batches from this size on use host weights on a device (GGML_OP_OFFLOAD_MIN_BATCH)."""

_CELL_PADDING: Final = 256
"""The engine attends to the cache's cells in steps of this (llama.cpp, get_n_kv)."""
_ACTIVATION_BYTES: Final = 4.0
_SCORE_PASSES: Final = 4.0
"""Without flash attention a score is written, read and rewritten by the softmax, and read again."""
_KV_BYTES: Final = {name: size / elements for name, (elements, size) in TENSOR_TYPES.items() if name in KV_TYPES}
"""Bytes of one cached element."""


class StepSeconds(NamedTuple):
    """One pass through the model: one core's arithmetic, the host's memory at its whole bandwidth, steps, all else."""

    core: float
    memory: float
    steps: float
    elsewhere: float

    def on_host(self, threads: tuple[float, float, float]) -> float:
        """Seconds on the host: the slower of arithmetic and memory, which overlap, and the steps."""
        cores, share, longer = threads
        arithmetic, memory = self.core / cores, self.memory / share
        return longer * ((arithmetic if arithmetic > memory else memory) + self.steps)


class BatchSeconds(NamedTuple):
    """Batches of one size, and how many there are."""

    times: int
    seconds: StepSeconds


class _Sum:
    """Adds up the parts of a pass."""

    __slots__ = ("core", "elsewhere", "gain", "memory", "steps")

    def __init__(self, host: HostRates, gain: float) -> None:
        self.core = self.memory = self.elsewhere = 0.0
        self.gain = gain
        self.steps = host.kind.token_overhead_seconds

    def crossings(self, plan: Plan, n_tokens: int) -> None:
        """Activations over the links, and each device's own overhead of a pass."""
        for crossing in plan.crossings:
            kind, link = crossing.device.kind, crossing.device.link_bandwidth
            one = kind.link_latency_seconds + n_tokens * plan.n_embd * _ACTIVATION_BYTES / link
            self.elsewhere += crossing.times * one + kind.token_overhead_seconds

    def logits(self, plan: Plan) -> None:
        """One row of logits back to the host."""
        if plan.output.device is not None:
            self.elsewhere += plan.n_vocab * _ACTIVATION_BYTES / plan.output.device.link_bandwidth

    def done(self) -> StepSeconds:
        return StepSeconds(self.core / self.gain, self.memory / self.gain, self.steps / self.gain, self.elsewhere)


def token_seconds(plan: Plan, host: HostRates, settings: Settings, depth: int) -> StepSeconds:
    """One generated token after `depth` tokens.

    Bytes: the dense weights, the used share of the experts, recurrent state, and the cache up to `depth` rounded up
    to 256 cells, each over the bandwidth of where it lives (field report B48).
    """
    total = _Sum(host, host.gains.tg)
    cells = (depth // _CELL_PADDING + 1) * _CELL_PADDING
    near = min(cells, (plan.window // _CELL_PADDING + 1) * _CELL_PADDING)
    for stage in (*plan.stages, plan.output):
        cost = stage.cost
        cached = (cost.k * cells + cost.sliding_k * near) * _KV_BYTES.get(settings.type_k, 2.0)
        cached += (cost.v * cells + cost.sliding_v * near) * _KV_BYTES.get(settings.type_v, 2.0)
        attention = cost.attention_flops * cells + cost.sliding_attention_flops * near
        _add_token(total, stage, plan, host, (cached, attention))
    total.crossings(plan, 1)
    total.logits(plan)
    return total.done()


def _add_token(total: _Sum, stage: Stage, plan: Plan, host: HostRates, attended: tuple[float, float]) -> None:
    """One stage's part of a token; `attended` are bytes read from the cache and operations of the attention."""
    cost, device = stage.cost, stage.device
    cached, attention = attended
    n_bytes = cost.dense_bytes + cost.expert_read_bytes + cost.state_bytes + cached
    flops = cost.dense_flops + cost.expert_flops
    if device is None:
        total.core += (flops * _time_share(plan, cost, host.repack_tg_gain) + attention) / host.core_tg
        total.memory += n_bytes / host.bandwidth
        total.steps += _block_steps(cost, host)
    else:
        seconds = max(n_bytes / device.bandwidth, (flops + attention) / device.flops_tg)
        total.elsewhere += (seconds + _block_steps(cost, device)) / device.gains.tg


def prompt_seconds(
    plan: Plan, host: HostRates, settings: Settings, n_prompt: int, depth: int
) -> tuple[BatchSeconds, ...]:
    """A prompt of `n_prompt` tokens after `depth` tokens, batch by batch.

    A token attends to `depth` and half the prompt on average. Flash attention skips what the mask hides; without it the
    rest of the token's own batch is computed too. The output layer runs once, for the last token.
    """
    groups = batches(n_prompt, settings.n_batch, settings.n_ubatch)
    hidden = groups[0][0] if groups and not settings.flash_attn else 0
    far = depth + (n_prompt + hidden) / 2
    cells = (far, min(far, plan.window + hidden))
    timed = [BatchSeconds(times, _batch_seconds(plan, host, settings, size, cells)) for size, times in groups]
    return (*timed, BatchSeconds(1, _output_seconds(plan, host)))


def batches(n_prompt: int, n_batch: int, n_ubatch: int) -> tuple[tuple[int, int], ...]:
    """How a prompt is cut: (size, times), into n_batch tokens first, each of those into n_ubatch; largest first."""
    counts: dict[int, int] = {}
    n_batch, n_ubatch = max(n_batch, 1), max(n_ubatch, 1)
    whole, rest = divmod(max(n_prompt, 0), n_batch)
    for tokens, times in ((n_batch, whole), (rest, 1)):
        full, last = divmod(tokens, n_ubatch)
        for size, number in ((n_ubatch, full * times), (last, times)):
            if size and number:
                counts[size] = counts.get(size, 0) + number
    return tuple(sorted(counts.items(), reverse=True))


def _batch_seconds(
    plan: Plan, host: HostRates, settings: Settings, n_tokens: int, cells: tuple[float, float]
) -> StepSeconds:
    """One batch whose tokens attend to `cells` on average (all, sliding)."""
    total = _Sum(host, host.gains.pp)
    for stage in plan.stages:
        cost, device = stage.cost, stage.device
        attention = n_tokens * (cost.attention_flops * cells[0] + cost.sliding_attention_flops * cells[1])
        scores = 0.0
        if not settings.flash_attn:
            pairs = n_tokens * (cost.heads * cells[0] + cost.sliding_heads * cells[1])
            scores = pairs * _ACTIVATION_BYTES * _SCORE_PASSES
        if device is None:
            _add_host_batch(total, cost, plan, host, n_tokens)
            total.core += attention / host.core_pp
            total.memory += scores / host.bandwidth
            total.steps += _block_steps(cost, host)
        else:
            n_bytes, flops = _batch_work(cost, device, plan, n_tokens)
            seconds = max((flops + attention) / device.flops_pp, (n_bytes + scores) / device.bandwidth)
            total.elsewhere += (seconds + _block_steps(cost, device)) / device.gains.pp
    total.crossings(plan, n_tokens)
    return total.done()


def _add_host_batch(total: _Sum, cost: Cost, plan: Plan, host: HostRates, n_tokens: int) -> None:
    """Host weights: used where they are, or copied to a device for a batch of 32 tokens and more and used there."""
    copier = plan.copier if n_tokens >= OFFLOADED_BATCH and not plan.repacked else None
    if copier is None:
        n_bytes, flops = _batch_work(cost, host, plan, n_tokens)
        total.core += flops * _time_share(plan, cost, host.repack_pp_gain) / host.core_pp
        total.memory += n_bytes / host.bandwidth
    else:
        n_bytes, flops = _batch_work(cost, copier, plan, n_tokens)
        total.elsewhere += n_bytes / copier.link_bandwidth + flops / copier.flops_pp / copier.gains.pp


def _batch_work(cost: Cost, where: HostRates | DeviceRates, plan: Plan, n_tokens: int) -> tuple[float, float]:
    """Weight bytes that a batch reads, and its operations with the batch's fixed cost.

    A batch of u tokens touches 1 - (1 - used/total)^u of the experts. The fixed cost is `half_batch_tokens` more
    tokens through each matrix that is touched.
    """
    fixed = where.kind.half_batch_tokens
    touched = 1.0 - (1.0 - plan.used_share) ** n_tokens
    flops = cost.dense_flops * (n_tokens + fixed) + cost.expert_flops * (n_tokens + fixed * touched / plan.used_share)
    return cost.dense_bytes + cost.expert_bytes * touched, flops


def _block_steps(cost: Cost, where: HostRates | DeviceRates) -> float:
    """What blocks cost beside bytes and operations: launches and barriers, and choosing experts."""
    return cost.blocks * where.kind.layer_overhead_seconds + cost.expert_blocks * where.kind.expert_overhead_seconds


def _output_seconds(plan: Plan, host: HostRates) -> StepSeconds:
    total = _Sum(host, host.gains.pp)
    cost, device = plan.output.cost, plan.output.device
    if device is None:
        total.core += cost.dense_flops * _time_share(plan, cost, host.repack_tg_gain) / host.core_tg
        total.memory += cost.dense_bytes / host.bandwidth
    else:
        seconds = max(cost.dense_bytes / device.bandwidth, cost.dense_flops / device.flops_tg)
        total.elsewhere += seconds / device.gains.pp
    total.logits(plan)
    return total.done()


def _time_share(plan: Plan, cost: Cost, gain: float) -> float:
    """Time of the arithmetic over what it would take without repacking: repacked weights go `gain` times as fast."""
    flops = cost.dense_flops + cost.expert_flops
    if not plan.repacked or flops <= 0.0:
        return 1.0
    part = min(1.0, (cost.repack_flops + cost.expert_repack_flops) / flops)
    return 1.0 - part + part / gain
