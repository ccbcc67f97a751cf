"""Declares a bus's topology at RabbitMQ, and declares it again after a reconnect.

Before declaring again it checks passively which watched queues are missing, because a declaration would recreate them
and hide the loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from quintain.bus.base import EXCHANGE_WAIT_SECONDS
from quintain.bus.rabbit_connection import QUEUE_GONE_ERRORS, QUEUE_NOT_FOUND, RabbitConnection, translate_errors
from quintain.errors import BrokerRefused, BrokerUnavailable
from quintain.topology import Exchange, Queue, Topology

#: How often an exchange that its owner is to declare is looked for, in seconds.
EXCHANGE_POLL_SECONDS = 0.5

log = logging.getLogger(__name__)


class QueueLossWatcher(Protocol):
    """A consumer, as far as the loss of its queue goes."""

    @property
    def watched_queue(self) -> Queue | None:
        """The queue to look for, if any."""

    def report_lost_queue(self) -> None:
        """Hear that it is gone."""


class Declarations:
    """The topology of one bus."""

    def __init__(self, connection: RabbitConnection, watchers: Collection[QueueLossWatcher]) -> None:
        self._connection, self._watchers = connection, watchers
        self._topology = Topology()
        self._lock = asyncio.Lock()
        self._requested = self._completed = 0

    async def declare(self, topology: Topology, *, redeclare: bool) -> None:
        """Make these exist, now and, where they are kept, again."""
        if redeclare:
            self._topology += topology
        await self._declare(topology)

    async def redeclare_all(self) -> None:
        """Declare all that was ever declared here: the broker may have lost it.

        One at a time, and those who wait share the next: a bus has many consumers, and one connection to lose. What
        is watched is looked for before anything is declared, because a declaration makes again what was lost and
        so hides the loss, whichever consumer asked for it.
        """
        self._requested += 1
        request_number = self._requested
        async with self._lock:
            if self._completed >= request_number:
                return
            covers_requests = self._requested
            for watcher in list(self._watchers):
                if watcher.watched_queue is not None and not await self._queue_exists(watcher.watched_queue):
                    watcher.report_lost_queue()
            await self._declare(self._topology)
            self._completed = covers_requests

    async def delete(self, queue: Queue, timeout_seconds: float) -> None:
        """Delete a queue, and declare it no more. Raises `BrokerUnavailable` after the timeout (seconds)."""
        self._topology = self._topology.without(queue)
        try:
            # In turn: a declaration under way would make it again.
            async with asyncio.timeout(timeout_seconds), self._lock:
                channel = await self._connection.open_channel(timeout_seconds)
                with translate_errors(f"deleting {queue.name}"):
                    underlay = await channel.get_underlay_channel()
                    await underlay.queue_delete(queue.name)
                    await self._connection.close_channel(channel)
        except TimeoutError:
            raise BrokerUnavailable(f"deleting {queue.name}: not done within {timeout_seconds:.1f} s") from None

    async def _find_missing(self, exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
        """What of these is not there: the first one, and what was not looked at after it. Looking needs no right."""
        channel = await self._connection.open_channel()
        with translate_errors("looking for exchanges"):
            underlay = await channel.get_underlay_channel()
            for index, exchange in enumerate(exchanges):
                try:
                    await underlay.exchange_declare(exchange.name, passive=True)
                except QUEUE_GONE_ERRORS:
                    return exchanges[index:]
            await self._connection.close_channel(channel)
        return ()

    async def _ensure_exchange(self, exchange: Exchange) -> None:
        """Declare an exchange; where this user may not, wait until whoever owns it has."""
        deadline = asyncio.get_running_loop().time() + EXCHANGE_WAIT_SECONDS
        try:
            await self._declare_exchange(exchange)
        except BrokerRefused as refusal:
            while await self._find_missing((exchange,)):
                if asyncio.get_running_loop().time() > deadline:
                    raise BrokerRefused(
                        f"{exchange.name} is not there, and who declares it has not within "
                        f"{EXCHANGE_WAIT_SECONDS:.0f} s "
                        f"(start `quintain serve metadata`); {refusal.message}"
                    ) from None
                await asyncio.sleep(EXCHANGE_POLL_SECONDS)

    async def _declare_exchange(self, exchange: Exchange) -> None:
        channel = await self._connection.open_channel()
        with translate_errors(f"declaring {exchange.name}"):
            underlay = await channel.get_underlay_channel()
            await underlay.exchange_declare(
                exchange.name, exchange_type=exchange.kind, durable=True, arguments=dict(exchange.arguments)
            )
            await self._connection.close_channel(channel)

    async def _queue_exists(self, queue: Queue) -> bool:
        channel = await self._connection.open_channel()
        with translate_errors(f"looking for {queue.name}"):
            underlay = await channel.get_underlay_channel()
            try:
                await underlay.queue_declare(queue.name, passive=True)
            except QUEUE_GONE_ERRORS:
                return False
            await self._connection.close_channel(channel)
        return True

    async def _declare(self, topology: Topology) -> None:
        for exchange in await self._find_missing(topology.exchanges):
            await self._ensure_exchange(exchange)
        # A classic queue on a cluster's node that is down can be neither declared nor deleted. Whoever consumes it
        # waits for its node; that is no reason for all others to wait.
        while (unavailable := await self._declare_queues(topology)) is not None:
            log.debug("The queue %s is on a node that is down: it is left out", unavailable.name)
            topology = topology.without(unavailable)

    async def _declare_queues(self, topology: Topology) -> Queue | None:
        """Declare and bind all queues; one at which it ended, because the cluster's node that has it is down."""
        # A channel of its own, thrown away: a refused or cancelled declaration closes only this one.
        channel = await self._connection.open_channel()
        with translate_errors("declaring queues"):
            underlay = await channel.get_underlay_channel()
            for queue in topology.queues:
                try:
                    await underlay.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
                except QUEUE_NOT_FOUND:
                    if queue.kind != "classic":
                        raise
                    return queue
            for binding in topology.bindings:
                await underlay.queue_bind(binding.queue.name, binding.exchange.name, binding.key)
            await self._connection.close_channel(channel)
        return None
