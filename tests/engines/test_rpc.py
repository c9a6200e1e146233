"""Addresses and devices over RPC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.engines.rpc import address_of, device_of_buffer, is_loopback, parse_devices, split_address
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts
from magnitude_tune.processes import Child
from magnitude_tune.units import GIB, MIB

LISTED = """Available devices:
  RPC0: 127.0.0.1:50099 (24105 MiB, 24000 MiB free)
  RPC1: [fe80::1]:50052 (8000 MiB, 0 MiB free)
  CUDA0: NVIDIA RTX (mobile) (8188 MiB, 7000 MiB free)
"""


def test_listed_devices_keep_names_order_and_bytes() -> None:
    """Every line with memory is a device; descriptions may hold brackets."""
    devices = parse_devices(LISTED)
    assert [device.name for device in devices] == ["RPC0", "RPC1", "CUDA0"]
    assert devices[0] == EngineDevice("RPC0", "127.0.0.1:50099", 24105 * MIB, 24000 * MIB)
    assert devices[2].description == "NVIDIA RTX (mobile)"
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_addresses_of_devices() -> None:
    """A device over RPC tells its server, in the words of new and of old builds; a local one tells none."""
    devices = parse_devices(LISTED)
    assert [address_of(device) for device in devices] == ["127.0.0.1:50099", "[fe80::1]:50052", None]
    assert address_of(EngineDevice("RPC[10.0.0.1:50052]", "RPC[10.0.0.1:50052]", 1, 1)) == "10.0.0.1:50052"


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1:50052", True),
        ("127.8.8.8:1", True),
        ("[::1]:50052", True),
        ("localhost:50052", True),
        ("192.168.1.7:50052", False),
        ("0.0.0.0:50052", False),
        ("gpu.local:50052", False),
    ],
)
def test_loopback_is_this_host(address: str, loopback: bool) -> None:
    """Only a loopback address means this host's RAM."""
    assert is_loopback(address) is loopback


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:65536", "a b:1", "h:1,h:2", "h:1\n"])
def test_what_is_no_address_is_a_usage_error(address: str) -> None:
    """The error shows what was read and how it should look."""
    with pytest.raises(UsageError) as caught:
        split_address(address)
    assert repr(address) in str(caught.value)
    assert "host:port" in str(caught.value.hint)


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    """No text brings down the parser, and an address found has a usable port."""
    try:
        host, port = split_address(text)
    except UsageError:
        return
    assert host
    assert 1 <= port <= 65535


@given(st.text(max_size=200))
def test_any_text_is_a_list_of_devices(text: str) -> None:
    """Whatever an engine prints, devices have names and sizes that are not negative."""
    for device in parse_devices(text):
        assert device.name
        assert device.total_bytes >= 0


@pytest.mark.parametrize(
    ("buffer", "device"),
    [
        ("RPC0[127.0.0.1:50052]", "RPC0"),
        ("CUDA1", "CUDA1"),
        ("MTL0_Mapped", "MTL0"),
        ("Vulkan0", "Vulkan0"),
        ("CUDA_Host", "CPU"),
        ("CPU_Mapped", "CPU"),
        ("CPU", "CPU"),
        ("AMX", "CPU"),
        ("CPU_REPACK", "CPU"),
    ],
)
def test_buffers_belong_to_devices(buffer: str, device: str) -> None:
    """Layouts of host memory are the CPU's; a remote buffer is its device's."""
    assert device_of_buffer(buffer) == device


@pytest.mark.engine
def test_a_real_rpc_server_is_a_device_with_this_host_s_memory(
    real_server: EngineFacts, rpc_server: tuple[str, Child]
) -> None:
    """The engine lists it as RPC0 with its address and its memory, each time anew."""
    address, child = rpc_server
    facts = find_server(engine_path=real_server.path, rpc=(address,))
    assert facts is not None
    (device,) = facts.devices
    assert device.name == "RPC0"
    assert address_of(device) == address
    assert is_loopback(address)
    assert device.total_bytes > GIB // 4
    child.close()
    with pytest.raises(UsageError, match=address):
        find_server(engine_path=real_server.path, rpc=(address,))
