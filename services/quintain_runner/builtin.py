"""The graders that are built in, as a table. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quintain_runner.dataset import Case
from quintain_runner.grader_input import expected_text
from quintain_runner.verdict import GraderError, Verdict

#: Whether an answer is what was expected; both without white space around them.
BUILTINS: Final[dict[str, Callable[[str, str], bool]]] = {
    "exact": lambda answer, expected: answer == expected,
    "contains": lambda answer, expected: expected in answer,
}


def grade_builtin(name: str, case: Case, answer: str) -> Verdict:
    """The verdict of a built-in grader. Raises `GraderError` where the row says nothing to compare with."""
    expected = expected_text(case)
    if expected is None:
        raise GraderError(f"The row has no expected, and {name} compares with it; add the field to the dataset")
    right = BUILTINS[name](answer.strip(), expected.strip())
    return Verdict(score=float(right), passed=right)
