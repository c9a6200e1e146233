"""The replay of the engine's allocator: sizes, packing, and the blocks that stand for their like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_models
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.footprint.batch import Batch, cells
from magnitude_tune.footprint.graph.dims import PLACEHOLDERS, Dims, evaluate, polynomial
from magnitude_tune.footprint.graph.layout import ALLOCATE, FREE, Event
from magnitude_tune.footprint.graph.packing import peak_bytes
from magnitude_tune.footprint.graph.replay import Replay
from magnitude_tune.footprint.placement import Placement, Span
from magnitude_tune.header.read import read_model
from magnitude_tune.header.values import ModelHeader

_COUNT = st.integers(min_value=0, max_value=1 << 20)
_DIMS = st.builds(Dims, *([st.integers(min_value=1, max_value=1 << 17)] * 5))


@given(_COUNT, _COUNT, _COUNT, _DIMS)
def test_a_size_in_placeholders_is_the_size_in_numbers(a: int, b: int, c: int, dims: Dims) -> None:
    """Products and sums of placeholders, read back, give what the same arithmetic gives for real dimensions."""

    def size(of: Dims) -> int:
        per_token = a + b * of.full_cells + of.sliding_cells
        return of.tokens * of.sequences * per_token + c * of.outputs + (a + of.tokens) * of.sequences * b

    assert evaluate(polynomial(size(PLACEHOLDERS)), dims) == size(dims)


@given(st.data())
def test_packing_never_overlaps_and_never_needs_more_than_everything(data: st.DataObject) -> None:
    """The peak lies between the most bytes alive at once and the sum of all bytes."""
    sizes = data.draw(st.lists(st.integers(min_value=0, max_value=100), min_size=1, max_size=30))
    alive: list[int] = []
    events, most = [], 0
    for slot, _ in enumerate(sizes):
        events.append(Event(ALLOCATE, slot, slot))
        alive.append(slot)
        most = max(most, sum(sizes[each] for each in alive))
        while alive and data.draw(st.booleans()):
            freed = data.draw(st.sampled_from(alive))
            alive.remove(freed)
            events.append(Event(FREE, freed, freed))
    assert most <= peak_bytes(events, sizes) <= sum(sizes)


def test_a_freed_block_is_taken_again_by_what_fits_it_best() -> None:
    """Two holes of 10 and 20 bytes: 9 bytes go into the smaller one, 20 into the other, and nothing grows."""
    sizes = [10, 1, 20, 1, 9]
    taken = [Event(ALLOCATE, slot, slot) for slot in range(4)]
    freed = [Event(FREE, 0, 0), Event(FREE, 2, 2)]
    again = [Event(ALLOCATE, 4, 4), Event(ALLOCATE, 5, 2)]
    assert peak_bytes([*taken, *freed, *again], sizes) == 32


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
def test_blocks_like_others_add_nothing(architecture: str, tmp_path: Path) -> None:
    """Leaving out blocks that equal others in kind, neighbour and place changes no buffer by a thousandth."""
    header = _deeper(read_model(tiny_models.write(architecture, "small", tmp_path)))
    n_blocks = header.block_count
    half = n_blocks // 2
    placements = (
        Placement(n_blocks, 0, ()),
        Placement(half, 1, (Span(1, half, n_blocks, True),)),
        Placement(0, 2, (Span(1, 0, half, False), Span(2, half, n_blocks, True))),
    )
    for flash_attn in (True, False) if header.flash_attn else (False,):
        size = cells(4096, 1, False, 256, header.sliding_window)
        batch = Batch(256, 1, size, flash_attn, "f16", "f16")
        for placement in placements:
            short = Replay(header).buffers(placement, batch, 1, pipelined=False)
            whole = Replay(_all_different(header)).buffers(placement, batch, 1, pipelined=False)
            assert short == pytest.approx(whole, rel=1e-3)


def _deeper(header: ModelHeader) -> ModelHeader:
    """The same model with its blocks three times over."""
    shapes = header.shapes
    return replace(
        header,
        block_count=3 * header.block_count,
        layers=3 * header.layers,
        n_ff=3 * header.n_ff,
        shapes=shapes._replace(kind_of_block=3 * shapes.kind_of_block),
    )


def _all_different(header: ModelHeader) -> ModelHeader:
    """The same model, but each block has a tensor that no other block has."""
    kinds = tuple({**header.shapes.of_block(block), f"mark_{block}": ()} for block in range(header.block_count))
    shapes = header.shapes._replace(block_kinds=kinds, kind_of_block=tuple(range(header.block_count)))
    return replace(header, shapes=shapes)
