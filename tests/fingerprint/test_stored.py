"""Machines as documents: lossless, strict, and found by name."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnitude_tune.errors import InputFileError, UsageError
from magnitude_tune.findings import Finding, Place, Rule
from magnitude_tune.fingerprint.collect import collect
from magnitude_tune.fingerprint.details import (
    Cache,
    Details,
    Filesystem,
    HugePages,
    MemoryNode,
    Pressure,
    ThreadRate,
)
from magnitude_tune.fingerprint.identity import machine_hash
from magnitude_tune.fingerprint.stored import from_document, load_machine, profile_names, to_document
from magnitude_tune.fingerprint.values import (
    Cpu,
    Device,
    EngineDevice,
    EngineFacts,
    Fact,
    Fingerprint,
    Memory,
    Pool,
)

MACHINES = Path(__file__).parent.parent / "machines"
GIB = 1 << 30
MIB = 1 << 20

text = st.text(max_size=12)
name = st.text(min_size=1, max_size=12)
size = st.integers(1, 1 << 45)
rate = st.floats(1e-3, 1e18)
fact = st.builds(Fact, rate, text)
sources = st.dictionaries(text, text, max_size=3).map(lambda found: tuple(found.items()))
words = st.lists(text, max_size=3).map(tuple)
finding = st.builds(
    Finding,
    st.sampled_from(Rule),
    text,
    place=st.none() | st.builds(Place, text, st.none() | st.integers(1, 99), st.none() | st.integers(1, 99)),
    fix=st.none() | text,
    setting=st.none() | text,
)
cpus = st.builds(
    Cpu,
    brand=st.none() | text,
    architecture=name,
    usable_cores=st.integers(1, 512),
    performance_cores=st.integers(1, 512),
    logical_cpus=st.integers(1, 512),
    affinity_cpus=st.integers(1, 512),
    smt=st.none() | st.booleans(),
    quota_cores=st.none() | rate,
    features=st.frozensets(text, max_size=3),
    max_hertz=st.none() | rate,
    bandwidth=fact,
    flops=fact,
    sources=sources,
)
engines = st.builds(
    EngineFacts,
    name=st.sampled_from(["llama_cpp_python", "llama_server"]),
    path=text,
    build=text,
    ggml_version=st.none() | text,
    problem=st.none() | text,
    backends=words,
    devices=st.lists(st.builds(EngineDevice, name, text, size, size), max_size=2).map(tuple),
    extra_buffers=words,
    extra_buffers_problem=st.none() | text,
    gpu_offload=st.booleans(),
    prompt_cache=st.booleans(),
    flags=st.frozensets(text, max_size=3),
)
count = st.integers(0, 512)
share = st.floats(0, 1)
details = st.builds(
    Details,
    packages=st.none() | count,
    physical_cores=st.none() | count,
    efficiency_cores=st.none() | count,
    threads_per_core=st.none() | count,
    affinity=st.none() | text,
    caches=st.lists(st.builds(Cache, st.integers(1, 4), text, size, count, count), max_size=2).map(tuple),
    nodes=st.lists(
        st.builds(MemoryNode, count, count, st.none() | size, st.none() | size, st.booleans()), max_size=2
    ).map(tuple),
    bandwidths=st.lists(st.builds(ThreadRate, count, fact), max_size=3).map(tuple),
    load=st.none() | st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
    steal_share=st.none() | share,
    pressure=st.lists(
        st.builds(Pressure, text, share, share, st.none() | share, st.none() | share, st.floats(0, 1e12)), max_size=2
    ).map(tuple),
    huge_pages=st.none()
    | st.builds(HugePages, st.none() | text, st.none() | count, st.none() | count, st.none() | size),
    virtual_machine=st.none() | text,
    container=st.none() | text,
    wsl=st.booleans(),
    filesystem=st.none() | st.builds(Filesystem, text, text, text, st.none() | fact),
    sources=sources,
)


@st.composite
def machines(draw):
    """Any machine that hangs together."""
    available, total, host_total = sorted(draw(st.tuples(size, size, size)))
    free, vram = sorted(draw(st.tuples(size, size)))
    unified = draw(st.booleans())
    device = draw(
        st.builds(
            Device,
            name=name,
            backend=name,
            pool=st.just("ram" if unified else "cuda0"),
            description=text,
            total_bytes=st.none() | size,
            free_bytes=st.none() | size,
            bandwidth=fact,
            flops=fact,
            link_bandwidth=st.none() | fact,
            cap_bytes=st.none() | size,
            unified=st.just(unified),
            integrated=st.booleans(),
            compute_capability=st.none() | text,
            driver=st.none() | text,
            source=text,
        )
    )
    host = Pool("ram", "unified" if unified else "host", total, available)
    return Fingerprint(
        hostname=draw(text),
        system=draw(name),
        cpu=draw(cpus),
        memory=Memory(
            total_bytes=total,
            available_bytes=available,
            host_total_bytes=host_total,
            swap_total_bytes=draw(st.none() | size),
            swap_free_bytes=draw(st.none() | size),
            limit_source=draw(st.none() | text),
            address_space_bytes=draw(st.none() | size),
            locked_bytes=draw(st.none() | size),
            sources=draw(sources),
        ),
        pools=(host,) if unified else (host, Pool("cuda0", "card", vram, free)),
        devices=(device,),
        engines=tuple(draw(st.lists(engines, max_size=2))),
        disk_bandwidth=draw(st.none() | fact),
        notes=tuple(draw(st.lists(finding, max_size=2))),
        details=draw(st.none() | details),
        machine_hash=draw(name),
        stored=True,
    )


@settings(deadline=None)
@given(machines())
def test_a_machine_comes_back_from_its_document_as_it_was(machine):
    """Through JSON text and back nothing is lost, whatever the machine."""
    document = json.loads(json.dumps(to_document(machine), allow_nan=False))
    assert from_document(document, "here") == machine


def test_every_field_is_in_the_document():
    """A field added to a value must be added to the document too: no key is missing at any level."""
    machine = load_machine(str(MACHINES / "dual-gpu.json"))

    def check(value, document):
        for field in fields(value):
            if field.name in ("stored", "machine_hash"):
                continue
            assert field.name in document, f"{type(value).__name__}.{field.name}"
            inner = getattr(value, field.name)
            if is_dataclass(inner):
                check(inner, document[field.name])
            elif isinstance(inner, tuple) and inner and is_dataclass(inner[0]) and field.name != "notes":
                check(inner[0], document[field.name][0])

    check(machine, to_document(machine))


def test_the_document_has_the_keys_other_tools_rely_on():
    """The contract: schema version first, then at least these keys."""
    document = to_document(load_machine(str(MACHINES / "rtx4090-64g.json")))
    assert next(iter(document)) == "schema_version"
    assert document["cpu"]["usable_cores"] == 16
    assert {"total_bytes", "available_bytes"} <= set(document["memory"])
    assert {"name", "backend", "pool", "total_bytes", "free_bytes"} <= set(document["devices"][0])
    assert {"engines", "notes", "hash"} <= set(document)


@pytest.mark.parametrize("in_depth", [False, True])
def test_this_machine_is_a_valid_document(in_depth):
    """What `collect` finds here can be stored and read back, with details and without."""
    found = collect(cached_only=True, in_depth=in_depth)
    assert from_document(to_document(found), "here") == replace(found, stored=True)


def edited(path, value):
    """The document of a test machine with one value changed, or removed where the value is `...`."""
    document = json.loads((MACHINES / "rtx4090-64g.json").read_text())
    *way, last = path
    inner = document
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("cpu", "usable_cores"), ..., "the key cpu.usable_cores is missing"),
        (("cpu", "usable_cores"), 0, "cpu.usable_cores"),
        (("cpu", "usable_cores"), True, "cpu.usable_cores"),
        (("cpu", "usable_cores"), "16", "cpu.usable_cores"),
        (("cpu", "usable_core"), 16, "the key cpu.usable_core is not known"),
        (("cpu", "bandwidth", "value"), math.nan, "cpu.bandwidth.value"),
        (("cpu", "bandwidth", "value"), 0, "cpu.bandwidth.value"),
        (("memory", "total_bytes"), 1 << 70, "memory.total_bytes"),
        (("memory", "available_bytes"), 1 << 50, "available_bytes <= total_bytes"),
        (("devices", 0, "pool"), "cuda7", "there is no pool named 'cuda7'"),
        (("pools", 0, "name"), "host", "named ram"),
        (("pools", 1, "name"), "ram", "same name"),
        (("pools", 1, "kind"), "vram", "pools.1.kind"),
        (("engines", 0, "name"), "ollama", "engines.0.name"),
        (("notes",), [{"id": "MT999", "message": "x"}], "MT999"),
        (("schema_version",), 2, "schema_version 2"),
        (("schema_version",), ..., "has no schema_version"),
        (("schema_version",), True, "schema_version True"),
    ],
)
def test_a_wrong_key_is_named(path, value, said):
    """An error says where and which key, in one line without a traceback's words."""
    with pytest.raises(InputFileError) as caught:
        from_document(edited(path, value), "far.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("far.json: ")
    assert "\n" not in str(caught.value)
    assert caught.value.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.data(), JSON)
def test_any_value_anywhere_is_a_machine_or_our_error(data, value):
    """Whatever stands in any place of the document, reading ends in a machine or in an error of ours."""
    document = copy.deepcopy(BASE)
    inner = document
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(inner[key], dict | list) and inner[key] and data.draw(st.booleans()):
            inner = inner[key]
            continue
        inner[key] = value
        break
    with contextlib.suppress(InputFileError):
        assert isinstance(from_document(document, "here"), Fingerprint)


BASE = json.loads((MACHINES / "rtx4090-64g.json").read_text())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "one JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b" " * ((1 << 20) + 1), "more than 1 MiB"),
    ],
    ids=["empty", "not text", "a list", "nested", "large"],
)
def test_a_file_that_is_no_machine_is_an_input_error(tmp_path, content, said):
    """Any file given as a machine ends in a machine or exit code 3, and names the file."""
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=said) as caught:
        load_machine(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("given_path", ["gone.json", "./gone", "a/b/c"])
def test_a_missing_file_is_an_input_error(given_path):
    """What looks like a path is a path."""
    with pytest.raises(InputFileError, match="cannot read this machine"):
        load_machine(given_path)


def test_a_folder_is_an_input_error(tmp_path):
    """A folder cannot be read as a machine."""
    with pytest.raises(InputFileError, match="cannot read this machine"):
        load_machine(str(tmp_path))


@pytest.mark.parametrize("bad", ["rtx409", "", "rtx4090-64g\0", "no-such-machine"])
def test_an_unknown_name_lists_near_ones(bad):
    """A name that no profile has is a usage error with names that exist."""
    with pytest.raises(UsageError) as caught:
        load_machine(bad)
    assert caught.value.exit_code == 2
    assert "rtx4090-64g" in (caught.value.hint or "")


@pytest.mark.parametrize("profile", ["rtx4090-64g", "a100-80g", "m2-ultra-64g"])
def test_profiles_are_found_by_name(profile):
    """Shipped machines load by name, are marked stored and carry a hash of their own."""
    machine = load_machine(profile)
    assert machine.stored
    assert machine.machine_hash == machine_hash(machine)
    assert profile in profile_names()
    for rate_ in (machine.cpu.bandwidth, *(device.bandwidth for device in machine.devices)):
        assert rate_.source


def test_every_profile_is_described():
    """The README of the profiles has a row for each, and each has a hash that no other has."""
    folder = Path(__file__).parent.parent.parent / "profiles"
    readme = (folder / "README.md").read_text()
    assert all(f"`{profile}`" in readme for profile in profile_names())
    hashes = [load_machine(profile).machine_hash for profile in profile_names()]
    assert len(set(hashes)) == len(hashes)


def test_test_machines_hold_what_tests_rely_on():
    """The stored machines of the tests, in the figures that other tests name."""
    machines_ = {path.stem: load_machine(str(path)) for path in MACHINES.glob("*.json")}
    totals = {key: (m.host_pool.total_bytes, m.host_pool.available_bytes) for key, m in machines_.items()}
    assert totals["cgroup-2g"] == (2 * GIB, 768 * MIB)
    assert totals["cgroup-2g-tight"] == (2 * GIB, 128 * MIB)
    assert totals["cpu-24g"][0] == 24 * GIB
    assert machines_["rtx4090-64g"].pool("cuda0").total_bytes == 24564 * MIB
    assert [device.name for device in machines_["dual-gpu"].devices] == ["CUDA0", "CUDA1"]
    assert machines_["m2-ultra"].host_pool.kind == "unified"
    assert machines_["m2-ultra"].devices[0].cap_bytes == 48 * GIB
    assert all(machine.engines for machine in machines_.values())
