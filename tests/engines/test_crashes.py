"""How an engine ended, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from magnitude_tune.engines import crashes
from magnitude_tune.engines.cpu_flags import cpu_flags
from magnitude_tune.engines.crashes import EngineCrash, classify, engine_crash, oom_kill_count
from magnitude_tune.engines.values import CrashKind

CUDA_OUT_OF_MEMORY = """load_tensors: offloading 48 repeating layers to GPU
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 21504.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 22548578304
llama_model_load: error loading model: unable to allocate CUDA0 buffer
"""
HOST_OUT_OF_MEMORY = """ggml_aligned_malloc: insufficient memory (attempted to allocate 40960.00 MB)
ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 42949672960
"""


@pytest.mark.parametrize(
    ("returncode", "log", "kind"),
    [
        (-9, "", CrashKind.HOST_OUT_OF_MEMORY),
        (137, "", CrashKind.HOST_OUT_OF_MEMORY),
        (-15, "", CrashKind.STOPPED),
        (143, "", CrashKind.STOPPED),
        (-4, "", CrashKind.ILLEGAL_INSTRUCTION),
        (132, "", CrashKind.ILLEGAL_INSTRUCTION),
        (0xC000001D, "", CrashKind.ILLEGAL_INSTRUCTION),
        (0xC000001D - (1 << 32), "", CrashKind.ILLEGAL_INSTRUCTION),
        (-6, "", CrashKind.ABORT),
        (134, "", CrashKind.ABORT),
        (-11, "", CrashKind.SEGMENTATION_FAULT),
        (139, "", CrashKind.SEGMENTATION_FAULT),
        (127, "", CrashKind.MISSING_LIBRARY),
        (1, CUDA_OUT_OF_MEMORY, CrashKind.DEVICE_OUT_OF_MEMORY),
        (-6, CUDA_OUT_OF_MEMORY, CrashKind.DEVICE_OUT_OF_MEMORY),
        (1, "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory", CrashKind.DEVICE_OUT_OF_MEMORY),
        (1, HOST_OUT_OF_MEMORY, CrashKind.HOST_OUT_OF_MEMORY),
        (1, "terminate called after throwing an instance of 'std::bad_alloc'", CrashKind.HOST_OUT_OF_MEMORY),
        (1, "", CrashKind.EXIT),
        (0, "", CrashKind.EXIT),
        (None, "anything at all: out of memory", CrashKind.HANG),
    ],
)
def test_every_ending_has_its_kind(returncode: int | None, log: str, kind: CrashKind) -> None:
    """B19, B22, B86: the return code decides first, then the engine's own words."""
    crash = classify(returncode, log)
    assert crash.kind is kind
    assert crash.advice


def test_a_kill_tells_whether_the_kernel_counted_it() -> None:
    """B19: -9 is suspected out of memory, with the count of memory.events where there is one."""
    assert "oom_kill 2" in classify(-9, "", oom_kills=2).advice
    assert "did not rise" in classify(-9, "", oom_kills=0).advice
    assert "out-of-memory killer" in classify(-9, "").advice


def test_sigterm_is_not_called_out_of_memory() -> None:
    """B19: -15 was stopped from outside, even with a memory line in its log."""
    crash = classify(-15, CUDA_OUT_OF_MEMORY)
    assert crash.kind is CrashKind.STOPPED
    assert crash.cause is None


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("Failed to load shared library 'libllama.so': libcuda.so.1: cannot open shared object file", "libcuda.so.1"),
        ("llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared", "libgomp.so.1"),
        ("dyld[1]: Library not loaded: @rpath/libggml.dylib", "@rpath/libggml.dylib"),
    ],
)
def test_a_missing_library_is_named(log: str, name: str) -> None:
    """B21: the library that is missing is named, and the driver where it comes with one."""
    crash = classify(127, log)
    assert crash.kind is CrashKind.MISSING_LIBRARY
    assert crash.cause == f"{name} is missing"
    assert name in crash.advice
    assert ("NVIDIA driver" in crash.advice) == name.startswith("libcuda")


def test_an_illegal_instruction_lists_missing_flags() -> None:
    """B22: the flags that common builds need and this CPU lacks are listed; with all of them, repacking is named."""
    advice = classify(-4, "", flags={"avx", "bmi2", "sse4_2"}).advice
    assert "avx2, f16c, fma" in advice
    assert "repack" in classify(-4, "", flags={"avx", "avx2", "bmi2", "f16c", "fma"}).advice
    assert "repack" in classify(-4, "", flags=None).advice


def test_the_cause_is_the_engines_own_line() -> None:
    """B86: the reason is quoted, not the lines after it that only say again that loading failed."""
    log = (
        "llama_context: set_abort_callback: call\n"
        "gguf_init_from_file: invalid magic characters: 'root', expected 'GGUF'\n"
        "llama_model_load: error loading model: failed to load model from x\n"
    )
    crash = classify(1, log)
    assert crash.cause == "gguf_init_from_file: invalid magic characters: 'root', expected 'GGUF'"
    assert classify(1, "all is well\nset_abort_callback: call").cause is None
    assert len(classify(1, "error " * 1000).cause or "") <= 300


def test_the_error_carries_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has kind, advice as its hint, return code, log and exit code 5; new kills are counted from before."""
    monkeypatch.setattr(crashes, "oom_kill_count", lambda: 5)
    error = engine_crash("llama-server", -9, "the log", oom_kills_before=4)
    assert isinstance(error, EngineCrash)
    assert error.exit_code == 5
    assert error.kind is CrashKind.HOST_OUT_OF_MEMORY
    assert error.hint == error.advice
    assert "oom_kill 1" in error.advice
    assert "-9" in str(error)
    assert (error.returncode, error.log_tail) == (-9, "the log")


@pytest.mark.parametrize(
    ("cgroup", "counter", "content"),
    [
        ("0::/slice/unit\n", "slice/unit/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n"),
        ("5:memory:/docker\n", "memory/docker/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
    ],
)
def test_kills_are_read_of_both_cgroup_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, counter: str, content: str
) -> None:
    """The counter of this process's own cgroup is read, version 2 or 1; nothing there is None, not zero."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    monkeypatch.setattr(crashes, "Path", lambda path: tmp_path / str(path).lstrip("/"))
    assert oom_kill_count() is None
    file = tmp_path / "sys/fs/cgroup" / counter
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert oom_kill_count() == 2


def test_cpu_flags_are_absent_rather_than_empty(tmp_path: Path) -> None:
    """Flags are read of the first CPU; a machine without that line has None."""
    (tmp_path / "proc").mkdir()
    assert cpu_flags(tmp_path) is None
    (tmp_path / "proc/cpuinfo").write_text(
        "processor\t: 0\nflags\t\t: fpu avx2 fma\nprocessor\t: 1\nflags\t\t: other\n"
    )
    assert cpu_flags(tmp_path) == {"fpu", "avx2", "fma"}
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nFeatures\t: asimd\n")
    assert cpu_flags(tmp_path) is None
