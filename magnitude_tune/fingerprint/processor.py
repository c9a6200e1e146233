"""The processor's name, instruction set, clock and peak arithmetic."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Fact

__all__ = ["Processor", "brand_from_library", "peak_flops", "read_processor"]

_CACHE: Final = "cpuinfo"
_LIBRARY_SECONDS: Final = 8.0
_LONGEST_BRAND: Final = 120
_GUESSED_HERTZ: Final = 2.5e9

# Main ID register part numbers of ARM Ltd.'s cores, as in its technical reference manuals and in lscpu.
_ARM_PARTS: Final = {
    0xD03: "Cortex-A53",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse-N1",
    0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1",
    0xD41: "Cortex-A78",
    0xD44: "Cortex-X1",
    0xD49: "Neoverse-N2",
    0xD4F: "Neoverse-V2",
}

# Single-precision operations a core does per cycle: lanes x 2 (a fused multiply and add) x units. Two units on x86
# (Intel's optimisation manual; AMD's software optimisation guides for Zen), two 128-bit units on ARM's big cores (the
# cores' software optimisation guides). Many parts with AVX-512 have half of that, so efficiencies are learned on top.
# Matrix units (AMX, SME) are left out: only repacked weights use them.
_OPERATIONS: Final = (
    ("avx512f", 64),
    ("fma", 32),
    ("avx", 16),
    ("sse2", 8),
    ("sve", 32),
    ("asimd", 16),
    ("neon", 8),
    ("v", 16),
)
_PLAIN_OPERATIONS: Final = 2


class Processor(NamedTuple):
    """What the kernel says about the processor; None where it says nothing."""

    brand: str | None
    architecture: str | None
    features: frozenset[str]
    max_hertz: float | None
    sources: tuple[tuple[str, str], ...]


def read_processor(tree: Tree) -> Processor:
    """Brand, features and clock from `/proc/cpuinfo`, the device tree and cpufreq."""
    fields = _first_block(tree.text("proc/cpuinfo") or "")
    brand, brand_source = _brand(tree, fields)
    features = _features(fields)
    hertz, hertz_source = _hertz(tree, fields, brand)
    return Processor(
        brand=brand,
        architecture=_architecture(fields),
        features=features,
        max_hertz=hertz,
        sources=(
            ("brand", brand_source),
            ("features", "/proc/cpuinfo" if features else "unknown"),
            ("max_hertz", hertz_source),
        ),
    )


def _first_block(text: str) -> dict[str, str]:
    """Fields of the first CPU, and those that stand alone at the end (`Hardware`, `Model`), keys in lower case."""
    fields: dict[str, str] = {}
    for line in text[: 1 << 16].splitlines():
        name, colon, value = line.partition(":")
        if colon and value.strip():
            fields.setdefault(name.strip().lower(), value.strip())
    return fields


def _brand(tree: Tree, fields: Mapping[str, str]) -> tuple[str | None, str]:
    for name in ("model name", "cpu model", "uarch"):
        if brand := fields.get(name):
            return brand[:_LONGEST_BRAND], "/proc/cpuinfo"
    part = fields.get("cpu part", "")
    if fields.get("cpu implementer") == "0x41" and re.fullmatch(r"0x[0-9a-fA-F]{1,4}", part):
        core = _ARM_PARTS.get(int(part, 16))
        if core:
            return f"ARM {core}", "/proc/cpuinfo"
    for path in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        if brand := tree.word(path):
            return brand[:_LONGEST_BRAND], f"/{path}"
    for name in ("hardware", "model", "cpu"):
        if (brand := fields.get(name)) and not brand.isdigit():
            return brand[:_LONGEST_BRAND], "/proc/cpuinfo"
    return None, "unknown"


def _features(fields: Mapping[str, str]) -> frozenset[str]:
    flags = fields.get("flags") or fields.get("features")
    if flags:
        return frozenset(flags.lower().split())
    found = re.match(r"rv(?:32|64)([a-z]+)((?:_[a-z0-9]+)*)", fields.get("isa", "").lower())
    return frozenset(found[1]) | frozenset(found[2].strip("_").split("_")) - {""} if found else frozenset()


def _architecture(fields: Mapping[str, str]) -> str | None:
    """The architecture a copied `/proc/cpuinfo` is from; a live machine says so itself."""
    if "flags" in fields:
        return "x86_64"
    if "cpu implementer" in fields:
        return "aarch64"
    return "riscv64" if fields.get("isa", "").startswith("rv64") else None


def _hertz(tree: Tree, fields: Mapping[str, str], brand: str | None) -> tuple[float | None, str]:
    """The highest clock: cpufreq's, else the one in the name, else the current one."""
    path = "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"
    kilohertz = tree.number(path)
    if kilohertz and 10_000 < kilohertz < 100_000_000:
        return kilohertz * 1e3, f"/{path}"
    named = re.search(r"@ ?([0-9]\.[0-9]{1,3}) ?GHz", brand or "")
    if named:
        return float(named[1]) * 1e9, "the brand"
    current = re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", fields.get("cpu mhz", ""), re.ASCII)
    if current and 10 < float(current[0]) < 100_000:
        return float(current[0]) * 1e6, "/proc/cpuinfo: the clock at the time"
    return None, "unknown"


def peak_flops(cores: int, hertz: float | None, features: frozenset[str]) -> Fact:
    """Peak single-precision operations per second: cores x clock x operations a cycle; a guess that says so.

    The table `_OPERATIONS` and its sources stand above. An unknown clock counts as 2.5 GHz.
    """
    unit, operations = next(((name, n) for name, n in _OPERATIONS if name in features), ("scalar", _PLAIN_OPERATIONS))
    clock = hertz or _GUESSED_HERTZ
    said = "" if hertz else ", clock unknown"
    source = f"guessed: {cores} cores x {clock / 1e9:.2f} GHz x {operations} operations a cycle ({unit}{said})"
    return Fact(cores * clock * operations, source)


def brand_from_library(run: CommandRunner) -> str | None:
    """The processor's name as py-cpuinfo has it; None on any doubt.

    The library takes over a second, starts processes of its own and fails in frozen programs, so it runs as a child
    with a time limit, once: the answer is cached, also when it is none.
    """
    from magnitude_tune.storage import read_cached, write_cached

    key = sys.executable
    cached = read_cached(_CACHE, key)
    if cached is None:
        cached = {"brand": None if getattr(sys, "frozen", False) else _ask_library(run)}
        write_cached(_CACHE, key, cached)
    brand = cached.get("brand")
    return brand if isinstance(brand, str) else None


def _ask_library(run: CommandRunner) -> str | None:
    completed = run((sys.executable, "-m", "cpuinfo", "--json"), _LIBRARY_SECONDS)
    try:
        answer = json.loads(completed.stdout) if completed.returncode == 0 else None
    except (ValueError, RecursionError):
        return None
    brand = answer.get("brand_raw") if isinstance(answer, dict) else None
    return brand.strip()[:_LONGEST_BRAND] or None if isinstance(brand, str) else None
