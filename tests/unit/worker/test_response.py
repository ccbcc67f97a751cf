"""Answers that cannot be sent: nested so deeply that they can be written and not be read, or too large."""

from __future__ import annotations

import pytest
from pydantic_core import to_json

from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, AdmitReply, AttemptOutcome
from quintain.contracts.message import DEFAULT_REPLY_BYTES, MAX_BODY_BYTES
from quintain.errors import ProviderFailed, ReplyTooLarge
from quintain_worker.attempt import Try
from quintain_worker.providers.provider import ProviderAnswer
from quintain_worker.response import CallFacts, Reply, reply_of


@pytest.mark.parametrize(("depth", "carried"), [(1, True), (150, True), (195, False), (220, False), (300, False)])
def test_what_is_answered_can_be_read_when_the_ledger_answers_it_again(depth: int, carried: bool) -> None:
    part: object = "the end"
    for _ in range(depth):
        part = [part]
    output = [OutputMessage.model_construct(role="assistant", content=[{"part": part}])]
    ending = Try(AttemptOutcome.RESULT, answer=ProviderAnswer(text="yes", output=output))
    said = reply_of(ending, Admission(attempt_id="t", attempt=1), CallFacts("a"))
    if not carried:
        assert isinstance(said.answer, ProviderFailed)
        assert (said.outcome, said.answer.charged) == (AttemptOutcome.CHARGED, True)
        return
    assert isinstance(said.answer, Result)
    answer = AdmitReply(items=[Admission(attempt_id="t", replay=said.answer)], now=1)
    assert AdmitReply.from_wire(answer.to_wire()) == answer


def reply_with(text: str, session_limit: int | None) -> Reply:
    ending = Try(AttemptOutcome.RESULT, answer=ProviderAnswer(text=text))
    grant = Admission(attempt_id="t", attempt=1, max_body_bytes=session_limit)
    return reply_of(ending, grant, CallFacts("a"))


@pytest.mark.parametrize("character", ["x", "\n", "ü", "\U0001f600"])
def test_an_answer_of_the_documented_size_is_sent_and_its_text_once(character: str) -> None:
    # 1 kB is for the other fields.
    text = character * ((DEFAULT_REPLY_BYTES - 1000) // (len(to_json(character)) - 2))
    said = reply_with(text, None)
    assert isinstance(said.answer, Result)
    assert len(to_json(text)) < len(said.wire) <= DEFAULT_REPLY_BYTES
    assert said.answer.raw_text == text


@pytest.mark.parametrize(
    ("session_limit", "limit"),
    [
        (None, DEFAULT_REPLY_BYTES),
        (DEFAULT_REPLY_BYTES + 5000, DEFAULT_REPLY_BYTES + 5000),
        (MAX_BODY_BYTES, MAX_BODY_BYTES),
    ],
)
def test_a_session_says_how_large_an_answer_may_be_up_to_a_message(session_limit: int | None, limit: int) -> None:
    assert isinstance(reply_with("x" * (limit - 1000), session_limit).answer, Result)
    said = reply_with("x" * limit, session_limit)
    assert isinstance(said.answer, ReplyTooLarge)
    assert (said.outcome, str(limit) in said.answer.message) == (AttemptOutcome.CHARGED, True)


@pytest.mark.parametrize(
    ("text", "contents"), [("Paris", ["Let me see", "Paris"]), ("", ["Let me see"]), ("Let me see", ["Let me see"])]
)
def test_the_text_of_an_answer_is_that_of_its_last_message(text: str, contents: list[str]) -> None:
    answer = ProviderAnswer(text=text, output=[OutputMessage(content="Let me see")])
    said = reply_of(Try(AttemptOutcome.RESULT, answer=answer), Admission(attempt_id="t", attempt=1), CallFacts("a"))
    assert isinstance(said.answer, Result)
    assert [message.content for message in said.answer.output] == contents
    assert said.answer.raw_text == contents[-1]
