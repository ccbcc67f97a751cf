"""Tells workers which of their calls were cancelled, and which conversations are over, each at its reply queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.ledger import CallKey, Cancellation, ConversationKey
from quintain.errors import BusError
from quintain.routes import CANCEL
from quintain.timings import Timings
from quintain.topology import REPLY

log = logging.getLogger(__name__)


class CancellationSender:
    """Sends cancellations to the workers whose leases were renewed here within the duration of one lease.

    A cancelled call that a worker was not told comes with its next heartbeat; a conversation ends with its time limit.
    """

    def __init__(self, bus: Bus, timings: Timings) -> None:
        self._bus, self._timings = bus, timings
        #: Incarnation → the routing key of its replies, and when its lease was renewed, in the loop's seconds. The
        #: latest is last.
        self._workers: dict[str, tuple[str, float]] = {}

    def note_renewed(self, incarnation: str, request: Delivery) -> None:
        """Note where the worker wants the answer to a registration or heartbeat that renewed its lease."""
        now = asyncio.get_running_loop().time()
        self._workers.pop(incarnation, None)
        if request.reply_to:
            self._workers[incarnation] = request.reply_to, now
        while self._workers and (oldest := next(iter(self._workers.items())))[1][1] < now - self._timings.lease_seconds:
            del self._workers[oldest[0]]

    async def send(self, calls: Mapping[str, list[CallKey]], conversations: Sequence[ConversationKey]) -> None:
        """Tell each of these workers its calls, given by incarnation, and every worker these conversations."""
        await asyncio.gather(
            *(
                self._tell(key, Cancellation(calls=calls.get(worker, []), conversations=list(conversations) or None))
                for worker, (key, _) in self._workers.items()
                if conversations or worker in calls
            )
        )

    async def _tell(self, key: str, cancellation: Cancellation) -> None:
        envelope = Envelope(body=cancellation.to_wire(), type=CANCEL.key, correlation_id=CANCEL.key, persistent=False)
        try:
            await self._bus.publish(REPLY, key, envelope, timeout_seconds=self._timings.heartbeat_seconds)
        except BusError as error:
            log.info("A worker gets a cancellation with its next heartbeat: %s", error.message)
