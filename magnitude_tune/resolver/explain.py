"""Why each setting has its value, and what was given up for lack of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.header.values import ModelHeader
from magnitude_tune.magnitude import thread_cap
from magnitude_tune.request import DEFAULT_N_CTX, Request, Settings
from magnitude_tune.resolver.candidates import Shape, can_repack
from magnitude_tune.resolver.nearby import Nearby
from magnitude_tune.resolver.prompt_cache import CACHE_SIZES_MIB, CHECKPOINTS, needs_checkpoints
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Reason

__all__ = ["Explained", "given_up", "reasons"]


class Explained(NamedTuple):
    """What the explanation looks at."""

    request: Request
    subject: Subject
    shape: Shape
    settings: Settings
    best: Settings
    findings: tuple[Finding, ...]
    nearby: Nearby


def given_up(explained: Explained, *, has_prompt_cache: bool) -> tuple[str, ...]:
    """What the plan lacks against the best one with all memory free, in the fixed order."""
    settings, best = explained.settings, explained.best
    pinned = explained.request.pin("ctx_checkpoints") is not None
    checkpoints = CHECKPOINTS[0] if needs_checkpoints(explained.subject.header) and not pinned else 0

    def lost() -> Iterator[str]:
        if best.repack and not settings.repack:
            yield "repacked copy of the weights"
        if has_prompt_cache and settings.cache_ram < CACHE_SIZES_MIB[0]:
            yield f"prompt cache ({settings.cache_ram} of {CACHE_SIZES_MIB[0]} MiB)"
        if has_prompt_cache and settings.ctx_checkpoints < checkpoints:
            yield f"context checkpoints ({settings.ctx_checkpoints} of {checkpoints} a slot)"
        if settings.n_ubatch < best.n_ubatch:
            yield f"ubatch ({settings.n_ubatch} instead of {best.n_ubatch})"
        if settings.n_gpu_layers < best.n_gpu_layers:
            yield f"GPU layers ({settings.n_gpu_layers} instead of {best.n_gpu_layers})"
        if settings.n_cpu_moe > best.n_cpu_moe:
            yield f"experts on the GPU (those of {settings.n_cpu_moe} blocks are on the CPU)"

    return (*lost(), *explained.shape.concessions)


def reasons(explained: Explained) -> tuple[Reason, ...]:
    """One sentence per setting, pins named as such."""
    adjusted = {finding.setting for finding in explained.findings if finding.rule is Rule.PIN_ADJUSTED}
    pinned = {pin.name: pin for pin in explained.request.pins if pin.name not in adjusted}
    texts = {
        "n_gpu_layers": _gpu_layers(explained),
        "n_threads": _threads(explained),
        "n_threads_batch": "reads the prompt fastest within the cap",
        "n_batch": "at least one ubatch, so that each batch is read in one piece",
        "n_ubatch": _ubatch(explained),
        "n_ctx": _context(explained),
        "n_parallel": "slots asked for" if "n_parallel" in explained.request.sources else "none asked for: one slot",
        "flash_attn": _flash_attention(explained.settings, explained.subject.header),
        "type_k": _kv_type(explained.shape),
        "type_v": _kv_type(explained.shape),
        "load_mode": _load_mode(explained.settings),
        "repack": _repack(explained),
        "cache_ram": _cache(explained),
        "ctx_checkpoints": _checkpoints(explained),
    }
    if explained.subject.header.moe is not None:
        texts["n_cpu_moe"] = "; ".join(filter(None, (_cpu_moe(explained.settings), explained.nearby.alternative())))
    return tuple(
        Reason(name, f"pinned by {pinned[name].place}" if name in pinned else text) for name, text in texts.items()
    )


def _gpu_layers(explained: Explained) -> str:
    settings, n_all = explained.settings, explained.subject.header.all_layers
    for finding in explained.findings:
        if finding.rule is Rule.ENGINE_WITHOUT_GPU:
            return finding.message
    if not explained.subject.machine.devices:
        return "there is no accelerator that the engine can use"
    where = ", ".join(settings.devices)
    if settings.n_gpu_layers == n_all:
        return f"all {n_all} layers, output included, fit on {where}"
    if settings.n_gpu_layers < explained.best.n_gpu_layers:
        unused = f"; unused: {explained.nearby.unused()}" if where else ""
        return f"as many of {n_all} layers as memory allows on {where or 'the accelerator'}{unused}"
    return f"more of the {n_all} layers on the accelerator would gain less than 3 % of the turn time"


def _threads(explained: Explained) -> str:
    usable = explained.subject.machine.cpu.usable_cores
    cap = thread_cap(explained.request.magnitude, usable)
    cores = f"{usable} usable core{'s' if usable > 1 else ''}"
    return f"the fewest within 3 % of the best turn time; the magnitude allows {cap} of {cores}"


def _ubatch(explained: Explained) -> str:
    if not explained.subject.header.causal:
        return "an embedding model reads each input in one piece"
    if explained.settings.n_ubatch < explained.best.n_ubatch:
        return f"memory is short: {explained.best.n_ubatch} would read prompts faster"
    return "the smallest within 3 % of the best turn time"


def _context(explained: Explained) -> str:
    header, request = explained.subject.header, explained.request
    wanted = request.n_ctx or min(DEFAULT_N_CTX, header.context_length or DEFAULT_N_CTX)
    if explained.shape.n_ctx != wanted:
        return f"{wanted} would not fit: a concession the config allows"
    if request.n_ctx is not None:
        source = request.sources.get("n_ctx")
        return f"asked for by {source}" if source else "asked for"
    trained = "unknown" if header.context_length is None else header.context_length
    return f"none asked for: min({DEFAULT_N_CTX}, trained {trained})"


def _flash_attention(settings: Settings, header: ModelHeader) -> str:
    if settings.flash_attn:
        return "smaller compute buffer" if settings.type_v == "f16" else "a quantised V cache needs it"
    return "off is as fast here" if header.flash_attn else "the engine has none for this architecture"


def _kv_type(shape: Shape) -> str:
    return "a concession the config allows" if shape.type_k != "f16" else "full precision: answers do not change"


def _load_mode(settings: Settings) -> str:
    if settings.load_mode == "mmap":
        return "pages of the file stay evictable"
    return "repacked weights need no mapped original" if settings.repack else "takes the least memory"


def _repack(explained: Explained) -> str:
    engine = explained.subject.engine
    if explained.settings.repack:
        return "the CPU reads repacked weights faster"
    if not extra_buffers(engine, explained.subject.machine.cpu):
        problem = engine.extra_buffers_problem if engine else None
        return problem or "the engine has no layout to repack into on this CPU"
    if not can_repack(explained.subject):
        return "the engine aborts with repacked weights of this attention (MLA)"
    if explained.best.repack:
        return "given up: memory does not hold the copy"
    return "gains less than 3 % of the turn time"


def _cache(explained: Explained) -> str:
    engine = explained.subject.engine
    if engine is not None and not engine.prompt_cache:
        return "this engine has no prompt cache"
    if not explained.settings.ctx_checkpoints and needs_checkpoints(explained.subject.header):
        return "none: without checkpoints this model reads a kept conversation again all the same"
    return "the largest of 0, 256, 1024 and 8192 MiB that magnitude and memory hold"


def _checkpoints(explained: Explained) -> str:
    engine = explained.subject.engine
    if engine is not None and not engine.prompt_cache:
        return "this engine makes none"
    if not needs_checkpoints(explained.subject.header):
        return "every layer keeps the whole context: none are needed to go on with a conversation"
    if not explained.settings.ctx_checkpoints:
        return "given up: memory does not hold a copy of what layers forget"
    return "a conversation goes on from a copy of what sliding or recurrent layers forget"


def _cpu_moe(settings: Settings) -> str:
    if settings.n_cpu_moe:
        return "experts of the first blocks stay on the CPU so that every dense part fits on the accelerator"
    return "no experts need to stay on the CPU" if settings.n_gpu_layers else "everything is on the CPU"
