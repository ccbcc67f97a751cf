"""Lists, reads and deletes the messages of ``quintain.poison``.

Messages are read without an acknowledgement, and return to the queue in their order when the channel is closed. That
counts against the queue's delivery limit. When a message was returned too often, each message is republished to the end
of the queue and acknowledged once the broker has confirmed the copy; so are messages without an id, which get one. A
crash in between leaves a duplicate, which the next such pass drops. A copy has a higher number than its original, and a
message is dropped as a duplicate only if a copy with a higher number was confirmed, so concurrent passes cannot lose a
message.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Collection

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.dlq import (
    COPY_NUMBER_HEADER,
    DEAD_LETTERED_AT_HEADER,
    EXCHANGE_HEADER,
    POISON_ID_HEADER,
    REASON_HEADER,
    PoisonMessage,
)
from quintain.dlq.lock import QueueReader, exclusive_lock, read_queue
from quintain.errors import BusError
from quintain.routes import DELIVERY_COUNT_HEADERS
from quintain.topology import MINUTE_MS, POISON, POISON_QUEUE, POISON_TOPOLOGY

#: Time limit of one pass, in seconds: shorter than the lock's expiry.
PASS_TIMEOUT_SECONDS = 50.0

#: The type of the message that marks the end of a pass: all messages before it were there when the pass began.
END_MARKER_TYPE = "quintain.poison.end"

#: Highest valid copy number; a higher one was not written by this module.
_MAX_COPY_NUMBER = 2**62

#: How often a message is returned before it is published again; RabbitMQ 4 drops it the 21st time.
MAX_RETURNS = 10

#: The most messages that one AMQP consumer gets without an acknowledgement.
_MAX_PREFETCH = 65_535

#: How long to wait for the next message before the queue is counted again, in seconds.
_IDLE_SECONDS = 1.0

#: How long to wait until all messages have returned to the queue, in seconds, and how often they are counted.
_RETURN_SECONDS = 10.0
_RETURN_POLL_SECONDS = 0.02

#: Called with each message and its body; True removes the message from the queue.
RemovePredicate = Callable[[PoisonMessage, bytes], bool]


class PoisonQueue:
    """The messages of ``quintain.poison``.

    Every method raises `BusError` if the broker is unreachable or another process holds the lock for ``wait_seconds``.
    """

    def __init__(self, bus: Bus, *, wait_seconds: float = 10.0) -> None:
        self._bus, self._wait_seconds = bus, wait_seconds

    async def list(self, limit: int | None = None) -> list[PoisonMessage]:
        """Return all messages that were in the queue at the start, oldest first; at most the first ``limit``."""
        found: dict[str, PoisonMessage] = {}

        def collect(message: PoisonMessage, _body: bytes) -> bool:
            found[message.id] = message
            return False

        await self._pass(collect, limit=limit, on_repeat=found.clear)
        return sorted(found.values(), key=lambda message: message.kept_ms or 0)[:limit]

    async def find(self, poison_id: str) -> tuple[PoisonMessage, bytes] | None:
        """Return one message and its body, None if no message has this id. The message stays in the queue."""
        found: tuple[PoisonMessage, bytes] | None = None

        def match(message: PoisonMessage, body: bytes) -> bool:
            nonlocal found
            if message.id == poison_id:
                found = message, body
            return False

        await self._pass(match)
        return found

    async def drop(self, ids: Collection[str] | None = None) -> set[str]:
        """Delete the messages with these ids, or all that were there at the start; returns the deleted ids."""
        dropped: set[str] = set()

        def remove(message: PoisonMessage, _body: bytes) -> bool:
            if ids is None or message.id in ids:
                dropped.add(message.id)
                return True
            return False

        await self._pass(remove)
        return dropped

    async def _pass(
        self, should_remove: RemovePredicate, *, limit: int | None = None, on_repeat: Callable[[], None] = lambda: None
    ) -> None:
        """Show the messages to ``should_remove``; a second time, after ``on_repeat``, if they are published again."""
        await self._bus.declare(POISON_TOPOLOGY)
        async with exclusive_lock(self._bus, wait_seconds=self._wait_seconds):
            peek, rotation = _Peek(self._bus, should_remove, limit), _Rotation(self._bus, should_remove)
            try:
                async with asyncio.timeout(PASS_TIMEOUT_SECONDS):
                    await peek.run()
                    if peek.needs_rotation:
                        on_repeat()
                        await rotation.run()
            except TimeoutError:
                raise BusError(
                    f"quintain.poison could not be read completely in {PASS_TIMEOUT_SECONDS:.0f} s "
                    f"({peek.message_count + rotation.message_count} messages read; nothing is lost): "
                    "`quintain dlq drop --all` empties it, in several runs if necessary"
                ) from None


class _Peek:
    """Reads the messages that are in the queue at the start, and gives back those that are not removed.

    ``needs_rotation`` says afterwards whether they must be published again.
    """

    def __init__(self, bus: Bus, should_remove: RemovePredicate, limit: int | None) -> None:
        self._bus, self._should_remove, self._limit = bus, should_remove, limit
        self.message_count = 0
        self.needs_rotation = False

    async def run(self) -> None:
        waiting = await self._count_waiting()
        if waiting is None:
            self.needs_rotation = True  # this transport cannot tell where the end is
        elif waiting:
            count = min(waiting, self._limit or _MAX_PREFETCH, _MAX_PREFETCH)
            async with read_queue(self._bus, POISON_QUEUE, prefetch=count) as reader:
                held = await self._read(reader, count)
            await self._wait_for_return(held)

    async def _read(self, reader: QueueReader, count: int) -> int:
        """Read so many messages; returns how many of them were not removed."""
        ids: set[str] = set()
        held = 0
        while self.message_count < count:
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    delivery = await reader.next()
            except TimeoutError:
                if await self._count_waiting():
                    continue
                break  # some were dropped meanwhile, because the queue was full
            self.message_count += 1
            message = to_poison_message(delivery)
            self.needs_rotation |= is_worn(delivery) or POISON_ID_HEADER not in delivery.headers or message.id in ids
            ids.add(message.id)
            if not is_end_marker(delivery) and self._should_remove(message, delivery.body):
                await delivery.ack()
            else:
                held += 1
        return held

    async def _wait_for_return(self, held: int) -> None:
        """Wait until the queue has the messages again, for the next one who counts them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETURN_SECONDS):
                while (await self._count_waiting() or 0) < held:  # noqa: ASYNC110 -- the broker tells nobody
                    await asyncio.sleep(_RETURN_POLL_SECONDS)

    async def _count_waiting(self) -> int | None:
        return (await self._bus.count_messages([POISON_QUEUE])).get(POISON_QUEUE.name)


class _Rotation:
    """One pass through the queue, up to its end at the start of the pass."""

    def __init__(self, bus: Bus, should_remove: RemovePredicate) -> None:
        self._bus, self._should_remove = bus, should_remove
        self._copy_numbers: dict[str, int] = {}
        self.message_count = 0

    async def run(self) -> None:
        end_marker = Envelope(
            body=b"", type=END_MARKER_TYPE, correlation_id=secrets.token_hex(16), expiration_ms=MINUTE_MS
        )
        await self._bus.publish(POISON, "", end_marker)
        async with read_queue(self._bus, POISON_QUEUE) as reader:
            while True:
                delivery = await reader.next()
                if not is_end_marker(delivery):
                    await self._process(delivery)
                elif delivery.correlation_id == end_marker.correlation_id:
                    await reader.cancel()
                    await delivery.ack()
                    return
                else:
                    await delivery.ack()  # of a pass that was not finished

    async def _process(self, delivery: Delivery) -> None:
        """Remove one message, or publish a copy to the end of the queue; then acknowledge it."""
        message, number = to_poison_message(delivery), read_copy_number(delivery)
        is_duplicate = self._copy_numbers.get(message.id, 0) > number
        if not is_duplicate and not self._should_remove(message, delivery.body):
            copy_number = max(number + 1, time.time_ns())
            await self._bus.publish(POISON, delivery.routing_key, to_copy(delivery, message, copy_number))
            self._copy_numbers[message.id] = copy_number
        await delivery.ack()
        self.message_count += 1


def is_end_marker(delivery: Delivery) -> bool:
    """Return whether a message marks the end of a pass. Poison messages have an id, so they never do."""
    return delivery.type == END_MARKER_TYPE and not delivery.body and POISON_ID_HEADER not in delivery.headers


def is_worn(delivery: Delivery) -> bool:
    """Return whether a message was returned so often that it must be published again."""
    counts = (delivery.headers.get(name) for name in DELIVERY_COUNT_HEADERS)
    return any(isinstance(count, int) and count >= MAX_RETURNS for count in counts)


def to_poison_message(delivery: Delivery) -> PoisonMessage:
    """Return the description of a message; one without an id gets a new one."""
    headers = {key: value for key, value in delivery.headers.items() if isinstance(value, str | int | float | bool)}
    kept_ms = headers.get(DEAD_LETTERED_AT_HEADER)
    return PoisonMessage(
        id=_text(headers.get(POISON_ID_HEADER)) or secrets.token_hex(8),
        kept_ms=kept_ms if isinstance(kept_ms, int) else None,
        reason=_text(headers.get(REASON_HEADER)),
        exchange=_text(headers.get(EXCHANGE_HEADER)),
        routing_key=delivery.routing_key,
        type=delivery.type,
        size_bytes=len(delivery.body),
        headers={key: value for key, value in headers.items() if key not in DELIVERY_COUNT_HEADERS},
    )


def read_copy_number(delivery: Delivery) -> int:
    """Return the number of a copy; 0 for a message that was never copied."""
    number = delivery.headers.get(COPY_NUMBER_HEADER)
    return number if isinstance(number, int) and 0 <= number < _MAX_COPY_NUMBER else 0


def to_copy(delivery: Delivery, message: PoisonMessage, copy_number: int) -> Envelope:
    """Return the copy of a message that is published to the end of the queue."""
    headers: dict[str, HeaderValue] = {**message.headers, POISON_ID_HEADER: message.id, COPY_NUMBER_HEADER: copy_number}
    return Envelope(
        body=delivery.body,
        type=delivery.type,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        headers=headers,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
