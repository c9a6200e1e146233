"""Buffer lines of llama.cpp's log: what was allocated where, in the engine's own words.

Both engines write them alike, the server with a prefix: `load_tensors:   CPU_Mapped model buffer size =   235.16 MiB`.
Its summary lines ("offloaded 19/19 layers to GPU") are not evidence: they appear without any device.
"""

from __future__ import annotations

import re
from typing import Final

from magnitude_tune.engines.values import BufferKind, BufferLine
from magnitude_tune.units import GIB, KIB, MIB

__all__ = ["parse_buffers"]

_LINE: Final = re.compile(
    r"^[^\n]*?:\s+(?P<buffer>\S{1,128})\s+(?P<kind>model|KV|RS|compute|output) buffer size\s*=\s*"
    r"(?P<size>\d{1,12}(?:\.\d{1,6})?)\s*(?P<unit>GiB|MiB|KiB)\b",
    re.MULTILINE,
)
_KINDS: Final[dict[str, BufferKind]] = {
    "model": "model",
    "KV": "kv",
    "RS": "recurrent",
    "compute": "compute",
    "output": "output",
}
_UNITS: Final = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def parse_buffers(log: str) -> tuple[BufferLine, ...]:
    """Every buffer that a log states, in its order; sizes are as exact as the log (hundredths of a MiB).

    A model with sliding windows has two KV lines a device, and each context adds compute lines of its own.
    """
    return tuple(
        BufferLine(found["buffer"], _KINDS[found["kind"]], round(float(found["size"]) * _UNITS[found["unit"]]))
        for found in _LINE.finditer(log)
    )
