"""The speed model and the footprint agree on what is repacked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magnitude_tune.fingerprint.layouts import extra_buffers
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.header.values import MoeFacts, Role
from magnitude_tune.throughput.repack import repackable_types

TYPES = (
    "f32",
    "f16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "mxfp4",
)
FEATURES = (
    frozenset(("avx2",)),
    frozenset(("avx2", "avx512f", "avx512_vnni", "amx_int8")),
    frozenset(("asimd", "asimddp")),
)
PLACES = ((0, Role.DENSE_FFN), (0, Role.EXPERT_FFN), (None, Role.OUTPUT))


@pytest.mark.parametrize("n_vocab", [32_000, 32_001])
@pytest.mark.parametrize("features", FEATURES, ids=lambda features: "+".join(sorted(features)))
@pytest.mark.parametrize("buffers", [None, (), ("amx",), ("cpu_repack",), ("amx", "cpu_repack")])
def test_the_same_types_are_repacked(
    build: Any, features: frozenset[str], buffers: tuple[str, ...] | None, n_vocab: int
) -> None:
    """For every CPU, engine and type: what the footprint copies is what the speed model takes for faster."""
    machine = build.machine()
    machine = replace(machine, cpu=replace(machine.cpu, features=features))
    engine = None if buffers is None else build.engine(*buffers)
    types = repackable_types(extra_buffers(engine, machine.cpu), features, n_vocab)
    for (block, role), known in zip(PLACES, (types.dense, types.experts, types.output), strict=True):
        for name in TYPES:
            groups = (build.group(block, role, 1 << 20, name),)
            header = build.header(block_count=1, groups=groups, n_vocab=n_vocab, moe=MoeFacts(8, 2, 64))
            terms = footprint_model(header, machine, engine).footprint(build.settings(repack=True)).terms
            copied = any(term.name == "repacked" and term.reserved_bytes > 0 for term in terms)
            assert copied == (name in known), (name, role)
