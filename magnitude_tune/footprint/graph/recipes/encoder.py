"""Encoders without a cache: BERT and its kin, whose tokens attend to the whole batch.

Source: src/models/{bert,nomic-bert,nomic-bert-moe,jina-bert-v2,jina-bert-v3,modern-bert,eurobert,neo-bert,
gemma-embedding,llama-embed}.cpp, `build_attn_inp_no_cache` in src/llama-graph.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.footprint.graph.attention import Heads, combine, project
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.transformer import Style, feed_forward
from magnitude_tune.footprint.graph.tensors import F16, F32, Tensor

__all__ = [
    "Batchwide",
    "batchwide",
    "bert",
    "embedding_norm",
    "eurobert",
    "gemma_embedding",
    "heads_without_cache",
    "modern_bert",
    "neo_bert",
    "nomic_bert",
]


class Batchwide(NamedTuple):
    """Masks over the tokens of one batch; `sliding` where some blocks see a window only."""

    full: Tensor
    sliding: Tensor | None

    def of(self, layer: Layer, number: int) -> Tensor:
        """The mask of the block at a place in the frame: the second one stands for those that slide."""
        slides = layer.slides or number == 1
        return self.sliding if slides and self.sliding else self.full


def batchwide(frame: Frame) -> Batchwide:
    """Masks of attention without a cache."""
    kind, tokens = F16 if frame.options.flash_attn else F32, frame.tokens
    slides = frame.has("attention.sliding_window")
    full = frame.input(kind, tokens, tokens)
    return Batchwide(full, frame.input(kind, tokens, tokens) if slides else None)


def bert(frame: Frame) -> None:
    """BERT and Jina's second version: learned positions, or none at all."""
    _after_normed(frame, rotates=False)


def nomic_bert(frame: Frame) -> None:
    """Nomic's, with experts or without, and Jina's third version: rotated positions."""
    _after_normed(frame, rotates=True)


def modern_bert(frame: Frame) -> None:
    """ModernBERT: layer norms before, sliding blocks."""
    _before_normed(frame, Style(layer_norm=True), "output_norm")


def eurobert(frame: Frame) -> None:
    """EuroBERT, and Llama used for embeddings."""
    _before_normed(frame, Style(), "output_norm")


def neo_bert(frame: Frame) -> None:
    """NeoBERT: its last norm has the name of an encoder's."""
    _before_normed(frame, Style(), "enc.output_norm")


def gemma_embedding(frame: Frame) -> None:
    """EmbeddingGemma: Gemma 3 that sees the whole batch."""
    _before_normed(frame, Style(embed_scaled=True, q_scaled=True), "output_norm")


def _after_normed(frame: Frame, *, rotates: bool) -> None:
    """Norms after attention and after the network."""
    graph = frame.graph
    positions = frame.positions()
    current = frame.embed()
    if kinds := frame.outer_weight("token_types.weight", 0):
        current = graph.add(current, graph.view(kinds, kinds.ne[0]))
    if table := frame.outer_weight("position_embd.weight", 0):
        current = graph.add(graph.get_rows(table, positions), current)
    current = embedding_norm(frame, current)
    masks, out_ids = batchwide(frame), frame.output_ids()
    for number, layer in enumerate(frame.layers):
        mixed = _attention(frame, layer, current, (masks.of(layer, number), positions if rotates else None))
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        fed = frame.norm(graph.add(mixed, current), layer, "attn_output_norm", layer_norm=True)
        if "attn_norm_2.weight" in layer.shapes:
            fed = frame.norm(graph.add(fed, current), layer, "attn_norm_2", layer_norm=True)
        current = graph.add(feed_forward(frame, layer, fed, Style(normalised=False)), fed)
        current = frame.norm(current, layer, "layer_output_norm", layer_norm=True)
    _finish(frame, current)


def _before_normed(frame: Frame, style: Style, output_norm: str) -> None:
    """Norms before attention and before the network."""
    graph = frame.graph
    current = frame.embed(scaled=style.embed_scaled)
    if "token_embd_norm.weight" in frame.outer:
        current = embedding_norm(frame, current)
    positions, masks, out_ids = frame.positions(), batchwide(frame), frame.output_ids()
    for number, layer in enumerate(frame.layers):
        normed = current
        if "attn_norm.weight" in layer.shapes:
            normed = frame.norm(current, layer, "attn_norm", layer_norm=style.layer_norm)
        mixed = _attention(frame, layer, normed, (masks.of(layer, number), positions), q_scaled=style.q_scaled)
        if layer.is_last:
            mixed, current = graph.get_rows(mixed, out_ids), graph.get_rows(current, out_ids)
        if "post_attention_norm.weight" in layer.shapes:
            mixed = frame.norm(mixed, layer, "post_attention_norm")
        residual = graph.add(mixed, current)
        normed = frame.norm(residual, layer, "ffn_norm", layer_norm=style.layer_norm)
        fed = feed_forward(frame, layer, normed, style)
        if post := frame.weight(layer, "post_ffw_norm.weight"):
            fed = frame.normed(fed, post, None, None)
        current = graph.add(fed, residual)
    weight = frame.outer_weight(f"{output_norm}.weight", frame.options.output_place)
    _finish(frame, frame.normed(current, weight, None, None, layer_norm=style.layer_norm))


def embedding_norm(frame: Frame, source: Tensor) -> Tensor:
    """Norm of the embeddings: it lies where the first block is."""
    place = frame.layers[0].place if frame.layers else 0
    weight = frame.outer_weight("token_embd_norm.weight", place)
    bias = frame.outer_weight("token_embd_norm.bias", place)
    return frame.normed(source, weight, bias, place, layer_norm=True)


def _attention(
    frame: Frame, layer: Layer, source: Tensor, inputs: tuple[Tensor, Tensor | None], *, q_scaled: bool = False
) -> Tensor:
    mask, positions = inputs
    graph, heads = frame.graph, heads_without_cache(layer)
    made = project(frame, layer, source, heads)
    q, k, v = made.q, made.k or made.q, made.v or made.q
    q, k = _head_normed(frame, layer, q, "attn_q_norm"), _head_normed(frame, layer, k, "attn_k_norm")
    if positions is not None:
        q, k = graph.rope(q, positions), graph.rope(k, positions)
    q = graph.scale(q) if q_scaled else q
    for tensor in (q, k, v):
        graph.expand(tensor)
    mixed = combine(frame, layer, (q, k, v), 1, mask, v_is_transposed=False)
    return frame.linear(mixed, layer, "attn_output")


def _head_normed(frame: Frame, layer: Layer, source: Tensor, name: str) -> Tensor:
    """Norm of Q or K: of each head, or of all heads together with a layer norm."""
    shape = layer.shapes.get(f"{name}.weight")
    if shape is None:
        return source
    if shape[:1] == source.ne[:1]:
        return frame.norm(source, layer, name)
    graph, (size, heads, tokens, _) = frame.graph, source.ne
    flat = graph.view(source, size * heads, tokens) if source.nb is None else graph.cont(source, size * heads, tokens)
    return graph.view(frame.norm(flat, layer, name, layer_norm=True), size, heads, tokens)


def heads_without_cache(layer: Layer) -> Heads:
    """Heads of a block that caches nothing: from its matrices."""
    queries, cached = max(1, layer.kv.head_count), max(1, layer.kv.head_count_kv)
    if fused := layer.shapes.get("attn_qkv.weight"):
        size = max(1, (*fused, 1, 1)[1] // (queries + 2 * cached))
    else:
        size = max(1, (*layer.shapes.get("attn_q.weight", ()), 1, 1)[1] // queries)
    return Heads(queries, cached, size, size)


def _finish(frame: Frame, source: Tensor) -> None:
    """Embeddings are the result: there are no logits."""
    source.is_output = True
    frame.graph.expand(source)
