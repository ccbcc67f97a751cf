"""What every call of a worker shares: the ledger's door, the calls in hand, and words that go out until they are out.

What became of a call is known here alone, so settles and replies are published again for as long as the broker is
away.
"""

from __future__ import annotations

import asyncio
import logging

from quintain.batching import Batcher
from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.contracts.ledger import Settle, SettleBatch
from quintain.contracts.message import Message
from quintain.errors import BrokerUnavailable, BusError, Fault
from quintain.random_ids import RandomIds
from quintain.routes import INVOKE, REQUEST_ID_HEADER, SETTLE
from quintain.service import carried_headers, reply
from quintain.timings import Timings
from quintain_worker.admissions import Admissions
from quintain_worker.metrics import WorkerMetrics
from quintain_worker.running import Running

log = logging.getLogger(__name__)

#: A settle with a result larger than this is a message of its own: a batch of them would be larger than a broker takes.
ALONE_BYTES = 64 * 1024


class Desk:
    """One worker's desk."""

    def __init__(
        self,
        bus: Bus,
        admissions: Admissions,
        clock: Clock,
        incarnation: str,
        metrics: WorkerMetrics,
        timings: Timings,
    ) -> None:
        self.bus, self.admissions, self.clock = bus, admissions, clock
        self.metrics, self.timings = metrics, timings
        self.running = Running()
        self.attempt_ids = RandomIds()
        self._incarnation = incarnation
        self._settles: Batcher[Settle] = Batcher(self._send, lanes=4)

    async def settle(self, item: Settle, *, size: int = 0) -> None:
        """Record what became of an attempt: returns when the broker has it in a quorum queue, however long that
        takes. ``size`` is the length of its result in bytes."""
        while True:
            try:
                await (self._settles.add(item) if size <= ALONE_BYTES else self._send([item]))
            except BusError as error:
                log.warning("A settle could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(self.timings.publish_pause_seconds)
            else:
                return

    async def tell(self, delivery: Delivery, answer: Message | Fault, request_id: str) -> None:
        """Send the caller its answer: returns when the broker has it, or nobody waits for it, however long that
        takes."""
        while True:
            try:
                await reply(self.bus, delivery, answer, {REQUEST_ID_HEADER: request_id})
            except BrokerUnavailable as error:
                log.warning("A reply could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(self.timings.publish_pause_seconds)
            else:
                return

    async def give_back(self, delivery: Delivery, target: str, *, left_seconds: float) -> None:
        """Put a delivery back into its target's queue: as a copy, because what is returned counts as delivered, and
        a queue lets go of what was delivered too often."""
        copy = Envelope(
            body=delivery.body,
            type=delivery.type,
            correlation_id=delivery.correlation_id,
            reply_to=delivery.reply_to,
            headers=carried_headers(delivery.headers),
            expiration_ms=max(1, int(left_seconds * 1000)),
        )
        try:
            await self.bus.publish(INVOKE.exchange, target, copy)
        except BusError as error:
            log.warning("A call could not be given back as a copy, and is returned: %s", error.message)
            await delivery.requeue()
        else:
            await delivery.ack()

    async def _send(self, items: list[Settle]) -> None:
        body = SettleBatch(incarnation=self._incarnation, items=items).to_wire()
        await self.bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=body, type=SETTLE.key))
