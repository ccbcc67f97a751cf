"""Lists, reads and deletes the messages of ``quintain.poison``.

Requeueing would count against the queue's delivery limit. Instead, each message is republished to the end of the queue
and acknowledged once the broker has confirmed the copy. A crash in between leaves a duplicate, which the next pass
drops. A copy has a higher number than its original, and a message is dropped as a duplicate only if a copy with a
higher number was confirmed, so concurrent passes cannot lose a message.
"""

from __future__ import annotations

import asyncio
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
from quintain.dlq.lock import exclusive_lock, read_queue
from quintain.errors import BusError
from quintain.topology import MINUTE_MS, POISON, POISON_QUEUE, POISON_TOPOLOGY

#: How long one round may take, in seconds: it ends before its turn lapses.
PASS_TIMEOUT_SECONDS = 50.0

#: The message that ends a round: what stands before it was there when the round began.
END_MARKER_TYPE = "quintain.poison.end"

#: What RabbitMQ says of a delivery, and not of the message.
_DELIVERY_HEADERS = ("x-delivery-count", "x-acquired-count")

#: The greatest number that a copy may have: beyond, somebody else wrote the header.
_MAX_COPY_NUMBER = 2**62

#: Whether a message leaves the queue. It is told of the message, and given its body.
RemovePredicate = Callable[[PoisonMessage, bytes], bool]


class PoisonQueue:
    """The kept messages. Every method raises `BusError`: the broker is out of reach, or somebody else has the turn."""

    def __init__(self, bus: Bus, *, wait_seconds: float = 10.0) -> None:
        self._bus, self._wait_seconds = bus, wait_seconds

    async def list(self) -> list[PoisonMessage]:
        """All that were kept before now, the oldest first."""
        found: dict[str, PoisonMessage] = {}

        def collect(message: PoisonMessage, _body: bytes) -> bool:
            found[message.id] = message
            return False

        await self._rotate(collect)
        return sorted(found.values(), key=lambda one: one.kept_ms or 0)

    async def find(self, poison_id: str) -> tuple[PoisonMessage, bytes] | None:
        """One message and its body; None where none has this id. It stays in the queue."""
        found: tuple[PoisonMessage, bytes] | None = None

        def match(message: PoisonMessage, body: bytes) -> bool:
            nonlocal found
            if message.id == poison_id:
                found = message, body
            return False

        await self._rotate(match)
        return found

    async def drop(self, ids: Collection[str] | None = None) -> set[str]:
        """Delete the messages with these ids, or all that were kept before now; returns the ids that were there."""
        dropped: set[str] = set()

        def remove(message: PoisonMessage, _body: bytes) -> bool:
            if ids is None or message.id in ids:
                dropped.add(message.id)
                return True
            return False

        await self._rotate(remove)
        return dropped

    async def _rotate(self, should_remove: RemovePredicate) -> None:
        await self._bus.declare(POISON_TOPOLOGY)
        async with exclusive_lock(self._bus, wait_seconds=self._wait_seconds):
            rotation = _Rotation(self._bus, should_remove)
            try:
                async with asyncio.timeout(PASS_TIMEOUT_SECONDS):
                    await rotation.run()
            except TimeoutError:
                raise BusError(
                    f"quintain.poison could not be gone through in {PASS_TIMEOUT_SECONDS:.0f} s "
                    f"({rotation.message_count} messages "
                    "passed; nothing is lost): `quintain dlq drop --all` empties it, in several goes if need be"
                ) from None


class _Rotation:
    """Once through the queue, up to where it ended when the round began."""

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
                    await delivery.ack()  # of a round that was never finished

    async def _process(self, delivery: Delivery) -> None:
        """Let one message leave, or publish it again; then it may be forgotten here."""
        message, number = to_poison_message(delivery), read_copy_number(delivery)
        is_duplicate = self._copy_numbers.get(message.id, 0) > number
        if not is_duplicate and not self._should_remove(message, delivery.body):
            copy_number = max(number + 1, time.time_ns())
            await self._bus.publish(POISON, delivery.routing_key, to_copy(delivery, message, copy_number))
            self._copy_numbers[message.id] = copy_number
        await delivery.ack()
        self.message_count += 1


def is_end_marker(delivery: Delivery) -> bool:
    """Whether this ends a round. A kept message never does, whatever its type: it has an id."""
    return delivery.type == END_MARKER_TYPE and not delivery.body and POISON_ID_HEADER not in delivery.headers


def to_poison_message(delivery: Delivery) -> PoisonMessage:
    """What is told of a message; one that was kept without an id gets one."""
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
        headers={key: value for key, value in headers.items() if key not in _DELIVERY_HEADERS},
    )


def read_copy_number(delivery: Delivery) -> int:
    """Which copy it is; 0 for one that never went round."""
    number = delivery.headers.get(COPY_NUMBER_HEADER)
    return number if isinstance(number, int) and 0 <= number < _MAX_COPY_NUMBER else 0


def to_copy(delivery: Delivery, message: PoisonMessage, copy_number: int) -> Envelope:
    """The message as it is published again."""
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
