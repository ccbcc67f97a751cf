"""YAML 1.2: what its writers mean by a plain text, what is refused by line, and what is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from quintain.config.yaml_file import parse_yaml, read_yaml, write_yaml
from quintain.errors import ConfigError


def value(text: str) -> object:
    return parse_yaml(text, "a.yaml").value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, text) for text in ("no", "Yes", "on", "OFF", "y", "12:30", "190:20:30.15", "1_000", "0b11", "0o8")),
        *((text, text) for text in ("2024-01-01", "2024-01-01 10:00:00", "=", "<<", "nULL", "tRUE", ".", "+.inf.")),
        *((text, True) for text in ("true", "True", "TRUE")),
        *((text, None) for text in ("~", "null", "Null", "NULL", "")),
        *[("0o17", 15), ("0x1F", 31), ("1e3", 1000.0), ("-1.5E-3", -0.0015), ("+.5", 0.5), ("1.", 1.0), ("+12", 12)],
        *[("0", 0), ("-0", 0), ("0.5", 0.5), ("0e3", 0.0), (".inf", float("inf")), ("-.INF", -float("inf"))],
        *(('"\\ud83d\\ude00"', "\U0001f600"), ("'012'", "012"), ("!!str 012", "012")),
    ],
)
def test_a_plain_text_is_what_the_core_schema_says(text: str, expected: object) -> None:
    found = value(f"a: {text}\n")
    assert found == {"a": expected}
    assert isinstance(found, dict)
    assert type(found["a"]) is type(expected)


def test_merge_keys_stay_and_a_word_is_a_key() -> None:
    assert value("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nno: 1\n") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "no": 1,
    }


@pytest.mark.parametrize(
    "number", ["012", "007", "-01", "+00", "0123.5", "01e3", "08", "1e400", "9" * 5_000, "0.1234567890123456789"]
)
def test_a_number_that_others_may_read_otherwise_is_refused_by_line(number: str) -> None:
    with pytest.raises(ConfigError, match=r"^a\.yaml: line 2: [-+0-9.e]{1,40} cannot .*; put it in quotes$"):
        value(f"a:\n  - [{number}]\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        *((f"a: b\n# c{mark}d\n", "line 2, column 4") for mark in "\x85\u2028\u2029\r\f\x7f\ufeff"),
        ('a: b\nc: "\\ud83d"\n', "line 2, column 4"),
        ('a: b\nc: "\\U00110000"\n', "line 2"),
        ('a: b\nc: "\\UFFFFFFFF"\n', "line 2"),
        ("a: b\nc: !!bool maybe\n", "line 2"),
        ("a: b\nc: !!timestamp 2024-01-01\n", "line 2"),
        ("a: b\nc: !!python/object:os.system {}\n", "line 2"),
        ("a: b\n---\nc: d\n", "line 2"),
        ("a: b\na: c\n", "line 2"),
    ],
)
def test_what_readers_read_otherwise_is_refused_by_line(text: str, place: str) -> None:
    with pytest.raises(ConfigError, match=rf"^a\.yaml: {place}"):
        value(text)


def test_a_byte_order_mark_and_crlf_are_read_and_another_encoding_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: |\r\n  b\r\n  c\r\n")
    assert read_yaml(path).value == {"a": "b\nc\n"}
    for data in (b"a: caf\xe9\n", "a: b\n".encode("utf-16"), b"a: \0\n"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"a\.yaml: line 1: .*save the file as UTF-8"):
            read_yaml(path)


TEXTS = ["no", "y", "0o17", "1e3", "08", "012", "12:30", "1_000", "2024-01-01", "~", "", "<<", "=", "a\x85b", "\u2028"]
TEXTS += ["\r", "\ufeff", "\f", "- a", "a: b", "#", " a ", "a\n\nb\n", "\U0001f600", "!x", "&a", "0b1", ".inf", "-0"]
SCALARS = st.sampled_from(TEXTS) | st.text(st.characters(codec="utf-8")) | st.floats(allow_nan=False)
SCALARS |= st.none() | st.booleans() | st.integers(-(2**70), 2**70)


@given(st.dictionaries(st.sampled_from(TEXTS), SCALARS | st.lists(SCALARS), max_size=4))
def test_what_is_written_is_read_as_the_same_value_also_as_yaml_1_1(tree: dict[str, object]) -> None:
    written = write_yaml(tree)
    assert value(written) == yaml.safe_load(written) == tree
