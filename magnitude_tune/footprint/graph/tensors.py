"""Tensors of a compute graph and the operations that make them: shapes only, no data.

A replica of what ggml's graph needs to be laid out in memory. Dimensions that belong to the batch (tokens, sequences,
cells, rows of output) may be multiplied, added and divided exactly, never compared or rounded: `layout.py` passes
placeholders for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["F16", "F32", "I32", "I64", "VIEW_OPS", "Graph", "Tensor"]

F32: Final = 4
F16: Final = 2
I32: Final = -4
I64: Final = 8
"""Element types, named by their size; i32 is told from f32 by its sign, as layouts of two types never match."""

Ne = tuple[int, int, int, int]

VIEW_OPS: Final = frozenset({"view", "none"})
"""Operations that compute nothing: reshapes, views, permutations and leaves. No split starts at one."""

_LEAF: Final = "none"


class Tensor:
    """One tensor: its shape (ne0 first), what it is computed from, and whose memory it uses.

    Args:
        op: the operation; `none` for a leaf.
        kind: element type, one of `F32`, `F16`, `I32`, `I64`.
        nb: strides in bytes where the tensor is not contiguous, else None.
        root: the tensor whose memory this one looks at; None where it has memory of its own.
        place: where its buffer is, for weights and caches, which are allocated elsewhere; None for the rest.
        home: where the engine insists on computing this operation; None where the scheduler is free.
        is_input: filled from outside before the graph runs: allocated first, kept until it was read last.
        is_weight: weights pull their operations to their place; caches only hold theirs.
    """

    __slots__ = (
        "backend",
        "children",
        "home",
        "is_input",
        "is_output",
        "is_weight",
        "kind",
        "nb",
        "ne",
        "op",
        "owns",
        "place",
        "root",
        "size",
        "slot",
        "srcs",
        "views",
    )

    def __init__(self, op: str, kind: int, ne: Ne, srcs: tuple[Tensor, ...] = ()) -> None:
        self.op = op
        self.kind = kind
        self.ne = ne
        self.srcs = srcs
        self.nb: tuple[int, ...] | None = None
        self.root: Tensor | None = None
        self.place: int | None = None
        self.home: int | None = None
        self.is_input = False
        self.is_output = False
        self.is_weight = False
        # Filled in by the scheduler, and by the layout.
        self.backend: int | None = None
        self.children = 0
        self.views = 0
        self.owns = False
        self.slot = -1
        self.size = 0

    @property
    def n_bytes(self) -> int:
        """Bytes from the first element to the last."""
        if self.nb is None:
            a, b, c, d = self.ne
            return abs(self.kind) * a * b * c * d
        return abs(self.kind) + sum((n - 1) * step for n, step in zip(self.ne, self.nb, strict=True))

    def twin(self) -> Tensor:
        """A leaf of the same type, shape and strides."""
        tensor = Tensor(_LEAF, self.kind, self.ne)
        if self.nb is not None and self.nb != tensor.strides:
            tensor.nb = self.nb
        return tensor

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes of all four dimensions."""
        if self.nb is not None:
            return self.nb
        size = abs(self.kind)
        a, b, c, _ = self.ne
        return (size, size * a, size * a * b, size * a * b * c)


class Graph:
    """A graph under construction: nodes in the order in which the engine computes them, leaves as they are met.

    The methods are ggml's operations; each returns its result. `expand` fixes the order, as in the engine.
    """

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leaves: list[Tensor] = []
        self._visited: set[Tensor] = set()

    # Leaves

    def input(self, kind: int, *ne: int) -> Tensor:
        """A tensor that is filled from outside."""
        tensor = Tensor(_LEAF, kind, _four(ne))
        tensor.is_input = True
        return tensor

    def weight(self, place: int, *ne: int) -> Tensor:
        """A weight at a place; its own memory is none of the graph's."""
        tensor = Tensor(_LEAF, F32, _four(ne))
        tensor.place = place
        tensor.is_weight = True
        return tensor

    def cache(self, place: int, *ne: int) -> Tensor:
        """A tensor of the KV cache or of recurrent state."""
        tensor = Tensor(_LEAF, F16, _four(ne))
        tensor.place = place
        return tensor

    # Views: no memory of their own

    def view(self, source: Tensor, *ne: int, nb: tuple[int, ...] | None = None) -> Tensor:
        """A view of other shape; `nb`: strides in bytes where it is not contiguous."""
        tensor = Tensor("view", source.kind, _four(ne), (source,))
        tensor.nb = nb
        tensor.root = source.root or source
        return tensor

    def part(self, source: Tensor, *ne: int) -> Tensor:
        """A view of the first dimensions of rows that stay as far apart as they are."""
        return self.view(source, *ne, nb=source.strides)

    def permute(self, source: Tensor, *axes: int) -> Tensor:
        """Axis `i` of the source becomes axis `axes[i]`."""
        ne, nb, strides = [0] * 4, [0] * 4, source.strides
        for axis, to in enumerate(axes):
            ne[to] = source.ne[axis]
            nb[to] = strides[axis]
        return self.view(source, *ne, nb=tuple(nb))

    def transpose(self, source: Tensor) -> Tensor:
        """The first two axes swapped."""
        return self.permute(source, 1, 0, 2, 3)

    def set_rows(self, target: Tensor, source: Tensor, ids: Tensor) -> Tensor:
        """Rows written into a cache: the result looks at the target."""
        tensor = Tensor("set_rows", target.kind, target.ne, (source, ids, target))
        tensor.root = target.root or target
        return tensor

    def copy(self, source: Tensor, target: Tensor) -> Tensor:
        """The source written over the target: the result looks at the target."""
        tensor = Tensor("cpy", target.kind, target.ne, (source, target))
        tensor.nb = target.nb
        tensor.root = target.root or target
        return tensor

    # Operations with memory of their own

    def op(self, name: str, ne: Sequence[int], *srcs: Tensor, kind: int = F32) -> Tensor:
        """Any operation: its result is contiguous."""
        return Tensor(name, kind, _four(tuple(ne)), srcs)

    def like(self, name: str, first: Tensor, *others: Tensor) -> Tensor:
        """An operation whose result has the shape and type of its first operand."""
        return Tensor(name, first.kind, first.ne, (first, *others))

    def mul_mat(self, left: Tensor, right: Tensor) -> Tensor:
        """[k, n] x [k, m] -> [n, m]."""
        return Tensor("mul_mat", F32, (left.ne[1], *right.ne[1:]), (left, right))

    def mul_mat_id(self, experts: Tensor, right: Tensor, ids: Tensor) -> Tensor:
        """[k, n, experts] x [k, used or 1, tokens], ids [used, tokens] -> [n, used, tokens]."""
        return Tensor("mul_mat_id", F32, (experts.ne[1], ids.ne[0], right.ne[2], 1), (experts, right, ids))

    def get_rows(self, source: Tensor, ids: Tensor) -> Tensor:
        """[n, rows] by ids [m] -> [n, m]."""
        kind = I32 if source.kind == I32 else F32
        return Tensor("get_rows", kind, (source.ne[0], *ids.ne[:3]), (source, ids))

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum, broadcast over the left operand."""
        return self.like("add", left, right)

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        """Product by element, broadcast over the left operand."""
        return self.like("mul", left, right)

    def scale(self, source: Tensor) -> Tensor:
        """Multiplied by a number."""
        return self.like("scale", source)

    def unary(self, source: Tensor) -> Tensor:
        """silu, gelu, relu, tanh, sigmoid, exp and the like."""
        return self.like("unary", source)

    def rms_norm(self, source: Tensor) -> Tensor:
        """Root mean square norm, in place where possible."""
        return self.like("rms_norm", source)

    def norm(self, source: Tensor) -> Tensor:
        """Layer norm: never in place."""
        return self.like("norm", source)

    def rope(self, source: Tensor, positions: Tensor, *factors: Tensor) -> Tensor:
        """Rotated by position."""
        return self.like("rope", source, positions, *factors)

    def cont(self, source: Tensor, *ne: int) -> Tensor:
        """A contiguous copy, of other shape if one is given."""
        return Tensor("cont", source.kind, _four(ne) if ne else source.ne, (source,))

    def cast(self, source: Tensor, kind: int) -> Tensor:
        """A contiguous copy of another type."""
        return Tensor("cpy", kind, source.ne, (source,))

    def concat(self, left: Tensor, right: Tensor, axis: int) -> Tensor:
        """Both one after the other along an axis."""
        ne = list(left.ne)
        ne[axis] = left.ne[axis] + right.ne[axis]
        return Tensor("concat", left.kind, (ne[0], ne[1], ne[2], ne[3]), (left, right))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """swiglu, geglu, reglu of two operands."""
        return self.like("glu", gate, up)

    def gated_halves(self, both: Tensor) -> Tensor:
        """swiglu, geglu, reglu of one operand that holds gate and up side by side."""
        return Tensor("glu", both.kind, (both.ne[0] // 2, *both.ne[1:]), (both,))

    def top_k(self, source: Tensor, k: int) -> Tensor:
        """Ids of the k largest of each row: a view of all ids, sorted."""
        return self.part(self.op("argsort", source.ne, source, kind=I32), k, *source.ne[1:])

    # Order

    def expand(self, tensor: Tensor) -> None:
        """Append the tensor after everything that it needs, each once, operands from left to right."""
        visited = self._visited
        if tensor in visited:
            return
        visited.add(tensor)
        for source in tensor.srcs:
            if source not in visited:
                self.expand(source)
        (self.leaves if tensor.op == _LEAF else self.nodes).append(tensor)


def _four(ne: Sequence[int]) -> Ne:
    a, b, c, d, *_ = (*ne, 1, 1, 1, 1)
    return a, b, c, d
