"""Builds the response to a call from the provider's answer: the result, its size in bytes and the outcome to settle.

A provider's answer may be anything: half a surrogate pair, numbers that are not finite, more than a message may
hold. What cannot be sent becomes a fault of its own call, and never affects the settles of the same batch.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pydantic_core import from_json

from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.strings import replace_surrogates
from quintain.errors import Fault, ProviderFailed, ReplyTooLarge
from quintain_worker.delivery.retry import AttemptResult, with_charge
from quintain_worker.providers.provider import ProviderAnswer

log = logging.getLogger(__name__)

#: A reply may be this large on the wire; the broker's own limit is above it.
MAX_REPLY_BYTES = 8 * 1024 * 1024

#: What is around a result in a settle: whoever cannot read one settle drops all that came with it.
SETTLE_ENVELOPE = (b'{"items":[{"reply":', b"}]}")


@dataclass(frozen=True, slots=True)
class CallResponse:
    """What the caller is told and the ledger keeps. ``size`` is a result's length on the wire, in bytes."""

    answer: Result | Fault
    outcome: AttemptOutcome
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTiming:
    """Which target answered, and how long it took: milliseconds in the provider and in the queue."""

    target: str
    duration_ms: float
    queued_ms: float


def response_of(attempt_result: AttemptResult, grant: Admission, timing: CallTiming) -> CallResponse:
    """What an attempt's ending comes to: an ending with an answer or a fault."""
    if attempt_result.fault is not None:
        # Unbilled as this attempt was, the ledger keeps the call in doubt for an earlier one: the caller is told so.
        fault = with_charge(attempt_result.fault, charged=True) if grant.unproven else attempt_result.fault
        return CallResponse(fault, attempt_result.outcome)
    assert attempt_result.answer is not None, "an ending has an answer or a fault"
    try:
        result = _result(attempt_result.answer, attempt_result.tries, grant, timing)
        wire = result.to_wire()
        if attempt_result.answer.output is not None:
            # A nesting that can be written need not be one that can be read; a text alone has none.
            from_json(SETTLE_ENVELOPE[0] + wire + SETTLE_ENVELOPE[1])
    except Exception:
        # Whatever a provider's words do to us: it worked, and its call is at its end.
        log.exception("An answer of target %s cannot be carried", timing.target)
        return CallResponse(
            ProviderFailed("The provider answered what no reply can carry", charged=True), AttemptOutcome.CHARGED
        )
    if len(wire) > MAX_REPLY_BYTES:
        too_large = ReplyTooLarge(f"The provider's answer is larger than {MAX_REPLY_BYTES} bytes")
        return CallResponse(too_large, AttemptOutcome.CHARGED)
    return CallResponse(result, AttemptOutcome.RESULT, len(wire))


def _result(answer: ProviderAnswer, tries: int, grant: Admission, timing: CallTiming) -> Result:
    text = replace_surrogates(answer.text)
    return Result(
        output=answer.output or [OutputMessage(content=text)],
        raw_text=text,
        token_usage=answer.token_usage,
        target=timing.target,
        model=answer.model,
        finish_reason=answer.finish_reason,
        attempts=grant.attempt - 1 + tries,
        cached=False,
        replayed=False,
        duration_ms=round(timing.duration_ms, 3),
        queued_ms=timing.queued_ms,
        call_count=grant.call_count,
        max_calls=grant.max_calls,
    )
