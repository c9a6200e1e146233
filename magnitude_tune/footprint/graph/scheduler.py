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
    """A graph ready to be laid out: leaves first, then nodes with the copies that splits need; backends by tensor."""

    leaves: tuple[Tensor, ...]
    nodes: tuple[Tensor, ...]
    backend_of: dict[Tensor, int]


def schedule(graph: Graph, n_backends: int, *, pipelined: bool) -> Schedule:
    """Assign backends and insert copies.

    Args:
        graph: its weights and caches name places: 0 is the CPU, `i` the device of backend `i`.
        n_backends: the CPU and the devices in use.
        pipelined: whether several micro batches are under way at once: inputs are kept several times.
    """
    backend_of = _assigned(graph)
    if n_backends == 1:
        return Schedule(tuple(graph.leaves), tuple(graph.nodes), backend_of)
    copies = _PIPELINE_COPIES if pipelined else 1
    nodes, kept = _with_copies(graph, backend_of, copies)
    return Schedule((*kept, *graph.leaves), tuple(nodes), backend_of)


def _assigned(graph: Graph) -> dict[Tensor, int]:
    assigned: dict[Tensor, int] = {}
    for leaf in graph.leaves:
        if leaf.place is not None:
            assigned[leaf] = leaf.place
        elif leaf.is_input:
            assigned[leaf] = 0
    for node in graph.nodes:
        place = _from_buffers(node)
        if place is not None:
            assigned[node] = place
    _expand(graph.nodes, assigned, devices_only=True)
    _expand(graph.nodes[::-1], assigned, devices_only=True)
    _expand(graph.nodes, assigned, devices_only=False)
    _expand(graph.nodes[::-1], assigned, devices_only=False)
    for node in graph.nodes:
        if node not in assigned:
            assigned[node] = assigned.get(node.root, 0) if node.root is not None else 0
        for source in node.srcs:
            if source not in assigned:
                near = node if source.root is None else source.root
                assigned[source] = assigned.get(near, assigned[node])
    return assigned


def _from_buffers(node: Tensor) -> int | None:
    """Where a node must run because of what lies where already."""
    if node.home is not None:
        return node.home
    if node.root is not None and node.root.place is not None:
        return node.root.place
    if node.op in _FOLLOWS_NO_WEIGHT:
        return None
    return next((source.place for source in node.srcs if source.is_weight), None)


def _expand(nodes: list[Tensor], assigned: dict[Tensor, int], *, devices_only: bool) -> None:
    """Unassigned neighbours follow the node before them; at first only the devices spread."""
    current: int | None = None
    for node in nodes:
        if node.op in VIEW_OPS:
            continue
        place = assigned.get(node)
        if place is not None:
            current = None if devices_only and place == 0 else place
        elif current is not None:
            assigned[node] = current


class _Copies:
    """Copies of tensors on other backends, each made once."""

    def __init__(self, backend_of: dict[Tensor, int], n_copies: int) -> None:
        self._backend_of = backend_of
        self._n_copies = n_copies
        self._made: dict[tuple[Tensor, int], Tensor] = {}
        self.kept: list[Tensor] = []

    def of(self, source: Tensor, backend: int) -> tuple[Tensor, bool]:
        """The copy, and whether it is new."""
        found = self._made.get((source, backend))
        if found is not None:
            return found, False
        for index in range(self._n_copies):
            copy = source.twin()
            self._backend_of[copy] = backend
            if self._n_copies > 1:
                copy.is_input = copy.is_output = True
                self.kept.append(copy)
            if index == 0:
                self._made[source, backend] = copy
        return self._made[source, backend], True

    def keep_inputs(self, leaves: list[Tensor]) -> list[Tensor]:
        """With several micro batches under way every input is there several times."""
        kept = []
        for leaf in leaves:
            if leaf.is_input:
                leaf.is_output = True
                kept.append(leaf)
                for _ in range(self._n_copies - 1):
                    copy = Tensor("none", leaf.kind, leaf.ne)
                    copy.is_input = copy.is_output = True
                    self._backend_of[copy] = self._backend_of[leaf]
                    kept.append(copy)
        return kept


def _with_copies(graph: Graph, backend_of: dict[Tensor, int], n_copies: int) -> tuple[list[Tensor], list[Tensor]]:
    """Nodes split by split, each split led by the copies of what it reads from elsewhere."""
    copies = _Copies(backend_of, n_copies)
    nodes: list[Tensor] = []
    split: list[Tensor] = []
    inputs: list[Tensor] = []
    current = next((backend_of[node] for node in graph.nodes if node.op not in VIEW_OPS), 0)
    for node in graph.nodes:
        if node.op in VIEW_OPS:
            split.append(node)
            continue
        backend = backend_of[node]
        if backend != current or (inputs and _reads_foreign_weight(node, backend, backend_of)):
            nodes += [*inputs, *split]
            split, inputs, current = [], [], backend
        replaced = list(node.srcs)
        for index, source in enumerate(node.srcs):
            if backend_of[source] != backend:
                copy, is_new = copies.of(source, backend)
                replaced[index] = copy
                if is_new:
                    inputs += [_dependency(source, backend_of), copy]
        node.srcs = tuple(replaced)
        split.append(node)
    nodes += [*inputs, *split]
    kept = [*copies.keep_inputs(graph.leaves), *copies.kept] if n_copies > 1 else []
    return nodes, kept


def _reads_foreign_weight(node: Tensor, backend: int, backend_of: dict[Tensor, int]) -> bool:
    return any(source.is_weight and backend_of[source] != backend for source in node.srcs)


def _dependency(source: Tensor, backend_of: dict[Tensor, int]) -> Tensor:
    """A node that keeps the source until it was copied."""
    node = Tensor("none", source.kind, source.ne, (source,))
    node.root = source.root or source
    backend_of[node] = backend_of[source]
    return node
