"""Devices over RPC: addresses, the engine's device list, and whose memory a device lives in."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.values import EngineDevice
from magnitude_tune.units import MIB

__all__ = ["address_of", "check_answering", "device_of_buffer", "is_loopback", "parse_devices", "split_address"]

_CONNECT_SECONDS = 3.0
# `  RPC0: 127.0.0.1:50052 (24105 MiB, 24105 MiB free)`; a description may hold brackets of its own.
_DEVICE = re.compile(
    r"^\s+(?P<name>\S.*?): (?P<description>.*) \((?P<total>\d{1,12}) MiB, (?P<free>\d{1,12}) MiB free\)\s*$",
    re.ASCII | re.MULTILINE,
)
# `ggml_vulkan: 0 = AMD Radeon 780M (RADV PHOENIX) (radv) | uma: 1 | ...`; older builds write `Vulkan0: ... | uma: 1`.
_SHARES_HOST = re.compile(
    r"^(?:ggml_vulkan: |Vulkan)(?P<number>\d{1,3})(?: =|:) [^|\n]{1,300}\| uma: 1 ", re.ASCII | re.M
)
_DEVICE_BUFFER = re.compile(r"(?P<device>(?!CPU)[A-Za-z]+[0-9]+|Metal)(?:_\w+)?", re.ASCII)
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\s:,/\[\]]+):(?P<port>[0-9]{1,5})", re.ASCII)


def parse_devices(text: str, log: str = "") -> tuple[EngineDevice, ...]:
    """The devices of `llama-server --list-devices`, named as the server names them, in its order.

    Args:
        text: the list, as printed.
        log: what else was logged: Vulkan says there which devices share the host's memory.
    """
    integrated = {f"Vulkan{match['number']}" for match in _SHARES_HOST.finditer(text + "\n" + log)}
    return tuple(
        EngineDevice(
            name=match["name"],
            description=match["description"],
            total_bytes=int(match["total"]) * MIB,
            free_bytes=int(match["free"]) * MIB,
            integrated=match["name"] in integrated,
        )
        for match in _DEVICE.finditer(text)
    )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`.

    Raises:
        UsageError: the text is no such address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise UsageError(
            f"not an address of an RPC server: {address!r}", where="--rpc", hint="write host:port, as 127.0.0.1:50052"
        )
    return match["host"].strip("[]"), int(match["port"])


def is_loopback(address: str) -> bool:
    """Whether `host:port` names this host itself, so that the device's memory is this host's RAM."""
    host, _ = split_address(address)
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(device: EngineDevice) -> str | None:
    """The address of a device over RPC, None for a local device.

    Builds print it as the description; older ones also inside the name, as `RPC[127.0.0.1:50052]`.
    """
    if not device.name.startswith("RPC"):
        return None
    match = _ADDRESS.search(device.description) or _ADDRESS.search(device.name)
    return match[0] if match else None


def device_of_buffer(buffer: str) -> str:
    """The device whose memory a buffer of the engine's log lies in, as `--device` names it.

    `RPC0[127.0.0.1:50052]` is `RPC0`, `CUDA1` itself; `CPU`, `CPU_Mapped`, `AMX`, `CPU_REPACK`, `CUDA_Host` and
    other layouts of host memory are `CPU`.
    """
    match = _DEVICE_BUFFER.fullmatch(buffer.partition("[")[0])
    return match["device"] if match else "CPU"


def check_answering(addresses: Iterable[str]) -> None:
    """See that every RPC server takes a connection: the engine only leaves out one that does not.

    Raises:
        UsageError: an address is not one, or nothing answers there.
    """
    for address in addresses:
        host, port = split_address(address)
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except (OSError, UnicodeError) as error:
            raise UsageError(
                f"no RPC server answers at {address}: {getattr(error, 'strerror', None) or error}",
                where="--rpc",
                hint="start ggml-rpc-server there, or leave the address out",
            ) from error
