"""NVIDIA's accelerators, as `nvidia-smi` lists them, numbered as CUDA and so the engine numbers them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.device_table import guessed_rates, known_device
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.fingerprint.values import HOST_POOL, Device, Fact, Memory, Pool
from magnitude_tune.units import MIB

__all__ = ["QUERY_SECONDS", "NvidiaFacts", "read_nvidia"]

QUERY_SECONDS: Final = 10.0
"""A driver without persistence mode takes seconds to wake; one that hangs must not hang us."""

_BASIC_FIELDS: Final = ("index", "name", "memory.total", "memory.free")
_MORE_FIELDS: Final = ("driver_version", "compute_cap", "pcie.link.gen.max", "pcie.link.width.max", "uuid")
# Bytes per second and lane, both ends' encoding taken off (PCI-SIG base specifications 1.0 to 6.0).
_LANE_RATES: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_MOST_CARDS: Final = 64


class NvidiaFacts(NamedTuple):
    """Devices in CUDA's order, pools of the cards that have memory of their own, and what the probe had to say."""

    devices: tuple[Device, ...] = ()
    pools: tuple[Pool, ...] = ()
    notes: tuple[Finding, ...] = ()


class _Row(NamedTuple):
    """One line of the answer; None for `[N/A]` and what a short line lacks."""

    name: str
    total_bytes: int | None
    free_bytes: int | None
    driver: str | None
    compute_capability: str | None
    link: float | None
    uuid: str | None


def read_nvidia(run: CommandRunner, memory: Memory, environment: Mapping[str, str]) -> NvidiaFacts:
    """Ask `nvidia-smi` for its devices, within a time limit.

    Args:
        run: runs the command.
        memory: the host's memory, which devices without memory of their own share.
        environment: `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` decide what the engine sees, and in which order.
    """
    listed, notes = _ask(run)
    rows = _visible(_in_cuda_order(listed, environment), environment)
    if len(rows) < len(listed):
        notes = (*notes, _hidden(len(listed) - len(rows), len(listed)))
    facts = [_device(index, row, memory) for index, row in enumerate(rows)]
    return NvidiaFacts(
        devices=tuple(device for device, _, _ in facts if device is not None),
        pools=tuple(pool for _, pool, _ in facts if pool is not None),
        notes=(*notes, *(note for _, _, note in facts if note is not None)),
    )


def _ask(run: CommandRunner) -> tuple[list[_Row], tuple[Finding, ...]]:
    """Ask for everything; drivers that do not know a field refuse the whole question, so ask then for the basics."""
    problem = ""
    for fields in (_BASIC_FIELDS + _MORE_FIELDS, _BASIC_FIELDS):
        argv = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        completed = run(argv, QUERY_SECONDS)
        if completed.returncode == 127:
            return [], ()
        if completed.returncode is None:
            return [], (_note(f"nvidia-smi did not answer within {QUERY_SECONDS:.0f} s"),)
        if completed.returncode == 0:
            rows = _parse(completed.stdout)
            unreadable = bool(completed.stdout.strip()) and not rows and "no devices" not in completed.stdout.lower()
            return rows, (_note("nvidia-smi gave an answer that cannot be read"),) if unreadable else ()
        said = (completed.stdout + completed.stderr).strip().splitlines()
        problem = said[0][:200] if said else f"it ended with {completed.returncode}"
        if "no devices" in problem.lower():
            return [], ()
    return [], (_note(f"nvidia-smi failed: {problem}"),)


def _note(message: str) -> Finding:
    return Finding(
        Rule.PROBE_FAILED, f"{message}; NVIDIA cards are left out", fix="run nvidia-smi and see what it says"
    )


def _parse(text: str) -> list[_Row]:
    rows = []
    for line in text.splitlines()[:_MOST_CARDS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) < 3 or not re.fullmatch(r"[0-9]{1,3}", cells[0], re.ASCII) or not cells[1]:
            continue
        cells += [""] * (len(_BASIC_FIELDS + _MORE_FIELDS) - len(cells))
        total = _mebibytes(cells[2])
        free = _mebibytes(cells[3])
        rows.append(
            _Row(
                name=cells[1][:120],
                total_bytes=total or None,
                free_bytes=min(free, total) if free is not None and total else None,
                driver=_known(cells[4]),
                compute_capability=_known(cells[5]),
                link=_link_rate(cells[6], cells[7]),
                uuid=_known(cells[8]),
            )
        )
    return rows


def _known(cell: str) -> str | None:
    """The cell's text; None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and the like."""
    return None if not cell or cell.startswith("[") or cell.lower() in ("n/a", "not supported") else cell[:80]


def _mebibytes(cell: str) -> int | None:
    """Bytes of `24564` or `24564 MiB`; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})( MiB)?", cell, re.ASCII)
    return int(found[1]) * MIB if found else None


def _link_rate(generation: str, width: str) -> float | None:
    if not (re.fullmatch("[1-6]", generation) and re.fullmatch("1|2|4|8|12|16|32", width)):
        return None
    return _LANE_RATES[int(generation)] * int(width)


def _in_cuda_order(rows: list[_Row], environment: Mapping[str, str]) -> list[_Row]:
    """CUDA puts the fastest device first unless it is told to follow the bus; speed is the device table's here."""
    if environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({row.name for row in rows}) < 2:
        return rows
    known = [known_device(row.name, row.total_bytes) for row in rows]
    if any(device is None for device in known):
        return rows
    speeds = {row: device.flops.value for row, device in zip(rows, known, strict=True) if device is not None}
    return sorted(rows, key=lambda row: -speeds[row])


def _visible(rows: list[_Row], environment: Mapping[str, str]) -> list[_Row]:
    """The devices that `CUDA_VISIBLE_DEVICES` shows, in its order; the first part that names none ends the list."""
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return rows
    visible: list[_Row] = []
    for part in (part.strip() for part in chosen.split(",")):
        matching = [
            row
            for index, row in enumerate(rows)
            if part == str(index) or (part.startswith("GPU-") and (row.uuid or "").startswith(part))
        ]
        if len(matching) != 1:
            break
        visible += matching
    return visible


def _hidden(n_hidden: int, n_listed: int) -> Finding:
    return Finding(
        Rule.MACHINE_LIMITED,
        f"CUDA_VISIBLE_DEVICES hides {n_hidden} of {n_listed} NVIDIA cards from the engine",
        fix="unset CUDA_VISIBLE_DEVICES to plan with all of them",
    )


def _device(index: int, row: _Row, memory: Memory) -> tuple[Device | None, Pool | None, Finding | None]:
    known = known_device(row.name, row.total_bytes or memory.host_total_bytes)
    shares_host = known.shares_host if known else row.total_bytes is None
    if row.total_bytes is None and not shares_host:
        note = Finding(
            Rule.PROBE_FAILED,
            f"nvidia-smi does not say how much memory {row.name} has; the card is left out",
            fix="run nvidia-smi: its memory may be hidden by permissions, or divided by MIG",
        )
        return None, None, note
    guessed = guessed_rates(row.name, shares_host=shares_host)
    device = Device(
        name=f"CUDA{index}",
        backend="cuda",
        pool=HOST_POOL if shares_host else f"cuda{index}",
        description=row.name,
        total_bytes=memory.total_bytes if shares_host else row.total_bytes,
        free_bytes=memory.available_bytes if shares_host else row.free_bytes,
        bandwidth=known.bandwidth if known else guessed[0],
        flops=known.flops if known else guessed[1],
        link_bandwidth=None if row.link is None or shares_host else Fact(row.link, "nvidia-smi: the link's most"),
        unified=shares_host,
        compute_capability=row.compute_capability,
        driver=row.driver,
        source="nvidia-smi",
    )
    if shares_host or row.total_bytes is None:
        return device, None, None
    pool = Pool(device.pool, "card", row.total_bytes, row.free_bytes or 0)
    return device, pool, _free_unknown(row) if row.free_bytes is None else None


def _free_unknown(row: _Row) -> Finding:
    return Finding(
        Rule.PROBE_FAILED,
        f"nvidia-smi does not say how much memory of {row.name} is free; it is taken as full",
        fix="run nvidia-smi and see what it says",
    )
