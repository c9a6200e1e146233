"""Raw values: what is understood, what is refused, and how that is said."""

from __future__ import annotations

import pytest
from hypothesis import given as vary
from hypothesis import strategies as st

from magnitude_tune.agents.detect import understood
from magnitude_tune.agents.document import parse_document
from magnitude_tune.errors import ConfigError, MagnitudeTuneError, UsageError
from magnitude_tune.findings import Place, Rule
from magnitude_tune.pipeline import reading
from magnitude_tune.pipeline.layers import build_request, config_layer, flag_layer
from magnitude_tune.pipeline.reading import Reading, Unset
from magnitude_tune.request import ALL_LAYERS, KV_TYPES, Given, Request, Target

IN_FILE = Place("agent.yaml", 3, 14)
OPTION = Place("--option")


def in_file(raw: object) -> Given:
    return Given(raw, IN_FILE)


def rules(found: Reading[object]) -> list[Rule]:
    return [finding.rule for finding in found.findings]


def from_yaml(line: str) -> Request:
    from pathlib import Path

    document = parse_document(f"# agent\nbackend: llama_cpp\n{line}\n", Path("agent.yaml"))
    return build_request([config_layer(understood(document))])


def refusal(line: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        from_yaml(line)
    assert str(caught.value.where).startswith("agent.yaml:3:")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("4,0", "4.0"),
        (".nan", "number"),
        (".inf", "number"),
        ("-.inf", "number"),
        ("1e1", "exponent"),
        ("4e0", "exponent"),
        ("4_0", "number"),
        ("4_.0", "4.0"),
        ("\uff14.0", "ordinary digits: 4.0"),
        ("4.0f", "suffix: 4.0"),
        ("on", "number"),
        ("no", "number"),
        ("true", "number"),
        ("'true'", "number"),
        ("0o4", "number"),
        ("4:30", "number"),
        ("7", "0.1 to 6"),
        ("0", "0.1 to 6"),
        ("-4", "0.1 to 6"),
        ("[4.0]", "number"),
        ("{m: 4.0}", "number"),
        ("high", "number"),
        ("9" * 400, "number"),
    ],
)
def test_bad_magnitude(written: str, hint: str) -> None:
    """B40: every odd form of a magnitude is refused with its place and what to write; none is clamped or guessed."""
    error = refusal(f"magnitude: {written}")
    assert error.where == "agent.yaml:3:12"
    assert hint in str(error.hint)
    assert len(error.what) < 200


@pytest.mark.parametrize(("written", "value"), [("4", 4.0), ("4.0", 4.0), ("4.2", 4.2), (".5", 0.5), ("0.1", 0.1)])
def test_good_magnitude(written: str, value: float) -> None:
    """Plain decimals are magnitudes, without a finding."""
    found = from_yaml(f"magnitude: {written}")
    assert found.magnitude == value
    assert found.findings == ()


def test_quoted_magnitude() -> None:
    """B40: a quoted plain decimal in a file is read and noted; on the command line all is text, so it isn't."""
    found = from_yaml("magnitude: '4.0'")
    assert found.magnitude == 4.0
    assert [finding.rule for finding in found.findings] == [Rule.MAGNITUDE_IS_TEXT]
    assert build_request([flag_layer({"magnitude": "3.5"})]).findings == ()


@pytest.mark.parametrize("written", ["", "''", "   # nothing"])
def test_empty_magnitude(written: str) -> None:
    """B40: an empty value is unset, which is stated."""
    found = from_yaml(f"magnitude: {written}")
    assert found.magnitude == 4.0
    assert "magnitude" not in found.sources
    assert [finding.rule for finding in found.findings] == [Rule.EMPTY_VALUE]


def test_null_is_unset() -> None:
    """An explicit null is unset without a word."""
    assert from_yaml("magnitude: ~").findings == ()


def test_error_kind_follows_the_layer() -> None:
    """A wrong value in a file is exit 3 with its line; on the command line exit 2 with the option."""
    assert refusal("magnitude: x").exit_code == 3
    with pytest.raises(UsageError) as caught:
        build_request([flag_layer({"n_ctx": "4,096"})])
    assert caught.value.exit_code == 2
    assert caught.value.where == "--n-ctx"


@pytest.mark.parametrize(
    ("raw", "value"),
    [(40, 40), (99, 99), (0, 0), (-1, ALL_LAYERS), ("all", ALL_LAYERS), ("ALL", ALL_LAYERS), ("-1", ALL_LAYERS),
     ("auto", Unset.FREE), (None, Unset.ABSENT), ("", Unset.ABSENT), (10**12, ALL_LAYERS)],
)  # fmt: skip
def test_layers(raw: object, value: object) -> None:
    """-1 and `all` are every layer, `auto` is a free choice, other numbers stay until the model is known."""
    assert reading.read_layers("n_gpu_layers", in_file(raw)).value == value


@pytest.mark.parametrize("raw", [-2, 1.5, 40.0, True, "1.5", "many", "4_0", (), {}])
def test_bad_layers(raw: object) -> None:
    """Other negative numbers, fractions, booleans and words are refused."""
    with pytest.raises(ConfigError, match=r"agent.yaml:3:14: n_gpu_layers must"):
        reading.read_layers("n_gpu_layers", in_file(raw))


def test_number_as_text() -> None:
    """A number in quotes is understood and noted, once and only in files."""
    found = reading.read_layers("n_gpu_layers", in_file("40"))
    assert found.value == 40
    assert rules(found) == [Rule.VALUE_IS_TEXT]
    assert found.findings[0].place == IN_FILE
    assert reading.read_layers("n_gpu_layers", Given("40", OPTION)) == Reading(40)


@pytest.mark.parametrize("raw", [0, -1, "0", "-1"])
@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch"])
def test_threads_left_to_the_engine(raw: object, name: str) -> None:
    """B04: 0 and -1 threads are never passed on; they leave the choice free and are reported."""
    found = reading.read_threads(name, in_file(raw))
    assert found.value is Unset.FREE
    assert Rule.THREADS_UNSET in rules(found)
    assert build_request([flag_layer({name: raw})]).pin(name) is None


def test_threads() -> None:
    """B04: a number of threads is kept, `auto` and nothing are free without a word."""
    assert reading.read_threads("n_threads", in_file(8)) == Reading(8)
    assert reading.read_threads("n_threads", in_file("auto")) == Reading(Unset.FREE)
    for raw in (-2, 2.5, True, "x", 10**12):
        with pytest.raises(ConfigError):
            reading.read_threads("n_threads", in_file(raw))


@pytest.mark.parametrize("name", ["n_batch", "n_ubatch"])
def test_batch_sizes(name: str) -> None:
    """B82: 0, -1 and 1.5 are refused, '512' is read and noted, a huge one is left for the context to cap."""
    for written in ("0", "-1", "1.5", "true", "1e3"):
        assert refusal(f"{name}: {written}").what.startswith(name)
    pin = from_yaml(f"{name}: '512'").pin(name)
    assert pin is not None
    assert pin.value == 512
    assert [finding.rule for finding in from_yaml(f"{name}: '512'").findings] == [Rule.VALUE_IS_TEXT]
    pin = from_yaml(f"{name}: 1000000000").pin(name)
    assert pin is not None
    assert pin.value == 10**9


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", True),
        ("off", False),
        ("yes", True),
        ("no", False),
        ("true", True),
        ("False", False),
        ("'false'", False),
        ("'on'", True),
        ("1", True),
        ("0", False),
        ("auto", None),
        ("", None),
    ],
)
def test_flash_attention(written: str, value: bool | None) -> None:
    """B39: on, off, auto, booleans and a quoted 'false' mean what they say."""
    pin = from_yaml(f"flash_attn: {written}").pin("flash_attn")
    assert (None if pin is None else pin.value) is value


def test_bad_switch() -> None:
    """Another word is refused."""
    for written in ("maybe", "2", "1.0", "[on]"):
        assert "on or off" in refusal(f"flash_attn: {written}").what


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("mmap: false", "none"),
        ("mmap: true", "mmap"),
        ("use_mmap: 'false'", "none"),
        ("load_mode: mmap", "mmap"),
        ("load_mode: none", "none"),
        ("load_mode: auto", None),
        ("mmap: off", "none"),
    ],
)
def test_load_mode(line: str, value: str | None) -> None:
    """B39: `mmap: false` is the load mode none, not a missing value."""
    pin = from_yaml(line).pin("load_mode")
    assert (None if pin is None else pin.value) == value
    assert "mmap or none" in refusal("load_mode: mlock").what


@pytest.mark.parametrize(("raw", "value"), [(0, Unset.FREE), ("0", Unset.FREE), (4096, 4096), (None, Unset.ABSENT)])
def test_context(raw: object, value: object) -> None:
    """0 is no context of nothing: the choice is free."""
    assert reading.read_context("n_ctx", in_file(raw)).value == value
    for bad in (-1, 1.5, "8k", 2**31):
        with pytest.raises(ConfigError):
            reading.read_context("n_ctx", in_file(bad))


def test_slots() -> None:
    """-1 slots are the engine's `auto`; 0 is refused, and so are more than engines start."""
    assert reading.read_slots("n_parallel", in_file(-1)).value is Unset.FREE
    assert reading.read_slots("n_parallel", in_file(4)).value == 4
    with pytest.raises(ConfigError, match="at least 1"):
        reading.read_slots("n_parallel", in_file(0))
    assert reading.read_slots("n_parallel", in_file(256)).value == 256
    with pytest.raises(ConfigError, match="at most 256"):
        reading.read_slots("n_parallel", in_file(257))


def test_kv_types() -> None:
    """Known types in any case; others are refused with the list."""
    for name in KV_TYPES:
        assert reading.read_kv_type("type_k", in_file(name.upper())).value == name
    for bad in ("q4_k", 8, True, ""):
        if bad == "":
            assert reading.read_kv_type("type_k", in_file(bad)).value is Unset.ABSENT
            continue
        with pytest.raises(ConfigError) as caught:
            reading.read_kv_type("type_k", in_file(bad))
        assert "q8_0" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("llama_cpp", Unset.FREE),
        ("llama.cpp", Unset.FREE),
        ("llamacpp", Unset.FREE),
        ("llama-server", "llama_server"),
        ("llama_server", "llama_server"),
        ("llama-cpp-python", "llama_cpp_python"),
        ("LLAMA_CPP_PYTHON", "llama_cpp_python"),
    ],
)
def test_engine_names(raw: str, value: object) -> None:
    """`llama_cpp` is llama.cpp in any form; the two engines go by their names with dashes or underscores."""
    assert reading.read_engine("engine", in_file(raw)).value == value


@pytest.mark.parametrize("raw", ["vllm", "ollama", 3, True])
def test_unknown_engine(raw: object) -> None:
    """An unknown backend is refused with the known ones."""
    with pytest.raises(ConfigError) as caught:
        reading.read_engine("engine", in_file(raw))
    assert "llama_server" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("tg>=15", Target("tg", ">=", 15.0)),
        (" pp >= 100.5 ", Target("pp", ">=", 100.5)),
        ("ttft_seconds<=0.8", Target("ttft_seconds", "<=", 0.8)),
        ("turn_seconds <= 3", Target("turn_seconds", "<=", 3.0)),
        ("ready_seconds<=2", Target("ready_seconds", "<=", 2.0)),
    ],
)
def test_targets(raw: str, target: Target) -> None:
    """A rate is reached from below, a time from above."""
    assert reading.read_target("target", in_file(raw)).value == target


@pytest.mark.parametrize(
    "raw",
    ["tg", "tg>15", "tg=>15", "tg<=15", "turn_seconds>=3", "tg>=0", "tg>=nan", "tg>=1e3", "tg>=1,5", "x>=3", 15, ()],
)
def test_bad_target(raw: object) -> None:
    """Anything else is refused with an example or the known quantities."""
    with pytest.raises(ConfigError) as caught:
        reading.read_target("target", in_file(raw))
    assert caught.value.hint


def test_concessions() -> None:
    """A list or names with commas; an unknown one is refused at its own place."""
    assert from_yaml("allow: [kv_quantisation, fewer-slots]").concessions == ("kv_quantisation", "fewer_slots")
    assert from_yaml("allow: smaller_context, kv_quantization").concessions == ("smaller_context", "kv_quantisation")
    assert from_yaml("allow: []").concessions == ()
    assert refusal("allow: [fewer_slots, everything]").where == "agent.yaml:3:22"
    assert "list" in refusal("allow: {fewer_slots: true}").what
    assert "list" in refusal("allow: true").what


def test_tensor_split() -> None:
    """Numbers in a list or with commas; no share at all is refused."""
    for line in ("tensor_split: [3, 1]", "tensor_split: 3,1", "tensor_split: '3, 1'"):
        pin = from_yaml(line).pin("tensor_split")
        assert pin is not None
        assert pin.value == "3,1"
    for line in ("tensor_split: [0, 0]", "tensor_split: [-1, 1]", "tensor_split: even", "tensor_split: true"):
        assert "tensor_split" in refusal(line).what


def test_model() -> None:
    """A model is text that can be a path."""
    assert from_yaml("model: name").model == "name"
    for line in ("model: 7", "model: true", "model: [a]", 'model: "a\\0b"', 'model: "\\ud800"'):
        assert "model" in refusal(line).what


READERS = [getattr(reading, name) for name in reading.__all__ if name.startswith("read_")]


@vary(
    reader=st.sampled_from(READERS),
    raw=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.from_regex(r"[-+]?[0-9]{0,3}[.,_eE]?[0-9]{0,3}f?")
    | st.tuples(st.integers())
    | st.dictionaries(st.text(max_size=2), st.just(in_file(1)), max_size=1),
    place=st.sampled_from([IN_FILE, OPTION]),
)
def test_any_raw_value_is_read_or_refused(reader: object, raw: object, place: Place) -> None:
    """Every reader answers every raw value with a reading, or with an error that has place and hint."""
    assert callable(reader)
    if isinstance(raw, tuple):
        raw = tuple(Given(item, place) for item in raw)
    try:
        found = reader("name", Given(raw, place))
    except MagnitudeTuneError as error:
        assert isinstance(error, ConfigError if place is IN_FILE else UsageError)  # noqa: PT017
        assert str(error).startswith(str(place))  # noqa: PT017
        assert error.hint  # noqa: PT017
        return
    assert isinstance(found, Reading)
    assert place is IN_FILE or Rule.VALUE_IS_TEXT not in rules(found)
