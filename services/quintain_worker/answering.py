"""From what a provider said to what is sent: the result, its size on the wire, and what the ledger is to make of it.

A provider's words are data, and may be anything: half a character, numbers that are no numbers, more than a message
can hold. What cannot be carried ends here as a fault of its own call, and never as an error of whatever is sent
together with it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pydantic_core import from_json

from quintain.contracts.invoke import OutputMessage, Result
from quintain.contracts.ledger import Admission, Outcome
from quintain.contracts.text import whole
from quintain.errors import Fault, ProviderFailed, ReplyTooLarge
from quintain_worker.port import Answer
from quintain_worker.trying import Ending, as_charged

log = logging.getLogger(__name__)

#: A reply may be this large on the wire; the broker's own limit is above it.
MOST_REPLY_BYTES = 8 * 1024 * 1024

#: What is around a result in a settle: whoever cannot read one settle drops all that came with it.
SETTLE_AROUND = (b'{"items":[{"reply":', b"}]}")


@dataclass(frozen=True, slots=True)
class Said:
    """What the caller is told and the ledger keeps. ``size`` is a result's length on the wire, in bytes."""

    answer: Result | Fault
    outcome: Outcome
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Which target answered, and how long it took: milliseconds in the provider and in the queue."""

    target: str
    duration_ms: float
    queued_ms: float


def said_of(ending: Ending, grant: Admission, took: Took) -> Said:
    """What an attempt's ending comes to: an ending with an answer or a fault."""
    if ending.fault is not None:
        # Unbilled as this attempt was, the ledger keeps the call in doubt for an earlier one: the caller is told so.
        fault = as_charged(ending.fault, charged=True) if grant.unproven else ending.fault
        return Said(fault, ending.outcome)
    assert ending.answer is not None, "an ending has an answer or a fault"
    try:
        result = _result(ending.answer, ending.tries, grant, took)
        wire = result.to_wire()
        if ending.answer.output is not None:
            # A nesting that can be written need not be one that can be read; a text alone has none.
            from_json(SETTLE_AROUND[0] + wire + SETTLE_AROUND[1])
    except Exception:
        # Whatever a provider's words do to us: it worked, and its call is at its end.
        log.exception("An answer of target %s cannot be carried", took.target)
        return Said(ProviderFailed("The provider answered what no reply can carry", charged=True), Outcome.CHARGED)
    if len(wire) > MOST_REPLY_BYTES:
        too_large = ReplyTooLarge(f"The provider's answer is larger than {MOST_REPLY_BYTES} bytes")
        return Said(too_large, Outcome.CHARGED)
    return Said(result, Outcome.RESULT, len(wire))


def _result(answer: Answer, tries: int, grant: Admission, took: Took) -> Result:
    text = whole(answer.text)
    return Result(
        output=answer.output or [OutputMessage(content=text)],
        raw_text=text,
        token_usage=answer.token_usage,
        target=took.target,
        model=answer.model,
        finish_reason=answer.finish_reason,
        attempts=grant.attempt - 1 + tries,
        cached=False,
        replayed=False,
        duration_ms=round(took.duration_ms, 3),
        queued_ms=took.queued_ms,
        call_count=grant.call_count,
        max_calls=grant.max_calls,
    )
