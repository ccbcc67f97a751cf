"""State shared by all deliveries of one worker.

It holds the admission client, the calls in flight, and what ends them: settles, replies and acknowledgements.
"""

from __future__ import annotations

import logging

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.errors import BusError
from quintain.routes import INVOKE
from quintain.rpc.groups import ReplyGroups
from quintain.rpc.server import copyable_headers
from quintain.runtime.concurrency import ByteBudget, RandomIds, Timeouts
from quintain.timings import Timings
from quintain_worker.admissions import AdmissionClient
from quintain_worker.completion import Completion
from quintain_worker.inflight import CallGate, InflightCalls
from quintain_worker.metrics import WorkerMetrics
from quintain_worker.streaming import EXPIRATION_SECONDS

log = logging.getLogger(__name__)

#: How many bytes of replies of more than `LARGE_REPLY_BYTES` are settled and sent at a time. Until its message is
#: confirmed, a reply takes several times its size; others are kept as their providers gave them.
LARGE_REPLIES_BYTES = 32 * 1024 * 1024


class WorkerContext:
    """Everything that the delivery handlers of one worker share."""

    def __init__(  # noqa: PLR0913 -- everything that they share
        self,
        bus: Bus,
        admission_client: AdmissionClient,
        clock: Clock,
        incarnation: str,
        metrics: WorkerMetrics,
        timings: Timings,
        *,
        slots: int,
    ) -> None:
        """Create the shared state of a worker that takes up to ``slots`` deliveries at a time."""
        self.bus, self.admission_client, self.clock = bus, admission_client, clock
        self.metrics, self.timings = metrics, timings
        self.inflight, self.call_gate = InflightCalls(slots), CallGate(timings.held_call_seconds)
        self.attempt_ids, self.provider_timeouts = RandomIds(), Timeouts()
        self.incarnation = incarnation
        self.completion = Completion(bus, incarnation, timings)
        self.chunk_groups = ReplyGroups(bus, int(EXPIRATION_SECONDS * 1000))
        self.large_replies = ByteBudget(LARGE_REPLIES_BYTES)

    async def requeue_copy(self, delivery: Delivery, target: str, *, remaining_seconds: float | None = None) -> None:
        """Put a delivery back into its target's queue, as a new message that expires after ``remaining_seconds``, by
        default after as long as the delivery itself.

        A requeue of the delivery itself would count towards the queue's delivery limit. It is used only where the copy
        cannot be published.
        """
        copy = Envelope(
            body=delivery.body,
            type=delivery.type,
            correlation_id=delivery.correlation_id,
            reply_to=delivery.reply_to,
            headers=copyable_headers(delivery.headers),
            expiration_ms=delivery.expiration_ms
            if remaining_seconds is None
            else max(1, int(remaining_seconds * 1000)),
        )
        try:
            await self.bus.publish(INVOKE.exchange, target, copy)
        except BusError as error:
            log.warning("A call could not be published again, and is requeued: %s", error.message)
            await delivery.requeue()
        else:
            await delivery.ack()
