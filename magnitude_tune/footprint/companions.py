"""What runs beside the model in the same server: a projector, a draft model, the model's own drafting blocks.

Rules of llama.cpp 0.5.0: `common_base_params_to_speculative` and `common_speculative_init` (common/speculative.cpp):
the draft gets the context, the batch sizes and the slots of the model, and one row of logits a slot; drafting with the
model's own blocks opens a second context that caches those blocks only (`create_memory` in src/llama-model.cpp). A
projector goes whole to the first accelerator, whatever the model offloads (`clip_ctx` in tools/mtmd/clip.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.values import EngineFacts, Fingerprint
from magnitude_tune.footprint.batch import Cells, cells
from magnitude_tune.footprint.builds import BuildRules, build_rules
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.parts import HOST, Part
from magnitude_tune.footprint.placement import Placement, place_layers
from magnitude_tune.footprint.projector import encoder_bytes
from magnitude_tune.footprint.values import Footprint, FootprintModel, Term
from magnitude_tune.header.projector import ProjectorFacts
from magnitude_tune.header.types import row_bytes
from magnitude_tune.header.values import ModelHeader, Role
from magnitude_tune.request import ALL_LAYERS, Companions, Settings

__all__ = ["Beside", "with_companions"]

_DRAFTED_TOKENS: Final = 3
"""llama-server's default for tokens drafted at once: each is one more row of logits to check."""
_F32_BYTES: Final = 4

_CONTEXT: Final = attrgetter(
    *("devices", "tensor_split", "n_ctx", "n_parallel", "kv_unified", "n_batch", "n_ubatch"),
    *("flash_attn", "type_k", "type_v", "repack", "load_mode", "ctx_checkpoints"),
)
_OF_THE_DRAFT: Final = frozenset(
    {"weights", "repacked", "kv_cache", "recurrent_state", "checkpoints", "compute", "output", "work"}
)
"""What a draft adds, each as a term of its own; its prompt cache and its devices' overhead are the model's already,
and it is loaded when what the model needs for loading is free again."""


class Beside(NamedTuple):
    """What was read of the companions' files, and how they are to run."""

    wanted: Companions
    projector: ProjectorFacts | None = None
    draft: ModelHeader | None = None

    @property
    def uses_own_blocks(self) -> bool:
        """Whether the model drafts with its own blocks."""
        return self.wanted.spec_type == "draft-mtp" and self.draft is None

    def named(self, engine: EngineFacts) -> EngineFacts:
        """The engine under a build of its own where it drafts: what it does then says nothing of it without."""
        if not self.wanted.drafts:
            return engine
        by = "mtp" if self.draft is None else self.draft.content_hash[:8]
        return replace(engine, build=f"{engine.build}+draft-{by}")


def with_companions(
    base: FootprintModel, header: ModelHeader, machine: Fingerprint, engine: EngineFacts | None, beside: Beside
) -> FootprintModel:
    """The model's footprint with that of everything beside it; `machine` and `engine` are those of `base`."""
    return _WithCompanions(base, header, machine, engine, beside)


class _Extra(NamedTuple):
    terms: tuple[Term, ...]
    by_pool: tuple[int, ...]
    by_device: tuple[int, ...]


class _WithCompanions:
    """A footprint and the terms of companions, remembered under the settings that they depend on."""

    def __init__(
        self,
        base: FootprintModel,
        header: ModelHeader,
        machine: Fingerprint,
        engine: EngineFacts | None,
        beside: Beside,
    ) -> None:
        self._base, self._header, self._machine, self._beside = base, header, machine, beside
        self._places = {device.name: place for place, device in enumerate(machine.devices, start=1)}
        self._draft = None if beside.draft is None else footprint_model(beside.draft, machine, engine)
        self._bare = None
        if beside.draft is not None:
            self._bare = footprint_model(replace(beside.draft, n_vocab=0, n_merges=0, n_tensors=0), machine, engine)
        build = build_rules(engine.ggml_version if engine else None)
        self._own = _OwnBlocks(header, build) if beside.uses_own_blocks else None
        self._extras: dict[tuple[object, ...], _Extra] = {}

    @property
    def pools(self) -> tuple[str, ...]:
        """Pool names, in the order of `reserved`."""
        return self._base.pools

    @property
    def devices(self) -> tuple[str, ...]:
        """Accelerators, in the order of `reserved_by_device`."""
        return self._base.devices

    def reserved(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per pool."""
        return _added(self._base.reserved(settings), self._extra(settings).by_pool)

    def reserved_by_device(self, settings: Settings) -> tuple[int, ...]:
        """Reserved bytes per accelerator."""
        return _added(self._base.reserved_by_device(settings), self._extra(settings).by_device)

    def footprint(self, settings: Settings) -> Footprint:
        """Every term."""
        return Footprint((*self._base.footprint(settings).terms, *self._extra(settings).terms))

    def _extra(self, settings: Settings) -> _Extra:
        # A draft is offloaded whole or not at all; only the model's own blocks lie where its layers lie.
        layers = (settings.n_gpu_layers, settings.n_cpu_moe) if self._own else settings.n_gpu_layers > 0
        found = self._extras.get(key := (layers, _CONTEXT(settings)))
        if found is None:
            terms = (*self._projector_terms(settings), *self._draft_terms(settings), *self._own_terms(settings))
            together = Footprint(terms)
            found = _Extra(
                terms,
                tuple(map(together.reserved_of_pool, self.pools)),
                tuple(map(together.reserved_of_device, self.devices)),
            )
            self._extras[key] = found
        return found

    def _projector_terms(self, settings: Settings) -> Iterable[Term]:
        projector = self._beside.projector
        if projector is None:
            return
        place = 1 if self._machine.devices and not self._beside.wanted.no_mmproj_offload else HOST
        n_bytes = projector.n_bytes
        yield self._term(Part("projector", place, n_bytes, n_bytes, "exact", _PROJECTOR_RULE))
        for encoder in projector.encoders:
            size = encoder_bytes(encoder, settings.flash_attn)
            part = Part(
                "projector_compute",
                place,
                size.largest,
                size.at_start,
                size.certainty,
                f"{encoder.modality}: {size.rule}",
                size.at_start,
                size.largest,
            )
            yield self._term(part)

    def _draft_terms(self, settings: Settings) -> Iterable[Term]:
        if self._draft is None or self._bare is None or self._beside.draft is None:
            return
        wanted = self._beside.wanted
        layers = wanted.n_gpu_layers_draft
        if layers is None:
            layers = ALL_LAYERS if settings.n_gpu_layers else 0
        own = replace(
            settings,
            n_gpu_layers=min(layers, self._beside.draft.all_layers),
            type_k=wanted.type_k_draft or settings.type_k,
            type_v=wanted.type_v_draft or settings.type_v,
            n_cpu_moe=0,
            cache_ram=0,
        )
        terms = self._draft.footprint(own).terms
        for term in terms:
            if term.name in _OF_THE_DRAFT:
                yield term._replace(name=f"draft_{term.name}", rule=f"draft: {term.rule}")
        yield from _tables(terms, self._bare.footprint(own).terms)
        yield self._checked_rows(settings)

    def _own_terms(self, settings: Settings) -> Iterable[Term]:
        if self._own is None:
            return
        placement = self._placement(settings)
        size = cells(settings.n_ctx, settings.n_parallel, settings.kv_unified, settings.n_ubatch, 0)
        wanted = self._beside.wanted
        type_k, type_v = wanted.type_k_draft or settings.type_k, wanted.type_v_draft or settings.type_v
        for place, blocks in _blocks_by_place(placement, self._own.blocks):
            weights = sum(self._own.weights(block) for block in blocks)
            part = Part("mtp_weights", place, weights, weights, "exact", "weights of the drafting blocks")
            if place == HOST and settings.load_mode == "mmap":
                # What is mapped for the model may hold them already.
                part = part._replace(certainty="bounded", low=0, high=weights)
            yield self._term(part)
        for place, blocks in _blocks_by_place(placement, self._own.cached):
            kept = sum(self._own.kv_bytes(block, size, type_k, type_v) for block in blocks)
            yield self._term(Part("mtp_kv_cache", place, kept, kept, "exact", self._own.kv_rule))
        for term in self._base.footprint(settings).terms:
            if term.name in ("compute", "output"):
                # One block of the same widths: its graph needs no more than the whole model's.
                yield term._replace(
                    name=f"mtp_{term.name}",
                    rule=f"{term.name} of the drafting context: at most the model's own",
                    certainty="estimated",
                    low_bytes=0,
                    high_bytes=term.reserved_bytes,
                )
        yield self._checked_rows(settings)

    def _checked_rows(self, settings: Settings) -> Term:
        rows = settings.n_parallel * _DRAFTED_TOKENS * self._header.n_vocab * _F32_BYTES
        return self._term(Part("draft_logits", HOST, rows, rows, "estimated", _ROWS_RULE, 0, rows))

    def _placement(self, settings: Settings) -> Placement:
        free = {device.name: device.free_bytes or 0 for device in self._machine.devices}
        return place_layers(
            self._header.block_count,
            settings.n_gpu_layers,
            [self._places[name] for name in settings.devices],
            settings.tensor_split,
            [free[name] for name in settings.devices],
        )

    def _term(self, part: Part) -> Term:
        if part.place == HOST:
            return part.term("CPU", self._machine.host_pool.name)
        device = self._machine.devices[part.place - 1]
        return part.term(device.name, device.pool)


class _OwnBlocks:
    """Weights and KV of the blocks that predict further tokens; plain generation neither loads nor caches them."""

    def __init__(self, header: ModelHeader, build: BuildRules) -> None:
        first = max(0, header.block_count - max(0, header.nextn_predict_layers))
        self.blocks = range(first, header.block_count)
        whole = build.mtp_caches_trunk and header.recurrent is None
        self.cached = range(header.block_count) if whole else self.blocks
        self.kv_rule = "KV of all blocks once more, every cell" if whole else "KV of the drafting blocks, every cell"
        self._layers = header.layers
        # A block that generation does not run is said to cache nothing: its heads are those of the last one that does.
        self._attending = next((layer for layer in reversed(header.layers) if layer.k), None)
        # What stands outside the blocks belongs to the last one.
        self._weights = dict.fromkeys(self.blocks, 0)
        for group in header.groups:
            block = self.blocks[-1] if group.block is None and self.blocks else group.block
            if block in self._weights and group.role is Role.UNUSED:
                self._weights[block] += group.n_bytes

    def weights(self, block: int) -> int:
        """Bytes of one block."""
        return self._weights[block]

    def kv_bytes(self, block: int, size: Cells, type_k: str, type_v: str) -> int:
        """Bytes that one block caches."""
        layer = self._layers[block] if block < len(self._layers) else None
        if layer is None or not layer.k:
            layer = self._attending
        if layer is None:
            return 0
        return size.full * size.streams * (row_bytes(type_k, layer.k) + row_bytes(type_v, layer.v))


def _blocks_by_place(placement: Placement, blocks: range) -> Iterable[tuple[int, range]]:
    """The blocks of `blocks` at each place that holds any."""
    spans = [(HOST, 0, placement.host_blocks), *((span.place, span.first, span.end) for span in placement.spans)]
    for place, first, end in spans:
        if held := range(max(first, blocks.start), min(end, blocks.stop)):
            yield place, held


def _tables(terms: Iterable[Term], bare: Iterable[Term]) -> Iterable[Term]:
    """What the draft adds to the process: its vocabulary and the tables of its tensors, without another base."""
    for own, base in zip(_named(terms, "process"), _named(bare, "process"), strict=True):
        yield own._replace(
            name="draft_process",
            rule="draft, vocabulary and tables of its tensors",
            **{
                figure: max(0, getattr(own, figure) - getattr(base, figure))
                for figure in ("reserved_bytes", "resident_bytes", "low_bytes", "high_bytes")
            },
        )


def _named(terms: Iterable[Term], name: str) -> list[Term]:
    return [term for term in terms if term.name == name]


def _added(base: tuple[int, ...], extra: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(sum, zip(base, extra, strict=True)))


_PROJECTOR_RULE: Final = "tensors of the projector file, whole at one place"
_ROWS_RULE: Final = f"4 B x n_vocab x {_DRAFTED_TOKENS} drafted tokens a slot, to be checked by the model"
