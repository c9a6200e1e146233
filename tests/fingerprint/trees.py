"""Whole machines as `/proc` and `/sys` files, in the shapes that their kernels write; composed, not copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["TREES", "plant"]

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
GIB_KIB = 1 << 20
GIB = 1 << 30

Files = dict[str, str]

IDLE = {
    "proc/loadavg": "0.10 0.20 0.30 1/400 4242\n",
    "proc/stat": "cpu  1000 0 500 98000 100 0 100 300 0 0\ncpu0 1000 0 500 98000 100 0 100 300 0 0\nctxt 1\n",
    "proc/pressure/cpu": "some avg10=1.50 avg60=0.75 avg300=0.20 total=2500000\n",
    "proc/pressure/memory": (
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    ),
}
NO_LIMITS = (
    "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max stack size            8388608              unlimited            bytes     \n"
    "Max locked memory         67108864             67108864             bytes     \n"
    "Max address space         unlimited            unlimited            bytes     \n"
)


def meminfo(total_kib: int, available_kib: int, swap_kib: int = 0, huge: int = 0) -> str:
    """`/proc/meminfo` as far as it is read."""
    return (
        f"MemTotal:       {total_kib} kB\nMemFree:        {available_kib // 2} kB\nMemAvailable:   {available_kib} kB\n"
        f"SwapTotal:      {swap_kib} kB\nSwapFree:       {swap_kib} kB\n"
        f"HugePages_Total:    {huge:4}\nHugePages_Free:     {huge:4}\nHugepagesize:       2048 kB\n"
    )


def x86_cpuinfo(model: str, flags: str, n_cpus: int) -> str:
    """One block a CPU."""
    return "".join(f"processor\t: {cpu}\nmodel name\t: {model}\nflags\t\t: fpu {flags}\n\n" for cpu in range(n_cpus))


def arm_cpuinfo(parts: Sequence[int]) -> str:
    """One block a CPU, by part number."""
    return "".join(
        f"processor\t: {cpu}\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: {part:#x}\n\n"
        for cpu, part in enumerate(parts)
    )


def siblings(groups: Sequence[Sequence[int]], package: int = 0) -> Files:
    """The topology of cores, each given by its CPUs."""
    files: Files = {}
    for number, group in enumerate(groups):
        for cpu in group:
            folder = f"{CPU}/cpu{cpu}/topology"
            files[f"{folder}/core_id"] = f"{number}\n"
            files[f"{folder}/physical_package_id"] = f"{package}\n"
            files[f"{folder}/thread_siblings_list"] = ",".join(map(str, group)) + "\n"
    return files


def caches(groups: Sequence[Sequence[int]], index: int, level: int, kind: str, size: str) -> Files:
    """One cache for each group of CPUs."""
    files: Files = {}
    for group in groups:
        for cpu in group:
            folder = f"{CPU}/cpu{cpu}/cache/index{index}"
            files[f"{folder}/level"] = f"{level}\n"
            files[f"{folder}/type"] = f"{kind}\n"
            files[f"{folder}/size"] = f"{size}\n"
            files[f"{folder}/shared_cpu_list"] = ",".join(map(str, group)) + "\n"
    return files


def laptop_hybrid() -> Files:
    """A laptop with 6 fast cores of two threads and 8 efficient ones: CPUs 0-11 and 12-19."""
    fast = [(2 * core, 2 * core + 1) for core in range(6)]
    slow = [(cpu,) for cpu in range(12, 20)]
    clusters = [range(12, 16), range(16, 20)]
    return {
        **IDLE,
        "proc/sys/kernel/hostname": "laptop\n",
        "proc/version": "Linux version 6.11.0-19-generic (gcc 13)\n",
        "proc/meminfo": meminfo(16 * GIB_KIB - 524288, 9 * GIB_KIB, 2 * GIB_KIB),
        "proc/cpuinfo": x86_cpuinfo("13th Gen Intel(R) Core(TM) i7-13700H", "sse2 avx fma avx2 avx_vnni f16c", 20),
        "proc/self/limits": NO_LIMITS,
        f"{CPU}/online": "0-19\n",
        "sys/devices/cpu_core/cpus": "0-11\n",
        "sys/devices/cpu_atom/cpus": "12-19\n",
        f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "5000000\n",
        **siblings([*fast, *slow]),
        **caches(fast, 0, 1, "Data", "48K"),
        **caches(slow, 0, 1, "Data", "32K"),
        **caches([*fast, *slow], 1, 1, "Instruction", "32K"),
        **caches([*fast, *clusters], 2, 2, "Unified", "1280K"),
        **caches([range(20)], 3, 3, "Unified", "24576K"),
        f"{NODE}/node0/cpulist": "0-19\n",
        "sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "sys/class/dmi/id/product_name": "21HM\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/block/nvme0n1/size": "1000215216\n",
        "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user.slice/memory.max": "max\n",
        "proc/self/cgroup": "0::/user.slice\n",
    }


def two_sockets() -> Files:
    """A server with two packages of 18 cores of two threads; each package is a memory node of 96 GiB."""
    packages = [[(18 * package + core, 36 + 18 * package + core) for core in range(18)] for package in (0, 1)]
    files = {
        **IDLE,
        "proc/sys/kernel/hostname": "server\n",
        "proc/version": "Linux version 5.14.0-503.el9.x86_64 (gcc 11)\n",
        "proc/meminfo": meminfo(192 * GIB_KIB, 180 * GIB_KIB, 0, huge=512),
        "proc/cpuinfo": x86_cpuinfo("Intel(R) Xeon(R) Gold 6140 CPU @ 2.30GHz", "sse2 avx fma avx2 avx512f", 72),
        "proc/self/limits": NO_LIMITS,
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-71\nMems_allowed_list:\t0-1\n",
        f"{CPU}/online": "0-71\n",
        "sys/class/dmi/id/sys_vendor": "Dell Inc.\n",
        "sys/class/dmi/id/product_name": "PowerEdge R640\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    }
    for package, cores in enumerate(packages):
        cpus = [cpu for core in cores for cpu in core]
        files |= siblings(cores, package)
        files |= caches(cores, 0, 1, "Data", "32K") | caches(cores, 1, 1, "Instruction", "32K")
        files |= caches(cores, 2, 2, "Unified", "1024K") | caches([cpus], 3, 3, "Unified", "25344K")
        first = 18 * package
        files[f"{NODE}/node{package}/cpulist"] = f"{first}-{first + 17},{first + 36}-{first + 53}\n"
        files[f"{NODE}/node{package}/meminfo"] = (
            f"Node {package} MemTotal:       {96 * GIB_KIB} kB\nNode {package} MemFree:        {90 * GIB_KIB} kB\n"
            f"Node {package} Inactive(file): {2 * GIB_KIB} kB\n"
        )
    return files


def container() -> Files:
    """A container on a host of 16 cores and 64 GiB: 2.5 CPUs and 8 GiB, of which 6 are page cache."""
    group = "sys/fs/cgroup"
    return {
        **IDLE,
        ".dockerenv": "",
        "proc/sys/kernel/hostname": "4f2a1c\n",
        "proc/version": "Linux version 6.8.0-1021-aws (gcc 13)\n",
        "proc/meminfo": meminfo(64 * GIB_KIB, 50 * GIB_KIB),
        "proc/cpuinfo": x86_cpuinfo("AMD EPYC 7R13 Processor", "sse2 avx fma avx2 hypervisor", 32),
        "proc/self/cgroup": "0::/\n",
        "proc/self/limits": NO_LIMITS,
        "proc/self/status": "Cpus_allowed_list:\t0-31\nMems_allowed_list:\t0\n",
        f"{CPU}/online": "0-31\n",
        **siblings([(core, core + 16) for core in range(16)]),
        f"{group}/cpu.max": "250000 100000\n",
        f"{group}/memory.max": f"{8 * GIB}\n",
        f"{group}/memory.high": "max\n",
        f"{group}/memory.current": f"{15 * GIB // 2}\n",
        f"{group}/memory.stat": f"anon {GIB}\nfile {6 * GIB}\ninactive_file {6 * GIB}\nactive_file 0\n",
        "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
        "sys/class/dmi/id/product_name": "m6a.8xlarge\n",
    }


def cgroup_v1() -> Files:
    """A batch job under version 1: 4 of 8 CPUs by the parent's quota, 3 GiB as only `memory.stat` shows."""
    memory, cpu = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu,cpuacct"
    return {
        "proc/sys/kernel/hostname": "node17\n",
        "proc/version": "Linux version 3.10.0-1160.el7.x86_64 (gcc 4.8.5)\n",
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:        8388608 kB\nBuffers: 0 kB\nCached: 4194304 kB\n",
        "proc/cpuinfo": x86_cpuinfo("Intel(R) Xeon(R) CPU E5-2640 v3 @ 2.60GHz", "sse2 avx fma avx2", 8),
        "proc/self/cgroup": "4:memory:/slurm/job_7\n3:cpuacct,cpu:/slurm/job_7\n2:cpuset:/slurm/job_7\n",
        f"{CPU}/online": "0-7\n",
        **siblings([(core,) for core in range(8)]),
        f"{memory}/slurm/job_7/memory.limit_in_bytes": "9223372036854771712\n",
        f"{memory}/slurm/job_7/memory.usage_in_bytes": f"{GIB}\n",
        f"{memory}/slurm/job_7/memory.stat": f"total_inactive_file {GIB // 2}\nhierarchical_memory_limit {3 * GIB}\n",
        f"{cpu}/slurm/job_7/cpu.cfs_quota_us": "-1\n",
        f"{cpu}/slurm/job_7/cpu.cfs_period_us": "100000\n",
        f"{cpu}/slurm/cpu.cfs_quota_us": "400000\n",
        f"{cpu}/slurm/cpu.cfs_period_us": "100000\n",
    }


def arm_board() -> Files:
    """A board with four little and four big cores, rated by the kernel, and 8 GB."""
    little, big = range(4), range(4, 8)
    ratings = {**dict.fromkeys(little, 414), **dict.fromkeys(big, 1024)}
    return {
        **IDLE,
        "proc/sys/kernel/hostname": "board\n",
        "proc/version": "Linux version 6.1.75 (gcc 12)\n",
        "proc/meminfo": meminfo(8 * GIB_KIB - 131072, 7 * GIB_KIB),
        "proc/cpuinfo": arm_cpuinfo([0xD05] * 4 + [0xD0B] * 4),
        "proc/device-tree/model": "Radxa ROCK 5B\0",
        f"{CPU}/online": "0-7\n",
        **{f"{CPU}/cpu{cpu}/cpu_capacity": f"{rating}\n" for cpu, rating in ratings.items()},
        **siblings([(cpu,) for cpu in range(8)]),
        "sys/block/mmcblk0/size": "1\n",
    }


def arm_unrated() -> Files:
    """The same kind of board under a kernel that rates no cores: their part numbers tell."""
    rated = arm_board()
    return {name: content for name, content in rated.items() if not name.endswith("cpu_capacity")}


def arm_clocked() -> Files:
    """A phone chip whose parts nobody knows: only the clocks differ, three prime and middle cores above five little."""
    clocks = [1_800_000] * 5 + [2_420_000] * 2 + [2_840_000]
    unrated = {name: content for name, content in arm_unrated().items() if not name.endswith("cpuinfo")}
    unknown = arm_cpuinfo([0x805] * 8).replace("0x41", "0x51")
    return {
        **unrated,
        "proc/cpuinfo": unknown,
        **{f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq": f"{clock}\n" for cpu, clock in enumerate(clocks)},
    }


def wsl() -> Files:
    """WSL2 on a Windows host of 32 GiB, with 15.5 GiB and 8 cores of two threads."""
    return {
        **IDLE,
        "proc/sys/kernel/hostname": "DESKTOP\n",
        "proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (gcc 11)\n",
        "proc/meminfo": meminfo(31 * GIB_KIB // 2, 14 * GIB_KIB, 4 * GIB_KIB),
        "proc/cpuinfo": x86_cpuinfo("AMD Ryzen 7 5800X 8-Core Processor", "sse2 avx fma avx2 hypervisor", 16),
        f"{CPU}/online": "0-15\n",
        **siblings([(2 * core, 2 * core + 1) for core in range(8)]),
        "proc/self/cgroup": "0::/init.scope\n",
    }


def bound_to_a_node() -> Files:
    """The two-socket server, where a cpuset keeps the process to the second node and RLIMIT_AS to 40 GiB."""
    return {
        **two_sockets(),
        "proc/self/status": "Cpus_allowed_list:\t18-35,54-71\nMems_allowed_list:\t1\n",
        "proc/self/limits": NO_LIMITS.replace(
            "Max address space         unlimited ", f"Max address space         {40 * GIB} "
        ),
    }


TREES: Mapping[str, Files] = {
    "laptop-hybrid": laptop_hybrid(),
    "two-sockets": two_sockets(),
    "container": container(),
    "cgroup-v1": cgroup_v1(),
    "arm-board": arm_board(),
    "arm-unrated": arm_unrated(),
    "arm-clocked": arm_clocked(),
    "wsl": wsl(),
    "bound-to-a-node": bound_to_a_node(),
}


def plant(files: Mapping[str, str], root: Path) -> Path:
    """Write files below a folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root
