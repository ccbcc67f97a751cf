"""Tests of graders.py."""

from graders import brief


def test_a_short_answer_passes() -> None:
    assert brief("Paris")


def test_a_long_answer_fails() -> None:
    assert not brief("Paris, " * 100)
