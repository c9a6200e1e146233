"""`nvidia-smi`, the driver's command: cards and MIG instances from its answers, whatever shape they have."""

from __future__ import annotations

import re
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.cards import Bus, NvidiaCard
from magnitude_tune.fingerprint.runner import CommandRunner
from magnitude_tune.units import MIB

__all__ = ["QUERY_SECONDS", "ask_nvidia_smi", "cards_left_out"]

QUERY_SECONDS: Final = 10.0
"""A driver without persistence mode takes seconds to wake; one that hangs must not hang us."""

_BASIC_FIELDS: Final = ("index", "name", "memory.total", "memory.free")
_MORE_FIELDS: Final = (
    "driver_version",
    "compute_cap",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "uuid",
    "mig.mode.current",
)
_MOST_CARDS: Final = 64
_MOST_INSTANCES: Final = 16
_INSTANCE: Final = re.compile(r"\s+MIG ([0-9a-z.+]{1,24})\s+Device\s+\d{1,3}: \(UUID: (MIG-[^)\s]{1,100})\)", re.ASCII)


def ask_nvidia_smi(run: CommandRunner) -> tuple[list[NvidiaCard], tuple[Finding, ...]]:
    """Cards in the bus's order, a divided one as its MIG instances, and a note where the command fails.

    Drivers that do not know a field refuse the whole question, so the basics are asked for then.
    """
    problem = ""
    for fields in (_BASIC_FIELDS + _MORE_FIELDS, _BASIC_FIELDS):
        completed = run(
            ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"), QUERY_SECONDS
        )
        if completed.returncode == 127:
            return [], ()
        if completed.returncode is None:
            return [], (cards_left_out(f"nvidia-smi did not answer within {QUERY_SECONDS:.0f} s"),)
        if completed.returncode == 0:
            rows = _rows(completed.stdout)
            unreadable = bool(completed.stdout.strip()) and not rows and "no devices" not in completed.stdout.lower()
            notes = (cards_left_out("nvidia-smi gave an answer that cannot be read"),) if unreadable else ()
            return _cards(rows, run), notes
        said = (completed.stdout + completed.stderr).strip().splitlines()
        problem = said[0][:200] if said else f"it ended with {completed.returncode}"
        if "no devices" in problem.lower():
            return [], ()
    return [], (cards_left_out(f"nvidia-smi failed: {problem}"),)


def cards_left_out(message: str) -> Finding:
    """That NVIDIA's cards could not be listed: `message` says why."""
    return Finding(
        Rule.PROBE_FAILED, f"{message}; NVIDIA cards are left out", fix="run nvidia-smi and see what it says"
    )


def _rows(text: str) -> list[list[str]]:
    rows = []
    for line in text.splitlines()[:_MOST_CARDS]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) >= 3 and re.fullmatch(r"[0-9]{1,3}", cells[0], re.ASCII) and cells[1]:
            rows.append(cells + [""] * (len(_BASIC_FIELDS + _MORE_FIELDS) - len(cells)))
    return rows


def _cards(rows: list[list[str]], run: CommandRunner) -> list[NvidiaCard]:
    divided = any(row[9].lower() == "enabled" for row in rows)
    instances = _instances(run) if divided else {}
    cards: list[NvidiaCard] = []
    for row in rows:
        card = _card(row)
        cards += _divided(card, instances.get(int(row[0]), [])) if row[9].lower() == "enabled" else [card]
    return cards


def _card(cells: list[str]) -> NvidiaCard:
    total, free = _mebibytes(cells[2]), _mebibytes(cells[3])
    return NvidiaCard(
        name=cells[1][:120],
        source="nvidia-smi",
        total_bytes=total or None,
        free_bytes=min(free, total) if free is not None and total else None,
        driver=_known(cells[4]),
        compute_capability=_known(cells[5]),
        bus=Bus.of(_small(cells[6]), _small(cells[7])),
        uuid=_known(cells[8]),
    )


def _divided(card: NvidiaCard, instances: list[tuple[str, str | None, int | None, int | None]]) -> list[NvidiaCard]:
    """The instances of a card; a card without any runs nothing, and one whose instances are unknown has no memory."""
    return [
        card._replace(
            name=f"{card.name} MIG {profile}".rstrip(),
            uuid=uuid,
            total_bytes=total,
            free_bytes=min(free, total) if free is not None and total else None,
            whole_bytes=card.total_bytes,
        )
        for profile, uuid, total, free in instances or [("", None, None, None)]
    ]


def _instances(run: CommandRunner) -> dict[int, list[tuple[str, str | None, int | None, int | None]]]:
    """Profile, id, total and free memory of each MIG instance, by the number of its card."""
    listed = run(("nvidia-smi", "-L"), QUERY_SECONDS)
    described = run(("nvidia-smi", "-q", "-x"), QUERY_SECONDS)
    names: dict[int, list[tuple[str, str]]] = {}
    number = -1
    for line in listed.stdout.splitlines()[: _MOST_CARDS * (_MOST_INSTANCES + 1)]:
        if found := re.match(r"GPU ([0-9]{1,3}): ", line, re.ASCII):
            number = int(found[1])
        elif found := _INSTANCE.match(line):
            names.setdefault(number, []).append((found[1], found[2]))
    instances = {}
    for index, gpu in enumerate(described.stdout.split("<gpu ")[1 : _MOST_CARDS + 1]):
        sizes = [_sizes(part) for part in gpu.split("<mig_device>")[1 : _MOST_INSTANCES + 1]]
        known = names.get(index, [])
        named: list[tuple[str, str | None]] = [*known, *[("", None)] * (len(sizes) - len(known))]
        instances[index] = [(*name, *size) for name, size in zip(named, sizes, strict=False)]
    return instances


def _sizes(xml: str) -> tuple[int | None, int | None]:
    memory = xml.partition("<fb_memory_usage>")[2].partition("</fb_memory_usage>")[0]
    found = (re.search(rf"<{name}>([^<]{{1,40}})</{name}>", memory) for name in ("total", "free"))
    total, free = (_mebibytes(match[1].strip()) if match else None for match in found)
    return total or None, free


def _known(cell: str) -> str | None:
    """The cell's text; None for `[N/A]`, `[Not Supported]`, `[Unknown Error]` and the like."""
    return None if not cell or cell.startswith("[") or cell.lower() in ("n/a", "not supported") else cell[:80]


def _mebibytes(cell: str) -> int | None:
    """Bytes of `24564` or `24564 MiB`; None for anything else."""
    found = re.fullmatch(r"([0-9]{1,9})( MiB)?", cell, re.ASCII)
    return int(found[1]) * MIB if found else None


def _small(cell: str) -> int | None:
    return int(cell) if re.fullmatch(r"[0-9]{1,2}", cell, re.ASCII) else None
