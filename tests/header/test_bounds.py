"""Headers from strangers: the shapes of past security faults, each refused with its own answer, fast and small."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import HeaderError
from magnitude_tune.header.raw import missing_bytes, read_raw
from magnitude_tune.header.read import read_model, require_runnable
from magnitude_tune.header.values import ArraySummary

U64 = 2**64 - 1
ARRAY = 9


def array(type_id: int, length: int, body: bytes = b"") -> tuple[int, bytes]:
    """The type and bytes of an array value whose length may lie."""
    return ARRAY, struct.pack("<IQ", type_id, length) + body


def nested(depth: int) -> tuple[int, bytes]:
    """Arrays of arrays with one element each, around one byte."""
    return ARRAY, struct.pack("<IQ", ARRAY, 1) * (depth - 1) + struct.pack("<IQB", 0, 1, 7)


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """Writes bytes and gives the text of the error that reading them ends in."""

    def refuse(content: bytes) -> str:
        path = tmp_path / "model.gguf"
        path.write_bytes(content)
        with pytest.raises(HeaderError) as caught:
            read_model(path)
        assert caught.value.hint
        return str(caught.value)

    return refuse


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((U64, 0), "claims 18446744073709551615 tensors"),  # CVE-2024-21836
        ((0, U64), "claims 18446744073709551615 keys"),  # CVE-2024-23605
        ((2**63, 2**63), "claims 9223372036854775808 tensors"),
        ((60_000, 0), "but only 4096 bytes are left"),
        ((0, 65_000), "but only 4096 bytes are left"),
    ],
)
def test_counts_are_held_against_the_file(
    raw: Any, refusal: Callable[[bytes], str], counts: tuple[int, int], text: str
) -> None:
    """Tensor and key counts that the file cannot hold are refused before anything is read."""
    assert text in refusal(raw.file([], [], bytes(4096), counts=counts))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((8, struct.pack("<Q", U64)), "claims 18446744073709551615 bytes"),  # CVE-2024-23496
        ((8, struct.pack("<Q", 2**63)), "claims 9223372036854775808 bytes"),
        ((8, struct.pack("<Q", 1000)), "incomplete header"),
        (array(8, 2**61), "more than 4000000 are not read"),  # CVE-2024-21825
        (array(8, 4_000_001), "more than 4000000 are not read"),
        (array(8, 1000), "incomplete header"),
        (array(0, 2**29), "claims 536870912 bytes"),
        (array(0, U64), "claims 18446744073709551615 bytes"),
        (array(10, 2**61), "claims 18446744073709551616 bytes"),
        (array(8, 2, struct.pack("<QQ", U64 - 16, 0)), "claims 18446744073709551599 bytes"),
        (array(8, 100, struct.pack("<Q", U64) + bytes(1000)), "bytes past the end of the file"),
        (array(13, 1, bytes(8)), "unknown type 13"),
        ((13, bytes(8)), "unknown type 13"),
        ((2**31, bytes(8)), "unknown type 2147483648"),
        (nested(5), "nests arrays more than 4 deep"),
        (nested(2000), "nests arrays more than 4 deep"),
        (array(ARRAY, 70_000, bytes(12) * 70_000), "more than 65536 are not read"),
    ],
)
def test_values_are_held_against_the_bytes_that_remain(
    raw: Any, refusal: Callable[[bytes], str], value: tuple[int, bytes], text: str
) -> None:
    """Lengths of strings and arrays that wrap, nest or pass the file's end are refused."""
    assert text in refusal(raw.file([raw.key("tokenizer.ggml.tokens", value)]))


def test_nested_arrays_within_the_limit_are_stepped_over(tmp_path: Path, raw: Any) -> None:
    """Arrays of arrays are legal in the format: their length is kept, and the next key is found."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file([raw.key("a", nested(4)), raw.key("b", 7)]))
    assert read_raw(path).metadata == {"a": ArraySummary("array", 1), "b": 7}


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([("a", (32, 2**62), 0, 0)], "more than 2^63 elements"),  # CVE-2024-21802
        ([("a", (2**32, 2**32), 0, 0)], "more than 2^63 elements"),
        ([("a", (2**63,), 0, 0)], "more than 2^63 elements"),
        ([("a", (2**62,), 0, 0)], "more than 2^63 bytes"),  # CVE-2026-33298
        ([("a", (8,), 0, 2**63)], "begins past any file's end"),
        ([("a", (2**59 - 4,), 28, 0), ("b", (2**59,), 28, 2**62)], "begins at 4611686018427387904"),
        ([("a", (1, 1, 1, 1, 1), 0, 0)], "5 dimensions"),
        ([("a", (33,), 8, 0)], "rows of 33, but q8_0 packs 32"),
        ([("a", (8,), 0, 7)], "not at a multiple of 32"),
        ([("a", (8,), 0, 64)], "begins at 64 of the data instead of 0, past the end of the file"),  # CVE-2026-7482
        ([("a", (8,), 0, 0), ("b", (8,), 0, 0)], "begins at 0 of the data instead of 32"),
        ([("a", (8,), 0, 0), ("a", (8,), 0, 32)], "the tensor 'a' is there twice"),
        ([("n" * 64, (8,), 0, 0)], "is 64 bytes long; 1 to 63 are possible"),
        ([("", (8,), 0, 0)], "is 0 bytes long"),
    ],
)
def test_tensor_rows_cannot_wrap_or_overlap(
    raw: Any, refusal: Callable[[bytes], str], rows: list[tuple[Any, ...]], text: str
) -> None:
    """Dimensions, sizes and offsets that wrap, overlap or leave the file are refused by name."""
    assert text in refusal(raw.file(None, [raw.tensor(*row) for row in rows], bytes(32)))


def test_sums_of_sizes_cannot_wrap(raw: Any, refusal: Callable[[bytes], str]) -> None:
    """CVE-2025-53630 and CVE-2026-27940: tensors that each pass, but not together."""
    size = 2**62 // 8
    rows = [raw.tensor("a", (size,), 27, 0), raw.tensor("b", (size,), 27, 2**62)]
    assert "add up to more than 2^63 bytes" in refusal(raw.file(None, rows, bytes(32)))


def test_counts_of_all_shards_together_cannot_wrap(raw: Any, refusal: Callable[[bytes], str]) -> None:
    """Parameters are summed over all tensors: i8 and sub-byte types hold more of them than bytes."""
    rows = [raw.tensor(name, (2**62,), 2, index * (2**62 // 32 * 18)) for index, name in enumerate("abc")]
    assert "more than 2^63 parameters together" in refusal(raw.file(None, rows, bytes(32)))


@pytest.mark.parametrize("alignment", [0, 3, 24, 2**21, 2**31])
def test_absurd_alignments_are_refused(raw: Any, refusal: Callable[[bytes], str], alignment: int) -> None:
    """Zero, no power of two, or above 1 MiB (Ollama's CVE-2025-0317, ggml-org/llama.cpp #24997)."""
    keys = [*raw.least_keys, raw.key("general.alignment", alignment)]
    assert f"general.alignment is {alignment}" in refusal(raw.file(keys, [raw.tensor("a", (8,), 0, 0)], bytes(32)))


def test_an_alignment_of_its_own_is_followed(tmp_path: Path, raw: Any) -> None:
    """The data begins at a multiple of the alignment that the file names; a text is no alignment."""
    path = tmp_path / "model.gguf"
    keys = [*raw.least_keys, raw.key("general.alignment", 256)]
    rows = [raw.tensor("a", (8,), 0, 0), raw.tensor("b", (8,), 0, 256)]
    path.write_bytes(raw.file(keys, rows, bytes(512), alignment=256))
    header = read_raw(path)
    assert header.data_start % 256 == 0
    assert (missing_bytes(header), header.alignment) == (0, 256)
    path.write_bytes(raw.file([raw.key("general.alignment", "32")]))
    with pytest.raises(HeaderError, match="not a whole number"):
        read_raw(path)


def test_keys_come_once_and_have_a_name(raw: Any, refusal: Callable[[bytes], str]) -> None:
    """Duplicate, empty and endless keys are refused."""
    assert "the key 'a' is there twice" in refusal(raw.file([raw.key("a", 1), raw.key("a", 2)]))
    assert "is 0 bytes long" in refusal(raw.file([raw.key("", 1), raw.key("a", 2)]))
    assert "is 70000 bytes long" in refusal(raw.file([raw.key("k" * 70_000, 1)]))


@pytest.mark.parametrize(
    ("version", "text"),
    [(1, "version 1 is no longer read"), (0, "version 0 is unknown"), (4, "version 4 is unknown"), (77, "version 77")],
)
def test_other_versions_are_refused(raw: Any, refusal: Callable[[bytes], str], version: int, text: str) -> None:
    """Version 1 has other field widths and no reader; unknown ones are not guessed at."""
    assert text in refusal(raw.file(version=version))


def test_version_2_reads_as_version_3(tmp_path: Path, raw: Any) -> None:
    """Version 2 differs from 3 by the byte order only."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, [raw.tensor("token_embd.weight", (32, 8), 0, 0)], bytes(1024), version=2))
    require_runnable(read_model(path))
    assert read_model(path).version == 2


@pytest.mark.parametrize("type_id", [4, 31, 36, 153, 156])
def test_unknown_types_are_sized_by_the_gap(tmp_path: Path, raw: Any, type_id: int) -> None:
    """Field report B41: a type we do not know takes all up to the next tensor, the last one up to the file's end."""
    rows = [
        raw.tensor("token_embd.weight", (32, 8), 0, 0),
        raw.tensor("blk.0.attn_q.weight", (32, 8), type_id, 1024),
        raw.tensor("blk.0.attn_k.weight", (32, 8), 1, 1312),
        raw.tensor("blk.0.attn_v.weight", (32, 8), type_id, 1824),
    ]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, rows, bytes(2000)))
    header = read_model(path)
    assert [tensor.n_bytes for tensor in read_raw(path).tensors] == [1024, 288, 512, 176]
    assert header.tensor_bytes == 2000
    assert header.unknown_types == (f"unknown({type_id})",)
    assert any(f"unknown({type_id})" in note and "may not load" in note for note in header.notes)
    assert header.complete
    require_runnable(header)


def test_types_that_ggml_added_lately_are_known(tmp_path: Path, raw: Any) -> None:
    """Field report B41: 41 is q1_0 by now, 128 weights in 18 bytes."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, [raw.tensor("token_embd.weight", (128, 8), 41, 0)], bytes(144)))
    assert not read_model(path).unknown_types
    assert read_model(path).complete


def test_zero_dimensions_are_legal_and_empty(tmp_path: Path, raw: Any) -> None:
    """A tensor with a dimension of 0 takes no bytes (Ollama's CVE-2025-0312 divided by it)."""
    rows = [raw.tensor("token_embd.weight", (32, 0), 0, 0), raw.tensor("a", (), 0, 0)]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, rows, bytes(32)))
    header = read_model(path)
    assert (header.n_params, header.tensor_bytes) == (1, 4)
    assert read_model(path).bits_per_weight == 32


def test_names_that_are_not_text_are_shown_escaped(tmp_path: Path, raw: Any) -> None:
    """Bytes that are not UTF-8 and null bytes end in no traceback."""
    keys = [*raw.least_keys, raw.key(b"\xff\xfe", 1), raw.key("general.name", (8, raw.string(b"\xc3\x28\0x")))]
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(keys, [raw.tensor("token_embd.weight", (32, 8), 0, 0)], bytes(1024)))
    assert read_raw(path).metadata["\\xff\\xfe"] == 1
    assert read_model(path).name == "\\xc3(\0x"


def test_bytes_after_the_last_tensor_are_noted(tmp_path: Path, raw: Any) -> None:
    """Two files run together, or a half-overwritten one, are legal but odd."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw.file(None, [raw.tensor("token_embd.weight", (32, 8), 0, 0)], bytes(1024 + 77)))
    assert any(note.startswith("77 bytes follow") for note in read_model(path).notes)


def heavy_headers(raw: Any) -> dict[str, bytes]:
    """Legal headers made to cost time or memory: as many of everything as the caps let through, and more."""
    mebi = 2**20
    many_keys = [raw.key(f"{index:04x}", (9, struct.pack("<IQ", 0, 900) + bytes(900))) for index in range(60_000)]
    long_names = [raw.key(f"{index:05d}" + "k" * 1000, 1) for index in range(20_000)]
    rows = [raw.tensor(f"blk.{index % 99}.{index}.weight", (), 0, 32 * index) for index in range(60_000)]
    return {
        "tiny strings": raw.file(
            [raw.key(f"k{index}", array(8, 3_900_000, bytes(8 * 3_900_000))) for index in range(2)]
        ),
        "one long text": raw.file([raw.key("k", (8, struct.pack("<Q", 60 * mebi) + bytes(60 * mebi)))]),
        "many texts": raw.file([raw.key(f"k{i}", (8, struct.pack("<Q", 65_000) + bytes(65_000))) for i in range(900)]),
        "many arrays": raw.file(many_keys),
        "long names": raw.file(long_names),
        "many tensors": raw.file(None, rows, bytes(32 * 60_000)),
        "past the cap": raw.file([raw.key("k", array(0, 65 * mebi, bytes(65 * mebi)))]),
        "nested": raw.file([raw.key("k", array(ARRAY, 60_000, struct.pack("<IQ", 0, 0) * 60_000))]),
    }


MEASURE = """
import sys, time
from magnitude_tune.errors import HeaderError
from magnitude_tune.header.read import read_model

def peak_kib():
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0])

before, started = peak_kib(), time.process_time()
try:
    read_model(sys.argv[1])
except HeaderError as error:
    assert error.hint
print(time.process_time() - started, (peak_kib() - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory of a process is read from Linux's /proc")
def test_heavy_headers_stay_small_and_quick(tmp_path: Path, raw: Any, two_seconds: float) -> None:
    """Whatever the header holds, reading takes less than 64 MiB and ends within two seconds."""
    path = tmp_path / "model.gguf"
    for name, content in heavy_headers(raw).items():
        path.write_bytes(content)
        child = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=True)
        seconds, peak_bytes = map(float, child.stdout.split())
        assert seconds < two_seconds, f"{name}: {seconds:.2f} s"
        assert peak_bytes < 64 * 2**20, f"{name}: {peak_bytes / 2**20:.0f} MiB"
