"""Being found: a queue of this process's own behind ``quintain.discovery``, and its card for whoever asks.

Nobody's calls depend on it, so nothing of it may disturb them: its queue is no part of what the bus declares again, it
is joined beside the service's start, and a broker that refuses any of it is asked no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from quintain.bus.base import Bus, Consumer, Delivery
from quintain.contracts.discovery import ServiceCard
from quintain.errors import BrokerRefused, BusError
from quintain.service import answer_to, forgotten, reply
from quintain.topology import discovery_topology

log = logging.getLogger(__name__)

PREFETCH = 8

#: The pause before another try to be found, in seconds.
PAUSE_SECONDS = 1.0


class Identity:
    """Which process this is, from its start to its end."""

    def __init__(self, service: str, name: str | None = None) -> None:
        self._service = service
        self._name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._instance = secrets.token_hex(8)
        self._started_at = int(time.time() * 1000)

    def card(self, **facts: Any) -> ServiceCard:
        """This process's card, with what it says of itself now."""
        return ServiceCard(
            service=self._service,
            id=self._name,
            instance=self._instance,
            version=importlib.metadata.version("quintain"),
            started_at=self._started_at,
            **facts,
        )


@contextlib.asynccontextmanager
async def present(bus: Bus, card: Callable[[], ServiceCard]) -> AsyncIterator[None]:
    """Answer while inside, with the card as it is at that moment. Raises nothing."""
    presence = Presence(bus, card)
    being = asyncio.get_running_loop().create_task(presence.be(), name="presence")
    try:
        yield
    finally:
        being.cancel()
        await asyncio.gather(being, return_exceptions=True)


class Presence:
    """One process's answers to `quintain status`."""

    def __init__(self, bus: Bus, card: Callable[[], ServiceCard]) -> None:
        self._bus, self._card = bus, card
        self._topology = discovery_topology(secrets.token_hex(16))
        self._again = asyncio.Event()
        self._refused = False

    async def be(self) -> None:
        """Be found until cancelled, however often the queue is lost; or until the broker refuses it."""
        while not self._refused:
            try:
                await self._be_once()
            except BrokerRefused as refusal:
                self._give_up(refusal)
            except BusError as error:
                log.info("Not to be found for now: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _be_once(self) -> None:
        self._again.clear()
        await self._bus.declare(self._topology, kept=False)
        consumer: Consumer | None = None
        try:
            consumer = await self._bus.consume(
                self._topology.queues[0], self._on_asked, prefetch=PREFETCH, lost=self._again.set
            )
            await self._again.wait()
        finally:
            if consumer is not None:
                await consumer.drain(0)
            await forgotten(self._bus, self._topology)

    async def _on_asked(self, delivery: Delivery) -> None:
        answer = await answer_to(self._made(), "making this service's card")
        try:
            await reply(self._bus, delivery, answer)
        except BrokerRefused as refusal:
            self._give_up(refusal)
        except BusError as error:
            log.info("Somebody asked who is there, and was not answered: %s", error.message)
        await delivery.ack()

    async def _made(self) -> ServiceCard:
        return self._card()

    def _give_up(self, refusal: BrokerRefused) -> None:
        log.info("`quintain status` will not show this service: %s", refusal.message)
        self._refused = True
        self._again.set()
