"""Lists, reads and deletes the messages of ``quintain.poison``.

They are read without an acknowledgement, and return to the queue in their order when the consumer ends. Before
RabbitMQ 4.3 each return counts against the queue's delivery limit, which is higher than any number of commands. One
command reads at a time, as each would see only what the others do not hold. Consumers are counted for that, because
quorum queues of RabbitMQ 3.10 do not refuse a second exclusive consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
from collections.abc import Callable, Collection

from quintain.bus.base import Bus, Consumer, Delivery, QueueCount
from quintain.contracts.headers import DELIVERY_COUNT_HEADERS
from quintain.contracts.message import Message
from quintain.errors import BusError
from quintain.topology import POISON_QUEUE, POISON_TOPOLOGY

#: Prefix of all headers of this module; headers with this prefix in the original message are not copied.
POISON_HEADER_PREFIX = "x-quintain-poison-"

#: The id of the poison message, assigned when it is put into the queue.
POISON_ID_HEADER = "x-quintain-poison-id"
#: When it was put into the queue, in milliseconds since the epoch.
DEAD_LETTERED_AT_HEADER = "x-quintain-poison-kept"
#: The exchange the original message was published to; the routing key stays the same.
EXCHANGE_HEADER = "x-quintain-poison-exchange"
#: Why the message could not be processed.
REASON_HEADER = "x-quintain-reason"


class PoisonMessage(Message):
    """The description of one poison message; session tokens in its headers are masked."""

    id: str
    kept_ms: int | None = None
    reason: str | None = None
    exchange: str | None = None
    routing_key: str
    type: str
    size_bytes: int
    headers: dict[str, str | int | float | bool]


class PoisonMessageList(Message):
    """The messages of the poison queue, oldest first."""

    messages: list[PoisonMessage]


#: The most messages that one AMQP consumer gets without an acknowledgement.
MAX_PREFETCH = 65_535

#: Time limit of one command, in seconds.
READ_SECONDS = 50.0

#: How long to wait for the next message before the queue is counted again, in seconds.
IDLE_SECONDS = 1.0

#: How long to wait for more messages than were counted, in seconds: a command that has just ended returns some.
MORE_SECONDS = 0.2

#: How long to wait until all messages have returned to the queue, in seconds.
RETURN_SECONDS = 10.0

#: Interval of the attempts to consume, in seconds, and of the counts while messages return.
CONSUME_POLL_SECONDS, COUNT_POLL_SECONDS = 0.1, 0.02

#: Called with each message and its body; True removes the message from the queue.
RemovePredicate = Callable[[PoisonMessage, bytes], bool]


class PoisonQueue:
    """The messages of ``quintain.poison``.

    Every method raises `BusError` if the broker is unreachable, the connection is lost meanwhile, or another consumer
    reads the queue for ``wait_seconds``. No message is lost then.
    """

    def __init__(self, bus: Bus, *, wait_seconds: float = 10.0) -> None:
        self._bus, self._wait_seconds = bus, wait_seconds

    async def list(self, limit: int | None = None) -> list[PoisonMessage]:
        """Return all messages that were in the queue at the start, oldest first; at most the first ``limit``."""
        found: list[PoisonMessage] = []

        def collect(message: PoisonMessage, _body: bytes) -> bool:
            found.append(message)
            return False

        await self._read(collect, limit)
        return sorted(found, key=lambda message: message.kept_ms or 0)

    async def find(self, poison_id: str) -> tuple[PoisonMessage, bytes] | None:
        """Return one message and its body, None if no message has this id. The message stays in the queue."""
        found: tuple[PoisonMessage, bytes] | None = None

        def match(message: PoisonMessage, body: bytes) -> bool:
            nonlocal found
            if message.id == poison_id:
                found = message, body
            return False

        await self._read(match)
        return found

    async def drop(self, ids: Collection[str] | None = None) -> set[str]:
        """Delete the messages with these ids, or all that were there at the start; returns the deleted ids."""
        dropped: set[str] = set()

        def remove(message: PoisonMessage, _body: bytes) -> bool:
            if ids is None or message.id in ids:
                dropped.add(message.id)
                return True
            return False

        await self._read(remove)
        return dropped

    async def _read(self, should_remove: RemovePredicate, limit: int | None = None) -> None:
        """Show each message to ``should_remove``, and give back those that are not removed."""
        await self._bus.declare(POISON_TOPOLOGY)
        deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        waiting, consumer = await self._consume(deliveries, min(limit or MAX_PREFETCH, MAX_PREFETCH))
        reconnects, read, held = self._bus.reconnects, 0, 0
        loop, ends_at = asyncio.get_running_loop(), math.inf
        try:
            async with asyncio.timeout(READ_SECONDS):
                while read < (limit or math.inf) and loop.time() < ends_at:
                    if read >= waiting:
                        ends_at = min(ends_at, loop.time() + MORE_SECONDS)
                    delivery = await _next(deliveries, min(IDLE_SECONDS, ends_at - loop.time()))
                    if delivery is None:
                        if read < waiting and (await self._count()).messages:
                            continue
                        break  # some expired or were dropped, because the queue was full
                    read += 1
                    if should_remove(to_poison_message(delivery), delivery.body):
                        await delivery.ack()
                    else:
                        held += 1
        except TimeoutError:
            raise BusError(
                f"quintain.poison could not be read completely in {READ_SECONDS:.0f} s ({read} messages read; nothing "
                "is lost): `quintain dlq drop --all` empties it, in several runs if necessary"
            ) from None
        finally:
            await consumer.drain(0)
        if self._bus.reconnects != reconnects:
            raise BusError("The connection was lost while quintain.poison was read (nothing is lost): try again")
        await self._wait_for_return(held)

    async def _consume(self, deliveries: asyncio.Queue[Delivery], prefetch: int) -> tuple[int, Consumer]:
        """Consume the queue as its only consumer; returns how many messages waited, and the consumer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_seconds
        while True:
            before = await self._count()
            if not before.consumers:
                consumer = await self._bus.consume(POISON_QUEUE, deliveries.put, prefetch=prefetch)
                if (await self._count()).consumers == 1:
                    return before.messages, consumer
                # Two began at once: both stop, and not both begin again at the same time.
                await consumer.drain(0)
                while not deliveries.empty():
                    deliveries.get_nowait()
            if loop.time() >= deadline:
                raise BusError(
                    f"Another command or program has been reading quintain.poison for {self._wait_seconds:.0f} s: "
                    "try again when it has ended"
                )
            await asyncio.sleep(CONSUME_POLL_SECONDS * (1 + secrets.randbelow(100) / 100))

    async def _wait_for_return(self, held: int) -> None:
        """Wait until the queue has the messages again, for the next one who counts them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_SECONDS):
                while (await self._count()).messages < held:  # noqa: ASYNC110 -- the broker tells nobody
                    await asyncio.sleep(COUNT_POLL_SECONDS)

    async def _count(self) -> QueueCount:
        count = (await self._bus.count([POISON_QUEUE])).get(POISON_QUEUE.name)
        if count is None:
            raise BusError("quintain.poison cannot be counted: it was deleted, or this transport counts no messages")
        return count


async def _next(deliveries: asyncio.Queue[Delivery], timeout_seconds: float) -> Delivery | None:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await deliveries.get()
    except TimeoutError:
        return None


def to_poison_message(delivery: Delivery) -> PoisonMessage:
    """Return the description of a message; the id of one that has none is made of its body."""
    headers = {key: value for key, value in delivery.headers.items() if isinstance(value, str | int | float | bool)}
    kept_ms = headers.get(DEAD_LETTERED_AT_HEADER)
    return PoisonMessage(
        id=_text(headers.get(POISON_ID_HEADER)) or hashlib.sha256(delivery.body).hexdigest()[:16],
        kept_ms=kept_ms if isinstance(kept_ms, int) else None,
        reason=_text(headers.get(REASON_HEADER)),
        exchange=_text(headers.get(EXCHANGE_HEADER)),
        routing_key=delivery.routing_key,
        type=delivery.type,
        size_bytes=len(delivery.body),
        headers={key: value for key, value in headers.items() if key not in DELIVERY_COUNT_HEADERS},
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
