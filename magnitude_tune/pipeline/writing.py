"""What `resolve --write` puts into an agent's config: the plan that was shown, whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from magnitude_tune.agents.detect import AgentRequest
from magnitude_tune.findings import Place, Rule
from magnitude_tune.pipeline.resolve import Resolved
from magnitude_tune.request import DEFAULT_N_CTX
from magnitude_tune.resolver.prompt_cache import needs_checkpoints

__all__ = ["settings_to_write"]

Written = str | int | float | bool | tuple[int, ...]

_CHOSEN: Final = (
    "n_gpu_layers",
    "n_threads",
    "n_threads_batch",
    "n_batch",
    "n_ubatch",
    "flash_attn",
    "load_mode",
    "repack",
)
_DEFAULTS: Final = {"n_parallel": 1, "kv_unified": False, "type_k": "f16", "type_v": "f16", "main_gpu": 0}
"""Written only where the plan has another value: a file that does not name them means these."""


def settings_to_write(resolved: Resolved, agent: AgentRequest) -> dict[str, Written]:
    """Every setting of the plan that the file does not say already.

    A value that the file pins and that runs as written stays as it is written. What an option, a variable or the
    user's own file asked for goes into the file, because the plan rests on it.
    """
    settings = resolved.resolution.settings
    written: dict[str, Written] = {
        name: getattr(settings, name) for name in _names(resolved) if not _stays(name, resolved, agent)
    }
    if "flash_attn" in written:
        written["flash_attn"] = "on" if settings.flash_attn else "off"
    place = resolved.request.sources.get("magnitude")
    if place is not None and not _is_in(place, agent):
        written["magnitude"] = resolved.request.magnitude
    return written | dict(_companions(resolved, agent))


def _companions(resolved: Resolved, agent: AgentRequest) -> Iterator[tuple[str, Written]]:
    """What runs beside the model and was asked for outside the file; a path there would start at the file's folder."""
    for name, value in resolved.companions._asdict().items():
        place = resolved.request.sources.get(name)
        if place is None or value is None or _is_in(place, agent):
            continue
        yield name, os.path.abspath(value) if name in ("mmproj", "model_draft") else value  # noqa: PTH100 - links stay


def _names(resolved: Resolved) -> Iterator[str]:
    settings, header = resolved.resolution.settings, resolved.header
    yield from _CHOSEN
    yield from (name for name, default in _DEFAULTS.items() if getattr(settings, name) != default)
    if settings.n_ctx != min(DEFAULT_N_CTX, header.context_length or DEFAULT_N_CTX):
        yield "n_ctx"
    if header.moe is not None:
        yield "n_cpu_moe"
    if resolved.engine is None or resolved.engine.prompt_cache:
        yield "cache_ram"
        if needs_checkpoints(header):
            yield "ctx_checkpoints"
    if len(settings.tensor_split) > 1:
        yield "tensor_split"


def _stays(name: str, resolved: Resolved, agent: AgentRequest) -> bool:
    """Whether the file pins the setting itself, and what it says runs."""
    pin = resolved.request.pin(name)
    if pin is None or not _is_in(pin.place, agent):
        return False
    return not any(
        finding.rule is Rule.PIN_ADJUSTED and finding.setting == name for finding in resolved.resolution.findings
    )


def _is_in(place: Place, agent: AgentRequest) -> bool:
    return place.line is not None and place.label == str(agent.path)
