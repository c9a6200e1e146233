"""Which blocks slide and which are recurrent, by architecture.

From llama.cpp 0.5.0: src/models/*.cpp (load_arch_hparams), src/llama-hparams.cpp (set_swa_pattern).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.header.facts import Facts

__all__ = ["ENCODERS", "HYBRID_BLOCKS", "NO_CACHE", "recurrent_blocks", "sliding_blocks"]


class _Sliding(NamedTuple):
    """Defaults of one architecture.

    Args:
        period: of `period` blocks all but the last slide; 0: all blocks do.
        dense_first: the first of the period is the full one, not the last.
        window: tokens where the file has no window key; 0: then nothing slides.
        fixed_window: tokens whatever the key says, unless it says 0.
        only_blocks: slides only in the model with that many blocks.
    """

    period: int
    dense_first: bool = False
    window: int = 0
    fixed_window: int = 0
    only_blocks: int = 0


_SLIDING: Final = {
    "afmoe": _Sliding(4),
    "cohere2": _Sliding(4),
    "cohere2moe": _Sliding(4, dense_first=True),
    "deepseek4": _Sliding(0),
    "exaone-moe": _Sliding(4, window=128),
    "exaone4": _Sliding(4, window=4096, only_blocks=64),
    "gemma-embedding": _Sliding(6),
    "gemma2": _Sliding(2, window=4096),
    "gemma3": _Sliding(6),
    "gemma3n": _Sliding(5),
    "gpt-oss": _Sliding(2),
    "laguna": _Sliding(4, dense_first=True),
    "lfm2": _Sliding(0),
    "llama4": _Sliding(4, window=8192, fixed_window=8192),
    "mellum": _Sliding(4),
    "modern-bert": _Sliding(3, dense_first=True),
    "muse-glimmer": _Sliding(4),
    "olmo2": _Sliding(4),
    "plamo3": _Sliding(8),
    "smallthinker": _Sliding(4, dense_first=True, fixed_window=4096),
}

_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HYBRID_BLOCKS: Final = frozenset({"falcon-h1"})
"""Architectures whose every block has attention and a recurrent state."""

# Every n-th block attends in full, the others are recurrent.
_INTERVALS: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_STATE_KEYS: Final = ("ssm.state_size", "ssm.conv_kernel", "kda.head_dim", "wkv.head_size", "shortconv.l_cache")

ENCODERS: Final = frozenset(
    {"bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert"}
    | {"nomic-bert", "nomic-bert-moe", "wavtokenizer-dec"}
)
"""Architectures without an output matrix, tied or not."""

NO_CACHE: Final = ENCODERS | {"dream", "gemma-embedding", "llada", "llada-moe", "rnd1"}
"""Encoders and diffusion models: the engine gives them no KV cache (llama_model::create_memory)."""


def sliding_blocks(facts: Facts, n_blocks: int, n_trunk: int) -> tuple[int, tuple[bool, ...]]:
    """The window in tokens and which blocks slide; 0 and none where nothing does.

    The pattern key may be a period or one truth per block; many files lack it, so each architecture has a default.
    An architecture without a default slides only where its file brings a pattern: the engine ignores a bare window.
    """
    none = (0, (False,) * n_blocks)
    rule = _SLIDING.get(facts.architecture)
    window = facts.count("attention.sliding_window", rule.window if rule else 0)
    if not window or (rule and rule.only_blocks not in {0, n_trunk}):
        return none
    if rule and rule.fixed_window:
        window = rule.fixed_window
    name = "attention.sliding_window_pattern"
    blocks = facts.pattern(name, n_trunk)
    if blocks is None:
        if rule is None and not facts.has(name):
            return none
        period = facts.count(name, rule.period if rule else 0)
        blocks = _periodic(n_trunk, period, dense_first=bool(rule and rule.dense_first))
    blocks = (blocks + (False,) * n_blocks)[:n_blocks]
    return (window, blocks) if any(blocks) else none


def recurrent_blocks(
    facts: Facts, n_blocks: int, n_trunk: int, head_count_kv: tuple[int, ...], n_ff: tuple[int, ...]
) -> tuple[bool, ...]:
    """Which blocks keep a recurrent state.

    Raises:
        HeaderError: the interval of full attention is 0.
    """
    if facts.architecture in _RECURRENT | HYBRID_BLOCKS:
        return (True,) * n_blocks
    told = facts.pattern("attention.recurrent_layers", n_trunk)
    if told is not None:
        return told + (False,) * (n_blocks - n_trunk)
    if facts.architecture in _INTERVALS or facts.has("full_attention_interval"):
        interval = facts.count("full_attention_interval", _INTERVALS.get(facts.architecture, 0))
        if not interval:
            raise facts.wrong(f"{facts.key('full_attention_interval')!r} is 0")
        return tuple(block < n_trunk and (block + 1) % interval != 0 for block in range(n_blocks))
    if not any(facts.has(name) for name in _STATE_KEYS):
        return (False,) * n_blocks
    # nemotron_h has a third kind of block, MLP only, which it tells by its feed-forward width.
    exclusive = facts.architecture.startswith("nemotron_h")
    return tuple(
        block < n_trunk and not heads and not (exclusive and width)
        for block, (heads, width) in enumerate(zip(head_count_kv, n_ff, strict=True))
    )


def _periodic(n_trunk: int, period: int, dense_first: bool) -> tuple[bool, ...]:
    if not period:
        return (True,) * n_trunk
    full = 0 if dense_first else period - 1
    return tuple(block % period != full for block in range(n_trunk))
