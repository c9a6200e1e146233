"""Which backend computes which node, and what is copied between backends: ggml's scheduler, replayed.

Source: `ggml_backend_sched_split_graph` in ggml/src/ggml-backend.cpp. Every operation is taken to be supported
everywhere, and weights on the CPU are computed there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.tensors import VIEW_OPS, Graph, Tensor

__all__ = ["Schedule", "schedule"]

_FOLLOWS_NO_WEIGHT: Final = frozenset({"rope", "flash_attn"})
"""Their weights (frequencies, sinks) are too small to decide where they run."""

_PIPELINE_COPIES: Final = 4


class Schedule(NamedTuple):
    """A graph ready to be laid out: leaves first, then nodes with the copies that splits need."""

    leaves: tuple[Tensor, ...]
    nodes: tuple[Tensor, ...]


def schedule(graph: Graph, n_backends: int, *, pipelined: bool) -> Schedule:
    """Assign backends and insert copies.

    Args:
        graph: its weights and caches name places: 0 is the CPU, `i` the device of backend `i`.
        n_backends: the CPU and the devices in use.
        pipelined: whether several micro batches are under way at once: inputs are kept several times.
    """
    if n_backends == 1:
        return Schedule(tuple(graph.leaves), tuple(graph.nodes))
    _assign(graph)
    copies = _PIPELINE_COPIES if pipelined else 1
    nodes, kept = _with_copies(graph, copies)
    return Schedule((*kept, *graph.leaves), tuple(nodes))


def _assign(graph: Graph) -> None:
    for leaf in graph.leaves:
        if leaf.place is not None:
            leaf.backend = leaf.place
        elif leaf.is_input:
            leaf.backend = 0
    for node in graph.nodes:
        node.backend = _from_buffers(node)
    _expand(graph.nodes, devices_only=True)
    _expand(graph.nodes[::-1], devices_only=True)
    _expand(graph.nodes, devices_only=False)
    _expand(graph.nodes[::-1], devices_only=False)
    for node in graph.nodes:
        if node.backend is None:
            node.backend = node.root.backend if node.root is not None and node.root.backend is not None else 0
        for source in node.srcs:
            if source.backend is None:
                near = node if source.root is None or source.root.backend is None else source.root
                source.backend = near.backend


def _from_buffers(node: Tensor) -> int | None:
    """Where a node must run because of what lies where already."""
    if node.home is not None:
        return node.home
    if node.root is not None and node.root.place is not None:
        return node.root.place
    if node.op in _FOLLOWS_NO_WEIGHT:
        return None
    for source in node.srcs:
        if source.is_weight:
            return source.place
    return None


def _expand(nodes: list[Tensor], *, devices_only: bool) -> None:
    """Unassigned neighbours follow the node before them; at first only the devices spread."""
    current: int | None = None
    for node in nodes:
        if node.op in VIEW_OPS:
            continue
        if node.backend is not None:
            current = None if devices_only and node.backend == 0 else node.backend
        elif current is not None:
            node.backend = current


class _Copies:
    """Copies of tensors on other backends, each made once."""

    def __init__(self, n_copies: int) -> None:
        self._n_copies = n_copies
        self._made: dict[tuple[Tensor, int], Tensor] = {}
        self.kept: list[Tensor] = []

    def of(self, source: Tensor, backend: int) -> tuple[Tensor, bool]:
        """The copy, and whether it is new."""
        found = self._made.get((source, backend))
        if found is not None:
            return found, False
        made = [self._copy(source, backend) for _ in range(self._n_copies)]
        if self._n_copies > 1:
            self.kept += made
        self._made[source, backend] = made[0]
        return made[0], True

    def keep_inputs(self, leaves: list[Tensor]) -> list[Tensor]:
        """With several micro batches under way every input is there several times."""
        kept = []
        for leaf in leaves:
            if leaf.is_input:
                leaf.is_output = True
                kept.append(leaf)
                kept += [self._copy(leaf, leaf.backend or 0) for _ in range(self._n_copies - 1)]
        return kept

    def _copy(self, source: Tensor, backend: int) -> Tensor:
        copy = source.twin()
        copy.backend = backend
        copy.is_input = copy.is_output = self._n_copies > 1
        return copy


def _with_copies(graph: Graph, n_copies: int) -> tuple[list[Tensor], list[Tensor]]:
    """Nodes split by split, each split led by the copies of what it reads from elsewhere."""
    copies = _Copies(n_copies)
    nodes: list[Tensor] = []
    split: list[Tensor] = []
    inputs: list[Tensor] = []
    current = next((node.backend for node in graph.nodes if node.op not in VIEW_OPS), 0)
    for node in graph.nodes:
        if node.op in VIEW_OPS:
            split.append(node)
            continue
        backend = node.backend or 0
        if backend != current or (inputs and _reads_foreign_weight(node, backend)):
            nodes += [*inputs, *split]
            split, inputs, current = [], [], backend
        replaced = list(node.srcs)
        for index, source in enumerate(node.srcs):
            if source.backend != backend:
                copy, is_new = copies.of(source, backend)
                replaced[index] = copy
                if is_new:
                    inputs += [_dependency(source), copy]
        node.srcs = tuple(replaced)
        split.append(node)
    nodes += [*inputs, *split]
    kept = [*copies.keep_inputs(graph.leaves), *copies.kept] if n_copies > 1 else []
    return nodes, kept


def _reads_foreign_weight(node: Tensor, backend: int) -> bool:
    return any(source.is_weight and source.backend != backend for source in node.srcs)


def _dependency(source: Tensor) -> Tensor:
    """A node that keeps the source until it was copied."""
    node = Tensor("none", source.kind, source.ne, (source,))
    node.root = source.root or source
    node.backend = source.backend
    return node
