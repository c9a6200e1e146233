"""What encoding one image takes: the compute buffer of a projector's encoder.

Most encoders are one vision transformer (`clip_graph::build_vit` in tools/mtmd/clip.cpp), whose buffer was measured at
llama.cpp 0.5.0 with projectors of the types gemma3, idefics3, qwen2vl, qwen2.5vl and pixtral. With n positions
(patches), in f32 elements a position:

    feed-forward  n_ff + 3 n_embd, 3 n_ff + 3 n_embd with a gate
    attention     5 n_embd; without flash attention 6 n_embd + heads x n
    windows       a mask of n, and of n / 2 while it is cast for flash attention

It equals their figures but for encoders that rotate positions in two dimensions (1.3 n_embd more) and for windows (up
to 4 % less). The engine allocates for a small image when it loads and again when a larger one comes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.values import Certainty
from magnitude_tune.header.projector import EncoderFacts
from magnitude_tune.units import GIB, MIB

__all__ = ["EncoderBytes", "encoder_bytes"]

_MOST_TOKENS: Final = 4096
"""Larger images than this are scaled down by nearly every type; the few that allow more are not reserved for."""
_BATCH_TOKENS: Final = 1024
_AUDIO_POSITIONS: Final = 1500
_ASSUMED_POSITIONS: Final = 4096
_ASSUMED_BYTES: Final = 256 * MIB
_LEAST_ASSUMED: Final = 64 * MIB
_MOST_ASSUMED: Final = GIB
_MAX_SIDE: Final = 16384
_F32_BYTES: Final = 4


class _Type(NamedTuple):
    """How a type sizes images: tokens a side of the first image, most tokens of one; 0 takes all of `image_size`.

    `rotates`: positions in two dimensions. `batches`: slices of an image are encoded together.
    """

    side: int = 0
    most: int = 0
    merge: int = 1
    rotates: bool = False
    batches: bool = False


_FIXED: Final = _Type()
_TYPES: Final = {
    **dict.fromkeys(("mlp", "ldp", "ldpv2", "adapter", "resampler", "gemma3", "idefics3", "janus_pro"), _FIXED),
    **dict.fromkeys(("nemotron_v2_vl", "cogvlm", "granite4_vision", "minicpmv4_6"), _FIXED),
    **dict.fromkeys(("llama4", "step3vl"), _Type(rotates=True)),
    "internvl": _Type(batches=True),
    "lfm2": _Type(16, 256, 2),
    **dict.fromkeys(("qwen2vl_merger", "qwen2.5vl_merger", "qwen2.5o"), _Type(46, 4096, 2)),
    **dict.fromkeys(
        ("qwen3vl_merger", "ling3vl", "glm4v", "glm5v", "dots_ocr", "mimovl", "exaone4_5"), _Type(46, 4096, 2)
    ),
    **dict.fromkeys(("pixtral", "kimivl"), _Type(16, 1024, 1, rotates=True)),
    "lightonocr": _Type(16, 4096, 1, rotates=True),
    "kimik25": _Type(64, 4096, 2, rotates=True),
    "gemma4v": _Type(16, 1120, 3, rotates=True),
    "phi4": _Type(16, 4096, 1),
    "minimax_m3": _Type(16, 576, 2),
    "muse-glimmer": _Type(32, 4096, 2, rotates=True),
    "youtuvl": _Type(16, 4096, 2),
    "paddleocr": _Type(28, 4096, 2),
    "hunyuanvl": _Type(32, 4096, 2),
}
_AUDIO: Final = frozenset({"ultravox", "voxtral", "qwen2a", "qwen3a", "glma", "meralion", "musicflamingo", "qwen2.5o"})


class EncoderBytes(NamedTuple):
    """The buffer after loading, and the one for the largest image, with what that rests on.

    `assumed` says in words what of the file is not known; None where the figures follow from it.
    """

    at_start: int
    largest: int
    certainty: Certainty
    rule: str
    assumed: str | None = None


def encoder_bytes(encoder: EncoderFacts, flash_attn: bool) -> EncoderBytes:
    """The compute buffer of one encoder; where the file says too little, a labelled reserve that is never 0."""
    if not (encoder.n_embd and encoder.n_ff and encoder.head_count):
        return _assumed(encoder, "it does not say how wide its encoder is")
    if encoder.modality == "audio":
        if encoder.projector_type not in _AUDIO:
            return _assumed(encoder, f"its type {encoder.projector_type[:40]!r} is not known here")
        n_bytes = _F32_BYTES * _AUDIO_POSITIONS * _width(encoder, _AUDIO_POSITIONS, flash_attn, rotates=False)
        return EncoderBytes(n_bytes, n_bytes, "estimated", "30 s of audio, 1500 positions, as an image of as many")
    known = _TYPES.get(encoder.projector_type)
    if known is None:
        return _assumed(encoder, f"its type {encoder.projector_type[:40]!r} is not known here")
    if not (0 < encoder.image_size <= _MAX_SIDE and encoder.patch_size):
        return _assumed(encoder, "it names no image_size")
    start, largest = _positions(encoder, known)
    at_start, at_largest = (
        _F32_BYTES * n * _width(encoder, n, flash_attn, rotates=known.rotates) for n in (start, largest)
    )
    if known.batches:
        tokens = max(1, largest // max(1, encoder.n_merge) ** 2)
        at_largest *= max(1, _BATCH_TOKENS // tokens)
    rule = f"vision transformer over {start} patches when it loads, {largest} of the largest image"
    return EncoderBytes(at_start, max(at_start, at_largest), "bounded", rule)


def _positions(encoder: EncoderFacts, known: _Type) -> tuple[int, int]:
    """Patches of the first and of the largest image."""
    if not known.side:
        n = (encoder.image_size // encoder.patch_size) ** 2 + 1
        return n, n
    merge = encoder.n_merge or known.merge
    most = known.most * merge**2
    if encoder.max_pixels:
        most = min(_MOST_TOKENS * merge**2, encoder.max_pixels // encoder.patch_size**2)
    start = (known.side * merge) ** 2
    return start, max(start, most)


def _width(encoder: EncoderFacts, n: int, flash_attn: bool, *, rotates: bool) -> int:
    """Elements that live at once, a position."""
    n_embd, n_ff = encoder.n_embd, encoder.n_ff
    spare = 13 * n_embd // 10 if rotates else 0
    inner = 3 * n_ff if encoder.gated else n_ff
    attention = 5 * n_embd + spare if flash_attn else 6 * n_embd + encoder.head_count * n
    if not encoder.windowed:
        return max(inner + 3 * n_embd + spare, attention)
    hole = min(n // 2, n_ff) if flash_attn else 0
    return n + max(inner + 3 * n_embd + spare - hole, attention + (n // 2 if flash_attn else 0))


def _assumed(encoder: EncoderFacts, why: str) -> EncoderBytes:
    n_bytes = _ASSUMED_BYTES
    if encoder.n_embd and encoder.n_ff:
        n_bytes = _F32_BYTES * _ASSUMED_POSITIONS * _width(encoder, _ASSUMED_POSITIONS, True, rotates=True)
    n_bytes = min(max(n_bytes, _LEAST_ASSUMED), _MOST_ASSUMED)
    return EncoderBytes(n_bytes // 4, n_bytes, "estimated", f"fallback reserve: {why}", why)
