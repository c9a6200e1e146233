"""Splits over devices, repacked copies by CPU, buffers that are only held while loading."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from magnitude_tune.footprint.model import footprint_model
from magnitude_tune.footprint.values import Footprint
from magnitude_tune.header.values import Attention, MoeFacts, Role
from magnitude_tune.units import GIB, MIB


def _reserved(footprint: Footprint, name: str, device: str = "CPU") -> int:
    return sum(term.reserved_bytes for term in footprint.terms if term.name == name and term.device == device)


@pytest.mark.parametrize(
    ("features", "buffers", "matrix", "expected"),
    [
        (("avx2",), ("cpu_repack",), ("q4_0", Role.ATTENTION), 800),
        (("avx2",), ("cpu_repack",), ("q2_k", Role.ATTENTION), 0),
        (("avx2", "avx512f"), ("cpu_repack",), ("q2_k", Role.ATTENTION), 800),
        (("avx2",), ("cpu_repack",), ("q8_0", Role.ATTENTION), 0),
        (("asimddp",), ("cpu_repack",), ("q8_0", Role.ATTENTION), 800),
        (("asimddp",), ("cpu_repack",), ("q6_k", Role.EXPERT_FFN), 800),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q6_k", Role.ATTENTION), 800),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q8_0", Role.ATTENTION), 800 * 38 // 34),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q4_k", Role.ATTENTION), 800 * 148 // 144),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q8_0", Role.EXPERT_FFN), 0),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q4_k", Role.EXPERT_FFN), 800),
        (("avx2", "amx_int8"), ("amx", "cpu_repack"), ("q5_0", Role.ATTENTION), 0),
        (("avx2", "amx_int8"), (), ("q4_0", Role.ATTENTION), 0),
    ],
)
def test_repacked_types_follow_the_cpu_and_the_build(
    make: SimpleNamespace,
    features: tuple[str, ...],
    buffers: tuple[str, ...],
    matrix: tuple[str, Role],
    expected: int,
) -> None:
    """Each instruction set has its list of types, each buffer its growth; experts never go to AMX."""
    type_name, role = matrix
    groups = [make.group(0, role, 1000, type_name, repackable=800)]
    header = make.header([make.layer(Attention.FULL, 8, 8, 64)], groups)
    model = footprint_model(header, make.machine(features=features), make.engine(extra_buffers=buffers))
    footprint = model.footprint(make.settings(repack=True))
    assert _reserved(footprint, "repacked") == expected
    assert _reserved(model.footprint(make.settings(repack=False)), "repacked") == 0


def test_before_an_engine_is_installed_the_cpu_decides(make: SimpleNamespace) -> None:
    """Without an engine the copies are those of a build for this very CPU."""
    for features, expected in (((), 0), (("avx2",), 0), (("avx2", "amx_int8", "avx512_vnni"), 1000)):
        groups = [make.group(0, Role.ATTENTION, 1000, "q6_k", repackable=1000)]
        header = make.header([make.layer(Attention.FULL, 8, 8, 64)], groups)
        model = footprint_model(header, make.machine(features=features), None)
        assert _reserved(model.footprint(make.settings(repack=True)), "repacked") == expected


def test_a_card_with_pinned_buffers_leaves_nothing_to_repack(make: SimpleNamespace) -> None:
    """CPU weights beside a CUDA device go to its host buffers first; beside an RPC device they are repacked."""
    for backend, copied in (("cuda", False), ("rpc", True)):
        machine = make.machine([make.device("D0", backend, "vram0")])
        model = footprint_model(make.gemma3_270m(), machine, make.engine())
        footprint = model.footprint(make.settings(repack=True, n_gpu_layers=10, devices=("D0",)))
        assert (_reserved(footprint, "repacked") > 0) is copied


def test_reading_without_a_map_needs_a_buffer_while_loading(make: SimpleNamespace) -> None:
    """CPU_REPACK is filled last, through a buffer of its largest tensor: reserved, never resident afterwards."""
    groups = [make.group(0, Role.ATTENTION, 9000, "q4_0", largest=4000, repackable=9000)]
    header = make.header([make.layer(Attention.FULL, 8, 8, 64)], groups)
    model = footprint_model(header, make.machine(features=("avx2",)), make.engine(extra_buffers=("cpu_repack",)))
    for load_mode, repack, expected in (("none", True, 4000), ("mmap", True, 0), ("none", False, 0)):
        footprint = model.footprint(make.settings(repack=repack, load_mode=load_mode))
        staging = [term for term in footprint.terms if term.name == "staging"]
        assert sum(term.reserved_bytes for term in staging) == expected
        assert sum(term.resident_bytes for term in staging) == 0


def test_an_rpc_device_on_this_host_takes_this_hosts_memory(make: SimpleNamespace) -> None:
    """Loopback RPC: both sides come from one pool, the largest tensor in transit counts, no driver overhead."""
    machine = make.machine([make.device("RPC0", "rpc", "ram")])
    model = footprint_model(make.gemma3_270m(), machine, make.engine())
    settings = make.settings(n_gpu_layers=19, devices=("RPC0",))
    footprint = model.footprint(settings)
    assert model.pools == ("ram",)
    assert model.reserved(settings) == (sum(term.reserved_bytes for term in footprint.terms),)
    assert model.reserved_by_device(settings) == (footprint.reserved_of_device("RPC0"),)
    assert _reserved(footprint, "staging", "RPC0") == _reserved(footprint, "staging") == 170 * MIB
    assert _reserved(footprint, "device_overhead", "RPC0") == 0


def test_b25_each_card_has_its_own_layers_cache_and_buffers(make: SimpleNamespace) -> None:
    """Unequal blocks on cards of 10 and 20 GiB: bytes follow the layers, both cards have compute and overhead."""
    sizes = [3 * GIB] * 3 + [GIB] * 9
    groups = [make.group(block, Role.DENSE_FFN, size) for block, size in enumerate(sizes)]
    header = make.header([make.layer(Attention.FULL, 32, 8, 128)] * 12, groups)
    cards = [make.device("CUDA0", "cuda", "vram0", 10 * GIB), make.device("CUDA1", "cuda", "vram1", 20 * GIB)]
    model = footprint_model(header, make.machine(cards), None)
    names = ("CUDA0", "CUDA1")
    footprint = model.footprint(make.settings(n_gpu_layers=13, devices=names, tensor_split=(2, 11)))
    assert [_reserved(footprint, "weights", name) for name in names] == [6 * GIB, 12 * GIB]
    assert [_reserved(footprint, "kv_cache", name) for name in names] == [64 * MIB, 320 * MIB]
    assert all(_reserved(footprint, "compute", name) > 0 for name in names)
    assert all(_reserved(footprint, "device_overhead", name) > 0 for name in names)
    by_free_memory = model.footprint(make.settings(n_gpu_layers=13, devices=names))
    assert [_reserved(by_free_memory, "weights", name) // GIB for name in names] == [11, 7]


def test_only_used_cards_are_charged(make: SimpleNamespace) -> None:
    """A card that no layer goes to has no term, whether it is not named or has a share of nothing."""
    cards = [make.device("CUDA0", "cuda", "vram0"), make.device("CUDA1", "cuda", "vram1")]
    model = footprint_model(make.gemma3_270m(), make.machine(cards), None)
    for changes in (
        {"devices": ("CUDA1",)},
        {"devices": ("CUDA0", "CUDA1"), "tensor_split": (0, 5)},
    ):
        settings = make.settings(n_gpu_layers=5, **changes)
        assert model.reserved_by_device(settings)[0] == 0
        assert model.reserved_by_device(settings)[1] > 0
    assert model.reserved_by_device(make.settings(n_gpu_layers=5)) == (0, 0)


def test_an_offloaded_matmul_needs_room_for_the_largest_host_matrix(make: SimpleNamespace) -> None:
    """Expert matrices kept on the CPU are copied to the card for large batches: their largest counts there."""
    layers = [make.layer(Attention.FULL, 8, 2, 64)] * 2
    groups = [make.group(block, Role.EXPERT_FFN, 900 * MIB, largest=300 * MIB) for block in range(2)]
    header = make.header(layers, groups, moe=MoeFacts(64, 4, 512))
    model = footprint_model(header, make.machine([make.device("CUDA0", "cuda", "vram0")]), None)
    on_card, on_host = (
        _reserved(model.footprint(make.settings(n_gpu_layers=3, devices=("CUDA0",), n_cpu_moe=n)), "compute", "CUDA0")
        for n in (0, 2)
    )
    assert on_host - on_card == 300 * MIB


@pytest.mark.parametrize("engine", ["llama_cpp_python", "llama_server"])
@pytest.mark.parametrize("n_ubatch", [64, 128, 256, 512])
def test_half_a_gib_holds_the_real_model_only_without_repacking(
    make: SimpleNamespace, engine: str, n_ubatch: int
) -> None:
    """At 8192 tokens the repacked copy is what 512 MiB cannot hold, mapped or not; 128 MiB hold nothing."""
    model = footprint_model(make.gemma3_270m(), make.machine(), make.engine(engine))
    plain = model.reserved(make.settings(n_ubatch=n_ubatch))[0]
    assert 128 * MIB < plain <= 512 * MIB
    for load_mode in ("mmap", "none"):
        assert model.reserved(make.settings(n_ubatch=n_ubatch, repack=True, load_mode=load_mode))[0] > 512 * MIB


def test_each_term_says_how_sure_it_is_and_why(make: SimpleNamespace) -> None:
    """Weights, cache and the CPU's buffer are exact, a card's and the process estimated; all have a rule and a pool."""
    machine = make.machine([make.device("CUDA0", "cuda", "vram0")])
    settings = make.settings(n_gpu_layers=10, devices=("CUDA0",), cache_ram=256)
    terms = footprint_model(make.gemma3_270m(), machine, None).footprint(settings).terms
    certainty = {term.name: term.certainty for term in terms if term.name != "compute"}
    assert certainty["weights"] == certainty["kv_cache"] == certainty["output"] == "exact"
    assert certainty["prompt_cache"] == "bounded"
    assert certainty["process"] == certainty["device_overhead"] == "estimated"
    compute = {term.device: term for term in terms if term.name == "compute"}
    assert compute["CPU"].certainty == "exact"
    card = compute["CUDA0"]
    assert card.certainty == "estimated"
    assert card.low_bytes < card.resident_bytes < card.high_bytes == card.reserved_bytes
    assert all(term.rule and term.pool in {"ram", "vram0"} for term in terms)
