"""What a caller and the ledger are told of a call's end. No I/O.

A provider's answer may hold anything: lone surrogates, numbers that are not finite, more than a message may hold. An
answer that cannot be sent becomes a fault of its own call.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from quintain.config.prices import Price
from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage, content_text
from quintain.contracts.ledger import Admission, Admit, AttemptOutcome, Settle
from quintain.contracts.message import (
    DEFAULT_REPLY_BYTES,
    MAX_BODY_BYTES,
    MAX_REPLAY_BYTES,
    MAX_STORED_REPLY_BYTES,
)
from quintain.contracts.money import picodollars
from quintain.contracts.step_log import cut_steps
from quintain.contracts.values import replace_surrogates
from quintain.errors import Fault, ProviderFailed, ReplyTooLarge
from quintain_worker.attempt import Try, with_charge
from quintain_worker.providers.provider import ProviderAnswer

log = logging.getLogger(__name__)

#: The JSON around a result in the ledger's answer to a repeated request: if it cannot be parsed, all of it is lost.
REPLAY_ENVELOPE = (b'{"items":[{"replay":', b"}]}")


class Reply(NamedTuple):
    """How a call ends: what its caller is told, a result also as its bytes on the wire, and what is settled.

    ``outcome`` is None where there is no attempt to settle. ``stored`` is the reply as the ledger keeps it.
    """

    answer: Result | Fault
    outcome: AttemptOutcome | None = None
    wire: bytes = b""
    stored: bytes = b""


class CallFacts(NamedTuple):
    """What a reply says of its call beside the answer: its target, the milliseconds before this attempt, the target's
    fingerprint and price, and the tries before."""

    target: str
    queued_ms: float = 0.0
    fingerprint: str | None = None
    price: Price | None = None
    tries: Sequence[Try] = ()


def reply_of(ended: Try, grant: Admission, facts: CallFacts) -> Reply:
    """Return the reply to a call that ends with this try."""
    reply = _reply_of(ended, grant, facts)
    if isinstance(reply.answer, Fault):
        seconds = ended.seconds + sum(each.seconds for each in facts.tries)
        reply.answer.duration_ms = round(seconds * 1000, 3)
    return reply


def _reply_of(ended: Try, grant: Admission, facts: CallFacts) -> Reply:
    if ended.fault is not None:
        # This attempt was not billed, but an earlier one may have been: the ledger keeps the call in doubt, so the
        # fault must say that it is charged.
        fault = with_charge(ended.fault, charged=True) if grant.unproven else ended.fault
        if fault.steps:
            fault.steps, fault.steps_cut = cut_steps(fault.steps, fault.steps_cut)
        return Reply(fault, ended.outcome)
    assert ended.answer is not None, "a try that ends has an answer or a fault"
    try:
        result = _result(ended.answer, ended.seconds, grant, facts)
        wire = result.to_wire()
        if ended.answer.output is not None or ended.answer.body is not None:
            # JSON that can be written may still be nested too deeply to be parsed; plain text has no nesting.
            from_json(REPLAY_ENVELOPE[0] + wire + REPLAY_ENVELOPE[1])
    except Exception:
        # The provider answered, but its answer cannot be encoded: the call ends, charged.
        log.exception("An answer of target %s cannot be encoded as a reply", facts.target)
        fault = ProviderFailed("The provider's answer cannot be encoded as a reply", charged=True)
        return Reply(fault, AttemptOutcome.CHARGED)
    # A reply is one message, however large the session's requests may be.
    max_bytes = min(max(grant.max_body_bytes or 0, DEFAULT_REPLY_BYTES), MAX_BODY_BYTES)
    if len(wire) > max_bytes:
        too_large = ReplyTooLarge(f"The answer has {len(wire)} bytes; the limit of this session is {max_bytes}")
        return Reply(too_large, AttemptOutcome.CHARGED)
    return Reply(result, AttemptOutcome.RESULT, wire)


#: The fields of a message that is nothing but text.
_PLAIN: Final = {"role": "assistant", "tool_calls": None, "reasoning": None, "refusal": None, "logprobs": None}


def _result(answer: ProviderAnswer, seconds: float, grant: Admission, facts: CallFacts) -> Result:
    text = replace_surrogates(answer.text)
    # What is plain text is not validated again: its types are known here.
    is_plain = (
        not (answer.output or answer.ignored or answer.steps or answer.continuation)
        and answer.body is None
        and type(answer.text) is str
        and (answer.model is None or type(answer.model) is str)
        and (answer.finish_reason is None or type(answer.finish_reason) is str)
        and (answer.token_usage is None or type(answer.token_usage) is TokenUsage)
    )
    make_result = Result.unchecked if is_plain else Result
    steps, steps_cut = cut_steps(answer.steps, answer.steps_cut) if answer.steps else (None, None)
    return make_result(
        output=[OutputMessage.unchecked(content=text, **_PLAIN)] if is_plain else _output(answer, text),
        **_took(answer, facts.price),
        estimated_cost_usd=answer.estimated_cost_usd,
        target=facts.target,
        model=answer.model,
        finish_reason=answer.finish_reason,
        attempts=grant.attempt + len(facts.tries),
        cached=False,
        replayed=False,
        duration_ms=round(seconds * 1000, 3),
        queued_ms=float(facts.queued_ms),
        call_count=grant.call_count,
        max_calls=grant.max_calls,
        target_fingerprint=facts.fingerprint,
        ignored=list(answer.ignored) or None,
        body=answer.body,
        steps=steps,
        steps_cut=steps_cut,
        continuation=answer.continuation,
    )


def _took(answer: ProviderAnswer, price: Price | None) -> dict[str, Any]:
    """Return the tokens and the cost of an answer, as fields of its result: with those of an agent's own calls."""
    reported, models = answer.token_usage, answer.models
    cost_usd = answer.billed_usd if price is None or answer.billed_usd is not None else price.of_call(reported)
    if models is None:
        return {"token_usage": reported, "cost_usd": cost_usd}
    fixed_usd = 0.0 if price is None else float(price.per_call)
    if cost_usd is not None:
        cost_usd = round(fixed_usd + max(cost_usd - fixed_usd, models.cost_usd), 12)
    if reported is None:
        return {"token_usage": models.tokens if models.tokens.input else None, "cost_usd": cost_usd}
    is_less = models.tokens.input > reported.input or models.tokens.output > reported.output
    larger = reported + models.tokens.beyond(reported)
    return {"token_usage": larger, "cost_usd": cost_usd, "reported_usage": reported if is_less else None}


def _output(answer: ProviderAnswer, text: str) -> list[OutputMessage]:
    """Return the answer's messages, the last of which has its text; an answer in the words of an API has none."""
    if answer.body is not None:
        return []
    messages = answer.output or []
    if messages and (not text or content_text(messages[-1].content) == text):
        return messages
    return [*messages, OutputMessage(content=text)]


def compress_reply(wire: bytes) -> bytes:
    """Return a reply of more than `LARGE_REPLY_BYTES` as the ledger stores it; empty where it is too large for that."""
    if len(wire) > MAX_REPLAY_BYTES:
        return b""
    compressed = zlib.compress(wire, level=1)
    return compressed if len(compressed) <= MAX_STORED_REPLY_BYTES else b""


def settle_of(session_id: str, admit: Admit, ended: Try, reply: Reply | None, traceparent: str | None) -> Settle:
    """Return what the ledger is told of an attempt; without a ``reply`` its call goes on.

    What an agent's own calls to models took is in the ledger already.
    """
    answer = ended.fault if reply is None else reply.answer
    result, models = (answer if isinstance(answer, Result) else None), ended.models
    if result is not None and models is not None:
        usage, cost_usd = result.token_usage, result.cost_usd
        result = result.with_fields(
            token_usage=None if usage is None else usage.beyond(models.tokens),
            cost_usd=None if cost_usd is None else round(max(0.0, cost_usd - models.cost_usd), 12),
        )
    cost = ended.failed_usd if result is None else result.cost_usd
    fault = FaultReply.from_fault(answer) if isinstance(answer, Fault) else None
    stored = b"" if reply is None else reply.stored
    is_text = stored.startswith(b"{")
    is_counted = ended.outcome is AttemptOutcome.RETRY and ended.is_counted
    return Settle.unchecked(
        session_id=session_id,
        request_id=admit.request_id,
        attempt_id=admit.attempt_id,
        outcome=ended.outcome if reply is None or reply.outcome is None else reply.outcome,
        reply=stored.decode() if is_text else None,
        compressed_reply=stored if stored and not is_text else None,
        queued_ms=None if result is None else result.queued_ms,
        duration_ms=None if result is None else result.duration_ms,
        cost_usd=None if result is None else result.cost_usd,
        # The ledger keeps no steps of faults.
        fault=None if fault is None else fault.with_fields(steps=None, steps_cut=None),
        token_usage=None if result is None else result.token_usage,
        traceparent=traceparent,
        report=ended.report,
        tries=int(ended.is_sent),
        unproven=int(ended.is_unproven) or None,
        cost=None if cost is None else picodollars(cost),
        is_estimate=admit.is_estimate,
        retry_after_ms=round(ended.retry_after_seconds * 1000) if is_counted else None,
        is_counted=is_counted or None,
    )
