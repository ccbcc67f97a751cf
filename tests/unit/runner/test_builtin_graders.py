"""The graders that are built in."""

from __future__ import annotations

import pytest

from quintain_runner.builtin import grade_builtin
from quintain_runner.dataset import Case
from quintain_runner.verdict import GraderError


@pytest.mark.parametrize(
    ("name", "expected", "answer", "right"),
    [
        ("exact", "Paris", "Paris", True),
        ("exact", "Paris", "  Paris\n", True),
        ("exact", "Paris", "paris", False),
        ("exact", "Paris", "It is Paris", False),
        ("exact", 42, "42", True),
        ("contains", "Paris", "It is Paris.", True),
        ("contains", "Paris", "It is Rome.", False),
    ],
)
def test_an_answer_is_compared_with_what_is_expected(
    name: str, expected: str | int, answer: str, *, right: bool
) -> None:
    verdict = grade_builtin(name, Case(id="1", question="q", expected=expected), answer)
    assert (verdict.score, verdict.passed) == (float(right), right)


def test_a_row_that_expects_nothing_cannot_be_compared() -> None:
    with pytest.raises(GraderError, match="The row has no expected"):
        grade_builtin("exact", Case(id="1", question="q"), "answer")
