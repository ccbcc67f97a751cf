"""State shared by all deliveries of one worker.

It holds the admission client, the calls in flight, and publishers that retry settles and replies until the broker
confirms them.
"""

from __future__ import annotations

import asyncio
import logging

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.contracts.group import GroupItem
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Settle, SettleBatch
from quintain.contracts.message import Message
from quintain.errors import BrokerUnavailable, BusError, Fault, QueueFull, Unroutable
from quintain.routes import INVOKE, REQUEST_ID_HEADER, SETTLE
from quintain.rpc.groups import ReplyGroups
from quintain.rpc.server import copyable_headers, send_reply, truncate_echo
from quintain.runtime.batching import Batcher
from quintain.runtime.random_ids import RandomIds
from quintain.runtime.timeouts import Timeouts
from quintain.timings import Timings
from quintain_worker.delivery.admissions import AdmissionClient
from quintain_worker.delivery.contents import ContentReader
from quintain_worker.delivery.inflight import InflightCalls
from quintain_worker.metrics import WorkerMetrics

log = logging.getLogger(__name__)

#: A settle with a result larger than this is published on its own, not in a batch: a batch of such results could exceed
#: the broker's limit for a message.
MAX_BATCHED_BYTES = 64 * 1024

#: How many replies are published at a time. Each takes several kB until its confirm, and thousands of calls may end at
#: once.
MAX_PUBLISHED_REPLIES = 256


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
        self._incarnation = incarnation
        self._reply_slots = asyncio.Semaphore(MAX_PUBLISHED_REPLIES)
        self._reply_groups = ReplyGroups(bus)
        self._settle_batcher: Batcher[Settle] = Batcher(self._publish_settles, max_concurrent=4)

    async def settle(self, item: Settle, *, size: int = 0) -> None:
        """Report the outcome of an attempt to the ledger; retry until the broker has confirmed it into a quorum queue.

        ``size`` is the length of the result in bytes.
        """
        while True:
            try:
                await (self._settle_batcher.add(item) if size <= MAX_BATCHED_BYTES else self._publish_settles([item]))
            except BusError as error:
                log.warning("A settle could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(self.timings.publish_pause_seconds)
            else:
                return

    async def reply(
        self,
        delivery: Delivery,
        answer: Message | Fault,
        request_id: str,
        *,
        wire: bytes = b"",
        may_share_message: bool = False,
    ) -> None:
        """Send the reply to the caller, and retry while the broker is unavailable.

        Returns when the broker has confirmed the reply, or returned it because the reply queue is gone.
        ``wire`` is the answer as it is sent, where that is known; ``may_share_message``: the caller reads groups of
        replies.
        """
        while True:
            try:
                if may_share_message:
                    await self._reply_in_group(delivery, answer, wire, request_id)
                    return
                async with self._reply_slots:
                    await send_reply(self.bus, delivery, answer, {REQUEST_ID_HEADER: request_id})
            except BrokerUnavailable as error:
                log.warning("A reply could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(self.timings.publish_pause_seconds)
            else:
                return

    async def _reply_in_group(self, delivery: Delivery, answer: Message | Fault, wire: bytes, request_id: str) -> None:
        is_fault = isinstance(answer, Fault)
        message = FaultReply.from_fault(answer) if isinstance(answer, Fault) else answer
        item = GroupItem(
            correlation_id=delivery.correlation_id or "",
            body=wire or message.to_wire(),
            headers={REQUEST_ID_HEADER: truncate_echo(request_id)},
            type="fault" if is_fault else "result",
        )
        try:
            await self._reply_groups.send(delivery.reply_to or "", item)
        except (Unroutable, QueueFull):
            log.info("A reply was dropped: the client's reply queue is gone or full")

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

    async def _publish_settles(self, items: list[Settle]) -> None:
        body = SettleBatch(incarnation=self._incarnation, items=items).to_wire()
        await self.bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=body, type=SETTLE.key))
