"""What comparisons say of targets: the Bradley-Terry order, win rates, p-values and the judge's position bias."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quintain_runner.results.labels import text_sha256
from quintain_runner.results.pairwise import Choice, PairwiseRow, PairwiseVote
from quintain_runner.results.row import GraderRow, Row
from quintain_runner.statistics.pairwise import ComparisonCollector, PairwiseStatistics, bradley_terry
from quintain_runner.statistics.significance import mcnemar_p
from support.results_folder import graded_row

GAMES = np.array(
    [
        [0, 7, 9, 7, 7, 9, 11],
        [6, 0, 7, 5, 11, 9, 9],
        [4, 6, 0, 7, 7, 8, 12],
        [6, 8, 6, 0, 6, 7, 10],
        [6, 2, 6, 7, 0, 7, 12],
        [4, 4, 5, 6, 6, 0, 6],
        [2, 4, 1, 3, 1, 7, 0],
    ],
    dtype=np.float64,
)

#: Their strengths against Baltimore's, as H. Turner and D. Firth, "Bradley-Terry models in R: the BradleyTerry2
#: package", Journal of Statistical Software 48 (2012), print them.
PUBLISHED = (1.5814, 1.4364, 1.2945, 1.2476, 1.1077, 0.6839, 0.0)


def test_the_order_is_that_of_the_published_table() -> None:
    strengths = bradley_terry(GAMES, prior_ties=0.0)
    assert strengths - strengths[-1] == pytest.approx(PUBLISHED, abs=5e-5)


def test_with_ties_and_the_prior_it_is_what_choix_says() -> None:
    # choix 0.4.1: ilsr_pairwise and mm_pairwise of these results, each twice so that ties are whole, with one tie of
    # each with a fourth item, whose strength is 0 here.
    won = np.array([[0.0, 5.0, 4.5], [0.0, 0.0, 3.0], [0.5, 2.0, 0.0]])
    assert bradley_terry(won) == pytest.approx([1.67474299, -0.63365253, -0.79493487], abs=1e-7)


def compared(case: str, target: str, opponent: str, first: Choice, second: Choice, *, repeat: int = 1) -> Row:
    """A row with one comparison, in whose orders the judge chose these places."""
    votes = [PairwiseVote(choice=choice, calls=1, request_id="r") for choice in (first, second)]
    one = PairwiseRow(opponent=opponent, answer=text_sha256("Rome"), own_first=votes[0], own_second=votes[1])
    row = graded_row(case, 1.0, target=target, repeat=repeat)
    return row.with_fields(graders={"arena": GraderRow(score=one.score, passed=True, comparisons=[one])})


def statistics_of(*rows: Row) -> PairwiseStatistics:
    collector = ComparisonCollector(["a", "b"])
    assert list(collector.passed_through(rows)) == list(rows)
    answers = [graded_row(row.case_id, 1.0, target=name, repeat=row.repeat) for row in rows for name in ("a", "b")]
    collector.add_answers(row.with_fields(output="Rome") for row in answers)
    return collector.statistics()["arena"]


def test_a_comparison_counts_once_although_two_rows_have_it() -> None:
    found = statistics_of(compared("1", "a", "b", "first", "second"), compared("1", "b", "a", "second", "first"))
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.wins, pair.ties, pair.losses) == ("a", "b", 1, 0, 0)
    assert (found.columns["a"].wins, found.columns["b"].losses, found.position_bias.pairs) == (1, 1, 1)


def test_a_rate_has_its_interval_and_a_pair_its_p_value() -> None:
    rows = [compared(str(n), "a", "b", *(("first", "second") if n < 9 else ("second", "first"))) for n in range(10)]
    found = statistics_of(*rows)
    (pair,) = found.pairs
    assert pair.rate.value == pytest.approx(0.9)
    # From mcnemarExactDP of R's exact2x2 1.6.9, for 9 of 10 that differ: half its interval and ½.
    assert (pair.rate.interval.low, pair.rate.interval.high) == pytest.approx((0.5493, 0.9975), abs=5e-5)
    assert (pair.p, pair.test) == (pytest.approx(mcnemar_p(9, 1)), "mcnemar")
    assert pair.adjusted_p == pair.p
    assert list(found.columns) == ["a", "b"]
    # The odds of 9 wins, with the prior: W/L = e^(2s), by symmetry, has (9 + s') wins. Checked by its own equation.
    strength = found.columns["a"].strength
    expected_wins = 10 / (1 + math.exp(-2 * strength)) + 1 / (1 + math.exp(-strength))
    assert expected_wins == pytest.approx(9 + 0.5)


def test_the_bias_says_which_place_the_judge_prefers() -> None:
    found = statistics_of(
        compared("1", "a", "b", "first", "first"),
        compared("2", "a", "b", "second", "second"),
        compared("3", "a", "b", "tie", "tie"),
        compared("4", "a", "b", "first", "second"),
        # A choice in one order alone is a tie and no bias.
        compared("5", "a", "b", "first", "tie"),
    )
    bias = found.position_bias
    assert (bias.pairs, bias.first, bias.second, bias.share) == (5, 1, 1, 0.4)
    assert (found.pairs[0].wins, found.pairs[0].ties) == (1, 4)


def test_a_comparison_with_an_answer_of_before_counts_no_more() -> None:
    collector = ComparisonCollector(["a", "b"])
    collector.add(compared("1", "a", "b", "first", "second"))
    collector.add_answers([graded_row("1", 1.0, target="b").with_fields(output="Paris")])
    assert collector.statistics() == {}


def test_a_missing_vote_is_no_comparison() -> None:
    row = compared("1", "a", "b", "first", "second")
    collector = ComparisonCollector(["a", "b"])
    one = (row.graders["arena"].comparisons or [])[0].with_fields(own_second=PairwiseVote(error="no answer"))
    collector.add(row.with_fields(graders={"arena": GraderRow(error="no answer", comparisons=[one])}))
    assert collector.statistics() == {}
