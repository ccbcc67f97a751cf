"""``@quintain.grader``: what a function may take, and what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import quintain
from quintain import Case, ChatMessage, GraderInput, grader

GIVEN = GraderInput(
    case=Case(id="1", question="Capital?", expected="Paris"), output="Rome", target="bot", config={"n": 3}
)


def test_a_grader_is_given_by_name_what_it_takes() -> None:
    @grader
    def polite(case: Case, output: str, config: dict[str, object], strict: bool = True) -> list[object]:
        return [case.expected, output, config["n"], strict]

    assert polite.grade(GIVEN) == ["Paris", "Rome", 3, True]
    assert not polite.wants_session
    assert not polite.is_async


def test_a_grader_may_take_everything_as_one_object() -> None:
    @grader
    def whole(given: GraderInput) -> str:
        return given.target

    @grader
    def qualified(everything: quintain.GraderInput) -> str:
        return everything.output

    assert (whole.grade(GIVEN), qualified.grade(GIVEN)) == ("bot", "Rome")


def test_a_grader_that_asks_for_a_session_is_given_one() -> None:
    @grader
    async def asks(output: str, session: object) -> tuple[str, object]:
        return output, session

    assert asks.wants_session
    assert asks.is_async
    graded = asks.grade(GIVEN, "the session")
    assert asyncio.iscoroutine(graded)
    assert asyncio.run(graded) == ("Rome", "the session")


def test_called_it_is_the_function_itself() -> None:
    @grader
    def polite(output: str) -> bool:
        """Says please."""
        return "please" in output

    assert polite("yes please")
    assert (polite.__name__, polite.__doc__) == ("polite", "Says please.")


def takes_another(outptu: str) -> bool:
    return bool(outptu)


def takes_by_place(output: str, /) -> bool:
    return bool(output)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (takes_another, "'takes_another' takes 'outptu', which no grader is given; did you mean 'output'?"),
        (takes_by_place, "takes 'output', which no grader is given"),
    ],
)
def test_a_parameter_that_no_grader_is_given_is_refused_at_once(function: Callable[..., object], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence.replace("?", r"\?")):
        grader(function)


def test_the_question_of_a_conversation_is_what_the_user_said_last() -> None:
    turns = [ChatMessage(role="user", content="one"), ChatMessage(role="user", content=[{"text": "two"}])]
    assert Case(id="1", messages=turns).question_text == "two"
    assert Case(id="1", question="q").question_text == "q"
