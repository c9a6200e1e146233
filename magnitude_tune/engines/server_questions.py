"""What to ask a llama-server: its options, its version, its devices, what it was built for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from magnitude_tune import processes, storage
from magnitude_tune.engines import rpc as rpc_devices
from magnitude_tune.engines import server_files
from magnitude_tune.engines.cpu_flags import cpu_flags
from magnitude_tune.engines.crashes import classify
from magnitude_tune.engines.cuda_archs import cuda_archs
from magnitude_tune.engines.values import CrashKind
from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts

__all__ = ["ask", "library_backends", "parse_flags", "probe", "problem_of", "with_devices"]

_PROBE_SECONDS: Final = 20.0
_BACKEND_LIBRARY = re.compile(r"(?:lib)?ggml-(cuda|hip|vulkan|metal|sycl|rpc|opencl|cann|musa|blas)\.", re.ASCII)
_OPTION = re.compile(r"\s*(-{1,2})([A-Za-z0-9][\w.-]*)(,?)", re.ASCII)
_SYSTEM_INFO = re.compile(r"system_info:.*", re.ASCII)
_FEATURE = re.compile(r"\b([A-Z0-9_]+) = 1\b", re.ASCII)
_VERSION = re.compile(r"^version:\s*(\S.{0,80}?)\s*$", re.MULTILINE)
_EXPECTED_OPTIONS: Final = frozenset({"model", "ctx-size", "port"})
# ggml's names of what a library was compiled for, and the kernel's names of what a CPU has. AMX is not among them,
# because the library asks the kernel for it first; nor AVX_VNNI, because AVX512_VNNI is preferred to it.
_CPU_FLAGS: Final = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
}


def parse_flags(help_text: str) -> frozenset[str]:
    """Every option of a `--help`, long and short, without dashes; descriptions are not read."""
    flags: set[str] = set()
    for line in help_text.splitlines():
        position, more = 0, line.startswith("-")
        while more and (match := _OPTION.match(line, position)):
            if match[1] == "--":
                flags.add(match[2])
            position, more = match.end(), match[3] == ","
    return frozenset(flags)


def probe(program: Path, *, explicit: bool) -> EngineFacts | None:
    """What a program can do; None if it is no llama-server, unless it was named (`explicit`).

    Raises:
        UsageError: the program that was named is no llama-server.
    """
    answer = ask(program, "--help")
    flags = parse_flags(answer.stdout)
    if not flags >= _EXPECTED_OPTIONS:
        problem = problem_of(answer)
        if problem is None and explicit:
            said = f": {answer.stderr}" if answer.returncode in (126, 127) else ""
            raise UsageError(f"this is not a llama-server{said}", where=str(program), hint="name a llama-server")
        return None if problem is None else _unusable(program, problem)
    version = ask(program, "--version")
    listed = ask(program, "--list-devices") if "list-devices" in flags else version
    info = _system_info(program, flags)
    features = frozenset(_FEATURE.findall(info))
    return EngineFacts(
        name="llama_server",
        path=str(program),
        build=_build(version),
        ggml_version=server_files.ggml_version(program),
        problem=problem_of(version) or problem_of(listed) or _lacking(features),
        backends=_backends(program, info, flags),
        devices=rpc_devices.parse_devices(listed.stdout, listed.stderr),
        extra_buffers=_extra_buffers(features),
        prompt_cache="cache-ram" in flags,
        flags=flags,
        cuda_archs=cuda_archs(info),
    )


def ask(program: Path, *arguments: str) -> processes.Completed:
    """Run a program of the engine with these arguments, for a short time, with its own libraries."""
    environment, _ = processes.child_environment(library_dirs=server_files.library_dirs(program))
    return processes.run([str(program), *arguments], timeout_seconds=_PROBE_SECONDS, env=environment)


def _unusable(program: Path, problem: str) -> EngineFacts:
    return EngineFacts(
        name="llama_server",
        path=str(program),
        build="unknown",
        ggml_version=server_files.ggml_version(program),
        problem=problem,
        backends=(),
    )


def problem_of(answer: processes.Completed) -> str | None:
    """Why a probe broke down; None if it ended well, or of its own will."""
    if answer.returncode == 0:
        return None
    crash = classify(answer.returncode, answer.stderr, flags=cpu_flags())
    if crash.kind is CrashKind.EXIT or (crash.kind is CrashKind.MISSING_LIBRARY and crash.cause is None):
        return None
    if crash.kind is CrashKind.HANG:
        return f"it did not answer within {_PROBE_SECONDS:.0f} s"
    return f"{crash.kind.value}: {crash.cause or crash.advice}"


def _build(version: processes.Completed) -> str:
    match = _VERSION.search(version.stdout) or _VERSION.search(version.stderr)
    return match[1] if match else "unknown"


def _system_info(program: Path, flags: frozenset[str]) -> str:
    """The line `system_info: ... | CPU : AVX2 = 1 | ...`, which comes before the model is found missing."""
    from magnitude_tune.engines.server_arguments import verbosity

    missing = str(storage.cache_dir() / "there-is-no-such-model.gguf")
    answer = ask(program, "--model", missing, "--host", "127.0.0.1", "--port", "0", *verbosity(flags))
    match = _SYSTEM_INFO.search(answer.stderr) or _SYSTEM_INFO.search(answer.stdout)
    return match[0] if match else ""


def _lacking(features: frozenset[str]) -> str | None:
    here = cpu_flags()
    lacking = (
        [] if here is None else [flag for name, flag in _CPU_FLAGS.items() if name in features and flag not in here]
    )
    if not lacking:
        return None
    return f"{CrashKind.ILLEGAL_INSTRUCTION.value}: built for {', '.join(lacking)}, which this CPU lacks"


def _extra_buffers(features: frozenset[str]) -> tuple[str, ...]:
    """Layouts it repacks into: AMX where compiled in and present, the CPU's own from AVX2 or dot products on."""
    here = cpu_flags() or frozenset()
    buffers = []
    if "AMX_INT8" in features and {"amx_int8", "amx_tile"} <= here:
        buffers.append("amx")
    if "REPACK" in features and ("avx2" in here or "DOTPROD" in features):
        buffers.append("cpu_repack")
    return tuple(buffers)


def _backends(program: Path, info: str, flags: frozenset[str]) -> tuple[str, ...]:
    logged = {match[1].lower() for match in re.finditer(r"\| ([A-Za-z]+) : ", info)}
    names = {"cpu"} | {"rocm" if name == "hip" else name for name in logged}
    if "rpc" in flags:
        names.add("rpc")
    return tuple(sorted({*names, *library_backends(program)}))


def library_backends(program: Path) -> frozenset[str]:
    """Backends, in lower case, whose libraries lie beside a program of the engine."""
    found = (match[1] for name in server_files.library_names(program) if (match := _BACKEND_LIBRARY.match(name)))
    return frozenset("rocm" if name == "hip" else name for name in found)


def with_devices(facts: EngineFacts, rpc: tuple[str, ...]) -> EngineFacts:
    """The facts with the devices as they are now: free memory changes, and RPC servers come and go.

    Raises:
        UsageError: an RPC server does not answer, or the program has no RPC.
    """
    devices = facts.devices
    if rpc:
        devices = _devices_with_rpc(facts, rpc)
    elif devices:
        answer = ask(Path(facts.path), "--list-devices")
        devices = rpc_devices.parse_devices(answer.stdout, answer.stderr)
    return replace(facts, devices=devices, gpu_offload=bool(devices))


def _devices_with_rpc(facts: EngineFacts, rpc: tuple[str, ...]) -> tuple[EngineDevice, ...]:
    if "rpc" not in facts.flags:
        raise UsageError(
            "this llama-server has no RPC backend",
            where=facts.path,
            hint="use a build with GGML_RPC, or leave --rpc out",
        )
    rpc_devices.check_answering(rpc)
    # The order counts: the list is printed as soon as its option is read.
    answer = ask(Path(facts.path), "--rpc", ",".join(rpc), "--list-devices")
    devices = rpc_devices.parse_devices(answer.stdout, answer.stderr)
    listed = {rpc_devices.address_of(device) for device in devices}
    missing = next((address for address in rpc if address not in listed), None)
    if missing is not None:
        said = (answer.stderr.strip().splitlines() or ["it lists no such device"])[-1]
        raise UsageError(
            f"what answers at {missing} is no RPC server for this llama-server: {said[:200]}",
            where="--rpc",
            hint="run the ggml-rpc-server of the same build there",
        )
    return devices
