"""What runs the kernel: Linux, the Windows Subsystem for Linux, another system; and limits that come from that."""

from __future__ import annotations

import os
import sys
from typing import Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.topology import Node
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.units import format_bytes

__all__ = ["architecture", "cap_to_group", "host_name", "is_wsl", "node_note", "system_name", "wsl_note"]

_SYSTEMS: Final = {"linux": "Linux", "darwin": "Darwin", "win32": "Windows"}
_GROUP_CPUS: Final = 64
"""Windows schedules a process within one group of at most 64 logical CPUs unless it asks for more."""


def is_wsl(tree: Tree) -> bool:
    """Whether the kernel is that of the Windows Subsystem for Linux."""
    return "microsoft" in (tree.word("proc/version") or tree.word("proc/sys/kernel/osrelease") or "").lower()


def system_name(tree: Tree) -> str:
    """`Linux`, `Darwin` or `Windows`; a copied tree is Linux's."""
    return _SYSTEMS.get(sys.platform, sys.platform) if tree.live else "Linux"


def host_name(tree: Tree) -> str:
    """The host's name; `unknown` where a copied tree does not say."""
    if tree.live and hasattr(os, "uname"):
        return os.uname().nodename or "unknown"
    if tree.live:
        import platform

        return platform.node() or "unknown"
    return (tree.word("proc/sys/kernel/hostname") or tree.word("etc/hostname") or "unknown")[:256]


def architecture(tree: Tree, described: str | None) -> str:
    """The machine's architecture: the interpreter's word where it runs there, else what `/proc/cpuinfo` implies."""
    if tree.live and hasattr(os, "uname"):
        return os.uname().machine
    if tree.live:
        import platform

        return platform.machine().lower() or "unknown"
    return described or "unknown"


def wsl_note(total_bytes: int) -> Finding:
    """Windows keeps part of the memory for itself; only the virtual machine's share may be planned with."""
    return Finding(
        Rule.MACHINE_LIMITED,
        f"this is WSL: Windows gives it {format_bytes(total_bytes)} of the host's memory, and plans stay within that",
        fix="raise memory= under [wsl2] in %UserProfile%\\.wslconfig, then run wsl --shutdown",
    )


def cap_to_group(usable: int, logical_cpus: int, *, windows: bool) -> tuple[int, Finding | None]:
    """At most 64 threads where Windows schedules, and a note if that takes cores away."""
    if not windows or usable <= _GROUP_CPUS:
        return usable, None
    note = Finding(
        Rule.MACHINE_LIMITED,
        f"{logical_cpus} logical CPUs found, but Windows runs a process in one group of at most {_GROUP_CPUS}: "
        f"plans use {_GROUP_CPUS} threads at most",
        fix="set n_threads yourself if your engine spreads over processor groups",
    )
    return _GROUP_CPUS, note


def node_note(nodes: tuple[Node, ...]) -> Finding | None:
    """Several memory nodes: crossing between them can cost more than the second one's cores bring."""
    if len(nodes) < 2:
        return None
    largest = max(nodes, key=lambda node: node.cores)
    memory = f" and {format_bytes(largest.total_bytes)}" if largest.total_bytes else ""
    return Finding(
        Rule.MACHINE_LIMITED,
        f"{len(nodes)} memory nodes; one has {largest.cores} cores{memory}: a model that fits one node's memory often "
        "decodes faster on that node alone",
        fix=f"try numactl --cpunodebind={largest.number} --membind={largest.number} with {largest.cores} threads",
    )
