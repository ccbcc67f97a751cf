"""Builds the response to a call from the provider's answer: the result, its size in bytes and the outcome to settle.

A provider's answer may hold anything: lone surrogates, numbers that are not finite, more than a message may hold. An
answer that cannot be sent becomes a fault of its own call, and never affects the settles of the same batch.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from pydantic_core import from_json

from quintain.config.prices import Price
from quintain.contracts.invoke import OutputMessage, Result, TokenUsage, content_text
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import DEFAULT_REPLY_BYTES, MAX_BODY_BYTES
from quintain.contracts.values import replace_surrogates
from quintain.errors import Fault, ProviderFailed, ReplyTooLarge
from quintain_worker.delivery.retry import AttemptResult, with_charge
from quintain_worker.providers.provider import ProviderAnswer

log = logging.getLogger(__name__)

#: The JSON around a result in a settle batch. A settle that cannot be parsed would lose the whole batch.
SETTLE_ENVELOPE = (b'{"items":[{"reply":', b"}]}")


class CallResponse(NamedTuple):
    """The reply to the caller, a result also as its bytes on the wire, and the outcome for the ledger."""

    answer: Result | Fault
    outcome: AttemptOutcome
    wire: bytes = b""


class CallTiming(NamedTuple):
    """The target of a call, its fingerprint and price, and the milliseconds spent in the provider and in the queue."""

    target: str
    duration_ms: float
    queued_ms: float
    fingerprint: str | None = None
    price: Price | None = None


def response_of(attempt_result: AttemptResult, grant: Admission, timing: CallTiming) -> CallResponse:
    """Convert the result of an attempt into the call's response."""
    if attempt_result.fault is not None:
        # This attempt was not billed, but an earlier one may have been: the ledger keeps the call in doubt, so the
        # fault must say that it is charged.
        fault = with_charge(attempt_result.fault, charged=True) if grant.unproven else attempt_result.fault
        return CallResponse(fault, attempt_result.outcome)
    assert attempt_result.answer is not None, "an attempt result has an answer or a fault"
    try:
        result = _result(attempt_result.answer, attempt_result.tries, grant, timing)
        wire = result.to_wire()
        if attempt_result.answer.output is not None or attempt_result.answer.body is not None:
            # JSON that can be written may still be nested too deeply to be parsed; plain text has no nesting.
            from_json(SETTLE_ENVELOPE[0] + wire + SETTLE_ENVELOPE[1])
    except Exception:
        # The provider answered, but its answer cannot be encoded: the call ends, charged.
        log.exception("An answer of target %s cannot be encoded as a reply", timing.target)
        return CallResponse(
            ProviderFailed("The provider's answer cannot be encoded as a reply", charged=True), AttemptOutcome.CHARGED
        )
    # A reply is one message, however large the session's requests may be.
    max_bytes = min(max(grant.max_body_bytes or 0, DEFAULT_REPLY_BYTES), MAX_BODY_BYTES)
    if len(wire) > max_bytes:
        too_large = ReplyTooLarge(f"The answer has {len(wire)} bytes; the limit of this session is {max_bytes}")
        return CallResponse(too_large, AttemptOutcome.CHARGED)
    return CallResponse(result, AttemptOutcome.RESULT, wire)


def _result(answer: ProviderAnswer, tries: int, grant: Admission, timing: CallTiming) -> Result:
    text = replace_surrogates(answer.text)
    # What is plain text is not validated again: its types are known here.
    is_plain = not answer.output and answer.body is None and not answer.ignored and _has_plain_fields(answer)
    make_result = Result.unchecked if is_plain else Result
    return make_result(
        output=[_text_message(text)] if is_plain else _output(answer, text),
        token_usage=answer.token_usage,
        cost_usd=None if timing.price is None else timing.price.of_call(answer.token_usage),
        target=timing.target,
        model=answer.model,
        finish_reason=answer.finish_reason,
        attempts=grant.attempt - 1 + tries,
        cached=False,
        replayed=False,
        duration_ms=round(float(timing.duration_ms), 3),
        queued_ms=float(timing.queued_ms),
        call_count=grant.call_count,
        max_calls=grant.max_calls,
        target_fingerprint=timing.fingerprint,
        ignored=list(answer.ignored) or None,
        body=answer.body,
    )


def _output(answer: ProviderAnswer, text: str) -> list[OutputMessage]:
    """Return the answer's messages, the last of which has its text; an answer in the words of an API has none."""
    if answer.body is not None:
        return []
    messages = answer.output or []
    if messages and (not text or content_text(messages[-1].content) == text):
        return messages
    return [*messages, OutputMessage(content=text)]


def _has_plain_fields(answer: ProviderAnswer) -> bool:
    return (
        type(answer.text) is str
        and (answer.model is None or type(answer.model) is str)
        and (answer.finish_reason is None or type(answer.finish_reason) is str)
        and (answer.token_usage is None or type(answer.token_usage) is TokenUsage)
    )


def _text_message(text: str) -> OutputMessage:
    return OutputMessage.unchecked(
        role="assistant",
        content=text,
        tool_calls=None,
        reasoning=None,
        refusal=None,
        logprobs=None,
    )
