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


class _State:
    __slots__ = ("backend", "children", "owns", "size", "slot", "views")

    def __init__(self) -> None:
        self.children = 0
        self.views = 0
        self.owns = False
        self.slot = -1
        self.size = 0
        self.backend = 0


class _Allocator:
    def __init__(self, plan: Schedule, n_backends: int, in_place: frozenset[str]) -> None:
        self._plan = plan
        self._in_place = in_place
        self._states: dict[Tensor, _State] = {}
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
                self._state(node.root).views += 1
            for source in node.srcs:
                self._state(source).children += 1
                if source.is_input:
                    self._allocate(source)
        for node in plan.nodes:
            for source in node.srcs:
                self._allocate(source)
            self._allocate(node)
            for source in node.srcs:
                self._release(source)

    def _state(self, tensor: Tensor) -> _State:
        state = self._states.get(tensor)
        if state is None:
            state = self._states[tensor] = _State()
        return state

    def _allocate(self, tensor: Tensor) -> None:
        state = self._state(tensor)
        if state.owns or tensor.place is not None or tensor.root is not None:
            return
        state.owns = True
        if tensor.op in self._in_place and self._reuses(tensor, state):
            return
        state.backend = self._plan.backend_of[tensor]
        state.size = tensor.n_bytes
        state.slot = self._slots
        self._slots += 1
        self._tell(state, ALLOCATE)

    def _reuses(self, tensor: Tensor, state: _State) -> bool:
        """Whether the tensor may be written over one of its operands: over a view never."""
        for parent in tensor.srcs:
            owner = self._state(parent)
            if not owner.owns or parent.is_output or owner.children != 1 or owner.views:
                continue
            if parent.kind == tensor.kind and parent.ne == tensor.ne and parent.nb == tensor.nb:
                state.backend, state.slot, state.size = owner.backend, owner.slot, owner.size
                owner.owns = False
                return True
        return False

    def _release(self, source: Tensor) -> None:
        state = self._state(source)
        state.children -= 1
        if state.children or state.views:
            return
        if source.root is None:
            if state.owns:
                self._free(source, state)
            return
        owner = self._state(source.root)
        owner.views -= 1
        if not owner.views and not owner.children and owner.owns:
            self._free(source.root, owner)

    def _free(self, tensor: Tensor, state: _State) -> None:
        if not tensor.is_output:
            self._tell(state, FREE)
            state.owns = False

    def _tell(self, state: _State, what: int) -> None:
        size = self._sizes.setdefault(state.size, len(self._sizes))
        self.events[state.backend].append(Event(what, state.slot, size))


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
