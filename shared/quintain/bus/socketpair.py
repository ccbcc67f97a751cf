"""A bus for a child process, over a socket pair to a bus (usually a `MemoryBus`) in its parent process.

A frame is two lengths (header and body, 4 bytes each, big-endian), the header as JSON, and the body. The header has
``kind`` and the fields below; a reply repeats the ``number`` of its request. The connection is not restored: when
either process ends, so does the bus. Both ends always run the same release.

    kind       fields                               reply
    declare    number, topology, kept               done or refused
    publish    number, exchange, key, envelope      done or refused     body: the message's body
    consume    number, consumer, queue, prefetch    done or refused
    cancel     number, consumer                     done or refused
    release    number, consumer                     done or refused     unsettled deliveries are redelivered
    delete     number, queue                        done or refused
    settle     consumer, tag, how                   none
    deliver    consumer, tag, message               none                body: the message's body; from the broker
    lost       consumer                             none                from the broker
    done       number
    refused    number, error, message
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self

from pydantic import TypeAdapter

from quintain.bus.base import (
    DELETE_TIMEOUT_SECONDS,
    PUBLISH_TIMEOUT_SECONDS,
    Bus,
    Consumer,
    Delivery,
    Envelope,
    Handler,
    OnQueueLost,
    Subscription,
)
from quintain.bus.handler_tasks import HandlerTasks
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError, QueueFull, Unroutable
from quintain.topology import Exchange, Queue, Topology

_FRAME_PREFIX = struct.Struct(">II")

_ERROR_TYPES = {error.__name__: error for error in (BrokerRefused, BrokerUnavailable, QueueFull, Unroutable)}


class FrameKind(StrEnum):
    """The kind of a frame, as listed in the module's docstring."""

    DECLARE = "declare"
    PUBLISH = "publish"
    CONSUME = "consume"
    CANCEL = "cancel"
    RELEASE = "release"
    DELETE = "delete"
    SETTLE = "settle"
    DELIVER = "deliver"
    LOST = "lost"
    DONE = "done"
    REFUSED = "refused"


class Settlement(StrEnum):
    """How a delivery is settled."""

    ACK = "ack"
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; the values of ``fields`` must be serializable as JSON."""

    kind: FrameKind
    fields: Mapping[str, Any]
    body: bytes = b""

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        header = json.dumps({"kind": self.kind, **self.fields}).encode()
        return b"".join((_FRAME_PREFIX.pack(len(header), len(self.body)), header, self.body))


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read the next frame; None if the connection was closed, even in the middle of a frame."""
    try:
        header_length, body_length = _FRAME_PREFIX.unpack(await reader.readexactly(_FRAME_PREFIX.size))
        fields = json.loads(await reader.readexactly(header_length))
        body = await reader.readexactly(body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Frame(FrameKind(fields.pop("kind")), fields, body)


def envelope_fields(envelope: Envelope) -> dict[str, object]:
    """Return an envelope's fields except its body, by name."""
    return {
        "type": envelope.type,
        "correlation_id": envelope.correlation_id,
        "reply_to": envelope.reply_to,
        "headers": dict(envelope.headers),
        "expiration_ms": envelope.expiration_ms,
        "persistent": envelope.persistent,
        "content_type": envelope.content_type,
    }


def delivery_fields(delivery: Delivery) -> dict[str, object]:
    """Return a delivery's properties except its body, by name."""
    return {
        "type": delivery.type,
        "correlation_id": delivery.correlation_id,
        "reply_to": delivery.reply_to,
        "headers": dict(delivery.headers),
        "expiration_ms": delivery.expiration_ms,
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": delivery.redelivered,
    }


def error_frame(number: int, error: BusError) -> Frame:
    """Return the reply to a request that failed."""
    return Frame(FrameKind.REFUSED, {"number": number, "error": type(error).__name__, "message": error.message})


def error_from_fields(fields: Mapping[str, Any]) -> BusError:
    """Return the `BusError` described by a ``refused`` frame."""
    return _ERROR_TYPES.get(fields["error"], BusError)(fields["message"])


class FrameChannel(Protocol):
    """The bus side of the socket, as far as a consumer uses it."""

    @property
    def connected(self) -> bool:
        """Whether the other process is still connected."""

    def send(self, frame: Frame) -> None:
        """Send a frame that has no reply; it is dropped if the other process has disconnected."""

    async def request(self, kind: FrameKind, fields: Mapping[str, object]) -> None:
        """Send a request and wait for its reply. Raises `BusError`."""


@dataclass(slots=True, eq=False)
class SocketpairDelivery:
    """A `Delivery` over the socket pair."""

    body: bytes
    type: str
    correlation_id: str | None
    reply_to: str | None
    headers: Mapping[str, object]
    expiration_ms: int | None
    exchange: str
    routing_key: str
    redelivered: bool
    _settle: Callable[[Settlement], None]

    async def ack(self) -> None:
        """Implements `Delivery.ack`."""
        self._settle(Settlement.ACK)

    async def requeue(self) -> None:
        """Implements `Delivery.requeue`."""
        self._settle(Settlement.REQUEUE)

    async def dead_letter(self) -> None:
        """Implements `Delivery.dead_letter`."""
        self._settle(Settlement.DEAD_LETTER)


@dataclass(slots=True, eq=False)
class SocketpairConsumer:
    """A `Consumer` over the socket pair, identified there by its number."""

    _channel: FrameChannel
    _consumer_number: int
    _subscription: Subscription
    _on_released: Callable[[int], None]
    _tasks: HandlerTasks = field(default_factory=HandlerTasks)
    _cancelled: bool = False

    @property
    def active(self) -> bool:
        """Whether the consumer is connected and not cancelled."""
        return self._channel.connected and not self._cancelled

    async def attach(self) -> None:
        """Start consuming. Raises `BusError`."""
        queue = dataclasses.asdict(self._subscription.queue)
        fields = {"consumer": self._consumer_number, "queue": queue, "prefetch": self._subscription.prefetch}
        await self._channel.request(FrameKind.CONSUME, fields)

    def deliver(self, tag: int, message: Mapping[str, Any], body: bytes) -> None:
        """Start the handler on a message."""

        def settle(settlement: Settlement) -> None:
            self._channel.send(
                Frame(FrameKind.SETTLE, {"consumer": self._consumer_number, "tag": tag, "how": settlement})
            )

        self._tasks.start(self._subscription.handler, SocketpairDelivery(**message, body=body, _settle=settle))

    def report_lost_queue(self) -> None:
        """Call ``on_queue_lost``."""
        if self._subscription.on_queue_lost is not None and not self._cancelled:
            self._subscription.on_queue_lost()

    async def cancel(self) -> None:
        """Implements `Consumer.cancel`."""
        self._cancelled = True
        await self._request(FrameKind.CANCEL)

    async def drain(self, timeout_seconds: float) -> bool:
        """Implements `Consumer.drain`."""
        await self.cancel()
        finished = await self._tasks.finish(timeout_seconds)
        self._on_released(self._consumer_number)
        await self._request(FrameKind.RELEASE)
        return finished

    async def _request(self, kind: FrameKind) -> None:
        # If the other process has disconnected, everything is released already.
        with contextlib.suppress(BrokerUnavailable):
            await self._channel.request(kind, {"consumer": self._consumer_number})


log = logging.getLogger(__name__)

_TOPOLOGY: TypeAdapter[Topology] = TypeAdapter(Topology)
_EXCHANGE: TypeAdapter[Exchange] = TypeAdapter(Exchange)
_QUEUE: TypeAdapter[Queue] = TypeAdapter(Queue)

_SETTLEMENTS: dict[Settlement, Callable[[Delivery], Awaitable[None]]] = {
    Settlement.ACK: lambda delivery: delivery.ack(),
    Settlement.REQUEUE: lambda delivery: delivery.requeue(),
    Settlement.DEAD_LETTER: lambda delivery: delivery.dead_letter(),
}


@dataclass(slots=True)
class _RemoteConsumer:
    """A consumer on behalf of the other process, with its unsettled deliveries by tag."""

    consumer: Consumer | None = None
    unsettled: dict[int, Delivery] = field(default_factory=dict)


class SocketpairBroker:
    """The parent's end: executes the child's requests on a bus of its own.

    The bus is closed with the connection, which returns the child's unsettled messages to their queues. Requests are
    executed one after another, so the bus must not block: a `MemoryBus`, for example.
    """

    def __init__(self, bus: Bus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._bus, self._reader, self._writer = bus, reader, writer
        self._tags = itertools.count()
        self._consumers: dict[int, _RemoteConsumer] = {}
        self._frame_handlers: dict[FrameKind, Callable[[Mapping[str, Any], bytes], Awaitable[None]]] = {
            FrameKind.DECLARE: self._declare,
            FrameKind.PUBLISH: self._publish,
            FrameKind.CONSUME: self._consume,
            FrameKind.CANCEL: self._cancel,
            FrameKind.RELEASE: self._release,
            FrameKind.DELETE: self._delete,
            FrameKind.SETTLE: self._settle,
        }

    async def serve(self) -> None:
        """Execute requests until the other process disconnects."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                await self._handle_frame(frame)
        except Exception:
            # Closing the bus requeues the child's unsettled messages; a replacement process receives them.
            log.exception("Unexpected error at the broker's end of a socket pair; closing it")
        finally:
            self._writer.close()
            await self._bus.close()

    def disconnect(self) -> None:
        """Close the connection, on which `serve` closes the bus and ends.

        A cancellation of `serve` could interrupt the closing of the bus: the consumers that are left would take
        messages for a process that is gone.
        """
        self._writer.transport.abort()

    async def _handle_frame(self, frame: Frame) -> None:
        number = frame.fields.get("number")
        try:
            await self._frame_handlers[frame.kind](frame.fields, frame.body)
        except BusError as error:
            if number is not None:
                self._send(error_frame(number, error))
        else:
            if number is not None:
                self._send(Frame(FrameKind.DONE, {"number": number}))

    def _send(self, frame: Frame) -> None:
        self._writer.write(frame.encode())

    async def _declare(self, fields: Mapping[str, Any], _: bytes) -> None:
        await self._bus.declare(_TOPOLOGY.validate_python(fields["topology"]), redeclare=fields["kept"])

    async def _publish(self, fields: Mapping[str, Any], body: bytes) -> None:
        envelope = Envelope(body=body, **fields["envelope"])
        await self._bus.publish(_EXCHANGE.validate_python(fields["exchange"]), fields["key"], envelope)

    async def _consume(self, fields: Mapping[str, Any], _: bytes) -> None:
        consumer_number, remote_consumer = fields["consumer"], _RemoteConsumer()
        self._consumers[consumer_number] = remote_consumer
        remote_consumer.consumer = await self._bus.consume(
            _QUEUE.validate_python(fields["queue"]),
            self._forwarding_handler(consumer_number, remote_consumer),
            prefetch=fields["prefetch"],
            on_queue_lost=lambda: self._send(Frame(FrameKind.LOST, {"consumer": consumer_number})),
        )

    def _forwarding_handler(self, consumer_number: int, remote_consumer: _RemoteConsumer) -> Handler:
        async def forward(delivery: Delivery) -> None:
            tag = next(self._tags)
            remote_consumer.unsettled[tag] = delivery
            fields = {"consumer": consumer_number, "tag": tag, "message": delivery_fields(delivery)}
            self._send(Frame(FrameKind.DELIVER, fields, delivery.body))

        return forward

    async def _cancel(self, fields: Mapping[str, Any], _: bytes) -> None:
        remote_consumer = self._consumers.get(fields["consumer"])
        if remote_consumer is not None and remote_consumer.consumer is not None:
            await remote_consumer.consumer.cancel()

    async def _release(self, fields: Mapping[str, Any], _: bytes) -> None:
        remote_consumer = self._consumers.pop(fields["consumer"], None)
        if remote_consumer is not None and remote_consumer.consumer is not None:
            await remote_consumer.consumer.drain(0)

    async def _delete(self, fields: Mapping[str, Any], _: bytes) -> None:
        await self._bus.delete(_QUEUE.validate_python(fields["queue"]))

    async def _settle(self, fields: Mapping[str, Any], _: bytes) -> None:
        remote_consumer = self._consumers.get(fields["consumer"])
        delivery = None if remote_consumer is None else remote_consumer.unsettled.pop(fields["tag"], None)
        if delivery is not None:
            await _SETTLEMENTS[Settlement(fields["how"])](delivery)


_DISCONNECTED = "The process at the other end of the socket pair has disconnected"


class SocketpairBus:
    """The child's end: a `Bus` whose requests are executed by the `SocketpairBroker` at the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.user = "guest"
        self.reconnects = 0
        self._request_numbers = itertools.count()
        self._pending_requests: dict[int, asyncio.Future[None]] = {}
        self._consumers: dict[int, SocketpairConsumer] = {}
        self._disconnected = asyncio.Event()
        self._reader_task = asyncio.get_running_loop().create_task(self._read_frames(), name="socketpair")

    @classmethod
    async def from_socket(cls, sock: socket.socket) -> Self:
        """Create the bus over one end of a socket pair."""
        return cls(*await asyncio.open_connection(sock=sock))

    @property
    def connected(self) -> bool:
        """Whether the other process is still connected."""
        return not self._disconnected.is_set()

    async def wait_disconnected(self) -> None:
        """Wait until the other process has disconnected or this bus is closed."""
        await self._disconnected.wait()

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        """Implements `Bus.declare`."""
        await self.request(FrameKind.DECLARE, {"topology": dataclasses.asdict(topology), "kept": redeclare})

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout_seconds: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        """Implements `Bus.publish`."""
        fields = {"exchange": dataclasses.asdict(exchange), "key": key, "envelope": envelope_fields(envelope)}
        await self._request_frame(Frame(FrameKind.PUBLISH, fields, envelope.body), timeout_seconds)

    async def consume(
        self, queue: Queue, handler: Handler, *, prefetch: int, on_queue_lost: OnQueueLost | None = None
    ) -> Consumer:
        """Implements `Bus.consume`."""
        consumer_number = next(self._request_numbers)
        consumer = SocketpairConsumer(
            self, consumer_number, Subscription(queue, handler, prefetch, on_queue_lost), self._remove_consumer
        )
        self._consumers[consumer_number] = consumer
        try:
            await consumer.attach()
        except BaseException:
            await consumer.drain(0)
            raise
        return consumer

    async def delete(self, queue: Queue, *, timeout_seconds: float = DELETE_TIMEOUT_SECONDS) -> None:
        """Implements `Bus.delete`."""
        await self._request_frame(Frame(FrameKind.DELETE, {"queue": dataclasses.asdict(queue)}), timeout_seconds)

    async def count_messages(self, queues: Sequence[Queue]) -> dict[str, int]:
        """Implements `Bus.count_messages`: this transport cannot tell."""
        return {}

    async def close(self) -> None:
        """Implements `Bus.close`."""
        for consumer in list(self._consumers.values()):
            await consumer.drain(0)
        self._reader_task.cancel()
        await asyncio.gather(self._reader_task, return_exceptions=True)

    def send(self, frame: Frame) -> None:
        """Send a frame that has no reply; it is dropped if the other process has disconnected."""
        if self.connected:
            self._writer.write(frame.encode())

    async def request(self, kind: FrameKind, fields: Mapping[str, object]) -> None:
        """Send a request and wait for its reply. Raises `BusError`."""
        await self._request_frame(Frame(kind, fields), PUBLISH_TIMEOUT_SECONDS)

    async def _request_frame(self, frame: Frame, timeout_seconds: float) -> None:
        if not self.connected:
            raise BrokerUnavailable(_DISCONNECTED)
        number = next(self._request_numbers)
        reply = self._pending_requests[number] = asyncio.get_running_loop().create_future()
        self.send(dataclasses.replace(frame, fields={**frame.fields, "number": number}))
        try:
            async with asyncio.timeout(timeout_seconds):
                await reply
        except TimeoutError:
            raise BrokerUnavailable(f"No answer over the socket pair within {timeout_seconds:g} s") from None
        finally:
            del self._pending_requests[number]

    def _remove_consumer(self, consumer_number: int) -> None:
        self._consumers.pop(consumer_number, None)

    async def _read_frames(self) -> None:
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._handle_frame(frame)
        except Exception:
            log.exception("Unexpected error at the client's end of a socket pair; closing it")
        finally:
            self._disconnected.set()
            for reply in self._pending_requests.values():
                if not reply.done():
                    reply.set_exception(BrokerUnavailable(_DISCONNECTED))
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def _handle_frame(self, frame: Frame) -> None:
        fields = frame.fields
        if frame.kind in {FrameKind.DELIVER, FrameKind.LOST}:
            # A consumer released meanwhile is unknown here; the broker's end requeues its deliveries.
            consumer = self._consumers.get(fields["consumer"])
            if consumer is not None and frame.kind is FrameKind.DELIVER:
                consumer.deliver(fields["tag"], fields["message"], frame.body)
            elif consumer is not None:
                consumer.report_lost_queue()
            return
        reply = self._pending_requests.get(fields["number"])
        if reply is None or reply.done():
            return
        if frame.kind is FrameKind.DONE:
            reply.set_result(None)
        else:
            reply.set_exception(error_from_fields(fields))
