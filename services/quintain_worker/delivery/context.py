"""State shared by all deliveries of one worker.

It holds the admission client, the calls in flight, and what ends them: settles, replies and acknowledgements.
"""

from __future__ import annotations

import logging

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.errors import BusError
from quintain.routes import INVOKE
from quintain.rpc.server import copyable_headers
from quintain.runtime.random_ids import RandomIds
from quintain.runtime.timeouts import Timeouts
from quintain.timings import Timings
from quintain_worker.delivery.admissions import AdmissionClient
from quintain_worker.delivery.completion import Completion
from quintain_worker.delivery.contents import ContentReader
from quintain_worker.delivery.inflight import InflightCalls
from quintain_worker.metrics import WorkerMetrics

log = logging.getLogger(__name__)


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
        contents: ContentReader,
        slots: int,
    ) -> None:
        """Create the shared state of a worker that takes up to ``slots`` deliveries at a time."""
        self.bus, self.admission_client, self.contents, self.clock = bus, admission_client, contents, clock
        self.metrics, self.timings = metrics, timings
        self.inflight = InflightCalls(slots)
        self.attempt_ids, self.provider_timeouts = RandomIds(), Timeouts()
        self.incarnation = incarnation
        self.completion = Completion(bus, incarnation, timings)

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
