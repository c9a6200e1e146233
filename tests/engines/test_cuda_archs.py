"""Which CUDA architectures an engine was compiled for, in its own words."""

from __future__ import annotations

import pytest

from magnitude_tune.engines.cuda_archs import cuda_archs


@pytest.mark.parametrize(
    ("info", "archs"),
    [
        (
            "CUDA : ARCHS = 500,610,700,750,800,860,890 | USE_GRAPHS = 1 | PEER_MAX_BATCH_SIZE = 128 | CPU : SSE3 = 1",
            (500, 610, 700, 750, 800, 860, 890),
        ),
        ("system_info: n_threads = 8 | CUDA : ARCHS = 1200,890 | CPU : AVX2 = 1 |", (890, 1200)),
        ("CPU : SSE3 = 1 | AVX2 = 1 | ", ()),
        ("CUDA : USE_GRAPHS = 1 | ", ()),
        ("CUDA : ARCHS = all | ", ()),
        ("", ()),
    ],
)
def test_architectures_are_read_from_system_info(info: str, archs: tuple[int, ...]) -> None:
    """The list after `CUDA : ARCHS`, ascending; nothing where the engine says nothing."""
    assert cuda_archs(info) == archs
