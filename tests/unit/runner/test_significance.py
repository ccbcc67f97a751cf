"""The tests of a difference, against published p-values."""

from __future__ import annotations

import numpy as np
import pytest

from quintain_runner.statistics.inference import MAX_ENUMERATED_CASES, holm, mcnemar_p, sign_flip_test

#: C. Darwin's crossed and self-fertilised maize, in eighths of an inch, as R. A. Fisher tested it (1935, §21).
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_fishers_test_of_darwins_maize_gives_fishers_result() -> None:
    assert sign_flip_test(np.array(DARWIN, dtype=float))[0] == pytest.approx(1726 / 32768)


def test_mcnemars_exact_test_gives_the_result_of_r() -> None:
    # mcnemar.exact of R's exact2x2 (M. P. Fay): b = 2 and c = 9 give 0.06543.
    assert mcnemar_p(2, 9) == pytest.approx(0.06543, abs=5e-6)
    assert mcnemar_p(9, 2) == mcnemar_p(2, 9)
    assert mcnemar_p(1, 9) == pytest.approx(22 / 1024)
    assert (mcnemar_p(0, 0), mcnemar_p(4, 5), mcnemar_p(5, 5)) == (1.0, 1.0, 1.0)


def test_pass_and_fail_asked_once_are_tested_by_mcnemars() -> None:
    differences = np.array([1.0] * 2 + [-1.0] * 9 + [0.0] * 30)
    assert sign_flip_test(differences) == (mcnemar_p(2, 9), "mcnemar")


def test_more_cases_than_can_be_enumerated_are_drawn_and_give_nearly_the_exact_result() -> None:
    differences = [0.1, 0.3, -0.2, 0.5, 0.4, 0.1, -0.1, 0.2, 0.6, 0.3, -0.3, 0.2, 0.1, 0.4, 0.25, -0.15, 0.35, 0.05]
    differences += [0.45, -0.05]
    assert len(differences) > MAX_ENUMERATED_CASES
    # scipy.stats.permutation_test 1.16, permutation_type "samples", all of its 2**20 patterns.
    assert sign_flip_test(np.array(differences))[0] == pytest.approx(0.00689, abs=0.0025)


def test_a_drawn_p_value_is_never_zero() -> None:
    random = np.random.default_rng(1)
    assert sign_flip_test(1 + random.random(100))[0] == pytest.approx(1 / 10_000)


def test_very_many_cases_are_tested_by_the_normal_law_with_nearly_the_drawn_result() -> None:
    random = np.random.default_rng(2)
    many = random.normal(0.05, 1.0, size=1_001)
    drawn = random.permutation(many)[:1_000]
    assert sign_flip_test(many)[0] == pytest.approx(sign_flip_test(drawn)[0], abs=0.05)
    assert (sign_flip_test(many)[1], sign_flip_test(drawn)[1]) == ("normal", "sign_flip")


def test_what_differs_nowhere_is_no_evidence() -> None:
    assert sign_flip_test(np.zeros(10))[0] == 1.0
    assert sign_flip_test(np.empty(0))[0] == 1.0


def test_where_nothing_differs_in_truth_one_test_in_twenty_says_so() -> None:
    random = np.random.default_rng(3)
    found = sum(sign_flip_test(random.normal(size=14))[0] < 0.05 for _ in range(300))
    assert 4 <= found <= 30


def test_holms_adjustment_is_the_textbooks() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
