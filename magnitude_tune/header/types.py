"""Types in GGUF files: tensor types with their block sizes, metadata value types, file types."""

from __future__ import annotations

from typing import Final

from magnitude_tune.errors import UsageError

__all__ = ["FILE_TYPES", "TENSOR_TYPES", "TYPE_NAMES", "VALUE_SIZES", "row_bytes"]

TENSOR_TYPES: Final[dict[str, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q8_1": (32, 40),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "q8_k": (256, 292),
    "iq2_xxs": (256, 66),
    "iq2_xs": (256, 74),
    "iq3_xxs": (256, 98),
    "iq1_s": (256, 50),
    "iq4_nl": (32, 18),
    "iq3_s": (256, 110),
    "iq2_s": (256, 82),
    "iq4_xs": (256, 136),
    "i8": (1, 1),
    "i16": (1, 2),
    "i32": (1, 4),
    "i64": (1, 8),
    "f64": (1, 8),
    "iq1_m": (256, 56),
    "bf16": (1, 2),
    "tq1_0": (256, 54),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
    "q1_0": (128, 18),
    "q2_0": (64, 18),
}
"""Name in lower case -> (elements per block, bytes per block), as in ggml 0.25.3."""

_TYPE_IDS: Final = (
    *zip(range(4), ("f32", "f16", "q4_0", "q4_1"), strict=True),
    *zip(range(6, 31), list(TENSOR_TYPES)[4:29], strict=True),
    (34, "tq1_0"),
    (35, "tq2_0"),
    (39, "mxfp4"),
    (40, "nvfp4"),
    (41, "q1_0"),
    (42, "q2_0"),
)
TYPE_NAMES: Final[dict[int, str]] = dict(_TYPE_IDS)
"""ggml's type number -> name; numbers that ggml has withdrawn (4, 5, 31-33, 36-38) are missing."""

VALUE_SIZES: Final[dict[int, tuple[str, int]]] = {
    0: ("B", 1),
    1: ("b", 1),
    2: ("H", 2),
    3: ("h", 2),
    4: ("I", 4),
    5: ("i", 4),
    6: ("f", 4),
    7: ("?", 1),
    10: ("Q", 8),
    11: ("q", 8),
    12: ("d", 8),
}
"""Metadata value type -> (struct code, bytes); strings are 8 and arrays 9."""

FILE_TYPES: Final[dict[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
"""`general.file_type` -> the name that people use for the mix."""


def row_bytes(type_name: str, n_elements: int) -> int:
    """Bytes of a row of `n_elements` stored as `type_name` (ggml_row_size).

    A row that cannot be cut into whole blocks, which engines refuse, counts its share; one below zero counts nothing.

    Raises:
        UsageError: the type is not one of ggml's.
    """
    block = TENSOR_TYPES.get(type_name)
    if block is None:
        raise UsageError(f"unknown ggml type {type_name!r}", hint=f"known types: {', '.join(TENSOR_TYPES)}")
    elements, size = block
    return -(-max(0, n_elements) * size // elements)
