"""Dense decoders with peculiarities: parallel residuals, learned positions, no rotation, norms in other places.

What a block does follows from its tensors (learned positions, a norm of the embeddings, norms before or after, of Q
and K, within attention and the network); what they do not tell is in `Form`.
Source: src/models/{mistral3,qwen,qwen2vl,qwen3vl,phi2,starcoder,falcon,gptneox,gpt2,bloom,mpt,refact,baichuan,stablelm,
orion,internlm2,minicpm,xverse,command-r,olmo,olmo2,exaone,exaone4,glm4,chatglm,codeshell,plamo,plamo3,granite,nemotron,
jais,jais2,smollm3,seed-oss,arcee,apertus,ernie4-5,hunyuan-dense,hunyuan-vl,bitnet,openelm,deci,chameleon,dream,llada,
maincoder,pangu-embed,paddleocr}.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from magnitude_tune.footprint.graph.attention import Qkv, attended, combine, heads_of, project
from magnitude_tune.footprint.graph.feed_forward import dense, mixture
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.recipes.encoder import Batchwide, batchwide, embedding_norm, heads_without_cache
from magnitude_tune.footprint.graph.recipes.transformer import Caches, caches_of
from magnitude_tune.footprint.graph.tensors import F32, Tensor

__all__ = ["FORMS", "Form", "dense_decoder"]


class Form(NamedTuple):
    """What a class of dense decoders does that its tensors do not show.

    Args:
        layer_norm: norms subtract the mean.
        head_layer_norm: so do norms of Q and K.
        norms: whether norms stand before and after by their tensors, or before always, without weights.
        parallel: in which order attention, network and source are summed where the network does not read attention.
        rope: which blocks rotate Q and K; `sliding` is all of them where none slides;
            `unless_deep` is those of the model of 32 blocks.
        rope_first: Q and K are rotated, then normed.
        q_scaled, logits_scaled: multiplied by a number.
        squared: the feed-forward activation is relu squared.
        reads_embedding: logits are made with the token embedding where it lies.
        batchwide: tokens attend to the whole batch; there is no cache.
        normalised: weights of experts, where there are some, are divided by their sum.
        four_positions: positions are told four times a token; None: where the header has sections of them.
    """

    layer_norm: bool = False
    head_layer_norm: bool = False
    norms: Literal["by_tensors", "bare"] = "by_tensors"
    parallel: Literal["", "network_source", "network_attention", "attention_network", "joined"] = ""
    rope: Literal["all", "sliding", "unless_deep", "none"] = "all"
    rope_first: bool = False
    q_scaled: bool = False
    logits_scaled: bool = False
    squared: bool = False
    reads_embedding: bool = False
    batchwide: bool = False
    normalised: bool = True
    four_positions: bool | None = False


_LAYER_NORMED: Final = Form(layer_norm=True)
_UNROTATED: Final = Form(layer_norm=True, rope="none")

FORMS: Final[Mapping[str, Form]] = {
    "mistral3": Form(),
    "qwen": Form(),
    "qwen2vl": Form(four_positions=True),
    "qwen3vl": Form(four_positions=True),
    "paddleocr": Form(four_positions=True),
    "phi2": Form(layer_norm=True, parallel="attention_network", q_scaled=True),
    "starcoder": _UNROTATED,
    "falcon": Form(layer_norm=True, parallel="network_attention"),
    "gptneox": _LAYER_NORMED,
    "gpt2": _UNROTATED,
    "bloom": _UNROTATED,
    "mpt": Form(layer_norm=True, head_layer_norm=True, rope="none"),
    "refact": Form(rope="none"),
    "baichuan": Form(rope="unless_deep"),
    "stablelm": Form(layer_norm=True, head_layer_norm=True),
    "orion": _LAYER_NORMED,
    "internlm2": Form(),
    "minicpm": Form(logits_scaled=True),
    "granite": Form(logits_scaled=True),
    "xverse": Form(),
    "command-r": Form(layer_norm=True, head_layer_norm=True, parallel="network_source", logits_scaled=True),
    "olmo": Form(layer_norm=True, norms="bare"),
    "olmo2": Form(),
    "exaone": Form(),
    "exaone4": Form(rope="sliding"),
    "glm4": Form(four_positions=None),
    "chatglm": Form(),
    "codeshell": _LAYER_NORMED,
    "plamo": Form(parallel="network_attention"),
    "plamo3": Form(),
    "nemotron": Form(layer_norm=True, squared=True),
    "jais": _UNROTATED,
    "jais2": Form(layer_norm=True, squared=True),
    "smollm3": Form(),
    "seed_oss": Form(),
    "arcee": Form(squared=True),
    "apertus": Form(),
    "ernie4_5": Form(),
    "hunyuan-dense": Form(rope_first=True),
    "hunyuan_vl": Form(rope_first=True, four_positions=None),
    "bitnet": Form(reads_embedding=True),
    "openelm": Form(),
    "deci": Form(),
    "chameleon": Form(head_layer_norm=True),
    "dream": Form(batchwide=True),
    "llada": Form(batchwide=True),
    "rnd1": Form(batchwide=True),
    "llada-moe": Form(batchwide=True, normalised=False),
    "qwen3vlmoe": Form(four_positions=True),
    "maincoder": Form(rope_first=True),
    "pangu-embedded": Form(),
}


class _Inputs(NamedTuple):
    """Of the whole graph."""

    positions: Tensor
    caches: Caches | Batchwide
    wanted: Tensor
    deep: Tensor | None
    temperature: Tensor | None


_SHALLOW: Final = 32


def dense_decoder(frame: Frame, form: Form) -> None:
    """The whole graph."""
    graph = frame.graph
    n_deep = frame.number("n_deepstack_layers")
    current = frame.embed(scaled=frame.has("embedding_scale"), wider=n_deep)
    deep = current if n_deep else None
    positions = frame.positions(4 if _has_four_positions(frame, form) else 1)
    if table := frame.outer_weight("position_embd.weight", 0):
        current = graph.add(current, graph.get_rows(table, positions))
    if "token_embd_norm.weight" in frame.outer:
        current = embedding_norm(frame, current)
    inputs = _Inputs(
        positions=positions,
        caches=batchwide(frame) if form.batchwide else caches_of(frame),
        wanted=frame.output_ids(),
        deep=deep,
        temperature=frame.input(F32, 1, 1, frame.tokens) if frame.has("attention.temperature_scale") else None,
    )
    for number, layer in enumerate(frame.layers):
        current = _block(frame, form, (number, layer), current, inputs)
        if deep is not None and layer.block < n_deep and not layer.is_last:
            current = graph.add(current, graph.part(deep, *current.ne[:2]))
    frame.output(current, layer_norm=form.layer_norm, scaled=form.logits_scaled, reads_embedding=form.reads_embedding)


def _has_four_positions(frame: Frame, form: Form) -> bool:
    return frame.number("rope.dimension_sections") > 0 if form.four_positions is None else form.four_positions


def _block(frame: Frame, form: Form, place: tuple[int, Layer], source: Tensor, inputs: _Inputs) -> Tensor:
    graph, (_, layer) = frame.graph, place
    normed = _normed(frame, form, layer, source, "attn_norm")
    read = _normed(frame, form, layer, source, "attn_norm_2") if "attn_norm_2.weight" in layer.shapes else normed
    mixed = _mixed(frame, form, place, read, inputs)
    if layer.is_last:
        mixed = graph.get_rows(mixed, inputs.wanted) if mixed is not None else None
        source = graph.get_rows(source, inputs.wanted)
    order = _order(frame, form, layer)
    if order and mixed is not None:
        if "ffn_norm.weight" in layer.shapes:
            normed = _normed(frame, form, layer, source, "ffn_norm")
        elif layer.is_last:
            normed = graph.get_rows(normed, inputs.wanted)
        return _summed(frame, order, (mixed, _fed(frame, form, layer, normed), source))
    return _in_sequence(frame, form, layer, (mixed, source))


def _order(frame: Frame, form: Form, layer: Layer) -> str:
    """How a parallel block is summed; nothing where the network reads attention's result."""
    if form.parallel:
        return form.parallel
    if form.head_layer_norm and form.layer_norm:
        # StableLM's larger models have no second norm: the network reads the first.
        return "" if "ffn_norm.weight" in layer.shapes else "joined"
    return "network_source" if frame.has("use_parallel_residual") else ""


def _summed(frame: Frame, order: str, parts: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    graph, (attention, network, source) = frame.graph, parts
    if order == "network_source":
        return graph.add(graph.add(network, source), attention)
    if order == "network_attention":
        return graph.add(graph.add(network, attention), source)
    if order == "attention_network":
        return graph.add(graph.add(attention, network), source)
    return graph.add(network, graph.add(attention, source))


def _in_sequence(frame: Frame, form: Form, layer: Layer, parts: tuple[Tensor | None, Tensor]) -> Tensor:
    graph, (mixed, source) = frame.graph, parts
    has_ffn_norm, shrinks = "ffn_norm.weight" in layer.shapes, frame.has("residual_scale")
    follows = has_ffn_norm or "post_ffw_norm.weight" in layer.shapes
    if mixed is None:
        residual = source
    else:
        if follows and "post_attention_norm.weight" in layer.shapes:
            mixed = frame.norm(mixed, layer, "post_attention_norm", layer_norm=form.layer_norm)
        residual = graph.add(graph.scale(mixed) if shrinks else mixed, source)
    if "ffn_up.weight" not in layer.shapes and "ffn_gate_inp.weight" not in layer.shapes:
        return residual
    # Some files name the norm before the network as others name the one after attention.
    name = "ffn_norm" if follows else "post_attention_norm"
    fed = _fed(frame, form, layer, _normed(frame, form, layer, residual, name))
    if "post_ffw_norm.weight" in layer.shapes:
        fed = frame.norm(fed, layer, "post_ffw_norm", layer_norm=form.layer_norm)
    return graph.add(graph.scale(fed) if shrinks else fed, residual)


def _normed(frame: Frame, form: Form, layer: Layer, source: Tensor, name: str) -> Tensor:
    """A norm where the block has it, or where all blocks have it without weights."""
    if form.norms == "bare" or f"{name}.weight" in layer.shapes:
        return frame.norm(source, layer, name, layer_norm=form.layer_norm)
    return source


def _fed(frame: Frame, form: Form, layer: Layer, source: Tensor) -> Tensor:
    if "ffn_sub_norm.weight" not in layer.shapes:
        if "ffn_gate_inp.weight" in layer.shapes:
            return mixture(frame, layer, source, form.normalised)
        return dense(frame, layer, source, squared=form.squared)
    up = frame.linear(source, layer, "ffn_up")
    inner = frame.graph.gated(frame.linear(source, layer, "ffn_gate"), up)
    return frame.linear(frame.norm(inner, layer, "ffn_sub_norm"), layer, "ffn_down")


def _mixed(frame: Frame, form: Form, place: tuple[int, Layer], source: Tensor, inputs: _Inputs) -> Tensor | None:
    """Attention; a single matrix, or nothing, in blocks without heads."""
    number, layer = place
    if "attn_q.weight" not in layer.shapes and "attn_qkv.weight" not in layer.shapes:
        return frame.linear(source, layer, "attn_output") if "attn_output.weight" in layer.shapes else None
    q, k, v = _prepared(frame, form, layer, source, inputs)
    caches = inputs.caches
    if isinstance(caches, Caches):
        mixed = attended(frame, layer, caches.of(layer), Qkv(q, k, v), v_first=caches.sliding is None)
    else:
        for tensor in (q, k, v):
            frame.graph.expand(tensor)
        mixed = combine(frame, layer, (q, k, v), 1, caches.of(layer, number), v_is_transposed=False)
    if "attn_sub_norm.weight" in layer.shapes:
        mixed = frame.norm(mixed, layer, "attn_sub_norm")
    return frame.linear(mixed, layer, "attn_output")


def _prepared(frame: Frame, form: Form, layer: Layer, source: Tensor, inputs: _Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V, normed, rotated and scaled."""
    graph = frame.graph
    made = project(frame, layer, source, heads_of(layer) if layer.kv.k else heads_without_cache(layer))
    q, k, v = made.q, made.k or made.q, made.v or made.q
    if not form.rope_first:
        q, k = _head_normed(frame, form, layer, q, "attn_q_norm"), _head_normed(frame, form, layer, k, "attn_k_norm")
    if _rotates(frame, form, layer):
        q, k = graph.rope(q, inputs.positions), graph.rope(k, inputs.positions)
    if form.rope_first:
        q, k = _head_normed(frame, form, layer, q, "attn_q_norm"), _head_normed(frame, form, layer, k, "attn_k_norm")
    if inputs.temperature is not None:
        q = graph.mul(q, inputs.temperature)
    return graph.scale(q) if form.q_scaled else q, k, v


def _rotates(frame: Frame, form: Form, layer: Layer) -> bool:
    if form.rope == "sliding":
        return layer.slides or not any(other.slides for other in frame.layers)
    if form.rope == "unless_deep":
        return frame.number("block_count") == _SHALLOW
    return form.rope == "all"


def _head_normed(frame: Frame, form: Form, layer: Layer, source: Tensor, name: str) -> Tensor:
    """Norm of Q or K: of each head, or of all heads together."""
    shape = layer.shapes.get(f"{name}.weight")
    if shape is None:
        return source
    size, heads, tokens, _ = source.ne
    if heads == 1 or shape[:1] != (size * heads,):
        return frame.norm(source, layer, name, layer_norm=form.head_layer_norm)
    graph = frame.graph
    flat = source.srcs[0] if source.nb is None else graph.cont(source, size * heads, tokens)
    return graph.view(frame.norm(flat, layer, name, layer_norm=form.head_layer_norm), size, heads, tokens)
