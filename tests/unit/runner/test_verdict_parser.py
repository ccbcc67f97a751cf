"""What graders print: AgentV's three shapes, and what is none of them."""

from __future__ import annotations

import json

import pytest

from quintain_runner.graders.verdict import GraderError, parse_verdict
from quintain_runner.results.row import Check, GraderRow


def parse(output: object) -> GraderRow:
    return parse_verdict(json.dumps(output).encode())


def test_the_first_shape_has_hits_misses_and_a_reasoning() -> None:
    verdict = parse({"score": 0.75, "hits": ["short"], "misses": ["rude"], "reasoning": "mixed", "details": {}})
    assert verdict == GraderRow(
        score=0.75,
        passed=True,
        reason="mixed",
        checks=[Check(text="short", passed=True), Check(text="rude", passed=False)],
    )


def test_the_second_shape_has_assertions() -> None:
    verdict = parse({"score": 0.2, "assertions": [{"text": "cites", "passed": False, "evidence": "none"}]})
    assert verdict == GraderRow(score=0.2, passed=False, checks=[Check(text="cites", passed=False, evidence="none")])


def test_the_third_shape_has_a_pass_a_reason_and_checks() -> None:
    check = {"id": "c1", "text": "cites", "pass": True, "score": 0.9, "reason": "page 3"}
    verdict = parse({"pass": True, "score": 0.1, "reason": "good", "checks": [check]})
    assert verdict == GraderRow(
        score=0.1,
        passed=True,
        reason="good",
        checks=[Check(id="c1", text="cites", passed=True, score=0.9, reason="page 3")],
    )


@pytest.mark.parametrize(
    ("said", "score", "passed"),
    [
        ({"pass": True}, 1.0, True),
        ({"pass": False}, 0.0, False),
        ({"score": 0.5}, 0.5, True),
        ({"score": 0.49}, 0.49, False),
        ({"score": 1}, 1.0, True),
        ({"score": 1, "pass": False}, 1.0, False),
        ({"score": None, "pass": True}, 1.0, True),
        ({"assertions": [{"text": "a", "passed": True}, {"text": "b", "passed": False}]}, 0.5, True),
        ({"hits": ["a"], "misses": ["b", "c", "d"]}, 0.25, False),
        ({"passed": False}, 0.0, False),
        ({"score": 1, "passed": False}, 1.0, False),
        ({"passed": True, "pass": True}, 1.0, True),
        ({"checks": [{"text": "a", "passed": True}]}, 1.0, True),
        ({"assertions": [{"text": "a", "pass": True}]}, 1.0, True),
        ({"checks": [{"text": "a", "pass": True, "score": 0.5}, {"text": "b", "pass": False}]}, 0.25, False),
    ],
)
def test_what_a_grader_leaves_out_follows_from_what_it_says(said: object, score: float, *, passed: bool) -> None:
    verdict = parse(said)
    assert (verdict.score, verdict.passed) == (score, passed)


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), float("inf"), 10**400])
def test_a_score_out_of_range_is_an_error_that_says_so(score: float) -> None:
    with pytest.raises(GraderError, match="score is not from 0 to 1"):
        parse({"score": score})


@pytest.mark.parametrize("score", ["1", True, [1]])
def test_a_score_that_is_no_number_is_an_error(score: object) -> None:
    with pytest.raises(GraderError, match="not a number"):
        parse({"score": score})


def test_a_checks_score_out_of_range_is_named() -> None:
    with pytest.raises(GraderError, match=r"checks\[1\]\.score"):
        parse({"checks": [{"text": "a", "pass": True}, {"text": "b", "pass": True, "score": 7}]})


@pytest.mark.parametrize("stdout", [b"Score: 1.0", b'{"score": 1} and more', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_an_error_that_shows_its_beginning(stdout: bytes) -> None:
    with pytest.raises(GraderError, match=r"printed no JSON \(its output begins with"):
        parse_verdict(stdout)


def test_printing_nothing_is_an_error() -> None:
    with pytest.raises(GraderError, match="its output is empty"):
        parse_verdict(b"\n")


@pytest.mark.parametrize("said", [[], 1.0, "pass", None])
def test_json_that_is_no_object_is_an_error(said: object) -> None:
    with pytest.raises(GraderError, match="not an object"):
        parse(said)


@pytest.mark.parametrize("said", [{}, {"verdict": "good"}, {"checks": []}, {"hits": []}])
def test_json_without_a_known_field_is_an_error_that_lists_them(said: object) -> None:
    with pytest.raises(GraderError, match="none of score, pass, passed, checks"):
        parse(said)


@pytest.mark.parametrize("name", ["pass", "passed"])
def test_a_pass_that_is_no_boolean_is_an_error(name: str) -> None:
    for said in ({"score": 1, name: "yes"}, {"score": 1, "checks": [{"text": "a", name: 1}]}):
        with pytest.raises(GraderError, match=f"{name} is neither true nor false"):
            parse(said)


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"score": 1, "checks": [{"text": "a", "ok": True}]}, r"checks\[0\] has none of pass, passed and score"),
        ({"score": 1, "assertions": [{"text": "a", "passed": None}]}, r"assertions\[0\] has none of pass, passed"),
        ({"score": 1, "checks": [{"pass": True}]}, r"checks\[0\] is not a check.*pass.*passed"),
        ({"score": 1, "checks": ["a"]}, r"checks\[0\] is not a check"),
        ({"score": 1, "checks": {"a": True}}, "checks is not a list"),
        ({"score": 1, "hits": [{"text": "a"}]}, r"hits\[0\] is not a text"),
        ({"score": 1, "misses": "a"}, "misses is not a list"),
        ({"pass": True, "passed": False}, "contradict"),
        ({"score": 1, "checks": [{"text": "a", "pass": True, "passed": False}]}, r"checks\[0\]\.pass .*contradict"),
    ],
)
def test_what_does_not_say_whether_it_passed_is_an_error_that_names_the_place(said: object, place: str) -> None:
    with pytest.raises(GraderError, match=place):
        parse(said)


def test_a_check_with_a_score_alone_passes_by_it() -> None:
    verdict = parse({"checks": [{"text": "a", "score": 0.5}, {"text": "b", "score": 0.4}]})
    assert (verdict.score, [check.passed for check in verdict.checks]) == (0.45, [True, False])


@pytest.mark.parametrize("stdout", [b'{"score": 1, "score": 0}', b'{"checks": [{"text": "a", "pass": 1, "pass": 0}]}'])
def test_a_key_that_is_given_twice_is_an_error(stdout: bytes) -> None:
    with pytest.raises(GraderError, match="is given twice"):
        parse_verdict(stdout)


@pytest.mark.parametrize("error", ["it failed", {"message": "it failed"}, ["it failed"], True, 5, ""])
def test_an_error_of_any_kind_is_no_score(error: object) -> None:
    with pytest.raises(GraderError, match="It reported an error: "):
        parse({"score": 0, "error": error})
    assert parse({"score": 1, "error": None}).score == parse({"score": 1, "error": False}).score == 1


def test_half_a_surrogate_pair_does_not_reach_the_results() -> None:
    verdict = parse_verdict(b'{"score": 1, "reason": "\\ud800 broken", "hits": ["\\udfff"]}')
    assert verdict.reason == "? broken"
    assert verdict.checks[0].text == "?"
