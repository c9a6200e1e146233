"""Every accelerator of a machine: each vendor's probe only where something of that vendor is there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from magnitude_tune.findings import Finding, Rule
from magnitude_tune.fingerprint.cards import AMD, INTEL, KFD_NODES, NVIDIA, CardFacts, cards_in_tree
from magnitude_tune.fingerprint.host import is_wsl, system_name
from magnitude_tune.fingerprint.runner import CommandRunner, run_command
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.fingerprint.values import Memory
from magnitude_tune.units import MIB

__all__ = ["read_accelerators"]

# The driver's files: on a host, in a container, under WSL, on a Jetson.
_NVIDIA_DRIVER: Final = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg", "dev/nvhost-gpu", "sys/module/nvgpu")
_WSL_HEADROOM_BYTES: Final = 512 * MIB


def read_accelerators(tree: Tree, facts: Mapping[str, str], run: CommandRunner | None, memory: Memory) -> CardFacts:
    """The machine's accelerators, numbered as engines number them; no command is run without a sign of its vendor.

    Args:
        tree: the machine's files.
        facts: what `sysctl` said; empty but on macOS.
        run: runs commands; where None, this machine's, and none for another machine's tree.
        memory: the host's memory.
    """
    if facts:
        from magnitude_tune.fingerprint.apple import read_apple

        return read_apple(facts, run or run_command, memory)
    environment = os.environ if tree.live else {}
    found = _nvidia(tree, run, memory, environment)
    if cards_in_tree(tree, AMD) or tree.children(KFD_NODES):
        from magnitude_tune.fingerprint.amd import read_amd

        found = _joined(found, read_amd(tree, run or (run_command if tree.live else None), memory, environment))
    if cards_in_tree(tree, INTEL):
        from magnitude_tune.fingerprint.intel import read_intel

        n_vulkan = sum(device.backend == "vulkan" for device in found.devices)
        found = _joined(found, read_intel(tree, memory, first=n_vulkan))
    if not any(pool.kind == "card" for pool in found.pools):
        return found
    return _with_headroom(found) if is_wsl(tree) else _noted(found) if system_name(tree) == "Windows" else found


def _nvidia(tree: Tree, run: CommandRunner | None, memory: Memory, environment: Mapping[str, str]) -> CardFacts:
    from_files = any(_is_there(tree, path) for path in _NVIDIA_DRIVER)
    if run is None and not (tree.live and (from_files or _may_have_nvidia(tree))):
        return _unlisted(tree) if tree.text(_NVIDIA_DRIVER[0]) is not None else CardFacts()
    nvml = _nvml() if run is None else None
    if run is None and nvml is None and not _is_installed("nvidia-smi"):
        return _unlisted(tree) if from_files and not is_wsl(tree) else CardFacts()
    from magnitude_tune.fingerprint.nvidia import read_nvidia

    return read_nvidia(run or run_command, memory, environment, nvml)


def _is_there(tree: Tree, path: str) -> bool:
    try:
        return (tree.root / path).exists()
    except OSError:
        return False


def _may_have_nvidia(tree: Tree) -> bool:
    """Where no driver shows: on Windows the command says, and a card without its driver has `nvidia-smi` say why."""
    return sys.platform == "win32" or bool(cards_in_tree(tree, NVIDIA))


def _nvml() -> Any | None:
    from magnitude_tune.fingerprint.nvml import load_nvml

    return load_nvml()


def _is_installed(program: str) -> bool:
    import shutil

    return shutil.which(program) is not None


def _unlisted(tree: Tree) -> CardFacts:
    here = "nvidia-smi is not on PATH" if tree.live else "a copied tree does not list them"
    note = Finding(
        Rule.PROBE_FAILED,
        f"there is an NVIDIA driver, but its cards are unknown: {here}",
        fix="install nvidia-smi, or magnitude-tune's extra nvidia"
        if tree.live
        else "run `magnitude-tune fingerprint --json` on that machine instead",
    )
    return CardFacts(notes=(note,))


def _joined(first: CardFacts, second: CardFacts) -> CardFacts:
    return CardFacts(first.devices + second.devices, first.pools + second.pools, first.notes + second.notes)


def _with_headroom(found: CardFacts) -> CardFacts:
    """Under WSL half a gibibyte of each card stays free: Windows uses some of it at any time, unseen from here."""
    own = {pool.name for pool in found.pools if pool.kind == "card"}
    pools = tuple(
        replace(pool, available_bytes=max(0, pool.available_bytes - _WSL_HEADROOM_BYTES)) if pool.name in own else pool
        for pool in found.pools
    )
    devices = tuple(
        replace(device, free_bytes=max(0, device.free_bytes - _WSL_HEADROOM_BYTES))
        if device.pool in own and device.free_bytes is not None
        else device
        for device in found.devices
    )
    return _noted(CardFacts(devices, pools, found.notes), ": 0.5 GiB of each card is kept free for Windows")


def _noted(found: CardFacts, then: str = "") -> CardFacts:
    note = Finding(
        Rule.MACHINE_LIMITED,
        f"Windows' driver moves what exceeds a card's memory to the host's RAM, slowly and without an error{then}",
    )
    return found._replace(notes=(*found.notes, note))
