"""The message of a call that runs, and the copies of it that take its place.

RabbitMQ closes the channel of a message that is unacknowledged for longer than its ``consumer_timeout``, and the ledger
holds no bodies. So a worker publishes a copy to the target's queue before half of that time has passed, and then
acknowledges the message: one queued or unacknowledged message holds the body at every moment. A copy that comes back
to the worker that runs the call takes the message's place there. Another worker holds it as long as the call runs, and
takes the call over where its worker dies. A call that waits is not copied but put back into its queue: nothing is lost
but its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from quintain.bus.base import Delivery, Envelope
from quintain.contracts.headers import COPY_HEADER
from quintain.errors import BusError
from quintain.rpc.server import copyable_headers

log = logging.getLogger(__name__)

#: For which part of the broker's consumer timeout a message is held. A publish may take 30 s to be confirmed.
HELD_PART = 0.45

#: After which part of that time a copy that could not be published is tried again.
RETRY_PART = 0.05

#: How many attempts are remembered that ended while a copy of their message was elsewhere.
MAX_ENDED_ATTEMPTS = 10_000


def copy_of(delivery: Delivery, remaining_seconds: float | None, attempt_id: str | None = None) -> Envelope:
    """Return a delivery as a new message that expires after ``remaining_seconds``, or as late as the delivery.

    ``attempt_id`` is the attempt that runs the call: it marks the message as a copy, and nobody else knows it.
    """
    mark = {} if attempt_id is None else {COPY_HEADER: attempt_id}
    return Envelope(
        body=delivery.body,
        type=delivery.type,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        headers={**copyable_headers(delivery.headers), **mark},
        expiration_ms=delivery.expiration_ms if remaining_seconds is None else max(1, int(remaining_seconds * 1000)),
    )


def copied_attempt(delivery: Delivery) -> str | None:
    """Return the attempt whose call's message this is a copy of; None where it is no copy."""
    attempt_id = delivery.headers.get(COPY_HEADER)
    return attempt_id if isinstance(attempt_id, str) else None


class CallMessage:
    """The message of a call that runs here, as a `Delivery`: the delivered one, a copy of it, or none.

    It is none while its copy is queued or held by another worker; to settle it has no effect then. ``held_seconds`` is
    how long one is held; then ``publish_copy`` is called.
    """

    def __init__(self, delivery: Delivery, held_seconds: float) -> None:
        self.body, self.type, self.headers = delivery.body, delivery.type, delivery.headers
        self.correlation_id, self.reply_to = delivery.correlation_id, delivery.reply_to
        self.expiration_ms, self.redelivered = delivery.expiration_ms, delivery.redelivered
        self.exchange, self.routing_key = delivery.exchange, delivery.routing_key
        self._original, self._held_seconds = delivery, held_seconds
        self._held: Delivery | None = delivery
        #: Done when the message that took the place of the delivery is held no longer.
        self._released: asyncio.Future[None] | None = None
        self._publish_copy: Callable[[Delivery], Awaitable[None]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._copying: asyncio.Task[None] | None = None
        self._is_settled = False
        #: Whether a copy was published, or may have been.
        self.was_copied = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether a copy of it is queued, or another worker holds it."""
        return self._held is None and not self._is_settled

    @property
    def is_original(self) -> bool:
        """Whether it is still the delivery that came first."""
        return self._held is self._original

    def start_copying(self, until: float, publish_copy: Callable[[Delivery], Awaitable[None]]) -> None:
        """Publish a copy at this time of the loop, and again each time it was held for long; until `stop_copying`."""
        self._publish_copy = publish_copy
        self._set_timer(until - asyncio.get_running_loop().time())

    def stop_copying(self) -> None:
        """Publish no further copy."""
        self._publish_copy = None
        if self._timer is not None:
            self._timer.cancel()

    async def hold(self, delivery: Delivery) -> None:
        """Hold this message in the place of the one before; returns when it is not held any more."""
        if self._is_settled:
            await delivery.ack()
            return
        before, released_before = self._held, self._released
        self._held, released = delivery, asyncio.get_running_loop().create_future()
        self._released = released
        self._set_timer(self._held_seconds)
        if before is not None:
            await before.ack()
        if released_before is not None and not released_before.done():
            released_before.set_result(None)
        await released

    async def ack(self) -> None:
        """Implements `Delivery.ack`."""
        if (held := self._settle()) is not None:
            await held.ack()
        self._release()

    async def requeue(self) -> None:
        """Implements `Delivery.requeue`."""
        if (held := self._settle()) is not None:
            await held.requeue()
        self._release()

    async def dead_letter(self) -> None:
        """Implements `Delivery.dead_letter`."""
        if (held := self._settle()) is not None:
            await held.dead_letter()
        self._release()

    def _settle(self) -> Delivery | None:
        self.stop_copying()
        held, self._held, self._is_settled = self._held, None, True
        return held

    def _release(self) -> None:
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

    def _set_timer(self, seconds: float) -> None:
        if self._publish_copy is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._start_copy)

    def _start_copy(self) -> None:
        held, publish = self._held, self._publish_copy
        if held is not None and publish is not None:
            self._copying = asyncio.get_running_loop().create_task(self._copy(held, publish), name="copy a message")

    async def _copy(self, held: Delivery, publish: Callable[[Delivery], Awaitable[None]]) -> None:
        self.was_copied = True
        try:
            await publish(held)
        except BusError as error:
            log.warning("A copy of a long call could not be published and will be repeated: %s", error.message)
            self._set_timer(self._held_seconds * RETRY_PART)
            return
        # It may have been settled meanwhile, or its copy may have come back already.
        if self._held is held:
            self._held = None
            await held.ack()
            self._release()


class EndedAttempts:
    """The last attempts whose calls were answered while a copy of their message was elsewhere: it needs no answer."""

    def __init__(self) -> None:
        self._attempt_ids: dict[str, None] = {}

    def add(self, attempt_id: str) -> None:
        """Remember an attempt; the oldest is forgotten."""
        self._attempt_ids[attempt_id] = None
        if len(self._attempt_ids) > MAX_ENDED_ATTEMPTS:
            del self._attempt_ids[next(iter(self._attempt_ids))]

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._attempt_ids
