"""``quintain.poison`` for an operator: what is in it, one message whole, and away with some.

A queue lets go of what was delivered and given back too often, so looking gives nothing back: it goes round. Each
message is published again at the end of the queue, and acknowledged when the broker has the copy. Whoever dies in
between leaves the message twice, and the next one who comes by drops the older.

Why nothing is lost, whoever goes round beside us: a copy has a greater number than what it was made from, and a
message is dropped as a double only where a copy with a greater number was confirmed. So the one with the greatest
number is never dropped as a double, and moves only into one with a still greater number.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.client.turn import taking, turn
from quintain.contracts.poison import (
    COPY_HEADER,
    EXCHANGE_HEADER,
    KEPT_HEADER,
    POISON_ID_HEADER,
    REASON_HEADER,
    Poisoned,
)
from quintain.errors import BusError
from quintain.topology import MINUTE_MS, POISON, POISON_QUEUE, POISON_TOPOLOGY

#: How long one round may take, in seconds: it ends before its turn lapses.
ROUND_SECONDS = 50.0

#: The message that ends a round: what stands before it was there when the round began.
END_TYPE = "quintain.poison.end"

#: What RabbitMQ says of a delivery, and not of the message.
_OF_THE_DELIVERY = ("x-delivery-count", "x-acquired-count")

#: The greatest number that a copy may have: beyond, somebody else wrote the header.
_GREATEST = 2**62

#: Whether a message leaves the queue. It is told of the message, and given its body.
Leaves = Callable[[Poisoned, bytes], bool]


class PoisonQueue:
    """The kept messages. Every method raises `BusError`: the broker is out of reach, or somebody else has the turn."""

    def __init__(self, bus: Bus, *, wait_seconds: float = 10.0) -> None:
        self._bus, self._wait_seconds = bus, wait_seconds

    async def list(self) -> list[Poisoned]:
        """All that were kept before now, the oldest first."""
        found: dict[str, Poisoned] = {}

        def look(message: Poisoned, _body: bytes) -> bool:
            found[message.id] = message
            return False

        await self._go_round(look)
        return sorted(found.values(), key=lambda one: one.kept_ms or 0)

    async def find(self, poison_id: str) -> tuple[Poisoned, bytes] | None:
        """One message and its body; None where none has this id. It stays in the queue."""
        found: tuple[Poisoned, bytes] | None = None

        def look(message: Poisoned, body: bytes) -> bool:
            nonlocal found
            if message.id == poison_id:
                found = message, body
            return False

        await self._go_round(look)
        return found

    async def drop(self, ids: Collection[str] | None = None) -> set[str]:
        """Delete the messages with these ids, or all that were kept before now; returns the ids that were there."""
        dropped: set[str] = set()

        def away(message: Poisoned, _body: bytes) -> bool:
            if ids is None or message.id in ids:
                dropped.add(message.id)
                return True
            return False

        await self._go_round(away)
        return dropped

    async def _go_round(self, leaves: Leaves) -> None:
        await self._bus.declare(POISON_TOPOLOGY)
        async with turn(self._bus, wait_seconds=self._wait_seconds):
            going = _Going(self._bus, leaves)
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await going.round()
            except TimeoutError:
                raise BusError(
                    f"quintain.poison could not be gone through in {ROUND_SECONDS:.0f} s ({going.passed} messages "
                    "passed; nothing is lost): `quintain dlq drop --all` empties it, in several goes if need be"
                ) from None


class _Going:
    """Once through the queue, up to where it ended when the round began."""

    def __init__(self, bus: Bus, leaves: Leaves) -> None:
        self._bus, self._leaves = bus, leaves
        self._copies: dict[str, int] = {}
        self.passed = 0

    async def round(self) -> None:
        end = Envelope(body=b"", type=END_TYPE, correlation_id=secrets.token_hex(16), expiration_ms=MINUTE_MS)
        await self._bus.publish(POISON, "", end)
        async with taking(self._bus, POISON_QUEUE) as taken:
            while True:
                delivery = await taken.next()
                if not is_end(delivery):
                    await self._pass(delivery)
                elif delivery.correlation_id == end.correlation_id:
                    await taken.stop()
                    await delivery.ack()
                    return
                else:
                    await delivery.ack()  # of a round that was never finished

    async def _pass(self, delivery: Delivery) -> None:
        """Let one message leave, or publish it again; then it may be forgotten here."""
        message, number = poisoned(delivery), number_of(delivery)
        older = self._copies.get(message.id, 0) > number
        if not older and not self._leaves(message, delivery.body):
            copy = max(number + 1, time.time_ns())
            await self._bus.publish(POISON, delivery.routing_key, copied(delivery, message, copy))
            self._copies[message.id] = copy
        await delivery.ack()
        self.passed += 1


def is_end(delivery: Delivery) -> bool:
    """Whether this ends a round. A kept message never does, whatever its type: it has an id."""
    return delivery.type == END_TYPE and not delivery.body and POISON_ID_HEADER not in delivery.headers


def poisoned(delivery: Delivery) -> Poisoned:
    """What is told of a message; one that was kept without an id gets one."""
    headers = {key: value for key, value in delivery.headers.items() if isinstance(value, str | int | float | bool)}
    kept = headers.get(KEPT_HEADER)
    return Poisoned(
        id=_text(headers.get(POISON_ID_HEADER)) or secrets.token_hex(8),
        kept_ms=kept if isinstance(kept, int) else None,
        reason=_text(headers.get(REASON_HEADER)),
        exchange=_text(headers.get(EXCHANGE_HEADER)),
        routing_key=delivery.routing_key,
        type=delivery.type,
        size_bytes=len(delivery.body),
        headers={key: value for key, value in headers.items() if key not in _OF_THE_DELIVERY},
    )


def number_of(delivery: Delivery) -> int:
    """Which copy it is; 0 for one that never went round."""
    number = delivery.headers.get(COPY_HEADER)
    return number if isinstance(number, int) and 0 <= number < _GREATEST else 0


def copied(delivery: Delivery, message: Poisoned, number: int) -> Envelope:
    """The message as it is published again."""
    headers: dict[str, HeaderValue] = {**message.headers, POISON_ID_HEADER: message.id, COPY_HEADER: number}
    return Envelope(
        body=delivery.body,
        type=delivery.type,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        headers=headers,
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
