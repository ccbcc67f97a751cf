"""Acknowledges the deliveries of one RabbitMQ channel together, with one frame for all that came one after another."""

from __future__ import annotations

import asyncio
import contextvars
import logging

import aiormq

from quintain.bus.rabbit_connection import CONNECTION_ERRORS

log = logging.getLogger(__name__)


class ChannelAcks:
    """The acknowledgements of one channel: those of one iteration of the event loop are sent together.

    RabbitMQ numbers the deliveries of a channel from 1. ``multiple`` acknowledges a delivery and all before it, so it
    is used only where all before it are settled, or are acknowledged with it.
    """

    def __init__(self, channel: aiormq.abc.AbstractChannel) -> None:
        self._channel = channel
        self._unsent: list[int] = []
        self._sending: asyncio.Task[None] | None = None
        #: All deliveries up to this one are settled, and some after it.
        self._settled_until = 0
        self._settled: set[int] = set()

    def ack(self, tag: int) -> None:
        """Acknowledge a delivery, with the others of this iteration of the event loop."""
        self._unsent.append(tag)
        if self._sending is None:
            # An empty context: the frame is not part of the call whose delivery is the first.
            self._sending = contextvars.Context().run(asyncio.get_running_loop().create_task, self._send())

    async def nack(self, tag: int, *, requeue: bool) -> None:
        """Return a delivery to its queue, or reject it."""
        try:
            await self._channel.basic_nack(tag, requeue=requeue, wait=False)
        except CONNECTION_ERRORS:
            log.debug("A delivery of a lost connection was not settled: it will be redelivered")
        self._note_settled([tag])

    async def wait_sent(self) -> None:
        """Wait until all acknowledgements so far are sent."""
        if self._sending is not None:
            await asyncio.wait([self._sending])

    async def _send(self) -> None:
        try:
            await asyncio.sleep(0)
            # One batch at a time: an acknowledgement that was overtaken by a later one for several is an error.
            while self._unsent:
                tags, self._unsent = self._unsent, []
                self._note_settled(tags)
                until = self._settled_until
                together = [tag for tag in tags if tag <= until]
                if together:
                    await self._channel.basic_ack(max(together), multiple=len(together) > 1, wait=False)
                for tag in tags:
                    if tag > until:
                        await self._channel.basic_ack(tag, wait=False)
        except CONNECTION_ERRORS:
            log.debug("Deliveries of a lost connection were not acknowledged: they will be redelivered")
        finally:
            self._sending = None

    def _note_settled(self, tags: list[int]) -> None:
        self._settled.update(tags)
        while self._settled_until + 1 in self._settled:
            self._settled_until += 1
            self._settled.discard(self._settled_until)
