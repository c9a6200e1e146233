"""A model's header as one JSON object: every fact, in base units."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from magnitude_tune.findings import Rule
from magnitude_tune.header.values import Attention, ModelHeader, TensorGroup

if TYPE_CHECKING:
    from magnitude_tune.pipeline.inspection import Planned

__all__ = ["Sums", "inspect_document", "planned_document", "sums_by"]

_Label = TypeVar("_Label", bound=Hashable)

_SCHEMA_VERSION = 1
_F16_BYTES = 2
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sums:
    """Tensors, parameters and bytes of groups alike."""

    n_tensors: int = 0
    n_params: int = 0
    bytes: int = 0
    repackable_bytes: int = 0


def inspect_document(header: ModelHeader) -> dict[str, object]:
    """The document of `inspect --json`.

    `kv` gives bytes per token of a cache in f16, apart for blocks that keep every token and for those that keep a
    window; `recurrent` gives bytes per sequence, over all blocks.
    """
    return {
        "schema_version": _SCHEMA_VERSION,
        "path": _shown(header.path),
        "kind": str(header.kind),
        "name": header.name,
        "architecture": header.architecture,
        "file_type": header.file_type,
        "gguf_version": header.version,
        "byte_order": header.byte_order,
        "block_count": header.block_count,
        "nextn_predict_layers": header.nextn_predict_layers,
        "n_embd": header.n_embd,
        "n_vocab": header.n_vocab,
        "n_ff": list(header.n_ff),
        "context_length": header.context_length,
        "head_count": list(header.head_count),
        "head_count_kv": list(header.head_count_kv),
        "attention": [str(layer.attention) for layer in header.layers],
        "sliding_window": header.sliding_window,
        "causal": header.causal,
        "flash_attn": header.flash_attn,
        "kv": _kv(header),
        "recurrent": _recurrent(header),
        "moe": header.moe._asdict() if header.moe else None,
        "has_chat_template": header.has_chat_template,
        "has_end_token": header.has_end_token,
        "tied_output": header.tied_output,
        "n_tensors": header.n_tensors,
        "n_params": header.n_params,
        "tensor_bytes": header.tensor_bytes,
        "file_bytes": header.file_bytes,
        "bits_per_weight": round(header.bits_per_weight, 4),
        "quantisation": _rows(header, "type", lambda group: group.type_name),
        "roles": _rows(header, "role", lambda group: str(group.role)),
        "blocks": _rows(header, "block", lambda group: group.block),
        "groups": [{**group._asdict(), "role": str(group.role)} for group in header.groups],
        "complete": header.complete,
        "shards": [
            {"path": _shown(shard.path), "bytes": shard.n_bytes, "missing_bytes": shard.missing_bytes}
            for shard in header.shards
        ],
        "content_hash": header.content_hash,
        "unknown_types": list(header.unknown_types),
        "notes": list(header.notes),
    }


def planned_document(planned: Planned) -> dict[str, object]:
    """What `inspect --json` adds where settings are given: terms, their sums by pool, and what they hold for."""
    from magnitude_tune.report.resolution_json import companions_document, finding_documents, settings_document
    from magnitude_tune.report.terms import pool_documents, term_document

    engine = planned.engine
    terms = planned.footprint.terms
    return {
        "settings": settings_document(planned.settings),
        "n_ctx_slot": planned.settings.n_ctx_slot,
        "companions": companions_document(planned.companions),
        "machine": {"hash": planned.machine.machine_hash, "hostname": planned.machine.hostname},
        "engine": None
        if engine is None
        else {"name": engine.name, "build": engine.build, "ggml_version": engine.ggml_version},
        "terms": [term_document(term) for term in terms],
        "pools": [{**pool, **_room(planned, pool)} for pool in pool_documents(terms)],
        "fits": not any(finding.rule is Rule.DOES_NOT_FIT for finding in planned.findings),
        "findings": finding_documents(planned.findings),
    }


def _room(planned: Planned, pool: dict[str, Any]) -> dict[str, int]:
    """What the pool has, what of it nobody may plan with, and what the plan leaves beside; negative where it lacks."""
    found = planned.machine.pool(pool["name"])
    return {
        "total_bytes": found.total_bytes,
        "available_bytes": found.available_bytes,
        "floor_bytes": found.floor_bytes,
        "left_bytes": found.usable_bytes - pool["reserved_bytes"],
    }


def sums_by(groups: Iterable[TensorGroup], label: Callable[[TensorGroup], _Label]) -> dict[_Label, Sums]:
    """Sums over groups alike, in the file's order."""
    sums: dict[_Label, Sums] = {}
    for group in groups:
        so_far = sums.get(label(group), Sums())
        sums[label(group)] = Sums(
            n_tensors=so_far.n_tensors + group.n_tensors,
            n_params=so_far.n_params + group.n_params,
            bytes=so_far.bytes + group.n_bytes,
            repackable_bytes=so_far.repackable_bytes + group.repackable_bytes,
        )
    return sums


def _rows(header: ModelHeader, name: str, label: Callable[[TensorGroup], str | int | None]) -> list[dict[str, object]]:
    return [{name: key, **asdict(sums)} for key, sums in sums_by(header.groups, label).items()]


def _shown(path: str) -> str:
    """A path whose bytes are no text is shown escaped: JSON holds text only."""
    return path.encode(errors="backslashreplace").decode()


def _kv(header: ModelHeader) -> dict[str, object]:
    window = [layer for layer in header.layers if layer.attention is Attention.SLIDING]
    whole = [layer for layer in header.layers if layer.attention is not Attention.SLIDING]
    return {
        "bytes_per_token": _F16_BYTES * sum(layer.k + layer.v + layer.indexer for layer in whole),
        "window_bytes_per_token": _F16_BYTES * sum(layer.k + layer.v + layer.indexer for layer in window),
        "layers": [{"k": layer.k, "v": layer.v, "indexer": layer.indexer} for layer in header.layers],
    }


def _recurrent(header: ModelHeader) -> dict[str, int] | None:
    if header.recurrent is None:
        return None
    blocks = sum(layer.attention in {Attention.RECURRENT, Attention.HYBRID} for layer in header.layers)
    shape = header.recurrent
    return {
        "r": shape.r,
        "s": shape.s,
        "blocks": blocks,
        "bytes_per_sequence": _F32_BYTES * (shape.r + shape.s) * blocks,
    }
