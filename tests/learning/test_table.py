"""Which rows of a benchmark table are used, and by which rule the others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnitude_tune.errors import InputFileError
from magnitude_tune.learning.shapes import ModelKey, known_shape, rebuilt
from magnitude_tune.learning.table import KINDS, Row, judge, read_devices, read_rows


@pytest.mark.parametrize(
    ("cells", "kind", "quantity"),
    [
        ({}, "tg", "tg"),
        ({"n_prompt": 512, "n_gen": 0}, "pp", "pp"),
        ({"n_prompt": "", "n_gen": "", "test": "pp512"}, "pp", "pp"),
        ({"n_prompt": "", "n_gen": "", "depth": "", "test": "tg128"}, "tg", "tg"),
        ({"n_prompt": "", "n_gen": "", "depth": "", "test": "tg32@d4096"}, "depth", "tg"),
        ({"depth": 4096, "n_prompt": 512, "n_gen": 0}, "depth", "pp"),
        ({"ngl": 20}, "partial_offload", "tg"),
        ({"ngl": 20, "depth": 4096, "sweep": "threads"}, "partial_offload", "tg"),
        ({"ngl": 0}, "partial_offload", "tg"),
        ({"ngl": 33}, "tg", "tg"),
        ({"ngl": -1}, "tg", "tg"),
        ({"ngl": ""}, "tg", "tg"),
        ({"ngl": 20, "n_cpu_moe": 4}, "moe_on_cpu", "tg"),
        ({"n_cpu_moe": "all (-ot exps=CPU)"}, "moe_on_cpu", "tg"),
        ({"n_cpu_moe": 0}, "tg", "tg"),
        ({"sweep": "threads"}, "threads", "tg"),
        ({"sweep": "threads", "depth": 1024}, "depth", "tg"),
        ({"device_kind": "cpu", "device_norm": "Intel Core i7-8700", "ngl": 0, "tps_mean": 8}, "tg", "tg"),
        ({"engine": "", "use": "", "n_devices": ""}, "tg", "tg"),
        ({"engine": "llama.cpp", "use": "first", "n_devices": "1", "colour": "red"}, "tg", "tg"),
    ],
)
def test_each_usable_row_is_of_one_kind(
    tables: Any, sheets: Path, cells: dict[str, Any], kind: str, quantity: str
) -> None:
    """Experts on the CPU come first, then partial offload, depth, sweeps of threads, and what was measured."""
    found = judge({name: str(value) for name, value in tables.row(**cells).items()}, read_devices(sheets))
    assert isinstance(found, Row)
    assert (found.kind, found.quantity) == (kind, quantity)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"engine": "exllama"}, "another engine"),
        ({"use": "second"}, "not the first reading (use)"),
        ({"n_devices": 2}, "several devices"),
        ({"device_kind": "tpu"}, "no such kind of device"),
        ({"tps_mean": ""}, "no rate"),
        ({"tps_mean": "fast"}, "no rate"),
        ({"tps_mean": "nan"}, "no rate"),
        ({"tps_mean": -3}, "no rate"),
        ({"tps_mean": "1e300"}, "absurd rate"),
        ({"tps_mean": "1e-300"}, "absurd rate"),
        ({"params_b": ""}, "parameters or bytes of the model missing or absurd"),
        ({"params_b": "1e12"}, "parameters or bytes of the model missing or absurd"),
        ({"model_bytes_gib": 4580}, "bytes that these parameters cannot have"),
        ({"is_moe": 1}, "a mixture whose active parameters are unknown"),
        ({"device_norm": "Abacus"}, "device not in the device table, or without bandwidth or peak"),
        ({"n_prompt": 512}, "prompt and answer together, or neither"),
        ({"n_prompt": "", "n_gen": "", "test": "chat"}, "prompt and answer together, or neither"),
        ({"n_gen": "1e18"}, "absurd numbers of tokens"),
        ({"depth": -5}, "absurd numbers of tokens"),
        ({"n_cpu_moe": "auto"}, "how many experts stay on the CPU is not said"),
        ({"tps_mean": 5000}, "faster than its memory can read the weights"),
        ({"tps_mean": 9e6, "n_prompt": 512, "n_gen": 0}, "faster than its arithmetic can be"),
    ],
)
def test_what_cannot_be_used_is_dropped_by_a_rule(
    tables: Any, sheets: Path, written: Callable[..., Path], cells: dict[str, Any], reason: str
) -> None:
    """Every rule counts the rows that it drops, and only those."""
    read = read_rows(written({**tables.row(), **cells}), read_devices(sheets))
    assert read.rows == ()
    assert read.skipped == {reason: 1}


def test_the_second_of_two_equal_rows_is_dropped(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """A measurement that stands twice counts once; another rate is another measurement."""
    read = read_rows(written(tables.row(), tables.row(), tables.row(rate=51.0)), read_devices(sheets))
    assert len(read.rows) == 2
    assert read.skipped == {"the same measurement twice": 1}


def test_the_better_of_half_and_single_precision_counts(sheets: Path) -> None:
    """A card is rated by the faster of the two, a processor by single precision."""
    read = read_devices(sheets)
    assert read["AMD Radeon RX 7600"].flops == pytest.approx(43.5e12)
    assert read["Intel Core i7-8700"].flops == pytest.approx(0.83e12)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no column"),
        (b"a,b\n1,2\n", "has no column"),
        (b"\xff\xfe\x00\x01" * 100, "has no column"),
        (b'"' + b"x" * 200_000, "no CSV table"),
    ],
)
def test_what_is_no_table_is_a_clear_error(tmp_path: Path, content: bytes, said: str) -> None:
    """Empty files, other tables and binary files say what is missing and where."""
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=said) as caught:
        read_rows(path, {})
    assert caught.value.where == str(path)
    with pytest.raises(InputFileError):
        read_devices(path)


def test_a_table_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    """A missing file, a folder and a device without an end say that they cannot be read."""
    for path in (tmp_path / "none.csv", tmp_path, Path("/dev/zero")):
        with pytest.raises(InputFileError, match="cannot read"):
            read_rows(path, {})


def test_a_byte_order_mark_is_no_part_of_a_name(tables: Any, sheets: Path, written: Callable[..., Path]) -> None:
    """Tables saved by a spreadsheet begin with one."""
    for path in (sheets, written(tables.row())):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(read_rows(written(tables.row()), read_devices(sheets)).rows) == 1


texts = st.one_of(st.text(max_size=12), st.floats().map(str), st.integers().map(str), st.sampled_from(("", "0", "1")))


@given(st.data())
def test_any_cells_are_a_row_or_a_rule(tables: Any, data: st.DataObject) -> None:
    """Whatever stands in a row, it is used with sane values or dropped with a reason; nothing is raised."""
    cells = {name: str(value) for name, value in tables.row().items()}
    for name in data.draw(st.lists(st.sampled_from(sorted(cells)), max_size=4)):
        cells[name] = data.draw(texts)
    found = judge(cells, {})
    assert isinstance(found, str)
    found = judge(cells, {cells["device_norm"].strip(): _sheet()})
    if isinstance(found, Row):
        assert found.kind in KINDS
        assert 0 < found.rate <= 1e7
        assert rebuilt(found.model).block_count > 0


def _sheet() -> Any:
    from magnitude_tune.learning.table import DeviceRow

    return DeviceRow("any", "gpu", "", 9e11, 9e13, 1)


def test_a_rebuilt_model_has_the_bytes_and_parameters_of_its_row() -> None:
    """Known and unknown models keep what the table says; a mixture uses its active parameters."""
    for key in (
        ModelKey("llama", 8.03, 8.03, 4.9e9, "Q4_K_M"),
        ModelKey("unheard", 6.0, 6.0, 3.6e9, "Q4_K_M"),
        ModelKey("qwen3moe", 30.53, 3.3, 18.6e9, "Q4_K_M"),
    ):
        header = rebuilt(key)
        assert sum(group.n_bytes for group in header.groups) == pytest.approx(key.n_bytes, rel=0.01)
        assert sum(group.n_params for group in header.groups) == pytest.approx(key.params_b * 1e9, rel=0.01)
        assert (header.moe is not None) == (key.active_b < key.params_b)
    assert rebuilt(ModelKey("llama", 8.03, 8.03, 4.9e9, "Q4_K_M")).block_count == 32
    assert known_shape("unheard", 6.0) is None
