"""An answer nested so deeply that it can be written and not be read: a fault of its own call, and of no other."""

from __future__ import annotations

import pytest

from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle, SettleBatch
from quintain.contracts.limits import DEFAULT_REPLY_BYTES, MAX_BODY_BYTES, MAX_CONTENT_BYTES
from quintain.errors import ProviderFailed, ReplyTooLarge
from quintain_worker.delivery.response import CallTiming, response_of
from quintain_worker.delivery.retry import AttemptResult
from quintain_worker.providers.provider import ProviderAnswer


@pytest.mark.parametrize(("depth", "carried"), [(1, True), (150, True), (195, False), (220, False), (300, False)])
def test_what_is_answered_can_be_read_in_a_batch_of_settles(depth: int, carried: bool) -> None:
    part: object = "the end"
    for _ in range(depth):
        part = [part]
    output = [OutputMessage.model_construct(role="assistant", content=[{"part": part}])]
    ending = AttemptResult(tries=1, answer=ProviderAnswer(text="yes", output=output))
    said = response_of(ending, Admission(attempt_id="t", attempt=1), CallTiming(target="a", duration_ms=1, queued_ms=0))
    if not carried:
        assert isinstance(said.answer, ProviderFailed)
        assert (said.outcome, said.answer.charged) == (AttemptOutcome.CHARGED, True)
        return
    assert isinstance(said.answer, Result)
    settle = Settle(session_id="s", request_id="r", attempt_id="t", outcome=said.outcome, reply=said.answer)
    batch = SettleBatch(incarnation="i", items=[settle])
    assert SettleBatch.from_wire(batch.to_wire()) == batch


@pytest.mark.parametrize(("session_limit", "limit"), [(None, DEFAULT_REPLY_BYTES), (MAX_CONTENT_BYTES, MAX_BODY_BYTES)])
def test_a_reply_is_one_message_however_large_the_requests_may_be(session_limit: int | None, limit: int) -> None:
    ending = AttemptResult(tries=1, answer=ProviderAnswer(text="x" * (limit // 2)))
    grant = Admission(attempt_id="t", attempt=1, max_body_bytes=session_limit)
    said = response_of(ending, grant, CallTiming(target="a", duration_ms=1, queued_ms=0))
    assert isinstance(said.answer, ReplyTooLarge)
    assert (said.outcome, str(limit) in said.answer.message) == (AttemptOutcome.CHARGED, True)
