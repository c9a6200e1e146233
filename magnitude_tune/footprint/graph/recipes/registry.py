"""Which recipe an architecture follows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.frame import Frame
from magnitude_tune.footprint.graph.recipes.transformer import Style, transformer

__all__ = ["Recipe", "recipe_of"]


class Recipe(NamedTuple):
    """How to build a graph.

    Args:
        build: lists its tensors.
        known: False where an architecture is only taken to be an ordinary transformer.
        turns_at: the number of the block from which on blocks do otherwise than those before with the same tensors.
        counts: whether the number of like blocks matters.
    """

    build: Callable[[Frame], None]
    known: bool
    turns_at: int = 0
    counts: bool = False


_GEMMA: Final = Style(embed_scaled=True, q_scaled=True)

_STYLES: Final = {
    "llama": Style(),
    "qwen2": Style(),
    "qwen3": Style(),
    "qwen2moe": Style(normalised=False),
    "qwen3moe": Style(),
    "gemma": _GEMMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": Style(q_scaled=True),
    "gpt-oss": Style(late_rows=True, softmax_late=True, normalised=False),
    "cohere2": Style(layer_norm=True, parallel=True, rope="sliding", logits_scaled=True),
    "starcoder2": Style(layer_norm=True),
}

# Module and function of recipes of their own: only the one that is needed gets imported.
_OWN: Final = {
    "bert": ("encoder", "bert"),
    "jina-bert-v2": ("encoder", "bert"),
    "nomic-bert": ("encoder", "nomic_bert"),
    "nomic-bert-moe": ("encoder", "nomic_bert"),
    "jina-bert-v3": ("encoder", "nomic_bert"),
    "modern-bert": ("encoder", "modern_bert"),
    "eurobert": ("encoder", "eurobert"),
    "llama-embed": ("encoder", "eurobert"),
    "neo-bert": ("encoder", "neo_bert"),
    "gemma-embedding": ("encoder", "gemma_embedding"),
    "t5": ("encoder_decoder", "t5"),
    "t5encoder": ("encoder_decoder", "t5_encoder"),
    "gemma3n": ("per_layer", "gemma3n"),
    "gemma4": ("per_layer", "gemma4"),
    "deepseek2": ("latent", "deepseek2"),
    "deepseek2-ocr": ("latent", "deepseek2ocr"),
    "mistral4": ("latent", "deepseek2"),
    "deepseek32": ("indexed", "deepseek32"),
    "glm-dsa": ("indexed", "deepseek32"),
    "mamba": ("mamba", "mamba"),
    "mamba2": ("mamba", "mamba"),
    "jamba": ("mamba", "jamba"),
    "granitehybrid": ("mamba", "granite_hybrid"),
    "falcon-h1": ("mamba", "falcon_h1"),
    "nemotron_h": ("mamba", "nemotron_h"),
    "nemotron_h_moe": ("mamba", "nemotron_h"),
    "plamo2": ("plamo2", "plamo2"),
    "kimi-linear": ("kimi_linear", "kimi_linear"),
    "bailingmoe3": ("kimi_linear", "bailingmoe3"),
    "minimax-01": ("lightning", "minimax_01"),
    "lfm2": ("short_conv", "lfm2"),
    "lfm2moe": ("short_conv", "lfm2"),
    "qwen3next": ("delta_net", "qwen3next"),
    "qwen35": ("delta_net", "qwen35"),
    "qwen35moe": ("delta_net", "qwen35"),
    "rwkv6": ("rwkv", "rwkv6"),
    "rwkv6qwen2": ("rwkv", "rwkv6qwen2"),
    "rwkv7": ("rwkv", "rwkv7"),
    "arwkv7": ("rwkv", "arwkv7"),
}

# Recipes in which a block that stands for others takes their memory, too.
_COUNTING: Final = frozenset({"per_layer", "indexed"})
_TURNS_AT: Final = {"gemma3n": 10}


def recipe_of(architecture: str) -> Recipe:
    """The recipe of an architecture."""
    if own := _OWN.get(architecture):
        module, function = own
        build = getattr(import_module(f"{__package__}.{module}"), function)
        return Recipe(build, True, _TURNS_AT.get(architecture, 0), counts=module in _COUNTING)
    if style := _STYLES.get(architecture):
        return Recipe(lambda frame: transformer(frame, style), known=True)
    decoders = import_module(f"{__package__}.dense")
    if form := decoders.FORMS.get(architecture):
        return Recipe(lambda frame: decoders.dense_decoder(frame, form), known=True)
    mixtures = import_module(f"{__package__}.mixture")
    if kind := mixtures.KINDS.get(architecture):
        return Recipe(lambda frame: mixtures.mixtures(frame, kind), known=True)
    return Recipe(lambda frame: transformer(frame, Style()), known=False)
