"""Cancels calls: records it in the ledger, then notifies the workers that run them and the admission queue."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from quintain.bus.base import Bus, Envelope
from quintain.contracts.ledger import CallKey, CancelBroadcast
from quintain.contracts.session import CallsCancelled
from quintain.errors import BusError, Unroutable
from quintain.routes import CANCEL
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import CANCEL as CANCEL_EXCHANGE
from quintain_metadata.ledger.base import Ledger
from quintain_metadata.rules import cancellation
from quintain_metadata.rules.session_repository import SessionRow
from quintain_metadata.service.admission import AdmissionQueue

log = logging.getLogger(__name__)


class CallCanceller:
    """Cancels calls of a session, in transactions of at most `MAX_CALLS_PER_TRANSACTION` calls."""

    def __init__(
        self, bus: Bus, ledger: Ledger, admission_queue: AdmissionQueue, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._bus, self._ledger, self._admission_queue, self._timings = bus, ledger, admission_queue, timings

    async def cancel(self, session: SessionRow, request_ids: Sequence[str]) -> CallsCancelled:
        """Cancel these calls, including request ids that the ledger does not know yet.

        The cancellation is in the ledger even where a worker could not be notified.
        """
        unique_ids = sorted(set(request_ids))
        cancelled_count = 0
        to_abort: list[CallKey] = []
        for start in range(0, len(unique_ids), cancellation.MAX_CALLS_PER_TRANSACTION):
            page = unique_ids[start : start + cancellation.MAX_CALLS_PER_TRANSACTION]
            result = await self._ledger.transact(partial(cancellation.cancel_calls, session=session, request_ids=page))
            cancelled_count += result.cancelled_count
            to_abort += [CallKey(session_id=session.id, request_id=request_id) for request_id in result.to_abort]
        if to_abort:
            await self._broadcast(CancelBroadcast(calls=to_abort))
        await self._admission_queue.retry_calls({(session.id, request_id) for request_id in unique_ids})
        return CallsCancelled(cancelled=cancelled_count)

    async def _broadcast(self, message: CancelBroadcast) -> None:
        """Notify all workers at once.

        A worker that misses the message gets the cancellation with its next heartbeat.
        """
        envelope = Envelope(body=message.to_wire(), type=CANCEL.key, persistent=False)
        try:
            await self._bus.publish(CANCEL_EXCHANGE, "", envelope, timeout_seconds=self._timings.heartbeat_seconds)
        except Unroutable:
            log.info("No worker consumes cancellations; each gets them with its next heartbeat")
        except BusError as error:
            log.warning(
                "A cancellation was not published; workers get it with their next heartbeats: %s", error.message
            )
