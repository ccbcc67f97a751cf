"""Ends calls: settles each, then answers its caller, then acknowledges its delivery.

Calls that end together share messages on the way. A reply leaves only after its own settle is confirmed, and a delivery
is acknowledged only after its reply is confirmed or returned.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.group import GroupItem, count_fitting
from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import AttemptOutcome, CallKey, Settle, encode_settle_batch
from quintain.contracts.message import MAX_REPLAY_BYTES, MAX_STORED_REPLY_BYTES, Message
from quintain.contracts.quota import TryReport
from quintain.errors import BrokerUnavailable, BusError, Fault, QueueFull, Unroutable
from quintain.routes import SETTLE
from quintain.rpc.server import GroupedReply, ReplyGroups, truncate_echo
from quintain.runtime.concurrency import BatchSender
from quintain.timings import Timings

log = logging.getLogger(__name__)

#: What is called once a settle is confirmed.
OnSettled = Callable[[], object]


def no_action() -> None:
    """Do nothing once a settle is confirmed."""


class Reply(NamedTuple):
    """The final answer to a delivery. ``wire`` is the answer as it is sent, where that is known.

    ``may_share_message``: the caller reads groups of replies.
    """

    delivery: Delivery
    answer: Message | Fault
    request_id: str
    wire: bytes = b""
    may_share_message: bool = False

    def item(self) -> GroupItem:
        """Return it as an item of a group."""
        message = FaultReply.from_fault(self.answer) if isinstance(self.answer, Fault) else self.answer
        return GroupItem(
            self.delivery.correlation_id or "",
            self.wire or message.to_wire(),
            {REQUEST_ID_HEADER: truncate_echo(self.request_id)},
            "fault" if isinstance(self.answer, Fault) else "result",
        )


def compress_reply(wire: bytes) -> bytes:
    """Return a reply of more than `LARGE_REPLY_BYTES` as the ledger stores it; empty where it is too large for that."""
    if len(wire) > MAX_REPLAY_BYTES:
        return b""
    compressed = zlib.compress(wire, level=1)
    return compressed if len(compressed) <= MAX_STORED_REPLY_BYTES else b""


def encode_settle(  # noqa: PLR0913 -- everything that is told
    call: CallKey,
    attempt_id: str,
    outcome: AttemptOutcome,
    answer: Result | Fault | None,
    stored: bytes,
    traceparent: str | None,
    *,
    report: TryReport | None = None,
    unproven: bool = False,
) -> bytes:
    """Return the outcome of an attempt as the ledger is told it, with the reply to store, if there is one."""
    result = answer if isinstance(answer, Result) else None
    # The times and the cost are those of a stored reply, which the ledger reads unless it is compressed.
    unread = None if stored.startswith(b"{") else result
    settle = Settle.unchecked(
        session_id=call.session_id,
        request_id=call.request_id,
        attempt_id=attempt_id,
        outcome=outcome,
        reply=None,
        compressed_reply=None,
        queued_ms=None if unread is None else unread.queued_ms,
        duration_ms=None if unread is None else unread.duration_ms,
        cost_usd=None if unread is None else unread.cost_usd,
        fault=FaultReply.from_fault(answer) if isinstance(answer, Fault) else None,
        token_usage=None if result is None else result.token_usage,
        traceparent=traceparent,
        report=report,
        unproven=unproven or None,
    )
    return settle.to_wire_with_reply(stored) if stored else settle.to_wire()


class _UnfinishedCall:
    """A call on its way to its end; ``ended`` is done when it is there, with the time at which its reply began.

    What is logged of it is logged in ``context``, its handler's, which has the ids of the call.
    """

    __slots__ = ("context", "ended", "on_settled", "reply", "replying_since", "settle")

    def __init__(self, settle: bytes, reply: Reply | None, on_settled: OnSettled) -> None:
        self.settle, self.reply, self.on_settled, self.replying_since = settle, reply, on_settled, 0.0
        self.context = contextvars.copy_context()
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def end(self, error: Exception | None = None) -> None:
        """End the call; after an error its handler decides what becomes of the delivery."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(self.replying_since)
        else:
            self.ended.set_exception(error)


class Completion:
    """Settles, answers and acknowledges the calls of one worker, and repeats what could not be published."""

    def __init__(self, bus: Bus, incarnation: str, timings: Timings) -> None:
        self._bus, self._incarnation, self._timings = bus, incarnation, timings
        # A settle is sent also if its call's handler was cancelled meanwhile: the outcome is known.
        self._settles = BatchSender[None, _UnfinishedCall](self._send_settles, max_concurrent=4, count=_count_settles)
        self._reply_groups = ReplyGroups(bus)

    async def settle(self, settle: bytes) -> None:
        """Report the outcome of an attempt, a `Settle` as it is sent, until it is confirmed into a quorum queue."""
        call = _UnfinishedCall(settle, None, no_action)
        self._settles.add(None, call)
        await call.ended

    async def finish(self, reply: Reply, settle: bytes | None = None, on_settled: OnSettled = no_action) -> float:
        """Report the outcome, if there is one, then call ``on_settled``, send the reply, and acknowledge the delivery.

        Both publishes are repeated while the broker is unavailable. Returns when the reply was first sent, on the clock
        of `time.perf_counter`.
        """
        call = _UnfinishedCall(settle or b"", reply, on_settled)
        if settle is None:
            self._begin_reply(call, reply)
        else:
            self._settles.add(None, call)
        return await call.ended

    async def _send_settles(self, _: None, calls: list[_UnfinishedCall]) -> None:
        body = encode_settle_batch(self._incarnation, [call.settle for call in calls])
        try:
            await self._bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=body, type=SETTLE.key))
        except BusError as error:
            log.warning("%d settles could not be sent and will be repeated: %s", len(calls), error.message)
            for call in calls:
                self._after_pause(call, partial(self._settles.add, None, call))
        except Exception as defect:
            for call in calls:
                call.end(defect)
        else:
            for call in calls:
                if call.reply is None:
                    call.end()
                else:
                    self._begin_reply(call, call.reply)

    def _begin_reply(self, call: _UnfinishedCall, reply: Reply) -> None:
        """Send a reply with others; its call is settled, or needs no settle."""
        call.on_settled()
        call.replying_since = time.perf_counter()
        try:
            grouped = GroupedReply(reply.item(), partial(self._on_reply_sent, call, reply))
        except Exception as defect:
            call.end(defect)
        else:
            self._add_reply(reply, grouped)

    def _add_reply(self, reply: Reply, grouped: GroupedReply) -> None:
        self._reply_groups.add(reply.delivery.reply_to or "", grouped, alone=not reply.may_share_message)

    async def _on_reply_sent(
        self, call: _UnfinishedCall, reply: Reply, grouped: GroupedReply, error: Exception | None
    ) -> None:
        """Acknowledge a delivery after its reply was sent, or send that again where the broker was unavailable."""
        if isinstance(error, BrokerUnavailable):
            call.context.run(log.warning, "A reply could not be sent and will be repeated: %s", error.message)
            self._after_pause(call, partial(self._add_reply, reply, grouped))
            return
        if isinstance(error, Unroutable | QueueFull):
            call.context.run(log.info, "A reply was dropped: the client's reply queue is gone or full")
        elif error is not None:
            call.end(error)
            return
        try:
            await reply.delivery.ack()
        except Exception as defect:
            call.end(defect)
        else:
            call.end()

    def _after_pause(self, call: _UnfinishedCall, send: Callable[[], None]) -> None:
        """Send again after a pause, if the call's handler still waits."""

        def send_if_awaited() -> None:
            if not call.ended.done():
                send()

        asyncio.get_running_loop().call_later(self._timings.publish_pause_seconds, send_if_awaited)


def _count_settles(calls: Sequence[_UnfinishedCall]) -> int:
    """Return how many of these settles go into one message."""
    return count_fitting(len(call.settle) for call in calls)
