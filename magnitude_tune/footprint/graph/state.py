"""Recurrent state: read before a block changes it, written back after, one row a sequence.

Source: `build_rs` and `build_rs_inp` in src/llama-graph.cpp; graphs are reserved for as many sequences as there are
slots, so no state is left over that only moves.
"""

from __future__ import annotations

from typing import NamedTuple

from magnitude_tune.footprint.graph.frame import Frame, Layer
from magnitude_tune.footprint.graph.tensors import I32, Graph, Tensor

__all__ = ["States", "by_sequence", "convolved", "heads_in", "load", "matrix", "scan", "states_of", "store"]


class States(NamedTuple):
    """Which rows of the state cache the sequences read, and the rows that only move: none."""

    used: Tensor
    moved: Tensor


def states_of(frame: Frame) -> States:
    """The inputs of a recurrent cache."""
    ids = frame.input(I32, frame.dims.sequences)
    return States(frame.graph.view(ids, frame.dims.sequences), frame.graph.view(ids, 0))


def load(frame: Frame, layer: Layer, states: States, width: int) -> Tensor:
    """A block's states: [width, sequences]."""
    graph = frame.graph
    cache, rows = _cleared(frame, layer, width)
    result = graph.get_rows(rows, states.used)
    graph.expand(result)
    _move(graph, cache, rows, states)
    return result


def scan(frame: Frame, layer: Layer, states: States, scanned: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
    """`ssm_scan`, which reads the states where they lie.

    Args:
        frame: the graph.
        layer: the block.
        states: inputs of the cache.
        scanned: x, dt, A, B, C.
        shape: of one sequence's state.
    """
    graph, sequences = frame.graph, frame.dims.sequences
    width = 1
    for length in shape:
        width *= length
    cache, rows = _cleared(frame, layer, width)
    a, b, c, d = scanned[0].ne
    n_elements = a * b * c * d + width * sequences
    result = graph.op("ssm_scan", (n_elements,), graph.view(rows, *shape, sequences), *scanned, states.used)
    graph.expand(result)
    _move(graph, cache, rows, states)
    return result


def store(frame: Frame, layer: Layer, state: Tensor) -> None:
    """Write a state back."""
    frame.graph.expand(frame.graph.copy(state, frame.graph.view(frame.graph.cache(layer.place, 1), *state.ne)))


def convolved(frame: Frame, layer: Layer, state: Tensor, source: Tensor, kernel: Tensor) -> Tensor:
    """A convolution over time: [channels, tokens, sequences].

    Args:
        frame: the graph.
        layer: the block.
        state: the columns before the first token, for all sequences.
        source: [tokens, channels, sequences], channels last in memory.
        kernel: [length, channels].
    """
    graph, (length, channels, *_) = frame.graph, kernel.ne
    tokens, sequences = frame.dims.tokens, frame.dims.sequences
    before = max(0, length - 1)
    joined = graph.concat(graph.view(state, before, channels, sequences), source, 0)
    store(frame, layer, graph.view(joined, before, channels, sequences, nb=joined.strides))
    return graph.op("ssm_conv", (channels, tokens, sequences), joined, kernel)


def by_sequence(frame: Frame, source: Tensor) -> Tensor:
    """[width, tokens of all sequences] as [width, tokens, sequences]."""
    return frame.graph.view(source, source.ne[0], frame.dims.tokens, frame.dims.sequences)


def heads_in(frame: Frame, source: Tensor, size: int, n_heads: int) -> Tensor:
    """Some heads within rows of [width, tokens, sequences]: [size, n_heads, tokens, sequences]."""
    _, row, sequence, _ = source.strides
    dims, step = frame.dims, abs(source.kind)
    return frame.graph.view(source, size, n_heads, dims.tokens, dims.sequences, nb=(step, step * size, row, sequence))


def matrix(frame: Frame, layer: Layer, name: str, *shape: int) -> Tensor:
    """A weight of a block; one of `shape` where it is missing."""
    return frame.weight(layer, name) or frame.graph.weight(layer.place, *shape)


def _cleared(frame: Frame, layer: Layer, width: int) -> tuple[Tensor, Tensor]:
    """The cache and its rows; one row is set to zero for sequences that begin."""
    graph = frame.graph
    cache = graph.cache(layer.place, width, frame.dims.sequences)
    rows = graph.view(cache, width, frame.dims.sequences)
    zero = graph.view(rows, width)
    cleared = graph.scale(zero)
    cleared.root = cache
    graph.expand(cleared)
    return cache, rows


def _move(graph: Graph, cache: Tensor, rows: Tensor, states: States) -> None:
    graph.expand(graph.copy(graph.get_rows(rows, states.moved), graph.view(cache, cache.ne[0], 0)))
