"""Settles and answers calls. A reply leaves only after its own settle is confirmed.

Calls that end together share messages on the way. What cannot be sent never affects the others of its batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from quintain.bus.base import Bus
from quintain.bus.failure_log import FailureLog
from quintain.contracts.group import GroupItem, count_fitting
from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Settle, SettleBatch
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError, Fault, QueueFull, Unroutable
from quintain.rpc.server import GroupedReply, ReplyGroups
from quintain.runtime.concurrency import BatchSender
from quintain.timings import Timings
from quintain_worker.call import Call
from quintain_worker.ledger_port import LedgerPort
from quintain_worker.response import Reply

log = logging.getLogger(__name__)


class _PendingSettle(NamedTuple):
    """A settle on its way; ``is_taken`` is False where the broker was unavailable."""

    settle: Settle
    is_taken: asyncio.Future[bool]


class Completion:
    """Settles and answers the calls of one worker, and repeats what could not be published."""

    def __init__(self, bus: Bus, ledger: LedgerPort, incarnation: str, timings: Timings) -> None:
        self._ledger, self._incarnation, self._timings = ledger, incarnation, timings
        # A settle is sent also if its call's handler was cancelled meanwhile: the outcome is known.
        self._settles = BatchSender[None, _PendingSettle](self._send_settles, max_concurrent=4, count=_count_settles)
        self._reply_groups = ReplyGroups(bus)
        self._not_settled = FailureLog(log, "Settles could not be sent, and are repeated", "Settles are sent", bus)
        self._not_replied = FailureLog(log, "Replies could not be sent, and are repeated", "Replies are sent", bus)

    async def settle(self, settle: Settle) -> None:
        """Report the outcome of an attempt until the ledger's port has taken it."""
        while True:
            is_taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._settles.add(None, _PendingSettle(settle, is_taken))
            if await is_taken:
                return
            await asyncio.sleep(self._timings.publish_pause_seconds)

    async def answer(self, call: Call, reply: Reply) -> None:
        """Send the reply to a call until it is confirmed, or returned because its caller is gone."""
        delivery, answer = call.message.delivery, reply.answer
        kind, message = ("fault", FaultReply.from_fault(answer)) if isinstance(answer, Fault) else ("result", answer)
        headers = {REQUEST_ID_HEADER: call.request_id}
        item = GroupItem(delivery.correlation_id or "", reply.wire or message.to_wire(), headers, kind)
        while True:
            sent: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            grouped = GroupedReply(item, partial(_note_sent, sent))
            self._reply_groups.add(delivery.reply_to or "", grouped, alone=not call.reads_groups)
            error = await sent
            if not isinstance(error, BrokerUnavailable | BrokerRefused):
                break
            self._not_replied.failed(error)
            await asyncio.sleep(self._timings.publish_pause_seconds)
        self._not_replied.worked()
        if isinstance(error, Unroutable | QueueFull):
            log.info("A reply was dropped: the client's reply queue is gone or full")
        elif error is not None:
            raise error

    async def _send_settles(self, _: None, pending: list[_PendingSettle]) -> None:
        items = [each.settle for each in pending]
        try:
            await self._ledger.settle(SettleBatch.unchecked(incarnation=self._incarnation, items=items))
        except BusError as error:
            self._not_settled.failed(error)
            _end(pending, is_taken=False)
        except Exception as defect:
            if len(pending) == 1:
                if not pending[0].is_taken.done():
                    pending[0].is_taken.set_exception(defect)
                return
            # One of them cannot be written; nothing says which it is, so each goes alone.
            for one in pending:
                await self._send_settles(None, [one])
        else:
            self._not_settled.worked()
            _end(pending, is_taken=True)


def _end(pending: Sequence[_PendingSettle], *, is_taken: bool) -> None:
    for one in pending:
        if not one.is_taken.done():
            one.is_taken.set_result(is_taken)


async def _note_sent(sent: asyncio.Future[Exception | None], _: GroupedReply, error: Exception | None) -> None:
    if not sent.done():
        sent.set_result(error)


def _count_settles(pending: Sequence[_PendingSettle]) -> int:
    """Return how many of these settles go together: by their replies, beside which a settle is small."""
    settles = (each.settle for each in pending)
    return count_fitting(len(settle.reply or settle.compressed_reply or b"") for settle in settles)
