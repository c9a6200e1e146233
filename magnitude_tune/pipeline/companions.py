"""What is to run beside the model: read, checked, planned with it, and given up before the context is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from magnitude_tune.errors import ConfigError, DoesNotFitError, HeaderError, InputFileError, UsageError
from magnitude_tune.findings import Finding, Rule
from magnitude_tune.footprint.companions import Beside, with_companions
from magnitude_tune.footprint.projector import encoder_bytes
from magnitude_tune.header.cached import read_model_cached
from magnitude_tune.header.kinds import require_complete, require_runnable
from magnitude_tune.header.projector import ProjectorFacts, projector_facts
from magnitude_tune.header.values import FileKind, ModelHeader
from magnitude_tune.request import ALL_LAYERS, NO_COMPANIONS, Companions, Request, Settings
from magnitude_tune.resolver.kv_types import can_cache_in
from magnitude_tune.resolver.subject import Subject
from magnitude_tune.resolver.values import Resolution

__all__ = ["Together", "beside_of", "findings_about", "launched", "resolve_together"]

_QUANTISED: Final = "q8_0"
"""Every quantised type of a KV cache packs as many elements."""


class Together(NamedTuple):
    """A resolution, and what runs beside the model in it: nothing of it is left open."""

    resolution: Resolution
    companions: Companions


def beside_of(request: Request, header: ModelHeader) -> Beside | None:
    """The files that the request names beside the model, read; None where it names none.

    Raises:
        InputFileError: a file is missing, damaged, or not what it is named as.
        UsageError, ConfigError: a way of drafting without what it needs.
    """
    wanted = request.companions
    if wanted.spec_type == "none":
        wanted = wanted._replace(model_draft=None)
    if wanted.mmproj is None and not wanted.drafts:
        return None
    projector = None if wanted.mmproj is None else _projector(wanted.mmproj, request)
    if not wanted.drafts:
        return Beside(wanted, projector)
    if wanted.model_draft is None:
        _require_own_blocks(wanted, request, header)
        return Beside(wanted, projector)
    draft = _header(wanted.model_draft, "model_draft", request)
    require_runnable(draft)
    plain = None if can_cache_in(draft, _QUANTISED) else "f16"
    wanted = wanted._replace(
        spec_type=wanted.spec_type or "draft-simple",
        type_k_draft=wanted.type_k_draft or plain,
        type_v_draft=wanted.type_v_draft or plain,
    )
    return Beside(wanted, projector, draft)


def resolve_together(
    beside: Beside,
    subject: Subject,
    request: Request,
    resolve: Callable[[Subject, Request, tuple[Finding, ...]], Resolution],
) -> Together:
    """Resolve with everything beside the model; without the draft where only that lets the request fit.

    The draft is given up before anything that the request allows to concede, for it changes no answer.

    Raises:
        DoesNotFitError: as `resolve`, without the draft.
    """
    known = findings_about(beside)
    dropped: tuple[Finding, ...] = ()
    if beside.wanted.drafts:
        try:
            resolution = resolve(_with(subject, beside), replace(request, concessions=()), known)
        except DoesNotFitError as error:
            dropped = (_dropped(beside, request, error),)
            beside = _without_draft(beside)
        else:
            return Together(resolution, launched(beside, resolution.settings))
    resolution = resolve(_with(subject, beside), request, (*known, *dropped))
    return Together(resolution, launched(beside, resolution.settings))


def launched(beside: Beside, settings: Settings) -> Companions:
    """What runs beside the model with these settings, nothing left open."""
    wanted = beside.wanted
    if not wanted.drafts:
        return Companions(mmproj=wanted.mmproj, no_mmproj_offload=wanted.no_mmproj_offload)
    layers = None
    if beside.draft is not None:
        everything = ALL_LAYERS if settings.n_gpu_layers else 0
        asked = everything if wanted.n_gpu_layers_draft is None else wanted.n_gpu_layers_draft
        layers = min(asked, beside.draft.all_layers)
    return wanted._replace(
        n_gpu_layers_draft=layers,
        type_k_draft=wanted.type_k_draft or settings.type_k,
        type_v_draft=wanted.type_v_draft or settings.type_v,
    )


def findings_about(beside: Beside) -> tuple[Finding, ...]:
    """What of a projector had to be assumed."""
    if beside.projector is None:
        return ()
    assumed = (encoder_bytes(encoder, True).assumed for encoder in beside.projector.encoders)
    return tuple(
        Finding(
            Rule.PROJECTOR_ASSUMED,
            f"memory for encoding with {beside.projector.path} is a fallback reserve: {why}",
            setting="mmproj",
            fix="watch the first large image, or keep the projector in host memory with no_mmproj_offload",
        )
        for why in assumed
        if why is not None
    )


def _with(subject: Subject, beside: Beside) -> Subject:
    if beside.projector is None and not beside.wanted.drafts:
        return subject
    together = with_companions(subject.footprint, subject.header, subject.machine, subject.engine, beside)
    return subject._replace(footprint=together)


def _without_draft(beside: Beside) -> Beside:
    kept = NO_COMPANIONS._replace(mmproj=beside.wanted.mmproj, no_mmproj_offload=beside.wanted.no_mmproj_offload)
    return Beside(kept, beside.projector)


def _dropped(beside: Beside, request: Request, error: DoesNotFitError) -> Finding:
    name = "model_draft" if beside.draft is not None else "spec_type"
    what = f"the draft {beside.draft.path}" if beside.draft is not None else "drafting with the model's own blocks"
    return Finding(
        Rule.DRAFT_DROPPED,
        f"{what} is left out: with it, {error.what}",
        place=request.sources.get(name),
        fix="ask for a smaller context, or a smaller draft",
        setting=name,
    )


def _projector(path: str, request: Request) -> ProjectorFacts:
    header = _header(path, "mmproj", request)
    if header.kind is not FileKind.PROJECTOR:
        raise HeaderError(
            f"this is no projector but a file of kind {header.kind}",
            where=path,
            hint="name the mmproj file that belongs to the model",
        )
    require_complete(header)
    from magnitude_tune.header.raw import read_raw

    return projector_facts(read_raw(header.path))


def _header(path: str, name: str, request: Request) -> ModelHeader:
    if not os.path.lexists(path):
        place = request.sources.get(name)
        raise InputFileError(
            f"there is no file at {path}", where=str(place) if place else name, hint=f"check the path of {name}"
        )
    return read_model_cached(path)


def _require_own_blocks(wanted: Companions, request: Request, header: ModelHeader) -> None:
    place = request.sources.get("spec_type")
    error = UsageError if place is None or place.line is None else ConfigError
    where = str(place) if place else "spec_type"
    if wanted.spec_type == "draft-simple":
        raise error("draft-simple needs a model that drafts", where=where, hint="name one with model_draft")
    if header.nextn_predict_layers < 1:
        raise error(
            "draft-mtp needs blocks that predict further tokens, and this model has none",
            where=where,
            hint="leave spec_type unset, or name a model_draft",
        )
