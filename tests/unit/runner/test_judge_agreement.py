"""How far judges agree with labels and with each other, against published tables, and the intervals of that."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quintain_runner.results.row import GraderRow
from quintain_runner.statistics.judge_agreement import (
    JudgePair,
    LabelAgreement,
    LabeledVerdict,
    VoteTable,
    agreement_differences,
    krippendorff_alpha,
    label_agreement,
)


def verdicts(pass_pass: int, pass_fail: int, fail_pass: int, fail_fail: int) -> list[LabeledVerdict]:
    """Labels and verdicts with these counts (the label first), each of a case of its own."""
    kinds = [(True, True)] * pass_pass + [(True, False)] * pass_fail
    kinds += [(False, True)] * fail_pass + [(False, False)] * fail_fail
    return [LabeledVerdict(str(number), label, verdict) for number, (label, verdict) in enumerate(kinds)]


def measured(*counts: int) -> LabelAgreement:
    return label_agreement(verdicts(*counts))


@pytest.mark.parametrize(
    ("counts", "agreement", "kappa"),
    [
        # J. Sim and C. C. Wright, "The kappa statistic in reliability studies", Physical Therapy 85 (2005), table 1.
        ((22, 2, 4, 11), 0.8462, 0.67),
        # A. R. Feinstein and D. V. Cicchetti, "High agreement but low kappa: I", J. Clin. Epidemiol. 43 (1990).
        ((40, 9, 6, 45), 0.85, 0.70),
        ((80, 10, 5, 5), 0.85, 0.32),
    ],
)
def test_kappa_is_the_one_of_published_tables(counts: tuple[int, ...], agreement: float, kappa: float) -> None:
    found = measured(*counts)
    assert (found.labels, found.cases) == (sum(counts), sum(counts))
    assert found.agreement.value == pytest.approx(agreement, abs=5e-5)
    assert found.kappa.value == pytest.approx(kappa, abs=5e-3)


def test_the_interval_of_kappa_is_near_the_large_sample_one() -> None:
    """J. L. Fleiss, J. Cohen and B. S. Everitt, "Large sample standard errors of kappa", Psychol. Bull. 72 (1969)."""
    counts = (400, 90, 60, 450)
    cells = [[400 / 1000, 90 / 1000], [60 / 1000, 450 / 1000]]
    rows, columns = [sum(row) for row in cells], [sum(row[i] for row in cells) for i in range(2)]
    observed = cells[0][0] + cells[1][1]
    chance = sum(rows[i] * columns[i] for i in range(2))
    kappa = (observed - chance) / (1 - chance)
    diagonal = sum(cells[i][i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in range(2))
    others = sum(cells[i][1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in range(2))
    variance = diagonal + (1 - kappa) ** 2 * others - (kappa - chance * (1 - kappa)) ** 2
    error = math.sqrt(variance / 1000) / (1 - chance)

    interval = measured(*counts).kappa.interval
    assert interval.low == pytest.approx(kappa - 1.96 * error, abs=0.004)
    assert interval.high == pytest.approx(kappa + 1.96 * error, abs=0.004)


def test_precision_and_recall_are_of_fail() -> None:
    found = measured(22, 2, 4, 11)
    assert found.fail_precision.value == pytest.approx(11 / 13)
    assert found.fail_recall.value == pytest.approx(11 / 15)


def test_what_is_not_defined_has_no_value() -> None:
    assert label_agreement([]) == LabelAgreement()
    one_sided = measured(10, 0, 0, 0)
    assert one_sided.agreement.value == 1.0
    assert (one_sided.kappa.value, one_sided.fail_precision.value, one_sided.fail_recall.value) == (None, None, None)
    # Wilson's interval of 10 of 10: what never differed may differ.
    assert one_sided.agreement.interval.low == pytest.approx(0.7225, abs=5e-5)


def test_several_answers_to_one_case_are_drawn_together() -> None:
    """Ten answers to each of four cases say less than forty cases."""
    apart = verdicts(20, 0, 10, 10)
    together = [one._replace(case_id=str(int(one.case_id) // 10)) for one in apart]
    wide, narrow = label_agreement(together).agreement.interval, label_agreement(apart).agreement.interval
    assert label_agreement(together).cases == 4
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_two_judges_are_compared_case_by_case() -> None:
    """McNemar's exact test of 9 and 1 discordant pairs: 2 * (1 + 10) / 2**10."""
    better = [JudgePair(f"b{number}", True, True, False) for number in range(9)]
    worse = [JudgePair("w", False, True, False)]
    alike = [JudgePair(f"a{number}", True, True, True) for number in range(10)]
    first, none, second = agreement_differences([[*better, *worse, *alike], [], alike])
    assert none is None
    assert (first.better, first.worse, first.test) == (9, 1, "mcnemar")
    assert first.p == pytest.approx(22 / 1024)
    assert first.adjusted_p == pytest.approx(2 * 22 / 1024)
    assert first.estimate.value == pytest.approx(0.4)
    assert first.base == pytest.approx(0.55)
    assert (second.p, second.significant) == (1.0, False)


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
    assert krippendorff_alpha(agreed, metric) == pytest.approx(1.0)
    assert krippendorff_alpha(np.full((3, 5), 0.7), metric) is None
    # No answer has two votes.
    assert krippendorff_alpha(np.array([[1.0, NAN], [NAN, 0.0]]), metric) is None


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
