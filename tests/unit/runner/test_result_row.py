"""A row of the results, as the protocol writes it."""

from __future__ import annotations

import json

from quintain.contracts.invoke import TokenUsage
from quintain_runner.results.row import Check, GraderRow, Row, RowError, RowStatus
from support.results_folder import MADE_OF

VERDICT = GraderRow(score=0.5, passed=True, reason="r", checks=[Check(text="c", passed=False, evidence="e")], calls=2)


def test_a_graded_row_has_the_protocols_fields_and_no_other() -> None:
    row = Row(
        fingerprints=MADE_OF,
        case_id="1",
        target="bot",
        repeat=1,
        status=RowStatus.GRADED,
        output="Paris",
        score=0.5,
        graders={"judge": VERDICT},
        calls=3,
        token_usage=TokenUsage(input=4, output=1),
        duration_ms=2.5,
    )
    assert json.loads(row.to_line()) == {
        "schemaVersion": 2,
        "caseId": "1",
        "target": "bot",
        "repeat": 1,
        "status": "graded",
        "output": "Paris",
        "score": 0.5,
        "graders": {
            "judge": {
                "score": 0.5,
                "pass": True,
                "reason": "r",
                "checks": [{"text": "c", "pass": False, "evidence": "e"}],
                "calls": 2,
            }
        },
        "calls": 3,
        "tokenUsage": {"input": 4, "output": 1},
        "durationMs": 2.5,
        "fingerprints": {"input": "asked", "grading": "expected", "target": None},
    }


def test_an_errored_row_says_null_where_it_has_no_output_and_no_score() -> None:
    error = RowError(code="timeout", error="The deadline passed")
    row = Row(
        fingerprints=MADE_OF, case_id="1", target="bot", repeat=1, status=RowStatus.IN_DOUBT, error=error, tries=2
    )
    written = json.loads(row.to_line())
    assert (written["output"], written["score"], written["status"]) == (None, None, "inDoubt")
    assert written["error"] == {"code": "timeout", "error": "The deadline passed"}
    assert written["tries"] == 2


def test_a_row_reads_back_as_it_was_written() -> None:
    row = Row(
        fingerprints=MADE_OF,
        case_id="1",
        target="bot",
        repeat=1,
        status=RowStatus.GRADED,
        graders={"j": VERDICT},
    )
    assert Row.model_validate_json(row.to_line()) == row


def test_a_case_passes_when_every_grader_passes_it() -> None:
    good, bad = GraderRow(score=0.1, passed=True), GraderRow(score=0.9, passed=False)
    row = Row(fingerprints=MADE_OF, case_id="1", target="bot", repeat=1, status=RowStatus.GRADED, graders={"a": good})
    assert row.passed
    assert not row.model_copy(update={"graders": {"a": good, "b": bad}}).passed
    assert not row.model_copy(update={"status": RowStatus.ERROR}).passed
