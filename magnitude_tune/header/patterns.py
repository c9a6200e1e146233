"""Which blocks slide and which are recurrent, by architecture.

From llama.cpp 0.5.0: src/models/*.cpp (load_arch_hparams), src/llama-hparams.cpp (set_swa_pattern).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.header.facts import Facts

__all__ = [
    "CACHED_PREDICTORS",
    "ENCODERS",
    "HYBRID_BLOCKS",
    "KNOWN",
    "NO_CACHE",
    "logical_blocks",
    "recurrent_blocks",
    "sliding_blocks",
]


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

_TOLD_SLIDING: Final = frozenset(
    {"dflash", "dots3note", "gemma4", "gemma4-assistant", "granite_swa", "maple", "mimo2", "spark2_5", "step35"}
)
"""Architectures whose files must bring the pattern: there is no default."""

_RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HYBRID_BLOCKS: Final = frozenset({"falcon-h1"})
"""Architectures whose every block has attention and a recurrent state."""

# Every n-th block attends in full, the others are recurrent.
_INTERVALS: Final = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}
_BY_HEADS: Final = frozenset(
    {"bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "plamo2"}
)
"""Blocks without KV heads are recurrent."""

_STATE_KEYS: Final = ("ssm.state_size", "ssm.conv_kernel", "kda.head_dim", "wkv.head_size", "shortconv.l_cache")

ENCODERS: Final = frozenset(
    {"bert", "eurobert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "neo-bert"}
    | {"nomic-bert", "nomic-bert-moe", "wavtokenizer-dec"}
)
"""Architectures without an output matrix, tied or not."""

NO_CACHE: Final = ENCODERS | {"dream", "gemma-embedding", "llada", "llada-moe", "rnd1"}
"""Encoders and diffusion models: the engine gives them no KV cache (llama_model::create_memory)."""

CACHED_PREDICTORS: Final = (
    _BY_HEADS - {"glm5-next"} | HYBRID_BLOCKS | {"deepseek4", "hy_v4", "minimax-m3", "nemotron_h", "nemotron_h_moe"}
)
"""Architectures whose cache has a place for the blocks that predict further tokens, though nothing fills it."""

_PLAIN: Final = (
    "llama deci falcon grok gpt2 gptj gptneox mpt baichuan starcoder refact bloom stablelm qwen qwen2 qwen2moe"
    " qwen2vl qwen3 qwen3moe qwen3vl qwen3vlmoe phi2 phi3 phimoe plamo codeshell orion internlm2 minicpm minicpm3"
    " gemma starcoder2 xverse command-r dbrx olmo olmoe openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32"
    " chatglm glm4 glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone granite"
    " granitemoe graniteswitch chameleon plm bailingmoe bailingmoe2 dots1 arcee ernie4_5 ernie4_5-moe hunyuan-moe"
    " hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 seed_oss grovemoe apertus hrm_text minimax-m2 minimax-m3 cogvlm"
    " pangu-embedded mistral3 mistral4 eagle3 paddleocr llama-embed maincoder talkie nanbeige qwen3tts"
    " pockettts"
)
KNOWN: Final = (
    NO_CACHE
    | _RECURRENT
    | HYBRID_BLOCKS
    | _BY_HEADS
    | _TOLD_SLIDING
    | _SLIDING.keys()
    | _INTERVALS.keys()
    | frozenset(_PLAIN.split())
)
"""Every architecture of llama.cpp 0.5.0 (LLM_ARCH_NAMES): what others keep is read from their keys alone."""


def logical_blocks(facts: Facts, n_blocks: int) -> int:
    """Blocks as the engine counts them, from the number in the file.

    Nanbeige runs its blocks several times, each time with a cache of its own; Granite-Switch adds one that routes.

    Raises:
        HeaderError: the number of loops is no count, or 0.
    """
    if facts.architecture == "graniteswitch":
        return n_blocks + 1
    if facts.architecture == "nanbeige" and facts.has("num_loops"):
        return n_blocks * facts.required("num_loops")
    return n_blocks


def sliding_blocks(facts: Facts, n_blocks: int, n_trunk: int) -> tuple[int, tuple[bool, ...]]:
    """The window in tokens and which blocks slide; 0 and none where nothing does.

    The pattern key may be a period or one truth per block; many files lack it, so each architecture has a default.
    An architecture without a default slides only where it reads a pattern: the engine ignores a bare window. Of an
    architecture we do not know, a pattern in its file is believed.
    """
    none = (0, (False,) * n_blocks)
    rule = _SLIDING.get(facts.architecture)
    if rule is None and facts.architecture in KNOWN - _TOLD_SLIDING:
        return none
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
    by_interval = facts.architecture in _INTERVALS or facts.architecture not in KNOWN
    told = facts.pattern("attention.recurrent_layers", n_trunk) if by_interval else None
    if told is not None:
        return told + (False,) * (n_blocks - n_trunk)
    if facts.architecture in _INTERVALS or (by_interval and facts.has("full_attention_interval")):
        interval = facts.count("full_attention_interval", _INTERVALS.get(facts.architecture, 0))
        if not interval:
            raise facts.wrong(f"{facts.key('full_attention_interval')!r} is 0")
        return tuple(block < n_trunk and (block + 1) % interval != 0 for block in range(n_blocks))
    # nemotron_h has a third kind of block, MLP only, which it tells by its feed-forward width.
    exclusive = facts.architecture.startswith("nemotron_h")
    if not (exclusive or facts.architecture in _BY_HEADS or _has_state(facts)):
        return (False,) * n_blocks
    return tuple(
        block < n_trunk and not heads and not (exclusive and width)
        for block, (heads, width) in enumerate(zip(head_count_kv, n_ff, strict=True))
    )


def _has_state(facts: Facts) -> bool:
    """Whether an architecture we do not know says that it keeps a state."""
    return facts.architecture not in KNOWN and any(facts.has(name) for name in _STATE_KEYS)


def _periodic(n_trunk: int, period: int, dense_first: bool) -> tuple[bool, ...]:
    if not period:
        return (True,) * n_trunk
    full = 0 if dense_first else period - 1
    return tuple(block % period != full for block in range(n_trunk))
