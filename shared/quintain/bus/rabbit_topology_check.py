"""Checks a RabbitMQ broker without changing it: its version, its largest message, its exchanges and queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import uuid4

from aiormq import exceptions as amqp

from quintain.bus.rabbit_connection import QUEUE_GONE_ERRORS, RabbitConnection, translate_errors
from quintain.contracts.proof import mask_tokens
from quintain.topology import Exchange, Queue


class DeclarationStatus(StrEnum):
    """Whether an exchange or queue at the broker matches its declaration."""

    SAME = "same"
    MISSING = "missing"
    DIFFERENT = "different"
    #: It exists, but this user may not declare it, so that its arguments cannot be compared.
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class DeclarationCheck:
    """The result for one exchange or queue; ``broker_message`` is the broker's error on a difference or a refusal."""

    name: str
    status: DeclarationStatus
    broker_message: str = ""


class BrokerInspector:
    """Read-only checks over one connection to a broker."""

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection

    async def version(self) -> str:
        """Return the broker's version as reported in its server properties."""
        connection = await self._connection.wait_connection()
        assert connection.transport is not None
        version = connection.transport.connection.server_properties.get("version", b"?")
        return version.decode(errors="replace") if isinstance(version, bytes) else str(version)

    async def refuses_message_of(self, body_bytes: int) -> bool:
        """Return whether the broker refuses a message of this many bytes. It is sent, to no queue.

        Under an alarm of its memory or disk the broker takes no message and reads nothing more from the connection: the
        caller sets a timeout, and uses the connection for no other check after it.
        """
        channel = await self._connection.open_channel()
        with translate_errors("sending a message"):
            underlay: Any = await channel.get_underlay_channel()
            try:
                await underlay.basic_publish(bytes(body_bytes), exchange="", routing_key=f"quintain.no-queue.{uuid4()}")
            except amqp.ChannelPreconditionFailed:
                return True
            except amqp.ChannelAccessRefused:  # rights are looked at after the size
                return False
            await self._connection.close_channel(channel)
        return False

    async def check(self, declared: Exchange | Queue) -> DeclarationCheck:
        """Compare an exchange or queue at the broker with its declaration, without creating it."""
        channel = await self._connection.open_channel()
        with translate_errors(f"looking for {declared.name}"):
            underlay: Any = await channel.get_underlay_channel()
            try:
                # A passive declaration only checks existence. If it exists, an active one compares the arguments.
                await _declare(underlay, declared, passive=True)
                await _declare(underlay, declared, passive=False)
            except QUEUE_GONE_ERRORS:
                return DeclarationCheck(declared.name, DeclarationStatus.MISSING)
            except amqp.ChannelPreconditionFailed as difference:
                return DeclarationCheck(declared.name, DeclarationStatus.DIFFERENT, mask_tokens(str(difference)))
            except amqp.ChannelAccessRefused as refusal:
                return DeclarationCheck(declared.name, DeclarationStatus.HIDDEN, mask_tokens(str(refusal)))
            await self._connection.close_channel(channel)
        return DeclarationCheck(declared.name, DeclarationStatus.SAME)


async def _declare(underlay: Any, declared: Exchange | Queue, *, passive: bool) -> None:
    arguments = None if passive else dict(declared.arguments)
    if isinstance(declared, Queue):
        await underlay.queue_declare(declared.name, durable=True, passive=passive, arguments=arguments)
    else:
        await underlay.exchange_declare(
            declared.name, exchange_type=declared.kind, durable=True, passive=passive, arguments=arguments
        )


@contextlib.asynccontextmanager
async def inspect_broker(url: str, *, timeout_seconds: float) -> AsyncIterator[BrokerInspector]:
    """Open a connection to the broker at this URL for checks. Raises `BrokerUnavailable`, `BrokerRefused`."""
    connection = RabbitConnection(url, "doctor")
    connection.start()
    try:
        await connection.wait_connection(timeout_seconds)
        yield BrokerInspector(connection)
    finally:
        # A broker that reads no more does not answer this either.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await connection.close()
