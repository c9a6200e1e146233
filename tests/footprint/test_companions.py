"""Projector, draft model and drafting blocks: field reports B10 and B15, and what every companion must hold to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.footprint.companions import Beside, with_companions
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.projector import encoder_bytes
from magnitude_tune.footprint.values import Footprint, FootprintModel
from magnitude_tune.header.projector import EncoderFacts, ProjectorFacts
from magnitude_tune.header.values import Attention, ModelHeader, Role
from magnitude_tune.request import Companions, Settings
from magnitude_tune.units import GIB, MIB

MODEL_BYTES, PROJECTOR_BYTES, KV_BYTES_PER_TOKEN = 558772480, 207346528, 12288
GEMMA3 = EncoderFacts("vision", "gemma3", 1152, 4304, 16, 896, 14, 4, 0, False, False)


def total(footprint: Footprint, name: str, device: str | None = None) -> int:
    """Reserved bytes of the terms of that name."""
    return sum(term.reserved_bytes for term in footprint.terms if term.name == name and device in (None, term.device))


def encoder(**changes: Any) -> EncoderFacts:
    """The vision tower of Gemma 3, changed."""
    return GEMMA3._replace(**changes)


def small_model(make: SimpleNamespace) -> ModelHeader:
    """The reported model: 558772480 B of weights, 12288 B of KV a token."""
    layers = [make.layer(Attention.FULL, 8, 2, 128)] * 12
    header: ModelHeader = make.header(layers, [make.group(0, Role.DENSE_FFN, MODEL_BYTES)])
    return header


def fitted(model: FootprintModel, settings: Any, budget_bytes: int) -> int:
    """The largest context, in steps of 512, whose terms named by the report fit the budget."""
    named = ("weights", "kv_cache", "projector", "projector_compute")
    for n_ctx in range(131072, 0, -512):
        footprint = model.footprint(settings(n_ctx=n_ctx))
        if sum(total(footprint, name) for name in named) <= budget_bytes:
            return n_ctx
    return 0


def test_b10_a_projector_takes_its_bytes_from_the_context(make: SimpleNamespace) -> None:
    """Where 111616 tokens fitted, the projector's weights leave 94720; what it computes in takes its share besides."""
    header, machine = small_model(make), make.machine()
    base = footprint_model(header, machine, None)
    # What else the reported engine held of its 2 GiB.
    budget = 2 * GIB - (2 * GIB - MODEL_BYTES - 111616 * KV_BYTES_PER_TOKEN)
    assert fitted(base, make.settings, budget) == 111616
    projector = ProjectorFacts("mmproj.gguf", PROJECTOR_BYTES, ())
    beside = Beside(Companions(mmproj="mmproj.gguf"), projector)
    weights_only = with_companions(base, header, machine, None, beside)
    assert fitted(weights_only, make.settings, budget) == 94720
    with_encoder = beside._replace(projector=projector._replace(encoders=(GEMMA3,)))
    whole = with_companions(base, header, machine, None, with_encoder)
    compute = total(whole.footprint(make.settings()), "projector_compute")
    assert 100 * MIB < compute < 200 * MIB
    assert fitted(whole, make.settings, budget) == pytest.approx(94720 - compute / KV_BYTES_PER_TOKEN, abs=512)


@pytest.mark.parametrize(
    "odd",
    [
        encoder(image_size=0),
        encoder(projector_type="made_up_next_year"),
        encoder(projector_type=""),
        encoder(patch_size=0),
        encoder(n_embd=0, n_ff=0),
        encoder(image_size=1 << 24, patch_size=1),
        encoder(modality="audio", projector_type="unheard_of"),
        encoder(n_embd=1 << 24, n_ff=1 << 24, image_size=0),
    ],
)
def test_b10_what_a_projector_does_not_say_is_a_labelled_reserve(odd: EncoderFacts) -> None:
    """A missing image size or an unknown type is neither 0 nor 10 GiB, is called a fallback, and is an estimate."""
    size = encoder_bytes(odd, True)
    assert 64 * MIB <= size.largest <= GIB
    assert 0 < size.at_start < size.largest
    assert size.certainty == "estimated"
    assert size.assumed
    assert size.rule.startswith("fallback reserve: ")


@pytest.mark.parametrize("offload", [True, False])
def test_b10_without_offload_the_projector_is_charged_to_the_host(make: SimpleNamespace, offload: bool) -> None:
    """A projector lies on the first accelerator whatever the model offloads, and with no_mmproj_offload in host RAM."""
    machine = make.machine([make.device("CUDA0", "cuda", "vram0"), make.device("CUDA1", "cuda", "vram1")])
    header = small_model(make)
    beside = Beside(
        Companions(mmproj="m", no_mmproj_offload=not offload), ProjectorFacts("m", PROJECTOR_BYTES, (GEMMA3,))
    )
    model = with_companions(footprint_model(header, machine, None), header, machine, None, beside)
    footprint = model.footprint(make.settings())
    where = "CUDA0" if offload else "CPU"
    assert total(footprint, "projector", where) == total(footprint, "projector") == PROJECTOR_BYTES
    assert {term.device for term in footprint.terms if term.name == "projector_compute"} == {where}


@pytest.mark.parametrize(
    ("facts", "flash_attn", "mib"),
    [
        (encoder(n_embd=256, n_ff=1024, head_count=4), True, 28.00),
        (encoder(n_embd=256, n_ff=1024, head_count=4), False, 280.00),
        (encoder(n_embd=512, n_ff=512, head_count=8, image_size=448), True, 10.00),
        (encoder(n_embd=512, n_ff=512, head_count=8, image_size=448), False, 44.00),
        (encoder(n_embd=256, n_ff=2048, head_count=4, image_size=448), True, 11.00),
        (GEMMA3, True, 121.25),
        (GEMMA3, False, 1132.00),
        (
            encoder(projector_type="idefics3", n_embd=768, n_ff=3072, head_count=12, image_size=512, patch_size=16),
            True,
            21.0,
        ),
    ],
)
def test_fixed_sizes_equal_the_engines_buffers(facts: EncoderFacts, flash_attn: bool, mib: float) -> None:
    """Encoders for images of one size: the engine's printed compute buffer (llama.cpp 0.5.0), within 1 %."""
    size = encoder_bytes(facts, flash_attn)
    assert size.at_start == size.largest
    assert size.largest / MIB == pytest.approx(mib, rel=0.01)
    assert (size.certainty, size.assumed) == ("bounded", None)


@pytest.mark.parametrize(
    ("facts", "flash_attn", "mib"),
    [
        (("qwen2vl_merger", 256, 1024, 4, 560, 14, False, False), True, 52.18),
        (("qwen2vl_merger", 1280, 5120, 16, 560, 14, False, False), True, 267.08),
        (("qwen2vl_merger", 1280, 5120, 16, 560, 14, False, False), False, 4598.27),
        (("qwen2.5vl_merger", 256, 2048, 4, 560, 14, True, True), True, 445.59),
        (("qwen2.5vl_merger", 1280, 3420, 16, 560, 14, True, True), True, 594.37),
        (("pixtral", 1024, 4096, 16, 1024, 16, True, False), True, 16.29),
        (("pixtral", 1024, 4096, 16, 1024, 16, False, False), True, 8.29),
    ],
)
def test_images_of_any_size_start_with_the_engines_buffer(facts: tuple[Any, ...], flash_attn: bool, mib: float) -> None:
    """Images of any size: it starts near the printed buffer, never under by 2 %, and reserves for larger ones."""
    kind, n_embd, n_ff, heads, image, patch, gated, windowed = facts
    size = encoder_bytes(
        EncoderFacts("vision", kind, n_embd, n_ff, heads, image, patch, 0, 0, gated, windowed), flash_attn
    )
    assert 0.98 * mib <= size.at_start / MIB <= 1.12 * mib
    assert size.largest > size.at_start


def hybrid_with_drafting_block(make: SimpleNamespace) -> ModelHeader:
    """65 blocks, the last of them for drafting, every fourth of the others attending with 4 KV heads of 256."""
    layers = [
        make.layer(Attention.FULL, 16, 4, 256) if il % 4 == 3 else make.layer(Attention.RECURRENT, 0, 0, 0)
        for il in range(64)
    ]
    layers.append(make.layer(Attention.NONE, 16, 0, 0))
    groups = [make.group(block, Role.ATTENTION, 100) for block in range(64)]
    groups += [make.group(64, Role.UNUSED, 250), make.group(None, Role.OUTPUT, 7)]
    header: ModelHeader = make.header(layers, groups, nextn_predict_layers=1, context_length=262144)
    return header


def test_b15_drafting_with_own_blocks_adds_one_layer(make: SimpleNamespace) -> None:
    """Trunk KV on 16 layers; 544.0 MiB more at q8_0 only when drafting: 17/16 of the trunk. Full offload is 66."""
    header = hybrid_with_drafting_block(make)
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    base = footprint_model(header, machine, None)
    model = with_companions(base, header, machine, None, Beside(Companions(spec_type="draft-mtp")))
    settings: Settings = make.settings(
        n_gpu_layers=header.all_layers, devices=("CUDA0",), n_ctx=262144, type_k="q8_0", type_v="q8_0"
    )
    assert header.all_layers == 66
    trunk = total(base.footprint(settings), "kv_cache")
    assert trunk == 16 * 544 * MIB
    assert not [term for term in base.footprint(settings).terms if term.name.startswith("mtp")]
    drafting = model.footprint(settings)
    kept = [term for term in drafting.terms if term.name == "mtp_kv_cache"]
    assert [(term.device, term.reserved_bytes) for term in kept] == [("CUDA0", 544 * MIB)]
    assert (trunk + kept[0].reserved_bytes) * 16 == trunk * 17
    weights = [term for term in drafting.terms if term.name == "mtp_weights"]
    assert [(term.device, term.reserved_bytes) for term in weights] == [("CUDA0", 250)]


@pytest.mark.parametrize(("n_gpu_layers", "device"), [(0, "CPU"), (1, "CPU"), (2, "CUDA0"), (66, "CUDA0")])
def test_b15_the_drafting_block_lies_where_its_layer_lies(
    make: SimpleNamespace, n_gpu_layers: int, device: str
) -> None:
    """The output layer is offloaded first, the drafting block second."""
    header = hybrid_with_drafting_block(make)
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    model = with_companions(
        footprint_model(header, machine, None), header, machine, None, Beside(Companions(spec_type="draft-mtp"))
    )
    devices = ("CUDA0",) if n_gpu_layers else ()
    footprint = model.footprint(make.settings(n_gpu_layers=n_gpu_layers, devices=devices))
    assert {t.device for t in footprint.terms if t.name in ("mtp_weights", "mtp_kv_cache")} == {device}


@pytest.mark.parametrize(("ggml_version", "mib"), [("0.20.0", 5.3125), ("0.25.3", 1.0625), (None, 1.0625)])
def test_older_builds_cache_every_block_once_more(make: SimpleNamespace, ggml_version: str | None, mib: float) -> None:
    """glm4moe of 5 blocks, 2 slots, 4096 tokens at q8_0: 5.31 MiB printed at ggml 0.20.0, one block's share since."""
    layers = [make.layer(Attention.FULL, 4, 2, 64)] * 4 + [make.layer(Attention.NONE, 4, 0, 0)]
    header, machine = make.header(layers, nextn_predict_layers=1), make.machine()
    engine = replace(make.engine(), ggml_version=ggml_version)
    beside = Beside(Companions(spec_type="draft-mtp", type_k_draft="q8_0", type_v_draft="q8_0"))
    model = with_companions(footprint_model(header, machine, engine), header, machine, engine, beside)
    footprint = model.footprint(make.settings(n_ctx=4096, n_parallel=2, n_batch=512))
    assert total(footprint, "mtp_kv_cache") == mib * MIB


def test_b15_a_draft_adds_weights_cache_and_compute(make: SimpleNamespace) -> None:
    """A 7 GB draft beside a 16 GB model: all its bytes, KV over the model's context in the model's type, compute."""
    layers = [make.layer(Attention.FULL, 32, 8, 128)] * 32
    header = make.header(layers, [make.group(0, Role.DENSE_FFN, 16_000_000_000)])
    draft = make.header(layers[:16], [make.group(0, Role.DENSE_FFN, 7_000_000_000)])
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    base = footprint_model(header, machine, None)
    beside = Beside(Companions(model_draft="draft.gguf", spec_type="draft-simple"), None, draft)
    model = with_companions(base, header, machine, None, beside)
    settings = make.settings(n_gpu_layers=33, devices=("CUDA0",), n_ctx=8192, type_k="q8_0", type_v="q8_0")
    footprint = model.footprint(settings)
    assert 168 * draft.n_vocab <= total(footprint, "draft_process") < MIB
    assert total(footprint, "draft_weights") == 7_000_000_000
    assert total(footprint, "draft_kv_cache", "CUDA0") * 2 == total(footprint, "kv_cache", "CUDA0")
    assert total(footprint, "draft_compute") > 0
    assert total(footprint, "process") == total(base.footprint(settings), "process")
    on_host = with_companions(
        base, header, machine, None, beside._replace(wanted=beside.wanted._replace(n_gpu_layers_draft=0))
    ).footprint(settings)
    assert total(on_host, "draft_weights", "CPU") == 7_000_000_000
    for terms in (footprint.terms, on_host.terms):
        drafted = [(term.name, term.device) for term in terms if term.name.startswith("draft")]
        assert len(set(drafted)) == len(drafted)


def test_sums_are_those_of_the_terms(make: SimpleNamespace) -> None:
    """`reserved` and `reserved_by_device` say what the terms add up to, with everything beside the model at once."""
    header = hybrid_with_drafting_block(make)
    machine = make.machine([make.device("CUDA0", "cuda", "vram0"), make.device("CUDA1", "cuda", "vram1")])
    beside = Beside(
        Companions(mmproj="m", model_draft="d", spec_type="draft-simple"),
        ProjectorFacts("m", PROJECTOR_BYTES, (GEMMA3,)),
        make.gemma3_270m(),
    )
    base = footprint_model(header, machine, None)
    model = with_companions(base, header, machine, None, beside)
    for settings in (
        make.settings(),
        make.settings(n_gpu_layers=20, devices=("CUDA1",)),
        make.settings(n_gpu_layers=66, devices=("CUDA0", "CUDA1"), tensor_split=(30, 36), flash_attn=False),
    ):
        footprint = model.footprint(settings)
        assert model.reserved(settings) == tuple(footprint.reserved_of_pool(pool) for pool in model.pools)
        assert model.reserved_by_device(settings) == tuple(footprint.reserved_of_device(d) for d in model.devices)
        assert sum(model.reserved(settings)) > sum(base.reserved(settings))
        for term in footprint.terms:
            assert 0 <= term.low_bytes <= term.resident_bytes <= term.high_bytes


@pytest.mark.parametrize("own_blocks", [True, False])
@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"n_ctx": 4096}, {"n_ctx": 5000}),
        ({"n_ubatch": 128}, {"n_ubatch": 512}),
        ({"n_parallel": 1, "kv_unified": True}, {"n_parallel": 4, "kv_unified": True}),
        ({"type_k": "q4_0", "type_v": "q4_0"}, {"type_k": "q8_0", "type_v": "q8_0"}),
        ({"type_k": "q8_0", "type_v": "q8_0"}, {"type_k": "f16", "type_v": "f16"}),
    ],
)
def test_more_of_anything_lowers_no_term(
    make: SimpleNamespace, own_blocks: bool, less: dict[str, Any], more: dict[str, Any]
) -> None:
    """More context, slots, batch or bits of the cache never lower a term of what runs beside the model.

    Compute buffers are left out where only the bits differ: a quantised cache is computed with in more steps.
    """
    header, machine = hybrid_with_drafting_block(make), make.machine()
    beside = Beside(Companions(spec_type="draft-mtp"))
    if not own_blocks:
        beside = Beside(Companions(model_draft="d", spec_type="draft-simple"), None, make.gemma3_270m())
    model = with_companions(footprint_model(header, machine, None), header, machine, None, beside)
    small, large = model.footprint(make.settings(**less)), model.footprint(make.settings(**more))
    names = {term.name for term in small.terms if term.name.startswith(("draft", "mtp"))}
    if "type_k" in less:
        names -= {"draft_compute", "mtp_compute"}
    assert names
    assert all(total(small, name) <= total(large, name) for name in names)


@given(
    kind=st.sampled_from(["gemma3", "qwen2.5vl_merger", "pixtral", "internvl", "", "odd"]),
    counts=st.tuples(*[st.integers(0, 1 << 24)] * 7),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    modality=st.sampled_from(["vision", "audio"]),
)
def test_nothing_that_a_projector_can_say_breaks_the_plan(
    kind: str, counts: tuple[int, ...], flags: tuple[bool, ...], modality: Any
) -> None:
    """Whatever the counts are, there is a reserve above 0 and its figures are in order."""
    size = encoder_bytes(EncoderFacts(modality, kind, *counts, *flags[:2]), flags[2])
    assert 0 < size.at_start <= size.largest
