"""What the engine's process takes of the host besides tensors: its base, vocabulary, caches, and devices' overhead.

Figures are measurements at ggml 0.20.0 (llama-server) and 0.25.3 (embedded): anonymous and library pages of the
process; the growth of anonymous memory while a vocabulary loads (262144 tokens without merges: 42 MiB; 151936 tokens
with as many merges: 42 MiB), with blocks (9 KiB a tensor: names, the file's table, graph nodes, the scheduler's sets),
and with the server's threads for HTTP (62 more: 7.9 MiB).
"""

from __future__ import annotations

from typing import Final

from magnitude_tune.fingerprint.values import Cpu, EngineFacts
from magnitude_tune.footprint.checkpoints import Checkpoints
from magnitude_tune.footprint.overhead import device_overhead
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement
from magnitude_tune.footprint.work import WorkBuffer
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.request import Settings
from magnitude_tune.units import MIB

__all__ = ["HostCosts"]

_EMBEDDED_BASE: Final = 21 * MIB
_SERVER_BASE: Final = 47 * MIB // 2
_BYTES_PER_TOKEN: Final = 168
_BYTES_PER_MERGE: Final = 128
_BYTES_PER_TENSOR: Final = 9 * 1024
_BYTES_PER_HTTP_THREAD: Final = 130 * 1024
_CANDIDATE_BYTES: Final = 12
"""A token with its logit and probability: each slot of the server samples from one for every token."""
_PROCESS_DOUBT_PERCENT: Final = 15
_STRICT_CACHE: Final = (0, 20)
"""From this ggml on the server keeps its prompt cache within the limit before it saves (llama.cpp PR 25070)."""


class HostCosts:
    """Process base, prompt cache, checkpoints and device overhead of one engine and one model."""

    def __init__(self, header: ModelHeader, engine: EngineFacts | None, backends: tuple[str, ...], cpu: Cpu) -> None:
        # llama-bench is a bare program; the embedded engine is the nearest that was measured.
        self._serves = engine is None or engine.name == "llama_server"
        self._cpus = cpu.affinity_cpus
        base = _SERVER_BASE if self._serves else _EMBEDDED_BASE
        vocabulary = _BYTES_PER_TOKEN * max(0, header.n_vocab) + _BYTES_PER_MERGE * max(0, header.n_merges)
        self._candidates = _CANDIDATE_BYTES * max(0, header.n_vocab)
        self._process = base + vocabulary + _BYTES_PER_TENSOR * max(0, header.n_tensors)
        self._has_prompt_cache = engine is None or engine.prompt_cache
        self._cache_is_strict = engine is None or _version(engine.ggml_version) >= _STRICT_CACHE
        self._checkpoints = Checkpoints(header)
        self._work = WorkBuffer(header, cpu.usable_cores)
        self._backends = backends
        # Thousands of candidates share a few of each.
        self._processes: dict[int, Part] = {}
        self._works: dict[tuple[int, int, int, bool, bool], list[Part]] = {}
        self._overhead_of: dict[tuple[int, ...], list[Part]] = {}

    def parts(self, placement: Placement, settings: Settings, n_ctx: int) -> list[Part]:
        """Terms of one placement with a context of `n_ctx` tokens over all slots."""
        on_host = placement.host_blocks > 0
        n_tokens = min(settings.n_ubatch, settings.n_batch, n_ctx)
        work = (
            n_tokens,
            max(settings.n_threads, settings.n_threads_batch),
            self._work.scores_bytes(settings, n_ctx, n_tokens) if on_host else 0,
            on_host,
            on_host or settings.n_cpu_moe > 0,
        )
        places = tuple(span.place for span in placement.spans)
        parts = [self._process_part(settings.n_parallel), *self._work_parts(work), *self._overheads(places)]
        if self._has_prompt_cache and (settings.cache_ram > 0 or settings.ctx_checkpoints > 0):
            parts += self._kept(settings, n_ctx)
        return parts

    def _process_part(self, n_parallel: int) -> Part:
        found = self._processes.get(n_parallel)
        if found is None:
            usual = self._process
            if self._serves:
                usual += _BYTES_PER_HTTP_THREAD * max(n_parallel + 4, self._cpus - 1)
                usual += self._candidates * max(1, n_parallel)
            # Budgets hold the upper end of the estimate.
            doubt = usual * _PROCESS_DOUBT_PERCENT // 100
            low, high = usual - doubt, usual + doubt
            found = Part("process", HOST, high, usual, "estimated", _PROCESS_RULE, low, high)
            self._processes[n_parallel] = found
        return found

    def _work_parts(self, key: tuple[int, int, int, bool, bool]) -> list[Part]:
        found = self._works.get(key)
        if found is None:
            n_tokens, n_threads, scores, dense, experts = key
            part = self._work.part(n_tokens, n_threads, scores, dense=dense, experts=experts)
            found = self._works[key] = [] if part is None else [part]
        return found

    def _overheads(self, places: tuple[int, ...]) -> list[Part]:
        found = self._overhead_of.get(places)
        if found is None:
            parts = (device_overhead(place, self._backends[place - 1]) for place in places)
            found = self._overhead_of[places] = [part for part in parts if part is not None]
        return found

    def _kept(self, settings: Settings, n_ctx: int) -> list[Part]:
        slots = max(1, settings.n_parallel)
        n_ctx_slot = n_ctx if settings.kv_unified else -(-n_ctx // slots)
        one = self._checkpoints.n_bytes(n_ctx_slot, settings.type_k, settings.type_v)
        parts = self._checkpoints.parts(settings.ctx_checkpoints, slots, one)
        if settings.cache_ram > 0:
            limit, rule = settings.cache_ram * MIB, _CACHE_RULE
            if not self._cache_is_strict:
                saved = self._checkpoints.conversation_bytes(n_ctx_slot, settings.type_k, settings.type_v)
                limit, rule = limit + saved + settings.ctx_checkpoints * one, _LOOSE_CACHE_RULE
            parts.append(Part("prompt_cache", HOST, limit, 0, "bounded", rule))
        return parts


def _version(text: str | None) -> tuple[int, ...]:
    """Of an engine that does not say, the newest."""
    parts = (text or "").split(".")[:2]
    return tuple(map(int, parts)) if len(parts) == 2 and all(part.isdecimal() for part in parts) else _STRICT_CACHE


_PROCESS_RULE: Final = (
    "measured base of the engine's process, 168 B a token and 128 B a merge of the vocabulary, 9 KiB a tensor, 130 KiB "
    "a thread for HTTP (max(slots + 4, CPUs - 1)), 12 B a token and slot for sampling, +-15 %"
)
_CACHE_RULE: Final = "limit of the server's prompt cache; empty at start, fills with conversations"
_LOOSE_CACHE_RULE: Final = (
    "limit of the server's prompt cache and one whole conversation: this build looks at the limit after it has saved"
)
