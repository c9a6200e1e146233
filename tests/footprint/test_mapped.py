"""What stays mapped of a model's files: the figure that engines print for `CPU_Mapped`."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from magnitude_tune.footprint.builds import BuildRules, build_rules
from magnitude_tune.footprint.mapped import MappedRanges, Parts
from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.values import Attention, ModelHeader, Role, TensorGroup
from magnitude_tune.units import GIB


def _placed(group: TensorGroup, first: int, *, shard: int = 0) -> TensorGroup:
    return group._replace(shard=shard, first_byte=first, end_byte=first + group.n_bytes)


def _model(make: SimpleNamespace, *, shards: tuple[int, int] = (0, 0), tied: bool = False) -> ModelHeader:
    """Output norm, two blocks with experts, the embedding; a hole of 1000 bytes after each block."""
    groups = [
        _placed(make.group(None, Role.OUTPUT, 100, "f32"), 1000),
        _placed(make.group(0, Role.ATTENTION, 500, "q4_0", repackable=500), 1100, shard=shards[0]),
        _placed(make.group(0, Role.EXPERT_FFN, 4000, "q8_0"), 1600, shard=shards[0]),
        _placed(make.group(1, Role.ATTENTION, 700, "q4_0", repackable=700), 6600, shard=shards[1]),
        _placed(make.group(1, Role.EXPERT_FFN, 4000, "q8_0"), 7300, shard=shards[1]),
        _placed(make.group(None, Role.TOKEN_EMBEDDING, 900, "q4_0", repackable=900 if tied else 0), 12300),
    ]
    layers = [make.layer(Attention.FULL, 1, 1, 32)] * 2
    return make.header(layers, groups, tied_output=tied)


def _weights(footprint: Footprint, device: str = "CPU") -> tuple[int, int]:
    found = [t for t in footprint.terms if t.name == "weights" and t.device == device]
    return sum(t.reserved_bytes for t in found), sum(t.resident_bytes for t in found)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (10200, 12200)),
        ({"n_gpu_layers": 1}, (10100, 12100)),
        ({"n_gpu_layers": 2}, (5400, 12100)),
        ({"n_gpu_layers": 3}, (900, 900)),
        ({"n_gpu_layers": 3, "n_cpu_moe": 1}, (4900, 11600)),
        ({"n_gpu_layers": 3, "n_cpu_moe": 2}, (8900, 11600)),
        ({"n_gpu_layers": 2, "n_cpu_moe": 2}, (9400, 12100)),
    ],
)
def test_what_lies_between_tensors_of_the_cpu_stays_mapped(
    make: SimpleNamespace, changes: dict[str, int], expected: tuple[int, int]
) -> None:
    """The plan holds the CPU's own tensors; the process shows one range from the first to the last of them."""
    model = footprint_model(_model(make), make.machine([make.device("RPC0", "rpc", "ram")]), None)
    footprint = model.footprint(make.settings(repack=False, devices=("RPC0",), **changes))
    assert _weights(footprint) == expected


def test_repacked_matrices_are_no_part_of_the_range(make: SimpleNamespace) -> None:
    """A range ends with the last tensor that stays; a tied embedding stays where rows are looked up."""
    machine = make.machine(features=["avx2"])
    engine = make.engine(extra_buffers=("cpu_repack",))
    model = footprint_model(_model(make), machine, engine)
    assert _weights(model.footprint(make.settings(repack=True))) == (10200, 12200)
    groups = tuple(group for group in _model(make).groups if group.role is not Role.TOKEN_EMBEDDING)
    without = footprint_model(replace(_model(make), groups=groups), machine, engine)
    assert _weights(without.footprint(make.settings(repack=True)))[1] == 10300
    tied = footprint_model(_model(make, tied=True), machine, engine).footprint(make.settings(repack=True))
    assert _weights(tied)[1] == 12200
    assert next(t.resident_bytes for t in tied.terms if t.name == "repacked") == 500 + 700 + 900


def test_each_file_has_a_range_of_its_own(make: SimpleNamespace) -> None:
    """Blocks in other files than the embedding: three ranges, without what lies between."""
    model = footprint_model(_model(make, shards=(1, 2)), make.machine(), None)
    assert _weights(model.footprint(make.settings(repack=False)))[1] == 12200 + 4500 + 4700
    part = footprint_model(_model(make, shards=(1, 2)), make.machine([make.device("RPC0", "rpc", "ram")]), None)
    settings = make.settings(repack=False, devices=("RPC0",), n_gpu_layers=2)
    assert _weights(part.footprint(settings))[1] == 900 + 4500


def test_a_header_without_ranges_shows_its_sums(make: SimpleNamespace) -> None:
    """Where nothing is known of offsets, what is mapped is what is needed."""
    header = _model(make)
    groups = tuple(group._replace(first_byte=0, end_byte=0) for group in header.groups)
    model = footprint_model(replace(header, groups=groups), make.machine(), None)
    assert _weights(model.footprint(make.settings(repack=False))) == (10200, 10200)


def test_an_output_that_is_asked_for_first_is_there_twice(make: SimpleNamespace) -> None:
    """Gemma 3n and 4 hold the tied embedding twice on the CPU unless it is mapped, repacked or offloaded."""
    device = make.device("RPC0", "rpc", "ram")
    for architecture, twice in (("gemma3", 0), ("gemma3n", 900), ("gemma4", 900)):
        header = replace(_model(make, tied=True), architecture=architecture)
        model = footprint_model(header, make.machine([device]), make.engine(extra_buffers=()))

        def cpu(model=model, **changes: object) -> int:  # type: ignore[no-untyped-def]
            return _weights(model.footprint(make.settings(**changes)))[0]

        assert cpu(load_mode="none") == 10200 + twice
        assert cpu(load_mode="mmap") == 10200
        assert cpu(load_mode="none", n_gpu_layers=1, devices=("RPC0",)) == 10100


def test_a_tensor_that_is_read_lazily_has_its_own_range(make: SimpleNamespace) -> None:
    """Per-layer embeddings above 4 GiB are mapped apart from the rest since the builds that read them lazily."""
    embedding = _placed(make.group(None, Role.TOKEN_EMBEDDING, 100), 0)
    lazy = _placed(make.group(None, Role.PER_LAYER_EMBEDDING, 5 * GIB), 10_000)
    parts = Parts([embedding, lazy], [], [], [], [])
    for threshold, expected in ((None, 10_000 + 5 * GIB), (4 * GIB, 100 + 5 * GIB)):

        def is_lazy(group: TensorGroup, threshold: int | None = threshold) -> bool:
            return threshold is not None and group.largest_bytes > threshold

        ranges = MappedRanges(parts, lambda _: True, is_lazy)
        assert ranges.n_bytes(0, 0, output_on_host=True) == expected


def test_stacks_of_matrices_go_to_amx_only(make: SimpleNamespace) -> None:
    """AMX takes them, with room for one quantised slice, as the engine has it; CPU_REPACK takes none."""
    stack = make.group(0, Role.ATTENTION, 4 * 3400, "q8_0")._replace(slices=4)
    halves = make.group(0, Role.ATTENTION, 4 * 1000, "f16")._replace(slices=4)
    header = make.header([make.layer(Attention.FULL, 1, 1, 32)], [stack, halves])
    for buffers, copy, kept in ((("amx", "cpu_repack"), 3800 + 4000, 0), (("cpu_repack",), 0, 17600)):
        engine = make.engine(extra_buffers=buffers)
        footprint = footprint_model(header, make.machine(), engine).footprint(
            make.settings(load_mode="none", repack=True)
        )
        assert sum(t.reserved_bytes for t in footprint.terms if t.name == "repacked") == copy
        assert _weights(footprint)[0] == kept


def test_rope_frequencies_are_copied_to_every_place_with_blocks(make: SimpleNamespace) -> None:
    """Each device with a block has them, the CPU too while it keeps one; the output layer alone has none."""
    rope = make.group(None, Role.ROPE, 256, "f32")
    header = make.header([make.layer(Attention.FULL, 1, 1, 32)] * 2, [rope])
    model = footprint_model(header, make.machine([make.device("RPC0", "rpc", "ram")]), None)
    sizes = []
    for n in range(4):
        footprint = model.footprint(make.settings(n_gpu_layers=n, devices=("RPC0",)))
        sizes.append((_weights(footprint)[0], _weights(footprint, "RPC0")[0]))
    assert sizes == [(256, 0), (256, 0), (256, 256), (0, 256)]


@pytest.mark.parametrize(
    ("version", "packs_first"),
    [(None, True), ("", True), ("unknown", True), ("0.20.0", False), ("0.9.4", False), ("0.25.3", True), ("1.0", True)],
)
def test_rules_are_those_of_the_build(version: str | None, packs_first: bool) -> None:
    """Up to ggml 0.20 weights are read in the order of buffers' names and never lazily; newest rules by default."""
    rules = build_rules(version)
    assert rules.packs_first is packs_first
    assert (rules.lazy_above_bytes is None) is not packs_first
    assert build_rules(None) == BuildRules()
