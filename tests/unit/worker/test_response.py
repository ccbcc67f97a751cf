"""An answer nested so deeply that it can be written and not be read: a fault of its own call, and of no other."""

from __future__ import annotations

import pytest

from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle, SettleBatch
from quintain.errors import ProviderFailed
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
