"""The dimensions of a batch, and sizes as polynomials in them.

Recipes compute with plain integers. So that one graph serves every batch, they get placeholders: powers of one large
base, far enough apart that every product and sum of them can be read back digit by digit (Kronecker substitution).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["PLACEHOLDERS", "Dims", "Polynomial", "evaluate", "polynomial"]

_BITS: Final = 128
_BASE: Final = 1 << _BITS
# Powers of each dimension below these bounds can be told apart.
_DEGREES: Final = (("tokens", 3), ("sequences", 3), ("full_cells", 2), ("sliding_cells", 2), ("outputs", 2))


class Dims(NamedTuple):
    """What a graph is built for.

    Args:
        tokens: of one sequence in a micro batch.
        sequences: slots that run at once.
        full_cells, sliding_cells: cells of one stream of the KV cache.
        outputs: rows of logits.
    """

    tokens: int
    sequences: int
    full_cells: int
    sliding_cells: int
    outputs: int


Polynomial = tuple[tuple[int, tuple[int, ...]], ...]
"""Sum of terms: a factor and the power of each dimension."""


def _placeholders() -> Dims:
    values, step = [], 1
    for _, degree in _DEGREES:
        values.append(1 << (_BITS * step))
        step *= degree
    return Dims(*values)


PLACEHOLDERS: Final = _placeholders()


def polynomial(size: int) -> Polynomial:
    """Read a size that was computed from the placeholders."""
    terms = []
    position = 0
    while size > 0:
        size, factor = divmod(size, _BASE)
        if factor > _BASE // 2:  # a negative factor: it borrowed from the next digit
            size, factor = size + 1, factor - _BASE
        if factor:
            powers, rest = [], position
            for _, degree in _DEGREES:
                rest, power = divmod(rest, degree)
                powers.append(power)
            terms.append((factor, tuple(powers)))
        position += 1
    return tuple(terms)


def evaluate(size: Polynomial, dims: Dims) -> int:
    """The size for real dimensions."""
    total = 0
    for factor, powers in size:
        for dim, power in zip(dims, powers, strict=True):
            if power:
                factor *= dim if power == 1 else dim**power  # noqa: PLW2901 - the product of the term
        total += factor
    return total
