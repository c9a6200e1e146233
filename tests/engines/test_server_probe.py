"""What can be found out about a llama-server without a model."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from magnitude_tune.engines import crashes, server_probe, server_questions
from magnitude_tune.engines.server_files import ggml_version, installed_programs, library_dirs
from magnitude_tune.engines.server_probe import find_server
from magnitude_tune.engines.server_questions import parse_flags
from magnitude_tune.errors import UsageError
from magnitude_tune.fingerprint.values import EngineDevice, EngineFacts
from magnitude_tune.units import MIB

MakeProgram = Callable[..., Path]


def found(path: Path | str, rpc: tuple[str, ...] = ()) -> EngineFacts:
    facts = find_server(engine_path=str(path), rpc=rpc)
    assert facts is not None
    return facts


def test_flags_are_read_from_the_option_column_only() -> None:
    """Every spelling of an option counts; what a description mentions does not."""
    text = (
        "----- common params -----\n\n"
        "-ngl,  --gpu-layers, --n-gpu-layers N   layers to store\n"
        "--mmap, --no-mmap                       DEPRECATED in favor of `--load-mode`\n"
        "                                        --indented is text\n"
        "-kvo,  --kv-offload, -nkvo, --no-kv-offload\n"
        "--top-k N, --not-an-option              text\n"
    )
    assert parse_flags(text) == {
        "gpu-layers", "n-gpu-layers", "mmap", "no-mmap", "kv-offload", "no-kv-offload", "top-k",
    }  # fmt: skip


def test_a_server_tells_what_it_can_do(fake_program: MakeProgram) -> None:
    """Build, options, prompt cache and backends come from the server itself."""
    facts = found(fake_program())
    assert facts.name == "llama_server"
    assert facts.build == "4242 (abc1234)"
    assert facts.problem is None
    assert facts.prompt_cache
    assert facts.backends == ("cpu", "rpc")
    assert {"fit", "n-gpu-layers", "no-repack"} <= facts.flags
    assert "hidden-in-text" not in facts.flags
    assert facts.devices == ()
    assert not facts.gpu_offload


def test_a_folder_is_searched(fake_program: MakeProgram) -> None:
    """The folder of the program, or one above its bin folder, may be named."""
    program = fake_program("bin")
    assert found(program.parent).path == str(program)
    assert found(program.parent.parent).path == str(program)


@pytest.mark.parametrize("kind", ["nothing", "text", "folder", "other", "script without interpreter"])
def test_a_named_engine_that_is_none_is_a_usage_error(tmp_path: Path, fake_program: MakeProgram, kind: str) -> None:
    """A path that is no llama-server is said to be none, with the path."""
    path = tmp_path / "engine"
    if kind == "text":
        path.write_text("hello", encoding="utf-8")
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        path = fake_program(probe="other")
    elif kind == "script without interpreter":
        path.write_bytes(b"\x00\x01\x02")
        path.chmod(0o755)
    with pytest.raises(UsageError) as caught:
        find_server(engine_path=str(path), rpc=())
    assert str(path) in str(caught.value)
    assert caught.value.hint


def test_an_illegal_instruction_is_a_fact(fake_program: MakeProgram) -> None:
    """A server that dies of SIGILL when asked is found, with that as its problem (field report B22)."""
    facts = found(fake_program(probe="signal:4"))
    assert facts.problem is not None
    assert "illegal instruction" in facts.problem
    assert facts.devices == ()


def test_a_missing_library_is_named(fake_program: MakeProgram) -> None:
    """Exit code 127 with the loader's message names the library (field report B21)."""
    problem = found(fake_program(probe="missing:libcuda.so.1")).problem
    assert problem is not None
    assert "libcuda.so.1" in problem


def test_a_build_for_another_cpu_is_told_before_it_crashes(
    fake_program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the library was compiled for is compared with the CPU's flags; AMX alone is no obstacle."""
    monkeypatch.setattr(server_questions, "cpu_flags", lambda: frozenset({"pni", "avx", "avx2", "f16c", "fma"}))
    info = "AVX2 = 1 | AVX512 = 1 | AVX512_BF16 = 1 | AMX_INT8 = 1 | REPACK = 1 | "
    problem = found(fake_program("a", info=info)).problem
    assert problem is not None
    assert "avx512f, avx512_bf16" in problem
    facts = found(fake_program("b", info="AVX2 = 1 | AVX512 = 0 | AMX_INT8 = 1 | REPACK = 1 | "))
    assert facts.problem is None
    assert facts.extra_buffers == ("cpu_repack",)


def test_extra_buffers_need_the_build_and_the_cpu(fake_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """AMX comes first where both have it; a build without repacking has none."""
    monkeypatch.setattr(server_questions, "cpu_flags", lambda: frozenset({"avx2", "amx_int8", "amx_tile"}))
    assert found(fake_program("a", info="AMX_INT8 = 1 | REPACK = 1 | ")).extra_buffers == ("amx", "cpu_repack")
    assert found(fake_program("b", info="AVX = 0 | ")).extra_buffers == ()


def test_a_second_look_starts_nothing_until_a_file_changes(fake_program: MakeProgram, tmp_path: Path) -> None:
    """Facts are remembered by the program's and its libraries' size and time."""
    calls = tmp_path / "calls"
    program = fake_program(calls=calls)
    first = found(program)
    n_calls = len(calls.read_text().splitlines())
    assert n_calls > 0
    assert found(program) == first
    assert len(calls.read_text().splitlines()) == n_calls
    (program.parent / "libggml-base.so.0.21.3").write_bytes(b"library")
    assert found(program).ggml_version == "0.21.3"
    assert len(calls.read_text().splitlines()) > n_calls


@pytest.mark.parametrize("content", ["{}", '{"path": 1}', "[]", "null"])
def test_a_damaged_memory_is_asked_again(fake_program: MakeProgram, own_home: Path, content: str) -> None:
    """A remembered value of another form is not believed."""
    program = fake_program()
    first = found(program)
    (stored,) = (own_home / "cache").glob("llama-server-*.json")
    document = json.loads(stored.read_text())
    document["value"] = json.loads(content)
    stored.write_text(json.dumps(document))
    assert found(program) == first


def test_devices_are_asked_for_each_time(fake_program: MakeProgram, tmp_path: Path) -> None:
    """Free memory of a card is never remembered."""
    calls = tmp_path / "calls"
    program = fake_program(calls=calls, devices="  CUDA0: NVIDIA H (model X) (24564 MiB, 24100 MiB free)")
    facts = found(program)
    assert facts.devices == (EngineDevice("CUDA0", "NVIDIA H (model X)", 24564 * MIB, 24100 * MIB),)
    assert facts.gpu_offload
    before = calls.read_text().count("--list-devices")
    found(program)
    assert calls.read_text().count("--list-devices") == before + 1


def test_a_server_that_can_run_is_preferred(fake_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a named engine the first on PATH or in a package is used, unless only another can run or has RPC."""
    broken, plain, other = fake_program("broken", probe="signal:4"), fake_program("plain"), fake_program("other")
    no_rpc = broken.parent / "help"
    no_rpc.write_text("-m,    --model FNAME\n--ctx-size N\n--port N\n--list-devices\n", encoding="utf-8")
    plain.write_text(plain.read_text().replace("exec", f"export FAKE_HELP={no_rpc}\nexec", 1), encoding="utf-8")
    order: list[Path] = []
    monkeypatch.setattr(server_probe.server_files, "installed_programs", lambda: order)
    assert find_server(engine_path=None, rpc=()) is None
    order[:] = [broken]
    facts = find_server(engine_path=None, rpc=())
    assert facts is not None
    assert facts.problem is not None
    order[:] = [broken, plain, other]
    facts = find_server(engine_path=None, rpc=())
    assert facts is not None
    assert facts.path == str(plain)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        other.write_text(
            other.read_text().replace("exec", f"export FAKE_DEVICES='  RPC0: {address} (8 MiB, 8 MiB free)'\nexec", 1),
            encoding="utf-8",
        )
        facts = find_server(engine_path=None, rpc=(address,))
        assert facts is not None
        assert facts.path == str(other)
        order.remove(other)
        with pytest.raises(UsageError, match="no RPC backend"):
            find_server(engine_path=None, rpc=(address,))


def test_path_is_searched(fake_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """A llama-server on PATH is found by its name."""
    program = fake_program()
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert str(program) in map(str, installed_programs())


def test_an_rpc_server_that_does_not_answer_is_named(fake_program: MakeProgram) -> None:
    """Nothing listens at the address: the error names it."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(UsageError, match=address):
        find_server(engine_path=str(fake_program()), rpc=(address,))


def test_a_listener_that_is_no_rpc_server_is_named(fake_program: MakeProgram) -> None:
    """Something listens, but the engine lists no device for it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UsageError, match=address):
            find_server(engine_path=str(fake_program()), rpc=(address,))


def test_library_folder_is_only_set_where_libraries_lie_beside(tmp_path: Path) -> None:
    """A program with its libraries beside it gets their folder, through a link as well; a plain one gets none."""
    real = tmp_path / "lib" / "llama-server"
    real.parent.mkdir()
    real.touch()
    assert library_dirs(real) == ()
    (real.parent / "libllama.so.0").touch()
    link = tmp_path / "llama-server"
    link.symlink_to(real)
    assert library_dirs(link) == (str(real.parent),)
    assert ggml_version(link) is None


@pytest.mark.engine
def test_the_real_server_is_found_without_importing_its_package(real_server: EngineFacts) -> None:
    """The package's server tells its ggml version, its options and its prompt cache."""
    assert real_server.ggml_version == "0.20.0"
    assert {"fit", "cache-ram", "load-mode", "rpc"} <= real_server.flags
    assert real_server.prompt_cache
    assert {"cpu", "rpc", "vulkan"} <= set(real_server.backends)
    flags = crashes.cpu_flags() or frozenset()
    assert ("amx" in real_server.extra_buffers) == ("amx_int8" in flags)


def test_a_problem_that_may_pass_is_asked_about_again(fake_program: Callable[..., Path], tmp_path: Path) -> None:
    """A library that is missing now may be there tomorrow: only what a build is made for is remembered."""
    program = fake_program()
    working = program.read_text()
    said = "error while loading shared libraries: libcudart.so.12: cannot open shared object file"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 127\n")
    broken = find_server(engine_path=str(program), rpc=())
    assert broken is not None
    assert broken.problem is not None
    stamp = program.stat()
    program.write_text(working)
    os.utime(program, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    mended = find_server(engine_path=str(program), rpc=())
    assert mended is not None
    assert mended.problem is None
