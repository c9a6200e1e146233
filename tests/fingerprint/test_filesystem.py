"""What a model lies on, and how fast it is read: mounts, samples past the page cache, and the cache of rates."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest
from cli.console import run

from magnitude_tune.fingerprint import read_rate
from magnitude_tune.fingerprint.disk import disk_bandwidth
from magnitude_tune.fingerprint.filesystem import (
    Mount,
    cached_read_rate,
    filesystem_note,
    find_mount,
    measured_read_rate,
)
from magnitude_tune.fingerprint.read_rate import Sampled, sample
from magnitude_tune.fingerprint.tree import Tree
from magnitude_tune.pipeline.resolve import ResolveOptions, resolve_request

MIB = 1 << 20
HERE = Tree(Path("/"))
MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 8:1 / /data rw shared:3 - xfs /dev/sda1 rw
41 40 0:50 / /data/nas\\040one rw - nfs4 nas:/models rw
42 27 0:51 / /datafile rw - tmpfs tmpfs rw
43 40 8:17 / /data rw - btrfs /dev/sdb1 rw
a line that makes no sense
44 27
"""


@pytest.fixture
def mounted(grow):
    """A machine with several mounts, one above another."""
    return Tree(grow({"proc/self/mountinfo": MOUNTS, "sys/dev/block/254:0/size": "2097152\n"}))


@pytest.mark.parametrize(
    ("path", "kind", "point", "device"),
    [
        ("/home/me/model.gguf", "ext4", "/", "/dev/vda"),
        ("/data/model.gguf", "btrfs", "/data", "/dev/sdb1"),
        ("/data/nas one/model.gguf", "nfs4", "/data/nas one", "nas:/models"),
        ("/datafile/model.gguf", "tmpfs", "/datafile", "tmpfs"),
        ("/datafiles/model.gguf", "ext4", "/", "/dev/vda"),
    ],
)
def test_the_deepest_and_last_mount_holds_a_file(mounted, path, kind, point, device):
    """Names that only begin alike do not count, escapes are read, and a later mount covers an earlier one."""
    found = find_mount(Path(path), mounted)
    assert found is not None
    assert (found.kind, found.point, found.device) == (kind, point, device)
    assert found.size_bytes == (2097152 * 512 if point == "/" else None)


def test_without_a_list_of_mounts_nothing_is_known(grow):
    """A system without mountinfo has no answer, and no rate."""
    tree = Tree(grow({}))
    assert find_mount(Path("/a"), tree) is None
    assert cached_read_rate(Path("/a"), tree) is None
    assert measured_read_rate(Path("/a"), None) is None


@pytest.mark.parametrize(
    ("mount", "said"),
    [
        (Mount("nfs4", "/n", "nas:/m", None), "network filesystem"),
        (Mount("fuse.sshfs", "/n", "me@there:", None), "network filesystem"),
        (Mount("tmpfs", "/dev/shm", "tmpfs", None), "takes its size of memory"),
        (Mount("9p", "/mnt/c", "C:\\", None), "Windows drive"),
        (Mount("ext4", "/", "/dev/sda1", None), None),
        (Mount("9p", "/share", "hostshare", None), None),
    ],
)
def test_filesystems_that_cost_time_or_memory_are_noted(mount, said):
    """A note says what the filesystem costs and where the model should lie; a disk is no news."""
    note = filesystem_note(mount)
    assert (note is None) == (said is None)
    if note is not None:
        assert said in note.message
        assert note.fix


@pytest.fixture
def file(tmp_path):
    """A file of 24 MiB that is not all zeros."""
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(MIB) * 24)
    return path


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot pass the page cache by")
def test_a_sample_gives_a_rate_that_a_device_can_have(file):
    """Parts of the file are read, directly or after dropping them, and nothing of it changes."""
    before = file.read_bytes()
    found = sample(file)
    assert found is not None
    assert 1e5 < found.rate < 1e12
    assert found.method in ("direct reads", "reads of dropped pages")
    assert file.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="this system cannot pass the page cache by")
def test_where_direct_reads_are_refused_pages_are_dropped(file, monkeypatch):
    """Filesystems without direct reads are measured the other way, and the fact says which."""
    monkeypatch.setattr(read_rate, "_DIRECT", None)
    found = sample(file)
    assert found is not None
    assert found.method == "reads of dropped pages"


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="this system cannot read into a buffer at an offset")
def test_a_device_that_does_not_answer_is_given_up(file, monkeypatch):
    """A read that hangs costs the time limit and no more, and there is no rate."""
    monkeypatch.setattr(read_rate, "_WAIT_SECONDS", 0.05)
    released = threading.Event()
    monkeypatch.setattr(read_rate, "_timed", lambda *_: released.wait(20) and None)
    began = time.perf_counter()
    assert sample(file) is None
    assert time.perf_counter() - began < 10
    released.set()


def test_small_missing_and_odd_files_are_not_measured(tmp_path):
    """A file below 8 MiB would measure the way there; a folder or nothing at all has no rate."""
    (tmp_path / "small").write_bytes(b"x" * MIB)
    for name in ("small", "gone", ".", "a\0b"):
        assert sample(tmp_path / name) is None


@pytest.mark.parametrize("size_mib", [8, 17, 100, 4000, 400_000])
def test_samples_lie_within_the_file_and_apart(size_mib):
    """Runs of blocks are spread over the file, end before its end, and are at most 256 MiB in all."""
    offsets = [offset for run_ in read_rate._runs(size_mib * MIB) for offset in run_]
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 0
    assert offsets[-1] + 2 * MIB <= size_mib * MIB
    assert 4 <= len(offsets) <= 128
    assert size_mib < 300 or offsets[-1] > size_mib * MIB // 2


def test_a_rate_is_kept_by_device_and_taken_again_after_a_week(monkeypatch):
    """One measurement serves every file on the device, another device is measured apart, an old figure is renewed."""
    taken = []
    monkeypatch.setattr(
        read_rate, "sample", lambda path: taken.append(path) or Sampled(1e9 * len(taken), "direct reads")
    )
    one, other = Mount("ext4", "/", "/dev/vda", 10), Mount("ext4", "/data", "/dev/vdb", 10)
    now = time.time()
    first = measured_read_rate(Path("/a"), one)
    assert first is not None
    assert first.value == 1e9
    assert first.source == time.strftime("measured %Y-%m-%d by direct reads on /dev/vda (ext4)", time.gmtime())
    assert measured_read_rate(Path("/b"), one) == first
    second = measured_read_rate(Path("/data/a"), other)
    assert second is not None
    assert second.value == 2e9
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86400)
    third = measured_read_rate(Path("/a"), one)
    assert third is not None
    assert third.value == 3e9


def test_a_failed_measurement_keeps_the_old_rate(monkeypatch):
    """A file that cannot be sampled takes nothing away."""
    mount = Mount("ext4", "/", "/dev/vda", 10)
    monkeypatch.setattr(read_rate, "sample", lambda _: Sampled(1e9, "direct reads"))
    first = measured_read_rate(Path("/a"), mount)
    monkeypatch.setattr(read_rate, "sample", lambda _: None)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 8 * 86400)
    assert measured_read_rate(Path("/a"), mount) == first
    assert measured_read_rate(Path("/a"), mount._replace(device="/dev/vdb")) is None


@pytest.mark.skipif(find_mount(Path(__file__), HERE) is None, reason="this system lists no mounts")
def test_a_rate_is_measured_when_asked_and_used_from_then_on(file, monkeypatch):
    """Before it is measured the rate is a guess; afterwards it is the figure, only for this machine's files."""
    monkeypatch.setattr(read_rate, "sample", lambda _: Sampled(7e8, "direct reads"))
    guess = disk_bandwidth(HERE, file)
    assert guess is None or guess.source.startswith("guessed")
    measured = disk_bandwidth(HERE, file, measure=True)
    assert measured is not None
    assert measured.value == 7e8
    assert disk_bandwidth(HERE, file) == measured
    assert disk_bandwidth(HERE, None) == guess
    assert disk_bandwidth(Tree(file.parent), file, measure=True) is None


@pytest.mark.skipif(find_mount(Path(__file__), HERE) is None, reason="this system lists no mounts")
def test_a_slow_disk_delays_the_predicted_start(real_model, monkeypatch):
    """`resolve` measures nothing itself; once a run has measured 1 MB/s, it predicts minutes for the real model."""
    monkeypatch.setattr(read_rate, "sample", lambda _: Sampled(1e6, "direct reads"))
    options = ResolveOptions(what=str(real_model))

    def slowest(asked):
        return resolve_request(asked).resolution.predicted.ready_seconds.high

    assert slowest(options) < 60
    assert slowest(options._replace(measure_disk=True)) > 200
    assert slowest(options) > 200


@pytest.mark.skipif(find_mount(Path(__file__), HERE) is None, reason="this system lists no mounts")
def test_the_console_shows_what_a_model_lies_on(file):
    """`fingerprint --model` adds the filesystem, and the disk's rate with its date where it can be measured."""
    done = run("fingerprint", "--model", file, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    under = document["details"]["filesystem"]
    assert {"kind", "mount", "device", "read_rate"} == set(under)
    if under["read_rate"] is not None:
        assert document["disk_bandwidth"] == under["read_rate"]
        assert under["read_rate"]["source"].startswith("measured ")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--model", "gone.gguf"), 3, "gone.gguf: cannot read this model: no such file"),
        (("--model", "."), 3, "no file that you may read"),
        (("--model", __file__, "--machine", "m2-ultra-64g"), 2, "on this machine only"),
        (("--model", __file__, "--sysroot", "/"), 2, "on this machine only"),
    ],
)
def test_a_model_that_cannot_be_measured_is_refused(arguments, code, said):
    """A missing model, a folder, and another machine's disk each say what and where."""
    done = run("fingerprint", *arguments)
    assert done.returncode == code
    assert said in done.stderr
