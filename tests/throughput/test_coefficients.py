"""The coefficients: the shipped file, and every way another one can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magnitude_tune.errors import InputFileError
from magnitude_tune.throughput.coefficients import DEVICE_KINDS, Coefficients, parse_coefficients

SHIPPED = Path(__file__).parents[2] / "models" / "throughput.json"


def test_the_shipped_file_is_small_and_complete(shipped: Coefficients) -> None:
    """The shipped coefficients fit 12,288 bytes and name every kind of device with a source."""
    assert SHIPPED.stat().st_size <= 12_288
    assert tuple(shipped.kinds) == DEVICE_KINDS
    assert all(len(kind.source) > 20 for kind in shipped.kinds.values())


@pytest.mark.parametrize("kind", DEVICE_KINDS)
def test_the_shipped_intervals_are_wide(shipped: Coefficients, kind: str) -> None:
    """One stated efficiency a kind promises no more than a factor of 1.5 either way."""
    assert shipped.kinds[kind].tg_factor_90 >= 1.5
    assert shipped.kinds[kind].pp_factor_90 >= 1.5


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema_version",), 1, "schema_version is 1"),
        (("schema_version",), True, "schema_version is True"),
        (("schema_version",), "1", "schema_version is '1'"),
        (("kinds",), [], "kinds is not an object"),
        (("kinds", "gpu"), None, "kinds.gpu is not an object"),
        (("kinds", "cpu", "tg_efficiency"), "0.5", "kinds.cpu.tg_efficiency is not a number: '0.5'"),
        (("kinds", "cpu", "tg_efficiency"), True, "kinds.cpu.tg_efficiency is not a number: True"),
        (("kinds", "cpu", "tg_efficiency"), 0, "kinds.cpu.tg_efficiency is 0, outside"),
        (("kinds", "cpu", "pp_efficiency"), float("nan"), "kinds.cpu.pp_efficiency is nan, outside"),
        (("kinds", "rpc", "tg_factor_90"), 0.9, "kinds.rpc.tg_factor_90 is 0.9, outside 1 to 100"),
        (("kinds", "rpc", "token_overhead_seconds"), 0, "kinds.rpc.token_overhead_seconds is 0, outside"),
        (("kinds", "rpc", "link_bandwidth"), 0, "kinds.rpc.link_bandwidth is 0, outside"),
        (("cpu", "source"), " ", "cpu.source is not a text"),
        (("cpu", "core_bandwidth_share"), 1.5, "cpu.core_bandwidth_share is 1.5, outside"),
        (("doubt", "tg_residual"), -1, "doubt.tg_residual is -1, outside"),
        (("ready", "disk_bandwidth"), float("inf"), "ready.disk_bandwidth is inf, outside"),
        (("kinds", "tpu"), {}, "kinds.tpu is not a name that this version knows"),
        (("kinds", "gpu", "colour"), 1, "kinds.gpu.colour is not a name that this version knows"),
        (("learned", "tg", "terms"), [], "learned.tg.terms is not an object"),
        (("learned", "tg", "terms", "one"), 11, "learned.tg.terms.one is 11, outside -10 to 10"),
        (("learned", "tg", "terms", "one"), float("nan"), "learned.tg.terms.one is nan, outside"),
        (("learned", "pp", "terms", "colour"), 0.1, "'colour' is not a product of features"),
        (("learned", "pp", "terms", "size*size*size*size"), 0.1, "is not a product of features"),
        (("learned", "pp", "terms", "__class__"), 0.1, "is not a product of features"),
        (("learned", "tg", "terms"), {f"is:{i}": 0.0 for i in range(300)}, "has 300 entries, more than 256"),
        (("learned", "tg", "multiple"), 0, "learned.tg.multiple is 0, outside"),
        (("learned", "tg", "spreads"), {}, "the spread 'other' is missing"),
        (("learned", "scales", "tpu"), {"bandwidth": 1, "flops": 1}, "learned.scales.tpu is not a kind of device"),
        (("learned", "scales", "gpu", "bandwidth"), 1.5, "learned.scales.gpu.bandwidth is 1.5, outside 0 to 1"),
        (("learned", "ranges", "size", "high"), -99, "learned.ranges.size.high is -99, outside"),
        (("comment",), "x", "comment is not a name that this version knows"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(
    document: Callable[[], dict[str, Any]], path: tuple[str, ...], value: object, said: str
) -> None:
    """Every wrong or unknown value is an error that names the file, the value and its place."""
    changed = document()
    place: dict[str, Any] = changed
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(InputFileError) as caught:
        parse_coefficients(changed, "some/throughput.json")
    assert said in caught.value.what
    assert caught.value.where == "some/throughput.json"
    assert caught.value.hint


def _names(document: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in document.items():
        found.append((*prefix, name))
        if isinstance(value, dict):
            found += _names(value, (*prefix, name))
    return found


def test_no_value_may_be_missing(document: Callable[[], dict[str, Any]]) -> None:
    """Leaving out any one entry of the shipped file, but what was learned by name, is an error that names it."""
    free = ("terms", "spreads", "scales", "training")
    for path in (path for path in _names(document()) if not any(name in path[:-1] for name in free)):
        changed = document()
        place = changed
        for name in path[:-1]:
            place = place[name]
        del place[path[-1]]
        with pytest.raises(InputFileError, match=r"missing") as caught:
            parse_coefficients(changed, "x")
        assert ".".join(path) in caught.value.what
