"""When each tensor of a graph gets memory and gives it back: ggml's graph allocator, without the sizes.

Source: `ggml_gallocr_alloc_graph_impl` in ggml/src/ggml-alloc.c. Which tensor reuses which does not depend on sizes,
so the events of one graph serve every batch: sizes are polynomials in the batch's dimensions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from magnitude_tune.footprint.graph.dims import Polynomial, polynomial
from magnitude_tune.footprint.graph.scheduler import Schedule
from magnitude_tune.footprint.graph.tensors import Tensor

__all__ = ["ALLOCATE", "FREE", "Event", "Layout", "lay_out"]

ALLOCATE: Final = 0
FREE: Final = 1


class Event(NamedTuple):
    """What happens to one slot of memory. `size` is the place of a polynomial in `Layout.sizes`."""

    what: int
    slot: int
    size: int


class Layout(NamedTuple):
    """Events for each backend in the order of time, and the sizes that they name."""

    events: tuple[tuple[Event, ...], ...]
    sizes: tuple[Polynomial, ...]


class _Allocator:
    """Gives tensors slots of memory and takes them back. What it knows of a tensor is kept in the tensor."""

    def __init__(self, plan: Schedule, n_backends: int, in_place: frozenset[str]) -> None:
        self._plan = plan
        self._in_place = in_place
        self._sizes: dict[int, int] = {}
        self._slots = 0
        self.events: list[list[Event]] = [[] for _ in range(n_backends)]

    def sizes(self) -> tuple[Polynomial, ...]:
        return tuple(polynomial(size) for size in self._sizes)

    def run(self) -> None:
        plan = self._plan
        for leaf in plan.leaves:
            self._allocate(leaf)
        for node in plan.nodes:
            if node.root is not None and node.op != "none":
                node.root.views += 1
            for source in node.srcs:
                source.children += 1
                if source.is_input:
                    self._allocate(source)
        for node in plan.nodes:
            for source in node.srcs:
                self._allocate(source)
            self._allocate(node)
            for source in node.srcs:
                self._release(source)

    def _allocate(self, tensor: Tensor) -> None:
        if tensor.owns or tensor.place is not None or tensor.root is not None:
            return
        tensor.owns = True
        if tensor.op in self._in_place and self._reuses(tensor):
            return
        tensor.size = self._sizes.setdefault(tensor.n_bytes, len(self._sizes))
        tensor.slot = self._slots
        self._slots += 1
        self._tell(tensor, ALLOCATE)

    def _reuses(self, tensor: Tensor) -> bool:
        """Whether the tensor may be written over one of its operands: over a view never."""
        for parent in tensor.srcs:
            if not parent.owns or parent.is_output or parent.children != 1 or parent.views:
                continue
            if parent.kind == tensor.kind and parent.ne == tensor.ne and parent.nb == tensor.nb:
                tensor.backend, tensor.slot, tensor.size = parent.backend, parent.slot, parent.size
                parent.owns = False
                return True
        return False

    def _release(self, source: Tensor) -> None:
        source.children -= 1
        if source.children or source.views:
            return
        owner = source
        if source.root is not None:
            owner = source.root
            owner.views -= 1
            if owner.views or owner.children:
                return
        if owner.owns and not owner.is_output:
            self._tell(owner, FREE)
            owner.owns = False

    def _tell(self, tensor: Tensor, what: int) -> None:
        self.events[tensor.backend or 0].append(Event(what, tensor.slot, tensor.size))


def lay_out(plan: Schedule, n_backends: int, in_place: frozenset[str]) -> Layout:
    """The events of one scheduled graph.

    Args:
        plan: the graph with its copies.
        n_backends: the CPU and the devices.
        in_place: operations that may write over their operand in this build of the engine.
    """
    allocator = _Allocator(plan, n_backends, in_place)
    allocator.run()
    return Layout(tuple(tuple(events) for events in allocator.events), allocator.sizes())
