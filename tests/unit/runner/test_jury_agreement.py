"""How far judges agree, against published values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quintain_runner.results.row import GraderRow
from quintain_runner.statistics.judge_agreement import VoteTable, krippendorff_alpha

NAN = math.nan

#: K. Krippendorff, "Computing Krippendorff's alpha-reliability" (2011), section C: four observers, twelve units.
PUBLISHED = np.array(
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
)

#: The same, section A: two observers, ten units of two values.
BINARY = np.array([[0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]], dtype=float)


def test_alpha_is_that_of_the_published_tables() -> None:
    assert krippendorff_alpha(PUBLISHED, "nominal") == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(PUBLISHED, "interval") == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha(BINARY, "nominal") == pytest.approx(0.095, abs=5e-4)


@pytest.mark.parametrize("metric", ["nominal", "interval"])
def test_alpha_is_1_for_full_agreement_and_not_defined_for_one_value(metric: str) -> None:
    agreed = np.array([[0.1, 0.7, 0.7], [0.1, 0.7, 0.7]])
    assert krippendorff_alpha(agreed, metric) == pytest.approx(1.0)  # type: ignore[arg-type]
    assert krippendorff_alpha(np.full((3, 5), 0.7), metric) is None  # type: ignore[arg-type]
    # No answer has two votes.
    assert krippendorff_alpha(np.array([[1.0, NAN], [NAN, 0.0]]), metric) is None  # type: ignore[arg-type]


def test_a_judge_leans_by_what_the_others_say_of_the_same_answers() -> None:
    table = VoteTable()
    for mild, strict in ((0.9, 0.5), (0.7, 0.3), (0.2, None)):
        votes = {"mild": GraderRow(score=mild, passed=mild >= 0.5)}
        votes["strict"] = GraderRow(error="no") if strict is None else GraderRow(score=strict, passed=strict >= 0.5)
        table.add(GraderRow(votes=votes))
    said = table.build().statistics()
    assert (said.answers, said.judges["strict"].missing) == (3, 1)
    assert said.judges["mild"].lean_score == pytest.approx(0.4)
    assert said.judges["strict"].lean_score == pytest.approx(-0.4)
    assert said.judges["mild"].lean_pass == pytest.approx(0.5)
