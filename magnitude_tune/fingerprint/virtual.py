"""Whether this is a virtual machine or a container, and of which kind, by the traces each leaves. Read on demand."""

from __future__ import annotations

import re
from typing import Final

from magnitude_tune.fingerprint.tree import Tree

__all__ = ["read_container", "read_virtual_machine"]

_DMI: Final = "sys/class/dmi/id"
# Words in the firmware's names, as hypervisors set them; the first that fits counts.
_FIRMWARE: Final = (
    (r"vmware", "vmware"),
    (r"virtualbox|innotek", "virtualbox"),
    (r"microsoft corporation.*virtual machine", "hyper-v"),
    (r"parallels", "parallels"),
    (r"bhyve", "bhyve"),
    (r"apple virtualization", "apple"),
    (r"amazon ec2", "amazon"),
    (r"google compute engine", "google"),
    (r"openstack|kvm|kubevirt|digitalocean|hetzner|alibaba cloud ecs", "kvm"),
    (r"qemu|bochs|standard pc \(", "qemu"),
    (r"\bxen\b", "xen"),
)
_BARE: Final = re.compile(r"amazon ec2.*\.metal", re.IGNORECASE)


def read_virtual_machine(tree: Tree) -> tuple[str | None, str]:
    """The kind of hypervisor below this kernel and what says so; `none` on hardware, None where nothing tells."""
    if kind := tree.word("sys/hypervisor/type"):
        return kind[:40], "/sys/hypervisor/type"
    if "microsoft-standard" in (tree.word("proc/version") or ""):
        return "hyper-v", "/proc/version: the kernel of WSL 2"
    names = " ".join(tree.word(f"{_DMI}/{name}") or "" for name in ("sys_vendor", "product_name", "board_vendor"))
    for pattern, kind in _FIRMWARE:
        if re.search(pattern, names, re.IGNORECASE) and not _BARE.search(names):
            return kind, f"/{_DMI}"
    compatible = tree.word("proc/device-tree/hypervisor/compatible")
    if compatible:
        return compatible.partition(",")[2][:40] or compatible[:40], "/proc/device-tree/hypervisor"
    flags = re.search(r"^flags\s*:(.*)$", tree.text("proc/cpuinfo") or "", re.MULTILINE)
    if flags and "hypervisor" in flags[1].split():
        return "unknown", "the processor's hypervisor flag"
    known = flags or names.strip() or tree.word("proc/device-tree/model")
    return ("none", "no trace of a hypervisor") if known else (None, "unknown")


def read_container(tree: Tree) -> tuple[str | None, str]:
    """The kind of container around this process and what says so; None outside one."""
    if (kind := tree.word("run/systemd/container")) is not None:
        return kind[:40], "/run/systemd/container"
    for path, kind in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if tree.text(path) is not None:
            return kind, f"/{path}"
    groups = tree.text("proc/self/cgroup") or ""
    for word, kind in (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc")):
        if re.search(rf"[/:]({word})[-./]", groups, re.ASCII):
            return kind, "/proc/self/cgroup"
    return None, "no trace of a container"
