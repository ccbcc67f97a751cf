"""The scope: tags by name and by path, the filter before what answers, and what is no answer to an event."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quintain.controller.scope import GivenScope, OnEvent, answer_in_scope, find_scope
from quintain.target import (
    Controllable,
    ControllableInjection,
    ControllableNoInjection,
    ControllablePostCallEvent,
    ControllablePreCallEvent,
    Event,
    EventResponse,
    SecurityDomainTag,
)

USER = SecurityDomainTag("user")
TOOLS = SecurityDomainTag("tools")
POST = SecurityDomainTag("post", TOOLS)
TAGS = [USER, TOOLS, POST]

QUESTION = ControllablePreCallEvent(controllable=Controllable("question", USER), request="Who is it?")
LETTER = ControllablePostCallEvent(controllable=Controllable("letter", POST), request="mail?", answer="none")


def injection(event: Any) -> EventResponse:
    return ControllableInjection(event=event, controllable=event.controllable, value="put in")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("user", {USER}),
        (["user", "post"], {USER, POST}),
        (TOOLS, {TOOLS}),
        # A tag of another process, or of a package that is imported twice, is known by its path.
        ([SecurityDomainTag("post", SecurityDomainTag("tools"))], {POST}),
        ([], set()),
    ],
)
def test_tags_are_found_by_name_and_by_path(given: GivenScope, found: set[SecurityDomainTag]) -> None:
    scope = find_scope(given, TAGS, "desk")
    assert {id(tag) for tag in scope} == {id(tag) for tag in found}


@pytest.mark.parametrize(
    ("scope", "asked"),
    [({USER}, [QUESTION]), ({TOOLS}, [LETTER]), ({POST}, [LETTER]), ({USER, TOOLS}, [QUESTION, LETTER]), (set(), [])],
)
async def test_what_is_out_of_scope_is_left_as_it_is(scope: set[SecurityDomainTag], asked: list[Event]) -> None:
    seen: list[Event] = []

    async def attack(event: Event) -> EventResponse:
        seen.append(event)
        return injection(event)

    answer = answer_in_scope(attack, frozenset(scope))
    responses = [await answer(event) for event in (QUESTION, LETTER)]
    assert seen == asked
    expected = [ControllableInjection if event in asked else ControllableNoInjection for event in (QUESTION, LETTER)]
    assert [type(response) for response in responses] == expected


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permitted(EventResponse):
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class Permission(Event):
    response_types = (Permitted,)


@pytest.mark.parametrize("on_event", [None, lambda event: None])
async def test_without_an_answer_the_value_stays(on_event: OnEvent | None) -> None:
    answer = answer_in_scope(on_event, frozenset({USER, TOOLS}))
    assert [type(await answer(event)) for event in (QUESTION, LETTER)] == [ControllableNoInjection] * 2
    assert type(await answer(Event(security_domain=USER))) is EventResponse
    with pytest.raises(TypeError, match="Permission requires response of type Permitted, got EventResponse"):
        await answer(Permission(security_domain=USER))


async def test_a_plain_function_answers_too() -> None:
    response = await answer_in_scope(injection, frozenset({USER}))(QUESTION)
    assert isinstance(response, ControllableInjection)
    assert response.event is QUESTION


@pytest.mark.parametrize(
    ("response", "error"),
    [("only a text", TypeError), (EventResponse(event=QUESTION), TypeError), (injection(LETTER), ValueError)],
)
async def test_what_does_not_answer_the_event_is_refused(response: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        await answer_in_scope(lambda event: response, frozenset({USER}))(QUESTION)
