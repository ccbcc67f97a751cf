"""What one bus declared at RabbitMQ, and declares again after a loss, looking first for what the broker has lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from quintain.bus.base import OWNER_SECONDS
from quintain.bus.rabbit_link import GONE, NOT_FOUND, RabbitLink, in_our_words
from quintain.errors import BrokerRefused, BrokerUnavailable
from quintain.topology import Exchange, Queue, Topology

#: How often an exchange that its owner is to declare is looked for, in seconds.
LOOK_SECONDS = 0.5

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """A consumer, as far as the loss of its queue goes."""

    @property
    def watched(self) -> Queue | None:
        """The queue to look for, if any."""

    def lose(self) -> None:
        """Hear that it is gone."""


class Declarations:
    """The topology of one bus."""

    def __init__(self, link: RabbitLink, watchers: Collection[Watcher]) -> None:
        self._link, self._watchers = link, watchers
        self._all = Topology()
        self._turn = asyncio.Lock()
        self._asked = self._done = 0

    async def declare(self, topology: Topology, *, kept: bool) -> None:
        """Make these exist, now and, where they are kept, again."""
        if kept:
            self._all += topology
        await self._declare(topology)

    async def declare_again(self) -> None:
        """Declare all that was ever declared here: the broker may have lost it.

        One at a time, and those who wait share the next: a bus has many consumers, and one connection to lose. What
        is watched is looked for before anything is declared, because a declaration makes again what was lost and
        so hides the loss, whichever consumer asked for it.
        """
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done >= mine:
                return
            covered = self._asked
            for watcher in list(self._watchers):
                if watcher.watched is not None and not await self._is_there(watcher.watched):
                    watcher.lose()
            await self._declare(self._all)
            self._done = covered

    async def delete(self, queue: Queue, timeout: float) -> None:
        """Delete a queue, and declare it no more. Raises `BrokerUnavailable` after the timeout (seconds)."""
        self._all = self._all.without(queue)
        try:
            # In turn: a declaration under way would make it again.
            async with asyncio.timeout(timeout), self._turn:
                channel = await self._link.channel(timeout)
                with in_our_words(f"deleting {queue.name}"):
                    underlay = await channel.get_underlay_channel()
                    await underlay.queue_delete(queue.name)
                    await self._link.let_go(channel)
        except TimeoutError:
            raise BrokerUnavailable(f"deleting {queue.name}: not done within {timeout:.1f} s") from None

    async def _missing(self, exchanges: Sequence[Exchange]) -> Sequence[Exchange]:
        """What of these is not there: the first one, and what was not looked at after it. Looking needs no right."""
        channel = await self._link.channel()
        with in_our_words("looking for exchanges"):
            underlay = await channel.get_underlay_channel()
            for number, exchange in enumerate(exchanges):
                try:
                    await underlay.exchange_declare(exchange.name, passive=True)
                except GONE:
                    return exchanges[number:]
            await self._link.let_go(channel)
        return ()

    async def _have(self, exchange: Exchange) -> None:
        """Declare an exchange; where this user may not, wait until whoever owns it has."""
        ends = asyncio.get_running_loop().time() + OWNER_SECONDS
        try:
            await self._make(exchange)
        except BrokerRefused as refusal:
            while await self._missing((exchange,)):
                if asyncio.get_running_loop().time() > ends:
                    raise BrokerRefused(
                        f"{exchange.name} is not there, and who declares it has not within {OWNER_SECONDS:.0f} s "
                        f"(start `quintain serve metadata`); {refusal.message}"
                    ) from None
                await asyncio.sleep(LOOK_SECONDS)

    async def _make(self, exchange: Exchange) -> None:
        channel = await self._link.channel()
        with in_our_words(f"declaring {exchange.name}"):
            underlay = await channel.get_underlay_channel()
            await underlay.exchange_declare(
                exchange.name, exchange_type=exchange.kind, durable=True, arguments=dict(exchange.arguments)
            )
            await self._link.let_go(channel)

    async def _is_there(self, queue: Queue) -> bool:
        channel = await self._link.channel()
        with in_our_words(f"looking for {queue.name}"):
            underlay = await channel.get_underlay_channel()
            try:
                await underlay.queue_declare(queue.name, passive=True)
            except GONE:
                return False
            await self._link.let_go(channel)
        return True

    async def _declare(self, topology: Topology) -> None:
        for exchange in await self._missing(topology.exchanges):
            await self._have(exchange)
        # A classic queue on a cluster's node that is down can be neither declared nor deleted. Whoever consumes it
        # waits for its node; that is no reason for all others to wait.
        while (down := await self._declare_queues(topology)) is not None:
            log.debug("The queue %s is on a node that is down: it is left out", down.name)
            topology = topology.without(down)

    async def _declare_queues(self, topology: Topology) -> Queue | None:
        """Declare and bind all queues; one at which it ended, because the cluster's node that has it is down."""
        # A channel of its own, thrown away: a refused or cancelled declaration closes only this one.
        channel = await self._link.channel()
        with in_our_words("declaring queues"):
            underlay = await channel.get_underlay_channel()
            for queue in topology.queues:
                try:
                    await underlay.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
                except NOT_FOUND:
                    if queue.kind != "classic":
                        raise
                    return queue
            for bound in topology.bindings:
                await underlay.queue_bind(bound.queue.name, bound.exchange.name, bound.key)
            await self._link.let_go(channel)
        return None
