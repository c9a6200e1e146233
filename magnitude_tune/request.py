"""What is asked, and what is set: the request of a person and one complete set of engine settings.

Names are llama.cpp's. Pure: raw values in, validated values out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from magnitude_tune.findings import Finding, Place
from magnitude_tune.magnitude import DEFAULT_MAGNITUDE

__all__ = [
    "ALL_LAYERS",
    "DEFAULT_N_CTX",
    "KV_TYPES",
    "NO_COMPANIONS",
    "PLAIN_KV_TYPES",
    "REFERENCE_TURN",
    "Companions",
    "Concession",
    "Given",
    "LoadMode",
    "Pin",
    "Request",
    "Settings",
    "Target",
    "Workload",
    "layers_per_device",
    "padded",
]

LoadMode = Literal["mmap", "none"]
Concession = Literal["kv_quantisation", "smaller_context", "fewer_slots"]

ALL_LAYERS: Final = 1 << 30
"""`n_gpu_layers` of a request that wants every layer on the GPU: 99, -1, `all` and block_count + 1 mean this."""

DEFAULT_N_CTX: Final = 8192
"""Context where none is asked for: min(8192, trained)."""

KV_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types the engine can keep a KV cache in."""

PLAIN_KV_TYPES: Final = frozenset({"f32", "f16", "bf16"})
"""Those of them that are not quantised: without flash attention V can have no other."""

_CELL_PADDING: Final = 256


def padded(n_tokens: int) -> int:
    """Tokens rounded up to the granularity of the engine's cache, 256 cells."""
    return -(-n_tokens // _CELL_PADDING) * _CELL_PADDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One complete set of engine settings; nothing is left to the engine's defaults.

    `n_gpu_layers` counts the output layer: block_count + 1 is everything. `n_ctx` is the total over all slots,
    in tokens. `cache_ram` is llama.cpp's: MiB of host memory for the server's prompt cache; so is `ctx_checkpoints`:
    copies, for each slot, of what cannot be rolled back (sliding windows, recurrent state). `devices` names the
    accelerators used, in the engine's order, and `tensor_split` their shares of the offloaded layers (layers each);
    both are empty where nothing is offloaded, and `tensor_split` for a single device.
    """

    n_gpu_layers: int
    n_threads: int
    n_threads_batch: int
    n_batch: int
    n_ubatch: int
    n_ctx: int
    n_parallel: int = 1
    kv_unified: bool = False
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    load_mode: LoadMode = "mmap"
    repack: bool = False
    cache_ram: int = 0
    ctx_checkpoints: int = 0
    n_cpu_moe: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[int, ...] = ()
    main_gpu: int = 0

    @property
    def n_ctx_slot(self) -> int:
        """Tokens of context that one slot can use: all of them where slots share the cache, else an equal part.

        The engine rounds the whole context, and each part, up to 256 tokens (src/llama-context.cpp).
        """
        if self.kv_unified or self.n_parallel <= 1:
            return self.n_ctx
        return padded(padded(self.n_ctx) // self.n_parallel)


class Companions(NamedTuple):
    """What runs beside the model in the same server, by llama.cpp's names.

    Args:
        mmproj: path of a projector, for images or audio.
        no_mmproj_offload: keep the projector in host memory; otherwise it goes to the first accelerator.
        model_draft: path of a smaller model that drafts tokens.
        spec_type: how tokens are drafted: `draft-simple` by `model_draft`, `draft-mtp` by the model's own blocks.
        n_gpu_layers_draft: layers of the draft on the accelerators.
        type_k_draft, type_v_draft: types of the draft's KV cache.

    None in the last three is decided by the plan; what is launched has none of them left.
    """

    mmproj: str | None = None
    no_mmproj_offload: bool = False
    model_draft: str | None = None
    spec_type: str | None = None
    n_gpu_layers_draft: int | None = None
    type_k_draft: str | None = None
    type_v_draft: str | None = None

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted."""
        return self.model_draft is not None or self.spec_type not in (None, "none")

    @property
    def names(self) -> tuple[str, ...]:
        """The settings that ask for something beside the model."""
        asked = (self.mmproj is not None, self.model_draft is not None, self.spec_type not in (None, "none"))
        return tuple(
            name for name, is_asked in zip(("mmproj", "model_draft", "spec_type"), asked, strict=True) if is_asked
        )


NO_COMPANIONS: Final = Companions()


class Workload(NamedTuple):
    """The reference turn: `n_prompt` tokens read, then `n_gen` tokens written."""

    n_prompt: int = 512
    n_gen: int = 128


REFERENCE_TURN: Final = Workload()


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value as it was read (text, number, boolean or None), and where."""

    raw: object
    place: Place


class Pin(NamedTuple):
    """An explicit setting: the value in our terms, as it was written, and where."""

    name: str
    value: int | str | bool
    written: str
    place: Place


class Target(NamedTuple):
    """`tg>=15`: a quantity of the prediction (pp, tg, ttft_seconds, turn_seconds, ready_seconds) and its bound."""

    quantity: str
    comparison: Literal[">=", "<="]
    bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything a person asked for, validated; what is not asked for is free to be chosen.

    `sources` says for each name where its value came from. `findings` are what reading the values had to say.
    """

    magnitude: float = DEFAULT_MAGNITUDE
    model: str | None = None
    engine: str | None = None
    n_ctx: int | None = None
    n_parallel: int = 1
    workload: Workload = REFERENCE_TURN
    pins: tuple[Pin, ...] = ()
    concessions: tuple[Concession, ...] = ()
    companions: Companions = NO_COMPANIONS
    allow_overcommit: bool = False
    target: Target | None = None
    sources: Mapping[str, Place] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def pin(self, name: str) -> Pin | None:
        """The pin of that setting, if there is one."""
        return next((pin for pin in self.pins if pin.name == name), None)


def layers_per_device(n_layers: int, shares: Sequence[float]) -> tuple[int, ...]:
    """How many of `n_layers` offloaded layers each device gets by `tensor_split`; even shares where all are 0.

    Layer i of n goes to the first device whose cumulative share exceeds i / n (llama.cpp, `load_tensors`).
    """
    parts = [max(0.0, share) for share in shares]
    if sum(parts) <= 0:
        parts = [1.0] * len(parts)
    total, reached, before = sum(parts), 0.0, 0
    counts = []
    for part in parts:
        reached += part
        end = math.ceil(n_layers * reached / total - 1e-9)
        counts.append(end - before)
        before = end
    return tuple(counts)
