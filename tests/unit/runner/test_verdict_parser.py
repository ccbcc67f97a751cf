"""What graders print: AgentV's three shapes, and what is none of them."""

from __future__ import annotations

import json

import pytest

from quintain_runner.graders.verdict import GraderError, parse_verdict
from quintain_runner.results.row import Check, GraderRow

SHORT = Check(text="short", passed=True)


def parse(output: object) -> GraderRow:
    return parse_verdict(json.dumps(output).encode())


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (
            {"score": 0.75, "hits": ["short"], "misses": ["rude"], "reasoning": "mixed", "details": {}},
            GraderRow(score=0.75, passed=True, reason="mixed", checks=[SHORT, Check(text="rude", passed=False)]),
        ),
        (
            {"score": 0.2, "assertions": [{"text": "cites", "passed": False, "evidence": "none"}]},
            GraderRow(score=0.2, passed=False, checks=[Check(text="cites", passed=False, evidence="none")]),
        ),
        (
            {
                "pass": True,
                "score": 0.1,
                "reason": "good",
                "checks": [{"id": "c1", "text": "short", "pass": True, "score": 0.9}],
            },
            GraderRow(score=0.1, passed=True, reason="good", checks=[SHORT.with_fields(id="c1", score=0.9)]),
        ),
    ],
)
def test_each_of_the_three_shapes_is_read_whole(said: object, verdict: GraderRow) -> None:
    assert parse(said) == verdict


@pytest.mark.parametrize(
    ("said", "score", "passed"),
    [
        *(({"pass": True}, 1.0, True), ({"pass": False}, 0.0, False), ({"score": 0.5}, 0.5, True)),
        *(({"score": 0.49}, 0.49, False), ({"score": 1}, 1.0, True)),
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
        ({"checks": [{"text": "a", "score": 0.5}, {"text": "b", "score": 0.4}]}, 0.45, False),
    ],
)
def test_what_a_grader_leaves_out_follows_from_what_it_says(said: object, score: float, *, passed: bool) -> None:
    verdict = parse(said)
    assert (verdict.score, verdict.passed) == (score, passed)
    # A check with a score alone passes by it.
    assert all(check.passed == (check.score >= 0.5) for check in verdict.checks if check.score is not None)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        *(({"score": score}, "score is not from 0 to 1") for score in (1.5, -0.1, float("nan"), float("inf"), 10**400)),
        *(({"score": score}, "not a number") for score in ("1", True, [1])),
        ({"checks": [{"text": "a", "pass": True}, {"text": "b", "pass": True, "score": 7}]}, r"checks\[1\]\.score"),
        *((said, "not an object") for said in ([], 1.0, "pass", None)),
        *(
            (said, "none of score, pass, passed, checks")
            for said in ({}, {"verdict": "good"}, {"checks": []}, {"hits": []})
        ),
        *(({"score": 1, name: "yes"}, f"{name} is neither true nor false") for name in ("pass", "passed")),
        ({"score": 1, "checks": [{"text": "a", "passed": 1}]}, "passed is neither true nor false"),
        ({"score": 1, "checks": [{"text": "a", "ok": True}]}, r"checks\[0\] has none of pass, passed and score"),
        ({"score": 1, "assertions": [{"text": "a", "passed": None}]}, r"assertions\[0\] has none of pass, passed"),
        ({"score": 1, "checks": [{"pass": True}]}, r"checks\[0\] is not a check.*pass.*passed"),
        ({"score": 1, "checks": ["a"]}, r"checks\[0\] is not a check"),
        ({"score": 1, "checks": {"a": True}}, "checks is not a list"),
        ({"score": 1, "hits": [{"text": "a"}]}, r"hits\[0\] is not a text"),
        ({"score": 1, "misses": "a"}, "misses is not a list"),
        ({"pass": True, "passed": False}, "contradict"),
        ({"score": 1, "checks": [{"text": "a", "pass": True, "passed": False}]}, r"checks\[0\]\.pass .*contradict"),
        *(
            ({"score": 0, "error": error}, "It reported an error: ")
            for error in ("it failed", {"message": "it failed"}, ["it failed"], True, 5, "")
        ),
        *(
            (stdout, r"printed no JSON \(its output begins with")
            for stdout in (b"Score: 1.0", b'{"score": 1} and more', b"\xff\xfe", b"[" * 100_000)
        ),
        (b"\n", "its output is empty"),
        (b'{"score": 1, "score": 0}', "is given twice"),
        (b'{"checks": [{"text": "a", "pass": 1, "pass": 0}]}', "is given twice"),
    ],
)
def test_what_is_no_verdict_is_an_error_that_names_the_place_and_never_a_score(said: object, sentence: str) -> None:
    with pytest.raises(GraderError, match=sentence):
        parse_verdict(said if isinstance(said, bytes) else json.dumps(said).encode())


def test_no_error_is_none() -> None:
    assert parse({"score": 1, "error": None}).score == parse({"score": 1, "error": False}).score == 1


def test_half_a_surrogate_pair_does_not_reach_the_results() -> None:
    verdict = parse_verdict(b'{"score": 1, "reason": "\\ud800 broken", "hits": ["\\udfff"]}')
    assert verdict.reason == "? broken"
    assert verdict.checks[0].text == "?"
