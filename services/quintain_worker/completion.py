"""The end of a call: makes its response of what its attempt brought, settles it, answers it, acknowledges its message.

A provider's answer may hold anything: lone surrogates, numbers that are not finite, more than a message may hold. An
answer that cannot be sent becomes a fault of its own call, and never affects the settles of the same batch.

Calls that end together share messages on the way. A reply leaves only after its own settle is confirmed, and a message
is acknowledged only after its reply is confirmed or returned.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from quintain.bus.base import Bus, Delivery
from quintain.bus.failure_log import FailureLog
from quintain.config.prices import Price
from quintain.contracts.group import GroupItem, count_fitting
from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import FaultReply, OutputMessage, Result, TokenUsage, content_text
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle, SettleBatch
from quintain.contracts.message import (
    DEFAULT_REPLY_BYTES,
    MAX_BODY_BYTES,
    MAX_REPLAY_BYTES,
    MAX_STORED_REPLY_BYTES,
    Message,
)
from quintain.contracts.step_log import cut_steps
from quintain.contracts.values import replace_surrogates
from quintain.errors import (
    BrokerRefused,
    BrokerUnavailable,
    BusError,
    Fault,
    ProviderFailed,
    QueueFull,
    ReplyTooLarge,
    Unroutable,
)
from quintain.rpc.server import GroupedReply, ReplyGroups
from quintain.runtime.concurrency import BatchSender
from quintain.timings import Timings
from quintain_worker.attempt import AttemptResult, with_charge
from quintain_worker.ledger_port import LedgerPort
from quintain_worker.providers.provider import ProviderAnswer

log = logging.getLogger(__name__)

#: The JSON around a result in the ledger's answer to a repeated request: if it cannot be parsed, all of it is lost.
REPLAY_ENVELOPE = (b'{"items":[{"replay":', b"}]}")


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
        if fault.steps:
            fault.steps, fault.steps_cut = cut_steps(fault.steps, fault.steps_cut)
        return CallResponse(fault, attempt_result.outcome)
    assert attempt_result.answer is not None, "an attempt result has an answer or a fault"
    try:
        result = _result(attempt_result.answer, attempt_result.tries, grant, timing)
        wire = result.to_wire()
        if attempt_result.answer.output is not None or attempt_result.answer.body is not None:
            # JSON that can be written may still be nested too deeply to be parsed; plain text has no nesting.
            from_json(REPLAY_ENVELOPE[0] + wire + REPLAY_ENVELOPE[1])
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


#: The fields of a message that is nothing but text.
_PLAIN: Final = {"role": "assistant", "tool_calls": None, "reasoning": None, "refusal": None, "logprobs": None}


def _result(answer: ProviderAnswer, tries: int, grant: Admission, timing: CallTiming) -> Result:
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
        **_took(answer, timing.price),
        estimated_cost_usd=answer.estimated_cost_usd,
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


#: What is called once a settle is confirmed.
OnSettled = Callable[[], object]


def no_action() -> None:
    """Do nothing once a settle is confirmed."""


class Reply(NamedTuple):
    """The final answer to a delivery. ``wire`` is the answer as it is sent, where that is known.

    ``ack`` acknowledges the message of the call. ``may_share_message``: the caller reads groups of replies.
    """

    delivery: Delivery
    answer: Message | Fault
    request_id: str
    ack: Callable[[], Awaitable[None]]
    wire: bytes = b""
    may_share_message: bool = False


@dataclass(slots=True, eq=False)
class _UnfinishedCall:
    """A call on its way to its end; ``ended`` is done when it is there, with the time at which its reply began.

    What is logged of it is logged in ``context``, its handler's, which has the ids of the call.
    """

    settle: Settle | None
    reply: Reply | None
    on_settled: OnSettled
    context: contextvars.Context
    ended: asyncio.Future[float]
    replying_since: float = 0.0

    def fail(self, error: Exception) -> None:
        """End the call with an error: its handler decides what becomes of the delivery."""
        if not self.ended.done():
            self.ended.set_exception(error)


class Completion:
    """Settles, answers and acknowledges the calls of one worker, and repeats what could not be published."""

    def __init__(self, bus: Bus, ledger: LedgerPort, incarnation: str, timings: Timings) -> None:
        self._ledger, self._incarnation, self._timings = ledger, incarnation, timings
        # A settle is sent also if its call's handler was cancelled meanwhile: the outcome is known.
        self._settles = BatchSender[None, _UnfinishedCall](self._send_settles, max_concurrent=4, count=_count_settles)
        self._reply_groups = ReplyGroups(bus)
        self._not_settled = FailureLog(log, "Settles could not be sent, and are repeated", "Settles are sent", bus)
        self._not_replied = FailureLog(log, "Replies could not be sent, and are repeated", "Replies are sent", bus)

    async def settle(self, settle: Settle) -> None:
        """Report the outcome of an attempt until the ledger's port has taken it."""
        ended = asyncio.get_running_loop().create_future()
        self._settles.add(None, _UnfinishedCall(settle, None, no_action, contextvars.copy_context(), ended))
        await ended

    async def finish(self, reply: Reply, settle: Settle | None = None, on_settled: OnSettled = no_action) -> float:
        """Report the outcome, if there is one, then call ``on_settled``, send the reply, and acknowledge the message.

        Both publishes are repeated while the broker is unavailable. Returns when the reply was first sent, on the clock
        of `time.perf_counter`.
        """
        ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        call = _UnfinishedCall(settle, reply, on_settled, contextvars.copy_context(), ended)
        if settle is not None:
            self._settles.add(None, call)
        else:
            self._begin_reply(call, reply)
        return await ended

    async def _send_settles(self, _: None, calls: list[_UnfinishedCall]) -> None:
        batch = SettleBatch.unchecked(incarnation=self._incarnation, items=[call.settle for call in calls])
        try:
            await self._ledger.settle(batch)
        except BusError as error:
            self._not_settled.failed(error)
            for call in calls:
                self._after_pause(call, partial(self._settles.add, None, call))
        except Exception as defect:
            await self._find_broken(calls, defect)
        else:
            self._not_settled.worked()
            for call in calls:
                if call.reply is not None:
                    self._begin_reply(call, call.reply)
                elif not call.ended.done():
                    call.ended.set_result(0.0)

    async def _find_broken(self, calls: list[_UnfinishedCall], defect: Exception) -> None:
        """Fail the call whose settle cannot be written; nothing says which of several it is, so each goes alone."""
        if len(calls) == 1:
            calls[0].fail(defect)
            return
        for call in calls:
            await self._send_settles(None, [call])

    def _begin_reply(self, call: _UnfinishedCall, reply: Reply) -> None:
        """Send a reply with others; its call is settled, or needs no settle."""
        call.on_settled()
        call.replying_since = time.perf_counter()
        answer, delivery = reply.answer, reply.delivery
        kind, message = ("fault", FaultReply.from_fault(answer)) if isinstance(answer, Fault) else ("result", answer)
        try:
            headers = {REQUEST_ID_HEADER: reply.request_id}
            item = GroupItem(delivery.correlation_id or "", reply.wire or message.to_wire(), headers, kind)
        except Exception as defect:
            call.fail(defect)
            return
        grouped = GroupedReply(item, partial(self._on_reply_sent, call, reply))
        self._reply_groups.add(delivery.reply_to or "", grouped, alone=not reply.may_share_message)

    async def _on_reply_sent(
        self, call: _UnfinishedCall, reply: Reply, grouped: GroupedReply, error: Exception | None
    ) -> None:
        """Acknowledge a message after its reply was sent, or send that again where the broker was unavailable."""
        if isinstance(error, BrokerUnavailable | BrokerRefused):
            call.context.run(self._not_replied.failed, error)
            address, alone = reply.delivery.reply_to or "", not reply.may_share_message
            self._after_pause(call, partial(self._reply_groups.add, address, grouped, alone=alone))
            return
        self._not_replied.worked()
        if isinstance(error, Unroutable | QueueFull):
            call.context.run(log.info, "A reply was dropped: the client's reply queue is gone or full")
        elif error is not None:
            call.fail(error)
            return
        try:
            await reply.ack()
        except Exception as defect:
            call.fail(defect)
        else:
            if not call.ended.done():
                call.ended.set_result(call.replying_since)

    def _after_pause(self, call: _UnfinishedCall, send: Callable[[], None]) -> None:
        """Send again after a pause, if the call's handler still waits."""

        def send_if_awaited() -> None:
            if not call.ended.done():
                send()

        asyncio.get_running_loop().call_later(self._timings.publish_pause_seconds, send_if_awaited)


def _count_settles(calls: Sequence[_UnfinishedCall]) -> int:
    """Return how many of these settles go together: by their replies, beside which a settle is small."""
    settles = (call.settle for call in calls)
    return count_fitting(len(one.reply or one.compressed_reply or b"") if one is not None else 0 for one in settles)
