"""What of an answer to a multiple choice is read, and what is not."""

from __future__ import annotations

import pytest

from quintain.graders import Case
from quintain_runner.spec.choices import read_choice, with_ordered_choices

CHOICES = ["Rome", "Paris", "A dog", "Lima"]


@pytest.mark.parametrize(
    "answer",
    [
        "B",
        "(b)",
        "b.",
        "**B**",
        "Answer: B",
        "**Answer:** (b)",
        "paris.",
        "B) Paris",
        "**B: Paris**\n\nIt is in France.",
        "B\n\nParis is in France.",
        "The answer is B because it is.",
        "The correct choice is: **Paris**",
        "A) is wrong\nAnswer: B",
        "A) Rome\nB) Paris\nTherefore:\n\nB",
        r"So $\boxed{B}$",
    ],
)
def test_a_letter_or_a_text_is_read(answer: str) -> None:
    assert read_choice(answer, CHOICES).position == 1


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "E",
        "A or B",
        "A) Paris",
        "the answer is a city",
        "The answer is not B",
        "Paris, not Rome",
        "Answer: A\nAnswer: B",
        "A\nB\nC\nD",
        "A) Rome\nB) Paris\nC) A dog\nD) Lima",
    ],
)
def test_what_names_no_choice_or_several_is_not_guessed(answer: str) -> None:
    read = read_choice(answer, CHOICES)
    assert read.position is None
    assert read.problem


def test_the_order_is_that_of_the_seed_and_the_id_whatever_the_datasets_order_is() -> None:
    def order(seed: int, case_id: str, choices: list[str]) -> list[str] | None:
        case = Case(id=case_id, question="q", expected="Paris", choices=choices)
        return with_ordered_choices(case, seed).choices

    orders = [order(seed, case_id, CHOICES) for seed in range(5) for case_id in ("1", "2")]
    assert orders == [order(seed, case_id, CHOICES[::-1]) for seed in range(5) for case_id in ("1", "2")]
    assert len({tuple(one or ()) for one in orders}) > 2


def test_a_text_that_is_also_the_letter_of_another_choice_is_no_expected() -> None:
    with pytest.raises(ValueError, match="letter"):
        with_ordered_choices(Case(id="1", question="q", expected="A", choices=["B", "A"]), 0)
