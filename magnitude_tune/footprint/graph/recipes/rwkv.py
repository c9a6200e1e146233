"""RWKV: a state instead of attention, and each token mixed with the one before.

Source: src/models/{rwkv6-base,rwkv6,rwkv6qwen2,rwkv7-base,rwkv7,arwkv7}.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

from magnitude_tune.footprint.graph.feed_forward import dense
from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.state import States, by_sequence, load, matrix, states_of, store
from magnitude_tune.footprint.graph.tensors import Tensor

__all__ = ["arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7"]

_TimeMix = Callable[[Frame, Layer, States, Tensor, Tensor], Tensor]
_Operands = Callable[[Tensor], tuple[str, tuple[Tensor, ...]]]
"""From the state: an operation and all that it reads."""


def rwkv6(frame: Frame) -> None:
    """Time mix and channel mix, each with the token before."""
    _rwkv(frame, _time_mix_6, _channel_mix_6)


def rwkv6qwen2(frame: Frame) -> None:
    """Time mix in the place of attention of an ordinary transformer."""
    _converted(frame, _time_mix_6)


def rwkv7(frame: Frame) -> None:
    """As `rwkv6`, with the values of the first block mixed into all others."""
    _rwkv(frame, _SeventhMix(), _channel_mix_7)


def arwkv7(frame: Frame) -> None:
    """As `rwkv6qwen2`."""
    _converted(frame, _SeventhMix())


def _rwkv(frame: Frame, time_mix: _TimeMix, channel_mix: Callable[[Frame, Layer, Tensor, Tensor], Tensor]) -> None:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    current = _embedded(frame)
    n_embd = current.ne[0]
    states, out_ids = states_of(frame), frame.output_ids()
    for layer in frame.layers:
        source = by_sequence(frame, current)
        shift = graph.view(load(frame, layer, states, 2 * n_embd), n_embd, 2, sequences)
        normed = frame.norm(source, layer, "attn_norm", layer_norm=True)
        before = _shifted(frame, graph.part(shift, n_embd, 1, sequences), normed)
        mixed = time_mix(frame, layer, states, normed, before)
        residual = graph.add(mixed, source)
        normed_2 = frame.norm(residual, layer, "attn_norm_2", layer_norm=True)
        before = _shifted(frame, graph.part(shift, n_embd, 1, sequences), normed_2)
        last = graph.concat(graph.part(normed, n_embd, 1, sequences), graph.part(normed_2, n_embd, 1, sequences), 1)
        store(frame, layer, graph.view(last, 2 * n_embd * sequences))
        flat = [graph.view(tensor, n_embd, tokens * sequences) for tensor in (residual, normed_2, before)]
        if layer.is_last:
            flat = [graph.get_rows(tensor, out_ids) for tensor in flat]
        residual, normed_2, before = flat
        current = graph.add(channel_mix(frame, layer, normed_2, before), residual)
    frame.output(current, layer_norm=True)


def _converted(frame: Frame, time_mix: _TimeMix) -> None:
    graph, tokens, sequences = frame.graph, frame.dims.tokens, frame.dims.sequences
    current = frame.embed()
    n_embd = current.ne[0]
    states, out_ids = states_of(frame), frame.output_ids()
    for layer in frame.layers:
        source = by_sequence(frame, current)
        shift = graph.view(load(frame, layer, states, n_embd), n_embd, 1, sequences)
        normed = frame.norm(source, layer, "attn_norm")
        mixed = time_mix(frame, layer, states, normed, _shifted(frame, shift, normed))
        last = graph.part(normed, n_embd, 1, sequences)
        store(frame, layer, graph.view(last, n_embd * sequences))
        residual = graph.view(graph.add(mixed, source), n_embd, tokens * sequences)
        if layer.is_last:
            residual = graph.get_rows(residual, out_ids)
        current = graph.add(dense(frame, layer, frame.norm(residual, layer, "ffn_norm")), residual)
    frame.output(current)


def _embedded(frame: Frame) -> Tensor:
    """Embeddings and their norm, which is held with the first block."""
    place = frame.layers[0].place if frame.layers else 0
    weight, bias = (frame.outer_weight(f"token_embd_norm.{kind}", place) for kind in ("weight", "bias"))
    return frame.normed(frame.embed(), weight, bias, place, layer_norm=True)


def _shifted(frame: Frame, first: Tensor, source: Tensor) -> Tensor:
    """Each token's predecessor: the last one of the batch before, then all of this one but the last."""
    n_embd, tokens, sequences, _ = source.ne
    return frame.graph.concat(first, frame.graph.part(source, n_embd, tokens - 1, sequences), 1)


def _interpolated(frame: Frame, layer: Layer, name: str, source: Tensor, step: Tensor) -> Tensor:
    graph = frame.graph
    return graph.add(graph.mul(step, matrix(frame, layer, f"{name}.weight", source.ne[0])), source)


def _squared(frame: Frame, layer: Layer, source: Tensor) -> Tensor:
    graph = frame.graph
    key = graph.like("sqr", graph.unary(frame.linear(source, layer, "channel_mix_key")))
    return frame.linear(key, layer, "channel_mix_value")


def _channel_mix_6(frame: Frame, layer: Layer, source: Tensor, before: Tensor) -> Tensor:
    graph = frame.graph
    step = graph.like("sub", before, source)
    for_key = _interpolated(frame, layer, "channel_mix_lerp_k", source, step)
    for_gate = _interpolated(frame, layer, "channel_mix_lerp_r", source, step)
    gate = graph.unary(frame.linear(for_gate, layer, "channel_mix_receptance"))
    return graph.mul(gate, _squared(frame, layer, for_key))


def _channel_mix_7(frame: Frame, layer: Layer, source: Tensor, before: Tensor) -> Tensor:
    step = frame.graph.like("sub", before, source)
    return _squared(frame, layer, _interpolated(frame, layer, "channel_mix_lerp_k", source, step))


def _head_size(frame: Frame, n_embd: int) -> int:
    return min(max(1, frame.number("wkv.head_size", 64)), max(1, n_embd))


def _advance(
    frame: Frame,
    layer: Layer,
    states: States,
    operands: Callable[[Tensor], tuple[str, tuple[Tensor, ...]]],
    n_embd: int,
) -> Tensor:
    """One operation that reads and writes the state: what it says of the tokens, [n_embd, tokens], flat."""
    graph, tokens, sequences = frame.graph, frame.tokens, frame.dims.sequences
    size = _head_size(frame, n_embd)
    name, sources = operands(load(frame, layer, states, n_embd * size))
    result = graph.op(name, (n_embd, tokens + size * sequences), *sources)
    said = graph.view(result, n_embd * tokens)
    store(frame, layer, graph.view(result, n_embd * size * sequences))
    return said


def _heads(frame: Frame, source: Tensor) -> Tensor:
    n_embd = source.ne[0]
    size = _head_size(frame, n_embd)
    return frame.graph.view(source, size, n_embd // size, frame.tokens)


def _group_normed(frame: Frame, layer: Layer, said: Tensor, n_embd: int) -> Tensor:
    """Normed head by head."""
    graph, tokens = frame.graph, frame.tokens
    size = _head_size(frame, n_embd)
    normed = graph.view(graph.norm(graph.view(said, size, n_embd // size, tokens)), n_embd, tokens)
    scaled = graph.mul(normed, matrix(frame, layer, "time_mix_ln.weight", n_embd))
    return graph.add(scaled, matrix(frame, layer, "time_mix_ln.bias", n_embd))


def _time_mix_6(frame: Frame, layer: Layer, states: States, source: Tensor, before: Tensor) -> Tensor:
    graph, tokens, n_embd = frame.graph, frame.tokens, source.ne[0]
    is_converted = "time_mix_first.weight" not in layer.shapes
    step = graph.view(graph.like("sub", before, source), n_embd, tokens)
    current = graph.view(source, n_embd, tokens)
    for_w, for_k, for_v, for_r, for_g = _five_inputs(frame, layer, current, step)
    r = frame.linear(for_r, layer, "time_mix_receptance")
    k = frame.linear(for_k, layer, "time_mix_key")
    v = frame.linear(for_v, layer, "time_mix_value")
    g = graph.unary(frame.linear(for_g, layer, "time_mix_gate"))
    k, v = _spread(frame, k, n_embd), _spread(frame, v, n_embd)
    k, v, r = _heads(frame, k), _heads(frame, v), _heads(frame, r)
    w = frame.linear(graph.unary(frame.linear(for_w, layer, "time_mix_decay_w1")), layer, "time_mix_decay_w2")
    w = graph.add(w, matrix(frame, layer, "time_mix_decay.weight", n_embd))
    w = _heads(frame, graph.unary(graph.unary(graph.unary(w))))
    if is_converted:
        k = graph.like("sub", k, graph.mul(k, w))
        said = _advance(frame, layer, states, lambda state: ("gated_linear_attn", (k, v, r, w, state)), n_embd)
        said = graph.view(said, n_embd, tokens)
    else:
        first = matrix(frame, layer, "time_mix_first.weight", 1)
        said = _advance(frame, layer, states, lambda state: ("rwkv_wkv6", (k, v, r, first, w, state)), n_embd)
        said = _group_normed(frame, layer, said, n_embd)
    return by_sequence(frame, frame.linear(graph.mul(said, g), layer, "time_mix_output"))


def _five_inputs(frame: Frame, layer: Layer, current: Tensor, step: Tensor) -> list[Tensor]:
    """The token mixed with the one before in five ways."""
    graph, tokens, n_embd = frame.graph, frame.tokens, current.ne[0]
    mixed = _interpolated(frame, layer, "time_mix_lerp_x", current, step)
    low = graph.unary(frame.linear(mixed, layer, "time_mix_w1"))
    low = graph.view(low, low.ne[0] // 5, 1, 5, tokens)
    low = graph.cont(graph.permute(low, 0, 1, 3, 2))
    w2 = matrix(frame, layer, "time_mix_w2.weight", low.ne[0], n_embd, 5)
    five = graph.mul_mat(graph.view(w2, w2.ne[0], w2.ne[1], 1, 5), low)
    if fused := frame.weight(layer, "time_mix_lerp_fused.weight"):
        across, along = graph.view(step, n_embd, 1, tokens), graph.view(current, n_embd, 1, tokens)
        five = graph.add(graph.mul(graph.add(five, fused), across), along)
        return [graph.view(five, n_embd, tokens) for _ in range(5)]
    views = [graph.view(five, n_embd, tokens) for _ in range(5)]
    return [
        graph.add(
            graph.mul(graph.add(view, matrix(frame, layer, f"time_mix_lerp_{name}.weight", n_embd)), step), current
        )
        for view, name in zip(views, "wkvrg", strict=True)
    ]


def _spread(frame: Frame, source: Tensor, n_embd: int) -> Tensor:
    """Fewer heads of keys and values than of the rest are repeated."""
    graph, size, tokens = frame.graph, _head_size(frame, n_embd), frame.tokens
    if source.ne[0] >= n_embd:
        return source
    n_heads = max(1, source.ne[0] // size)
    narrow = graph.view(source, size, 1, n_heads, tokens)
    wide = graph.op("repeat", (size, max(1, n_embd // size // n_heads), n_heads, tokens), narrow)
    return graph.view(wide, n_embd, tokens)


class _SeventhMix:
    """Time mix of RWKV 7, which remembers the first block's values."""

    def __init__(self) -> None:
        self._first_v: Tensor | None = None

    def __call__(self, frame: Frame, layer: Layer, states: States, source: Tensor, before: Tensor) -> Tensor:
        graph, tokens, n_embd = frame.graph, frame.tokens, source.ne[0]
        has_gate = "time_mix_g1.weight" in layer.shapes and "time_mix_g2.weight" in layer.shapes
        for_r, for_w, for_k, for_v, for_a, *for_g = self._inputs(frame, layer, source, before, 6 if has_gate else 5)
        r = frame.linear(for_r, layer, "time_mix_receptance")
        w = self._low_rank(frame, layer, "w", for_w, active=True)
        w = graph.unary(graph.scale(graph.unary(graph.add(w, matrix(frame, layer, "time_mix_w0.weight", n_embd)))))
        k = frame.linear(for_k, layer, "time_mix_key")
        v = self._values(frame, layer, for_v)
        g = self._low_rank(frame, layer, "g", for_g[0], active=True) if for_g else None
        a = self._low_rank(frame, layer, "a", for_a)
        a = graph.unary(graph.add(a, matrix(frame, layer, "time_mix_a0.weight", n_embd)))
        kk = _heads(frame, graph.mul(k, matrix(frame, layer, "time_mix_k_k.weight", n_embd)))
        kk = graph.like("l2_norm", kk)
        ka = graph.mul(k, matrix(frame, layer, "time_mix_k_a.weight", n_embd))
        k = graph.add(k, graph.like("sub", graph.mul(a, ka), ka))
        r, w, k, v, a = (_heads(frame, tensor) for tensor in (r, w, k, v, a))
        said = _advance(
            frame,
            layer,
            states,
            lambda state: ("rwkv_wkv7", (r, w, k, v, graph.unary(kk), graph.mul(kk, a), state)),
            n_embd,
        )
        if "time_mix_ln.weight" in layer.shapes and "time_mix_ln.bias" in layer.shapes:
            said = _group_normed(frame, layer, said, n_embd)
        else:
            said = graph.view(said, n_embd, tokens)
        said = graph.add(said, self._bonus(frame, layer, (k, r, v), n_embd))
        said = graph.mul(said, g) if g is not None else said
        return by_sequence(frame, frame.linear(said, layer, "time_mix_output"))

    @staticmethod
    def _inputs(frame: Frame, layer: Layer, source: Tensor, before: Tensor, n_inputs: int) -> list[Tensor]:
        graph, n_embd = frame.graph, source.ne[0]
        step = graph.like("sub", before, source)
        wide = graph.op("repeat", (n_embd, frame.dims.tokens, frame.dims.sequences, n_inputs), step)
        lerp = matrix(frame, layer, "time_mix_lerp_fused.weight", n_embd, 1, 1, n_inputs)
        mixed = graph.add(graph.mul(wide, lerp), source)
        return [graph.view(mixed, n_embd, frame.tokens) for _ in range(n_inputs)]

    @staticmethod
    def _low_rank(frame: Frame, layer: Layer, name: str, source: Tensor, *, active: bool = False) -> Tensor:
        low = frame.linear(source, layer, f"time_mix_{name}1")
        return frame.linear(frame.graph.unary(low) if active else low, layer, f"time_mix_{name}2")

    def _values(self, frame: Frame, layer: Layer, source: Tensor) -> Tensor:
        graph = frame.graph
        v = frame.linear(source, layer, "time_mix_value")
        if self._first_v is None:
            self._first_v = v
            return v
        share = self._low_rank(frame, layer, "v", source)
        share = graph.unary(graph.add(share, matrix(frame, layer, "time_mix_v0.weight", v.ne[0])))
        return graph.add(v, graph.mul(graph.like("sub", self._first_v, v), share))

    @staticmethod
    def _bonus(frame: Frame, layer: Layer, krv: tuple[Tensor, Tensor, Tensor], n_embd: int) -> Tensor:
        graph, (k, r, v) = frame.graph, krv
        weight = matrix(frame, layer, "time_mix_r_k.weight", n_embd)
        product = graph.mul(graph.mul(k, r), graph.view(weight, k.ne[0], k.ne[1]))
        total = graph.op("sum_rows", (1, *product.ne[1:]), product)
        return graph.view(graph.mul(v, total), n_embd, frame.tokens)
