"""The broker's end of a pipe: does what the process at the other end asks, on a bus of this process."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from quintain.bus.base import Bus, Consumer, Delivery, Envelope, Handler
from quintain.bus.pipe_frames import Frame, How, Kind, message_fields, read_frame, refused
from quintain.errors import BusError
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)

_TOPOLOGY: TypeAdapter[Topology] = TypeAdapter(Topology)
_EXCHANGE: TypeAdapter[Exchange] = TypeAdapter(Exchange)
_QUEUE: TypeAdapter[Queue] = TypeAdapter(Queue)

_SETTLE: dict[How, Callable[[Delivery], Awaitable[None]]] = {
    How.ACK: lambda delivery: delivery.ack(),
    How.REQUEUE: lambda delivery: delivery.requeue(),
    How.DEAD_LETTER: lambda delivery: delivery.dead_letter(),
}


@dataclass(slots=True)
class _Consumed:
    """A queue that the other end consumes, and what it has taken and not settled, by tag."""

    consumer: Consumer | None = None
    taken: dict[int, Delivery] = field(default_factory=dict)


class PipeBroker:
    """Serves one pipe. The bus is the pipe's own, and closed with it: what the other end had taken comes again.

    Questions are answered one after another, so the bus must be one that lets nobody wait, such as a `MemoryBus`.
    """

    def __init__(self, bus: Bus, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._bus, self._reader, self._writer = bus, reader, writer
        self._tags = itertools.count()
        self._consumed: dict[int, _Consumed] = {}
        self._doing: dict[Kind, Callable[[Mapping[str, Any], bytes], Awaitable[None]]] = {
            Kind.DECLARE: self._declare,
            Kind.PUBLISH: self._publish,
            Kind.CONSUME: self._consume,
            Kind.CANCEL: self._cancel,
            Kind.RELEASE: self._release,
            Kind.DELETE: self._delete,
            Kind.SETTLE: self._settle,
        }

    async def serve(self) -> None:
        """Answer until the other end has gone."""
        try:
            while (frame := await read_frame(self._reader)) is not None:
                await self._answer(frame)
        except Exception:
            # What the other end had taken comes again, to whoever is begun in its place.
            log.exception("A defect at the broker's end of a pipe, which is closed")
        finally:
            self._writer.close()
            await self._bus.close()

    async def _answer(self, frame: Frame) -> None:
        number = frame.fields.get("number")
        try:
            await self._doing[frame.kind](frame.fields, frame.body)
        except BusError as error:
            if number is not None:
                self._send(refused(number, error))
        else:
            if number is not None:
                self._send(Frame(Kind.DONE, {"number": number}))

    def _send(self, frame: Frame) -> None:
        self._writer.write(frame.encoded())

    async def _declare(self, fields: Mapping[str, Any], _: bytes) -> None:
        await self._bus.declare(_TOPOLOGY.validate_python(fields["topology"]), kept=fields["kept"])

    async def _publish(self, fields: Mapping[str, Any], body: bytes) -> None:
        envelope = Envelope(body=body, **fields["envelope"])
        await self._bus.publish(_EXCHANGE.validate_python(fields["exchange"]), fields["key"], envelope)

    async def _consume(self, fields: Mapping[str, Any], _: bytes) -> None:
        consumer, consumed = fields["consumer"], _Consumed()
        self._consumed[consumer] = consumed
        consumed.consumer = await self._bus.consume(
            _QUEUE.validate_python(fields["queue"]),
            self._passing_on(consumer, consumed),
            prefetch=fields["prefetch"],
            lost=lambda: self._send(Frame(Kind.LOST, {"consumer": consumer})),
        )

    def _passing_on(self, consumer: int, consumed: _Consumed) -> Handler:
        async def pass_on(delivery: Delivery) -> None:
            tag = next(self._tags)
            consumed.taken[tag] = delivery
            fields = {"consumer": consumer, "tag": tag, "message": message_fields(delivery)}
            self._send(Frame(Kind.DELIVER, fields, delivery.body))

        return pass_on

    async def _cancel(self, fields: Mapping[str, Any], _: bytes) -> None:
        consumed = self._consumed.get(fields["consumer"])
        if consumed is not None and consumed.consumer is not None:
            await consumed.consumer.cancel()

    async def _release(self, fields: Mapping[str, Any], _: bytes) -> None:
        consumed = self._consumed.pop(fields["consumer"], None)
        if consumed is not None and consumed.consumer is not None:
            await consumed.consumer.drain(0)

    async def _delete(self, fields: Mapping[str, Any], _: bytes) -> None:
        await self._bus.delete(_QUEUE.validate_python(fields["queue"]))

    async def _settle(self, fields: Mapping[str, Any], _: bytes) -> None:
        consumed = self._consumed.get(fields["consumer"])
        delivery = None if consumed is None else consumed.taken.pop(fields["tag"], None)
        if delivery is not None:
            await _SETTLE[How(fields["how"])](delivery)
