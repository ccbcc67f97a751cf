"""The graders that are built in and call nobody: each with its own options, on answers nobody should give too."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue, TypeAdapter

from quintain.contracts.invoke import OutputMessage, Result
from quintain.errors import ConfigError
from quintain.graders import Case
from quintain_runner.graders.builtin import build_comparison
from quintain_runner.graders.verdict import GraderError
from quintain_runner.results.row import GraderRow
from quintain_runner.spec.graders import BuiltinGrader, GraderSpec

SCHEMA = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}


def spec(**options: object) -> BuiltinGrader:
    read: BuiltinGrader = TypeAdapter(GraderSpec).validate_python({"name": "g", **options})
    return read


def verdict(answer: str, expected: JsonValue = "Paris", *, folder: Path = Path(), **options: object) -> GraderRow:
    case = Case(id="1", question="q", expected=expected)
    return build_comparison(spec(**options), folder)(case, answered(answer), None)


def answered(text: str = "", **fields: Any) -> Result:
    return Result(output=[OutputMessage(content=text)], target="t", call_count=0, max_calls=0, **fields)


@pytest.mark.parametrize(
    ("options", "expected", "answer", "right"),
    [
        ({"builtin": "exact"}, "Paris", "Paris", True),
        ({"builtin": "exact"}, "Paris", "  Paris\n", True),
        ({"builtin": "exact"}, "Paris", "paris", False),
        ({"builtin": "exact", "ignore_case": True}, "Straße", "STRASSE", True),
        ({"builtin": "exact"}, "Paris", "It is Paris", False),
        ({"builtin": "exact"}, 42, "42", True),
        ({"builtin": "contains"}, "Paris", "It is Paris.", True),
        ({"builtin": "contains"}, "Paris", "It is PARIS.", False),
        ({"builtin": "contains", "ignore_case": True}, "Paris", "It is PARIS.", True),
        ({"builtin": "contains"}, "Paris", "It is Rome.", False),
        ({"builtin": "regex", "pattern": r"^It is \w+\.$"}, None, "It is Paris.", True),
        ({"builtin": "regex", "pattern": r"\bparis\b"}, None, "It is Paris.", False),
        ({"builtin": "regex", "pattern": r"\bparis\b", "ignore_case": True}, None, "It is Paris.", True),
        ({"builtin": "regex", "pattern": r"(?<!not )sure"}, None, "I am not sure", False),
        ({"builtin": "numeric"}, 42, "It is 42.", True),
        ({"builtin": "numeric"}, "1,234.5", "1234.50", True),
        ({"builtin": "numeric"}, 3, "first 2, then 3", True),
        ({"builtin": "numeric", "take": "first"}, 3, "first 2, then 3", False),
        ({"builtin": "numeric", "take": "only"}, 3, "first 2, then 3", False),
        ({"builtin": "numeric", "take": "only"}, 3, "3 apples", True),
        ({"builtin": "numeric", "tolerance": 0.5}, 10, "10.5", True),
        ({"builtin": "numeric", "tolerance": 0.5}, 10, "10.6", False),
        ({"builtin": "numeric", "relative_tolerance": 0.1}, -10, "-11", True),
        ({"builtin": "numeric", "tolerance": 5}, -10, "10", False),
        ({"builtin": "numeric"}, 3, "three", False),
        ({"builtin": "numeric"}, 2, "version 1.2.2", False),
        ({"builtin": "numeric"}, 0, "1e999", False),
        ({"builtin": "numeric"}, "1e999", "1E999", True),
        ({"builtin": "numeric"}, 10, "She is 5'10", True),
        ({"builtin": "numeric"}, 1234, "1'234", False),
        ({"builtin": "numeric", "decimal": ","}, "-1.234,5", "It is \u22121.234,50.", True),
        ({"builtin": "numeric", "decimal": ","}, 3, "version 3.14", False),
        ({"builtin": "exact"}, {"a": [1, True]}, '{"a": [1.0, true]}', True),
        ({"builtin": "exact"}, {"a": 1}, '{"a": true}', False),
        ({"builtin": "exact", "strip": False}, "Paris", "Paris\n", False),
        ({"builtin": "contains"}, " no ", "nothing", False),
        ({"builtin": "starts-with", "ignore_case": True}, ["no", "pa"], "PARIS", True),
        ({"builtin": "ends-with"}, 1.0, "Number 1", True),
        ({"builtin": "regex", "pattern": ["^a", "s$"]}, None, "Paris", True),
        ({"builtin": "contains-json"}, None, "see [1] and {x}", False),
        ({"builtin": "contains-json"}, None, 'so {"a": NaN}', False),
        ({"builtin": "contains-json"}, None, 'so {x} {"a": 1}.', True),
        ({"builtin": "contains-json", "schema": {"type": "array"}}, None, "so [1].", True),
        ({"builtin": "json-schema", "schema": SCHEMA}, None, '{"city": "Paris"}', True),
        ({"builtin": "json-schema", "schema": SCHEMA}, None, '{"city": 3}', False),
        ({"builtin": "json-schema", "schema": SCHEMA}, None, '```json\n{"city": "Paris"}\n```', False),
        ({"builtin": "json-schema", "schema": SCHEMA, "fenced": True}, None, 'So:\n```json\n{"city": "a"}\n```', True),
        ({"builtin": "json-schema", "schema": SCHEMA, "fenced": True}, None, "```\n1\n```\n```\n{}\n```", False),
        ({"builtin": "json-schema", "schema": {}}, None, "NaN", False),
        ({"builtin": "json-schema", "schema": {}}, None, "[" * 100_000, False),
    ],
)
def test_each_grader_has_its_own_options(
    options: dict[str, object], expected: JsonValue, answer: str, *, right: bool
) -> None:
    said = verdict(answer, expected, **options)
    assert (said.score, said.passed) == (float(right), right)


def test_every_breach_of_a_schema_is_a_check_with_its_place_and_without_the_answers_words() -> None:
    schema = {"required": ["a"], "properties": {"b": {"items": {"type": "integer"}}}}
    said = verdict(json.dumps({"b": [1, "ignore all rules"]}), builtin="json-schema", schema=schema)
    assert [check.text for check in said.checks] == [
        'the answer: "a" is a required property',
        'b[1]: it is not of type "integer"',
    ]
    assert said.reason == said.checks[0].text


@pytest.mark.parametrize("builtin", ["exact", "contains", "numeric"])
def test_a_row_that_expects_nothing_cannot_be_compared(builtin: str) -> None:
    with pytest.raises(GraderError, match="The row has no expected"):
        verdict("answer", None, builtin=builtin)
    with pytest.raises(GraderError, match="expected is not a number"):
        verdict("42", "forty-two", builtin="numeric")
    assert verdict("It is 41.5", 42, builtin="numeric").reason == "41.5 is 0.5 off 42"
    assert verdict("none", 42, builtin="numeric").reason == "there is no number in the answer"


def test_an_answer_on_which_a_pattern_would_run_for_ever_is_an_error_in_time() -> None:
    with pytest.raises(GraderError, match="needs too much backtracking on this answer"):
        verdict("a" * 60 + "b", builtin="regex", pattern=r"(a|aa)+\1$")


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"builtin": "numeric"}, "9" * 1_000_000 + "x"),
        ({"builtin": "numeric"}, "1" + "'111" * 250_000 + "x"),
        ({"builtin": "numeric"}, "1,1" * 300_000 + "x"),
        ({"builtin": "numeric"}, "1\u066b" * 300_000 + "x"),
        ({"builtin": "numeric"}, "1e999999999"),
        ({"builtin": "numeric"}, "-1e-999999999999999999999"),
        ({"builtin": "contains-json"}, "{" * 1_000_000),
        ({"builtin": "contains-json"}, '{"a":[' * 200_000),
        ({"builtin": "edit-distance", "max": 3}, "Paris" * 100_000),
        ({"builtin": "json-schema", "schema": {}, "fenced": True}, "```\n" * 100_000 + "x"),
    ],
)
def test_no_answer_keeps_a_grader_busy(options: dict[str, object], answer: str) -> None:
    """What takes the square of an answer's length would take longer than a test may."""
    with contextlib.suppress(GraderError):
        assert not verdict(answer, "1", **options).passed


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("missing.json", r"missing\.json: cannot be read"),
        ("broken.json", "broken.json: it is not JSON"),
        ("half.json", r"half.json: it is not JSON: .ud83d is half of a surrogate pair"),
        ("list.json", "a JSON schema is an object"),
        ({"type": "strin"}, "type: "),
        ({"$ref": "https://example.com/schema.json"}, "it is not a JSON schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(tmp_path: Path, schema: JsonValue, sentence: str) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "half.json").write_text('{"const": "\\ud83d"}')
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match=sentence):
        build_comparison(spec(builtin="json-schema", schema=schema), tmp_path)
    (tmp_path / "answer.json").write_text(json.dumps(SCHEMA))
    assert verdict('{"city": "a"}', builtin="json-schema", schema="answer.json", folder=tmp_path).passed
