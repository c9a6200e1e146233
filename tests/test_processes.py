"""Child processes: bounded, in groups of their own, gone with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from magnitude_tune import processes
from magnitude_tune.processes import child_environment, run, start

posix = pytest.mark.skipif(os.name != "posix", reason="signals and process groups are POSIX")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# A server (a shell) with a worker of its own (sleep): both must go.
SERVER = ["/bin/sh", "-c", "sleep 600 & echo $! > {pids}; sleep 600 & echo $! >> {pids}; echo $$ >> {pids}; wait"]

PARENT = """
import sys, time
from pathlib import Path
from magnitude_tune.processes import start
pids = Path(sys.argv[1])
child = start(["/bin/sh", "-c", sys.argv[2]])
while not pids.exists() or len(pids.read_text().split()) < 3:
    time.sleep(0.01)
print("up", flush=True)
if sys.argv[3] == "raise":
    raise SystemExit(3)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaps does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if sys.platform.startswith("linux"):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False
    return True


def all_gone(pids: list[int], patience_seconds: float = 10.0) -> bool:
    """Whether every process ends within the time."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.02)
    return False


def server_script(pids: Path) -> str:
    return SERVER[2].format(pids=pids)


def started_server(pids: Path) -> processes.Child:
    child = start(["/bin/sh", "-c", server_script(pids)])
    deadline = time.monotonic() + 10
    while (not pids.exists() or len(pids.read_text().split()) < 3) and time.monotonic() < deadline:
        time.sleep(0.01)
    return child


@posix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_child_is_left_when_the_parent_is_signalled(tmp_path: Path, number: signal.Signals) -> None:
    """B26: the parent gets SIGTERM, SIGINT or SIGKILL while a server with grandchildren runs; all of them end."""
    pids = tmp_path / "pids"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(pids), server_script(pids), "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"up\n"
        server = [int(pid) for pid in pids.read_text().split()]
        assert all(is_alive(pid) for pid in server)
        parent.send_signal(number)
        parent.wait(10)
    assert all_gone(server)


@posix
def test_no_child_is_left_after_an_exit_that_forgot_to_close(tmp_path: Path) -> None:
    """A parent that leaves without closing its child leaves nothing behind, and keeps its own exit code."""
    pids = tmp_path / "pids"
    done = subprocess.run(
        [sys.executable, "-c", PARENT, str(pids), server_script(pids), "raise"], stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == 3
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


@posix
def test_close_ends_grandchildren_and_can_be_called_again(tmp_path: Path) -> None:
    """After close nobody of the group is alive, at once; a second close gives the same return code."""
    pids = tmp_path / "pids"
    child = started_server(pids)
    server = [int(pid) for pid in pids.read_text().split()]
    assert set(child.members()) == set(server)
    first = child.close(grace_seconds=0)
    assert not any(is_alive(pid) for pid in server)
    assert first == -signal.SIGKILL
    assert child.close() == first
    assert child.members() == ()


@posix
def test_close_kills_what_ignores_the_polite_signal() -> None:
    """A child that ignores SIGTERM is killed after its grace."""
    with start([sys.executable, "-c", IGNORES_TERM], pipes=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.close(grace_seconds=0.1) == -signal.SIGKILL


IGNORES_TERM = (
    "import signal,time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
)


@posix
def test_close_lets_a_child_end_in_peace() -> None:
    """A child that ends on SIGTERM is not killed."""
    script = (
        "import signal,sys,time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    with start([sys.executable, "-c", script], pipes=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.close(grace_seconds=10) == 7


@posix
def test_a_failed_start_leaves_no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is not there raises, and its guard is gone."""
    guards: list[subprocess.Popen[bytes]] = []
    original = processes._start_guard

    def kept() -> subprocess.Popen[bytes]:
        guards.append(original())
        return guards[-1]

    monkeypatch.setattr(processes, "_start_guard", kept)
    with pytest.raises(FileNotFoundError):
        start(["no-such-program-here"])
    assert guards[0].returncode is not None


@posix
def test_without_a_shell_a_python_guard_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an image without /bin/sh the guard is this interpreter; the end of its input kills the group."""
    monkeypatch.setattr(processes, "_SHELL", tmp_path / "nothing")
    pids = tmp_path / "pids"
    child = started_server(pids)
    server = [int(pid) for pid in pids.read_text().split()]
    assert child._guard is not None
    assert child._guard.stdin is not None
    child._guard.stdin.close()  # what the kernel does when the parent dies
    assert all_gone(server)
    child.close()


def test_run_returns_the_output_and_the_code() -> None:
    """Both streams and the return code come back, undecodable bytes replaced."""
    script = "import sys; sys.stdout.buffer.write(b'a\\xff'); sys.stderr.write('b'); sys.exit(5)"
    done = run([sys.executable, "-c", script], timeout_seconds=30)
    assert (done.returncode, done.stdout, done.stderr) == (5, "a�", "b")


def test_run_says_not_found_and_not_executable(tmp_path: Path) -> None:
    """A missing program is 127, a file that cannot be executed 126, as a shell would say."""
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert run(["no-such-program-here"], timeout_seconds=5).returncode == 127
    assert run([str(plain)], timeout_seconds=5).returncode == 126


@posix
def test_run_kills_the_group_after_its_time(tmp_path: Path) -> None:
    """A command that takes too long has no return code, keeps its output so far, and leaves no grandchild."""
    pids = tmp_path / "pids"
    done = run(["/bin/sh", "-c", f"echo early; {server_script(pids)}"], timeout_seconds=1)
    assert (done.returncode, done.stdout) == (None, "early\n")
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


@posix
def test_run_does_not_wait_for_a_grandchild_that_holds_the_output() -> None:
    """A command that leaves a child with its stdout open is over when it is over."""
    started = time.monotonic()
    done = run(["/bin/sh", "-c", "sleep 600 & echo done"], timeout_seconds=300)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert time.monotonic() - started < 60


def test_run_bounds_what_it_keeps() -> None:
    """Output beyond the limit is dropped, not kept, and the command still ends normally."""
    script = "import sys\nfor _ in range(10): sys.stdout.write('x' * (1 << 20))"
    done = run([sys.executable, "-c", script], timeout_seconds=60)
    assert done.returncode == 0
    assert len(done.stdout) == 4 << 20


@linux
def test_memory_sums_the_group_and_keeps_the_peak() -> None:
    """Anonymous memory of a child and a grandchild is summed; the peak outlives what was freed."""
    size = 64 << 20
    inner = f"x = bytearray(b'x') * {size}; print('held', flush=True); input()"
    outer = (
        f"import subprocess, sys\nx = bytearray(b'x') * {2 * size}\ndel x\n"
        f"subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    with start([sys.executable, "-c", outer], pipes=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        memory = child.memory()
        assert len(child.members()) == 2
    assert size <= memory.anonymous_bytes <= memory.resident_bytes < 2 * size
    assert memory.peak_resident_bytes >= 3 * size
    assert child.memory().resident_bytes == 0


def test_the_log_keeps_the_end(tmp_path: Path) -> None:
    """The tail of the log is its last bytes; both streams go there unless pipes are asked for."""
    log = tmp_path / "log"
    script = "import sys; print('out'); sys.stdout.flush(); sys.stderr.write('x' * 100 + 'the end')"
    with start([sys.executable, "-c", script], log_path=log) as child:
        assert child.wait(30) == 0
        assert child.log_tail(7) == "the end"
    assert log.read_text().startswith("out")


def test_child_environment_drops_inherited_settings_of_llama_cpp() -> None:
    """Inherited LLAMA_ARG_* are dropped and named; what is given for this child stays; ours is not touched."""
    base = {"LLAMA_ARG_N_GPU_LAYERS": "99", "LLAMA_ARG_CTX_SIZE": "1", "PATH": "/bin", "LLAMA_CACHE": "/c"}
    environment, dropped = child_environment({"LLAMA_ARG_THREADS": "2"}, base=base)
    assert dropped == ("LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_GPU_LAYERS")
    assert environment == {"LLAMA_ARG_THREADS": "2", "PATH": "/bin", "LLAMA_CACHE": "/c"}
    assert len(base) == 4


def test_a_library_path_is_for_one_child_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's library folder comes first in its child's path and is not in this process's environment."""
    variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
    monkeypatch.setenv(variable, "/inherited")
    environment, _ = child_environment(library_dirs=["/engine/lib"])
    assert environment[variable] == os.pathsep.join(["/engine/lib", "/inherited"])
    assert os.environ[variable] == "/inherited"
    without, _ = child_environment(library_dirs=["/engine/lib"], base={})
    assert without[variable] == "/engine/lib"
