"""Answers discovery requests with this process's service card.

Calls do not depend on discovery, so a failure here must not affect them: the queue is not redeclared with the bus's
topology, it is set up concurrently with the service's start, and again as long as the broker refuses it.
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
from quintain.bus.failure_log import FailureLog
from quintain.contracts.fleet import ServiceCard
from quintain.errors import BrokerRefused, BusError
from quintain.rpc.server import delete_queues, result_or_fault, send_reply
from quintain.runtime.concurrency import running_task
from quintain.topology import discovery_topology

log = logging.getLogger(__name__)

PREFETCH = 8

#: Pause before the discovery queue is set up again after an error, in seconds.
PAUSE_SECONDS = 1.0

#: The same after a refusal, in seconds: the broker logs each one.
REFUSED_PAUSE_SECONDS = 30.0


class ServiceIdentity:
    """Identifies this process for its lifetime."""

    def __init__(self, service: str, name: str | None = None) -> None:
        self._service = service
        self.id = name or f"{socket.gethostname()}-{os.getpid()}"
        self._instance = secrets.token_hex(8)
        self._started_at = int(time.time() * 1000)

    def card(self, **facts: Any) -> ServiceCard:
        """Return this process's service card with the given current values."""
        return ServiceCard(
            service=self._service,
            id=self.id,
            instance=self._instance,
            version=importlib.metadata.version("quintain"),
            started_at=self._started_at,
            **facts,
        )


@contextlib.asynccontextmanager
async def announce(bus: Bus, card: Callable[[], ServiceCard]) -> AsyncIterator[None]:
    """Answer discovery requests while the context is open; ``card`` is called for each request. Raises nothing."""
    async with running_task(Announcer(bus, card).run(), "announce"):
        yield


class Announcer:
    """Answers the discovery requests of `quintain status` for one process."""

    def __init__(self, bus: Bus, card: Callable[[], ServiceCard]) -> None:
        self._bus, self._card = bus, card
        self._topology = discovery_topology(secrets.token_hex(16))
        self._queue_lost = asyncio.Event()
        begun, ended = "`quintain status` does not show this service", "`quintain status` shows this service"
        self._failures = FailureLog(log, begun, ended, bus)

    async def run(self) -> None:
        """Answer requests until cancelled. A lost queue is declared again."""
        while True:
            try:
                await self._run_once()
            except BusError as error:
                self._failures.failed(error)
                await asyncio.sleep(REFUSED_PAUSE_SECONDS if isinstance(error, BrokerRefused) else PAUSE_SECONDS)

    async def _run_once(self) -> None:
        self._queue_lost.clear()
        await self._bus.declare(self._topology, redeclare=False)
        consumer: Consumer | None = None
        try:
            consumer = await self._bus.consume(
                self._topology.queues[0], self._on_request, prefetch=PREFETCH, on_queue_lost=self._queue_lost.set
            )
            self._failures.worked()
            await self._queue_lost.wait()
        finally:
            if consumer is not None:
                await consumer.drain(0)
            await delete_queues(self._bus, self._topology)

    async def _on_request(self, delivery: Delivery) -> None:
        answer = await result_or_fault(self._build_card(), "creating this service's card")
        try:
            await send_reply(self._bus, delivery, answer)
        except BusError as error:
            self._failures.failed(error)
        await delivery.ack()

    async def _build_card(self) -> ServiceCard:
        return self._card()
