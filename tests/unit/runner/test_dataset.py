"""The dataset: rows as cases, and every mistake with its line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from quintain.errors import ConfigError
from quintain_runner.dataset import Case, check_dataset, parse_case, read_cases

GOOD = '{"id": "1", "question": "q"}'


def write(tmp_path: Path, *lines: str | bytes) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path


def mistakes(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as error:
        check_dataset(path)
    return [line.removeprefix(f"{path}: ") for line in error.value.message.splitlines()]


def test_a_row_has_its_own_fields_and_the_others_are_metadata() -> None:
    case = parse_case(b'{"id": "1", "question": "q", "system_prompt": "s", "expected": ["a"], "level": {"n": 3}}')
    assert case == Case(id="1", question="q", system_prompt="s", expected=["a"], metadata={"level": {"n": 3}})


def test_a_row_may_hold_a_conversation() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": [{"type": "text", "text": "last"}]},
    ]
    case = parse_case(json.dumps({"id": "1", "messages": messages}).encode())
    assert [message.role for message in case.messages or []] == ["user", "assistant", "user"]
    assert case.asked == "last"


def test_a_number_is_an_id() -> None:
    assert parse_case(b'{"id": 7, "question": "q"}').id == "7"


def test_cases_are_streamed_in_order_and_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + GOOD.encode(), "", '{"id": "2", "question": "r"}', "   ")
    assert [case.id for case in read_cases(path)] == ["1", "2"]


def test_the_check_counts_the_cases_and_hashes_what_it_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, '{"id": "2", "question": "q"}')
    facts = check_dataset(path)
    assert facts.cases == 2
    assert facts.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "not json", '["a list"]', '{"question": "no id"}', '{"id": "5"}', GOOD)
    told = mistakes(path)
    assert [sentence.split(":")[0] for sentence in told] == ["line 2", "line 3", "line 4", "line 5", "line 6"]
    assert "it is not JSON (Expecting value, column 1)" in told[0]
    assert "not an object" in told[1]
    assert "it has no id" in told[2]
    assert "give one of question" in told[3]
    assert "the id '1' is used before" in told[4]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"id": true, "question": "q"}', "no id"),
        (b'{"id": "", "question": "q"}', "no id"),
        (b'{"id": "1", "question": 3}', "question: not a text"),
        (b'{"id": "1", "question": ""}', "question: String should have at least 1 character"),
        (b'{"id": "1", "question": "q", "messages": []}', "give one of question"),
        (b'{"id": "1", "messages": [{"role": "robot", "content": "q"}]}', "messages[0].role"),
        (b'{"id": "1", "messages": ["q"]}', "messages[0]"),
        (b'{"id": "1", "question": "q", "expected": NaN}', "NaN"),
        (b'{"id": "1", "question": "q", "expected": 1e999}', "1e999 is too large"),
        (b'{"id": "1", "question": "\xff"}', "not UTF-8"),
        (b'{"id": "1", "question": "\\ud800"}', "question"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_a_line_that_is_no_case_is_told_with_the_mend(tmp_path: Path, line: bytes, sentence: str) -> None:
    (told,) = mistakes(write(tmp_path, line))
    assert told.startswith("line 1: ")
    assert sentence in told


def test_a_flood_of_mistakes_is_told_by_its_first_and_a_number(tmp_path: Path) -> None:
    told = mistakes(write(tmp_path, *["nonsense"] * 50))
    assert len(told) == 21
    assert told[-1] == "and 30 more"


def test_an_empty_dataset_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    assert "no cases" in mistakes(write(tmp_path, ""))[0]
    assert "relative to the evaluation file" in mistakes(tmp_path / "absent.jsonl")[0]


def test_streaming_stops_at_a_line_that_went_bad_since_the_check(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, "nonsense")
    stream = read_cases(path)
    assert next(stream).id == "1"
    with pytest.raises(ConfigError, match="line 2"):
        next(stream)
