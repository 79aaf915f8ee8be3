import math
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from portable.errors import SpecError
from portable.spec import strict_yaml


def refused(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        strict_yaml.load(text, "file.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1.0e-5", 1e-5), ("1E3", 1000.0), (".5", 0.5), ("5.", 5.0), ("-0.0", -0.0),
     ("12", 12), ("-3", -3), ("+3", 3), ("0", 0), (".inf", math.inf), ("-.inf", -math.inf), ("~", None),
     ("null", None), ("true", True), ("False", False), ("0..", "0.."), ("1..65536", "1..65536"),
     ("'1e-6'", "1e-6"), ('"on"', "on"), ("'true'", "true"), ("1:30", "1:30"), ("2 * sqrt(K)", "2 * sqrt(K)"),
     ("2020-01-01", "2020-01-01"), ("1_000", "1_000"), ("''", ""), ("|\n  7\n", "7\n")],
)  # fmt: skip
def test_scalars(text, value):
    got = strict_yaml.load(f"k: {text}")["k"]
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [("a: 1\nb: 2\na: 3", 3, "twice; first on line 1"),
     ("a: {b: 1, b: 2}", 1, "twice"),
     ("x:\n  - &a 1\n", 2, "anchors"),
     ("x: 1\ny: *x\n", 2, "aliases"),
     ("x: &a [*a]", 1, "anchors"),
     ("a: !!python/object/apply:os.system ['true']", 1, "tag"),
     ("a: !!int '3'", 1, "tag"),
     ("a: !own 3", 1, "tag"),
     ("a: 1\n---\nb: 2\n", 2, "second document"),
     ("\non: 1", 2, "boolean to some readers"),
     ("a: yes", 1, "boolean to some readers"),
     ("1: a", 1, "a key must be a string"),
     ("true: a", 1, "a key must be a string"),
     ("~: a", 1, "a key must be a string"),
     ("1e-6: a", 1, "a key must be a string"),
     ("? [a]\n: 1", 1, "a key must be a string"),
     ("? {a: 1}\n: 1", 1, "a key must be a string"),
     ("a: 010", 1, "decimal"),
     ("a: 0x1F", 1, "decimal"),
     ("a: 1\nb: 1e999", 2, "does not fit"),
     ("a: " + "9" * 5000, 1, "digits"),
     ("a: [1,\n\n b: ]}", 3, "not YAML"),
     ("a: b: c", 1, "not YAML"),
     ("a: 'open", 1, "not YAML"),
     ("a: 1\n\tb: 2", 2, "not YAML"),
     ("a: 1\nb: \x00", 2, "not YAML")],
)  # fmt: skip
def test_refusals_name_the_line(text, line, words):
    error = refused(text)
    assert words in str(error)
    assert error.file == "file.yaml" and error.line == line
    assert str(error).startswith(f"file.yaml:{line}: ")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_deep_nesting_costs_nothing(opening):
    started = time.perf_counter()
    error = refused(opening * (strict_yaml.MAX_BYTES // len(opening) - 10))
    assert "deeper" in str(error) or "not YAML" in str(error) or "key" in str(error)
    assert time.perf_counter() - started < 2


def test_depth_up_to_the_limit_is_read():
    strict_yaml.load("[" * strict_yaml.MAX_DEPTH + "]" * strict_yaml.MAX_DEPTH)
    assert "deeper" in str(refused("[" * (strict_yaml.MAX_DEPTH + 1) + "]" * (strict_yaml.MAX_DEPTH + 1)))


def test_size_is_limited(tmp_path: Path):
    big = "a: " + "x" * strict_yaml.MAX_BYTES
    assert "256 KiB" in str(refused(big))
    file = tmp_path / "big.yaml"
    file.write_text(big)
    with pytest.raises(SpecError, match="256 KiB"):
        strict_yaml.load(file)


def test_files_that_cannot_be_read_or_are_not_utf8(tmp_path: Path):
    with pytest.raises(SpecError, match="cannot be read"):
        strict_yaml.load(tmp_path / "absent.yaml")
    file = tmp_path / "latin.yaml"
    file.write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(SpecError, match="UTF-8") as caught:
        strict_yaml.load(file)
    assert caught.value.line == 2


def test_lines_are_attached():
    data = strict_yaml.load("a: 1\nb:\n  c: 2\n  d:\n    - 1\n    -\n      e: 3\n")
    assert data.lines == {"a": 1, "b": 2}
    assert data["b"].lines == {"c": 3, "d": 4}
    assert data["b"]["d"].lines == [5, 7]
    assert data["b"]["d"][1].line_of("e") == 7
    assert data == {"a": 1, "b": {"c": 2, "d": [1, {"e": 3}]}}


def test_the_python_loader_reads_the_same(monkeypatch):
    files = sorted((Path(__file__).parents[2] / "kernels").glob("*/*.yaml"))
    assert files
    fast = [strict_yaml.load(file) for file in files]
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert [strict_yaml.load(file) for file in files] == fast


def test_an_empty_file_is_none():
    assert strict_yaml.load("") is None


ALPHABET = st.sampled_from([*"ab01.:-[]{}&*!?|>'\"#%@`,\n\t ~<=yesonE", "\x00", "é", "\ud800", "---", "!!"])


@given(st.lists(ALPHABET, max_size=60).map("".join))
def test_any_text_is_read_or_refused_with_one_error(text):
    try:
        data = strict_yaml.load(text, "file.yaml")
    except SpecError:
        return
    check_plain(data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text("abcdefgh .", max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text("abcdefg", min_size=2), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(PLAIN)
def test_what_yaml_writes_is_read_back(data):
    text = yaml.safe_dump(data, default_flow_style=None)
    if text.count("&") == 0:
        assert strict_yaml.load(text) == data


def check_plain(data):
    assert data is None or isinstance(data, (bool, int, float, str, strict_yaml.Map, strict_yaml.List))
    if isinstance(data, dict):
        assert all(isinstance(key, str) for key in data)
        assert set(data.lines) == set(data)
        for value in data.values():
            check_plain(value)
    elif isinstance(data, list):
        assert len(data.lines) == len(data)
        for value in data:
            check_plain(value)
