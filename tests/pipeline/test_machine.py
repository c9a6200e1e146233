"""The machine joined with what its engines see."""

from __future__ import annotations

from dataclasses import replace

import pytest
from resolver.stand_ins import a_machine, an_engine

from magnitude_tune.errors import MissingPartError, UsageError
from magnitude_tune.findings import Rule
from magnitude_tune.fingerprint.values import EngineDevice
from magnitude_tune.pipeline.engine_choice import choose_engine, machine_for_engine
from magnitude_tune.pipeline.engine_devices import with_engine_devices
from magnitude_tune.pipeline.machine import _hash_with, find_machine
from magnitude_tune.units import GIB

CARD = (24 * GIB, 20 * GIB)


def test_loopback_rpc_shares_the_hosts_memory() -> None:
    """A device over RPC on 127.0.0.1 brings no memory of its own."""
    listed = EngineDevice("RPC0", "127.0.0.1:50052", 32 * GIB, 32 * GIB)
    machine = with_engine_devices(replace(a_machine(), engines=(an_engine(devices=(listed,)),)))
    assert [(device.name, device.backend, device.pool) for device in machine.devices] == [("RPC0", "rpc", "ram")]
    assert [pool.name for pool in machine.pools] == ["ram"]


def test_remote_rpc_brings_its_own_pool() -> None:
    """A device on another host is a pool of that host's RAM."""
    listed = EngineDevice("RPC0", "10.0.0.2:50052", 32 * GIB, 30 * GIB)
    machine = with_engine_devices(replace(a_machine(), engines=(an_engine(devices=(listed,)),)))
    assert machine.pool("rpc0").kind == "remote"
    assert machine.pool("rpc0").available_bytes == 30 * GIB


def test_the_smaller_reading_of_free_memory_counts() -> None:
    """B34: two sources of free memory, the smaller one is planned with."""
    listed = EngineDevice("CUDA0", "a card", 24 * GIB, 15 * GIB)
    machine = with_engine_devices(replace(a_machine(cards=(CARD,)), engines=(an_engine(devices=(listed,)),)))
    assert machine.devices[0].free_bytes == 15 * GIB
    assert machine.pool("cuda0").available_bytes == 15 * GIB


def test_one_card_under_two_backends_is_one_pool() -> None:
    """Vulkan0 is CUDA0 again: its memory is counted once and its speed is known."""
    listed = EngineDevice("Vulkan0", "a card", 24 * GIB, 20 * GIB)
    engine = an_engine(devices=(listed,), backends=("cpu", "vulkan"))
    machine = with_engine_devices(replace(a_machine(cards=(CARD,)), engines=(engine,)))
    assert [pool.name for pool in machine.pools] == ["ram", "cuda0"]
    usable = machine_for_engine(machine, engine)
    assert [(device.name, device.pool) for device in usable.devices] == [("Vulkan0", "cuda0")]
    assert usable.devices[0].bandwidth == machine.devices[0].bandwidth


def test_the_engine_that_reaches_the_card_is_preferred() -> None:
    """The embedded engine comes first, unless only another can use the accelerators."""
    embedded = an_engine(name="llama_cpp_python", gpu_offload=False, backends=("cpu",))
    server = an_engine(devices=(EngineDevice("CUDA0", "a card", *CARD),))
    with_card = replace(a_machine(cards=(CARD,)), engines=(embedded, server))
    assert choose_engine(with_card, None)[0] == server
    without = replace(a_machine(), engines=(server, embedded))
    assert choose_engine(without, None)[0] == embedded


def test_an_unusable_engine_is_a_finding() -> None:
    """B21: the engine's problem is reported, and planning goes on without it."""
    broken = an_engine(problem="libcuda.so.1 is missing")
    engine, findings = choose_engine(replace(a_machine(), engines=(broken,)), None)
    assert engine is None
    assert [finding.rule for finding in findings] == [Rule.ENGINE_UNUSABLE]
    assert "libcuda.so.1 is missing" in findings[0].message


def test_a_wanted_engine_must_be_there() -> None:
    """Asking for an engine that is not installed names those that are."""
    with pytest.raises(MissingPartError, match="llama_cpp_python was not found") as caught:
        choose_engine(replace(a_machine(), engines=(an_engine(),)), "llama_cpp_python")
    assert caught.value.hint == "pip install 'magnitude-tune[engine]'"


def test_devices_on_other_hosts_make_another_machine() -> None:
    """What was measured with a remote device says nothing without it; one on loopback is this host."""
    assert _hash_with("0123456789abcdef", ()) == "0123456789abcdef"
    assert _hash_with("0123456789abcdef", ("127.0.0.1:50052",)) == "0123456789abcdef"
    remote = _hash_with("0123456789abcdef", ("10.0.0.2:50052",))
    assert remote != "0123456789abcdef"
    assert len(remote) == 16


def test_a_stored_machine_has_no_live_options() -> None:
    """--machine and options that look at this machine exclude each other."""
    with pytest.raises(UsageError):
        find_machine(machine="rtx4090-64g", rpc=("127.0.0.1:50052",))
