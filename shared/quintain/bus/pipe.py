"""The memory transport for a process beside the broker's: the bus's promise, kept over a socket to it.

The socket is made once, by whoever starts the process, and ends with either of them: nothing is connected again. It has
no address that anybody else could find.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import socket
from collections.abc import Mapping
from typing import Self

from quintain.bus.base import (
    DELETE_TIMEOUT_SECONDS,
    PUBLISH_TIMEOUT_SECONDS,
    Consumer,
    Envelope,
    Handler,
    Lost,
    Subscription,
)
from quintain.bus.pipe_consumer import PipeConsumer
from quintain.bus.pipe_frames import Frame, Kind, envelope_fields, error_of, read_frame
from quintain.errors import BrokerUnavailable
from quintain.topology import Exchange, Queue, Topology

log = logging.getLogger(__name__)

_GONE = "The process at the other end of the pipe has gone"


class PipeBus:
    """The far end of a pipe; at the other one is a `PipeBroker`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.user = "guest"
        self.reconnects = 0
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._consumers: dict[int, PipeConsumer] = {}
        self._gone = asyncio.Event()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="pipe")

    @classmethod
    async def over(cls, one: socket.socket) -> Self:
        """The bus over this end of a pair of sockets."""
        return cls(*await asyncio.open_connection(sock=one))

    @property
    def connected(self) -> bool:
        return not self._gone.is_set()

    async def wait_gone(self) -> None:
        """Return when the other end has gone, or this one was closed."""
        await self._gone.wait()

    async def declare(self, topology: Topology, *, kept: bool = True) -> None:
        await self.ask(Kind.DECLARE, {"topology": dataclasses.asdict(topology), "kept": kept})

    async def publish(
        self, exchange: Exchange, key: str, envelope: Envelope, *, timeout: float = PUBLISH_TIMEOUT_SECONDS
    ) -> None:
        fields = {"exchange": dataclasses.asdict(exchange), "key": key, "envelope": envelope_fields(envelope)}
        await self._ask_in_time(Frame(Kind.PUBLISH, fields, envelope.body), timeout)

    async def consume(self, queue: Queue, handler: Handler, *, prefetch: int, lost: Lost | None = None) -> Consumer:
        number = next(self._numbers)
        consumer = PipeConsumer(self, number, Subscription(queue, handler, prefetch, lost), self._released)
        self._consumers[number] = consumer
        try:
            await consumer.attach()
        except BaseException:
            await consumer.drain(0)
            raise
        return consumer

    async def delete(self, queue: Queue, *, timeout: float = DELETE_TIMEOUT_SECONDS) -> None:
        await self._ask_in_time(Frame(Kind.DELETE, {"queue": dataclasses.asdict(queue)}), timeout)

    async def close(self) -> None:
        for consumer in list(self._consumers.values()):
            await consumer.drain(0)
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def send(self, frame: Frame) -> None:
        """Send what wants no answer; nobody hears it where the other end has gone."""
        if self.connected:
            self._writer.write(frame.encoded())

    async def ask(self, kind: Kind, fields: Mapping[str, object]) -> None:
        """Send what wants an answer, and wait for it. Raises `BusError`."""
        await self._ask_in_time(Frame(kind, fields), PUBLISH_TIMEOUT_SECONDS)

    async def _ask_in_time(self, frame: Frame, timeout_seconds: float) -> None:
        if not self.connected:
            raise BrokerUnavailable(_GONE)
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(dataclasses.replace(frame, fields={**frame.fields, "number": number}))
        try:
            async with asyncio.timeout(timeout_seconds):
                await answer
        except TimeoutError:
            raise BrokerUnavailable(f"No answer over the pipe within {timeout_seconds:g} s") from None
        finally:
            del self._asked[number]

    def _released(self, consumer: int) -> None:
        self._consumers.pop(consumer, None)

    async def _read(self) -> None:
        try:
            while (frame := await read_frame(self._reader)) is not None:
                self._hear(frame)
        except Exception:
            log.exception("A defect at the far end of a pipe, which is closed")
        finally:
            self._gone.set()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(BrokerUnavailable(_GONE))
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    def _hear(self, frame: Frame) -> None:
        fields = frame.fields
        if frame.kind in {Kind.DELIVER, Kind.LOST}:
            # Of one that was released meanwhile the other end knows by now: it comes again, to somebody else.
            consumer = self._consumers.get(fields["consumer"])
            if consumer is not None and frame.kind is Kind.DELIVER:
                consumer.take(fields["tag"], fields["message"], frame.body)
            elif consumer is not None:
                consumer.lose()
            return
        answer = self._asked.get(fields["number"])
        if answer is None or answer.done():
            return
        if frame.kind is Kind.DONE:
            answer.set_result(None)
        else:
            answer.set_exception(error_of(fields))
