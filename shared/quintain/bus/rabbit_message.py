"""Converts between aiormq messages and the bus's `Delivery` and `Envelope`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from quintain.bus.base import Envelope
from quintain.bus.rabbit_acks import ChannelAcks


@dataclass(slots=True, eq=False)
class RabbitDelivery:
    """A `Delivery` over RabbitMQ, settled on the channel it arrived on or not at all."""

    _message: DeliveredMessage
    _acks: ChannelAcks

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._message.body

    @property
    def type(self) -> str:
        """The AMQP property ``type``, empty if absent."""
        return self._properties.message_type or ""

    @property
    def correlation_id(self) -> str | None:
        """The AMQP property ``correlation_id``."""
        return self._properties.correlation_id

    @property
    def reply_to(self) -> str | None:
        """The AMQP property ``reply_to``."""
        return self._properties.reply_to

    @property
    def headers(self) -> Mapping[str, object]:
        """The message's headers."""
        return self._properties.headers or {}

    @property
    def expiration_ms(self) -> int | None:
        """The AMQP property ``expiration`` in milliseconds, None if absent or not a number."""
        text = self._properties.expiration
        return int(text) if text and text.isdecimal() else None

    @property
    def exchange(self) -> str:
        """The exchange the message was published to."""
        return self._message.exchange or ""

    @property
    def routing_key(self) -> str:
        """The routing key the message was published with."""
        return self._message.routing_key or ""

    @property
    def redelivered(self) -> bool:
        """Whether the broker marked the message as redelivered."""
        return bool(self._message.redelivered)

    async def ack(self) -> None:
        """Implements `Delivery.ack`."""
        self._acks.ack(self._delivery_tag)

    async def requeue(self) -> None:
        """Implements `Delivery.requeue`."""
        await self._acks.nack(self._delivery_tag, requeue=True)

    async def dead_letter(self) -> None:
        """Implements `Delivery.dead_letter`."""
        await self._acks.nack(self._delivery_tag, requeue=False)

    @property
    def _properties(self) -> Basic.Properties:
        return self._message.header.properties

    @property
    def _delivery_tag(self) -> int:
        return self._message.delivery_tag or 0


def to_amqp_properties(envelope: Envelope) -> Basic.Properties:
    """Return the AMQP properties of an envelope.

    ``message_id`` is new for each publish: aiormq matches returned messages by it, so that a repeated id would confirm
    the wrong publish.
    """
    return Basic.Properties(
        content_type=envelope.content_type,
        delivery_mode=2 if envelope.persistent else 1,
        message_id=secrets.token_hex(16),
        message_type=envelope.type,
        correlation_id=envelope.correlation_id,
        reply_to=envelope.reply_to,
        headers=dict(envelope.headers),
        expiration=None if envelope.expiration_ms is None else str(envelope.expiration_ms),
    )
