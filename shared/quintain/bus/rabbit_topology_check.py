"""Checks a RabbitMQ broker without changing it: its version, and whether exchanges and queues match the topology."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aiormq import exceptions as amqp

from quintain.bus.rabbit_connection import QUEUE_GONE_ERRORS, RabbitConnection, translate_errors
from quintain.contracts.token import mask_tokens
from quintain.topology import Exchange, Queue


class DeclarationStatus(StrEnum):
    """How a thing of the protocol's stands at a broker."""

    SAME = "same"
    MISSING = "missing"
    DIFFERENT = "different"
    #: This user may not declare it, and so cannot compare it.
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class DeclarationCheck:
    """One thing as it was found; ``version`` is the broker's word on a difference or a refusal."""

    name: str
    status: DeclarationStatus
    broker_message: str = ""


class BrokerInspector:
    """One connection's look at a broker."""

    def __init__(self, connection: RabbitConnection) -> None:
        self._connection = connection

    async def version(self) -> str:
        """The broker's own version, as it says it."""
        connection = await self._connection.wait_connection()
        assert connection.transport is not None
        version = connection.transport.connection.server_properties.get("version", b"?")
        return version.decode(errors="replace") if isinstance(version, bytes) else str(version)

    async def check(self, declared: Exchange | Queue) -> DeclarationCheck:
        """Whether it is there as the protocol has it. What is not there is not made."""
        channel = await self._connection.open_channel()
        with translate_errors(f"looking for {declared.name}"):
            underlay: Any = await channel.get_underlay_channel()
            try:
                # Passive: it looks, and compares nothing. Then, of what is there, its arguments.
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
    """A look at the broker of this URL. Raises `BrokerUnavailable`, `BrokerRefused`."""
    connection = RabbitConnection(url, "doctor")
    connection.start()
    try:
        await connection.wait_connection(timeout_seconds)
        yield BrokerInspector(connection)
    finally:
        await connection.close()
