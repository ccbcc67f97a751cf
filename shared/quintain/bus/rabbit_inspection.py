"""Looking at a broker without changing it: its version, and what is there against the protocol's arguments."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aiormq import exceptions as amqp

from quintain.bus.rabbit_link import GONE, RabbitLink, in_our_words
from quintain.contracts.token import mask
from quintain.topology import Exchange, Queue


class Standing(StrEnum):
    """How a thing of the protocol's stands at a broker."""

    SAME = "same"
    MISSING = "missing"
    DIFFERENT = "different"
    #: This user may not declare it, and so cannot compare it.
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class Found:
    """One thing as it was found; ``said`` is the broker's word on a difference or a refusal."""

    name: str
    standing: Standing
    said: str = ""


class Inspection:
    """One connection's look at a broker."""

    def __init__(self, link: RabbitLink) -> None:
        self._link = link

    async def version(self) -> str:
        """The broker's own version, as it says it."""
        connection = await self._link.connection()
        assert connection.transport is not None
        said = connection.transport.connection.server_properties.get("version", b"?")
        return said.decode(errors="replace") if isinstance(said, bytes) else str(said)

    async def look(self, thing: Exchange | Queue) -> Found:
        """Whether it is there as the protocol has it. What is not there is not made."""
        channel = await self._link.channel()
        with in_our_words(f"looking for {thing.name}"):
            underlay: Any = await channel.get_underlay_channel()
            try:
                # Passive: it looks, and compares nothing. Then, of what is there, its arguments.
                await _declared(underlay, thing, passive=True)
                await _declared(underlay, thing, passive=False)
            except GONE:
                return Found(thing.name, Standing.MISSING)
            except amqp.ChannelPreconditionFailed as difference:
                return Found(thing.name, Standing.DIFFERENT, mask(str(difference)))
            except amqp.ChannelAccessRefused as refusal:
                return Found(thing.name, Standing.HIDDEN, mask(str(refusal)))
            await self._link.let_go(channel)
        return Found(thing.name, Standing.SAME)


async def _declared(underlay: Any, thing: Exchange | Queue, *, passive: bool) -> None:
    arguments = None if passive else dict(thing.arguments)
    if isinstance(thing, Queue):
        await underlay.queue_declare(thing.name, durable=True, passive=passive, arguments=arguments)
    else:
        await underlay.exchange_declare(
            thing.name, exchange_type=thing.kind, durable=True, passive=passive, arguments=arguments
        )


@contextlib.asynccontextmanager
async def inspecting(url: str, *, timeout_seconds: float) -> AsyncIterator[Inspection]:
    """A look at the broker of this URL. Raises `BrokerUnavailable`, `BrokerRefused`."""
    link = RabbitLink(url, "doctor")
    link.start()
    try:
        await link.connection(timeout_seconds)
        yield Inspection(link)
    finally:
        await link.close()
