"""The consumer of one target: begun, ended for as long as the target is paused, begun again, drained."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from quintain.bus.base import Consumer, Delivery
from quintain.contracts.discovery import ServedTarget
from quintain.errors import BusError
from quintain.topology import target_queue
from quintain_worker.desk import Desk
from quintain_worker.handler import Served, handler_of
from quintain_worker.pause import Pause

log = logging.getLogger(__name__)


class Intake:
    """Takes one target's calls, at most ``prefetch`` at once. ``tell`` passes on the pause, in seconds, that the
    target's provider asks for.

    While the target is paused its queue is not consumed. What was taken before is finished under the consumer it came
    by, which is retired and let go when the last of it has ended; so that a row of pauses does not heap up calls, a
    new one begins only when no more than ``prefetch`` calls are in hand.
    """

    def __init__(self, served: Served, desk: Desk, *, prefetch: int, tell: Callable[[float], None]) -> None:
        self._name, self._desk, self._prefetch = served.name, desk, prefetch
        self.pause = Pause(tell, desk.timings)
        self._handler = handler_of(served, desk, self.pause)
        self._in_hand = 0
        self._consumer: Consumer | None = None
        self._retired: dict[Consumer, asyncio.Task[bool]] = {}
        self._keeper: asyncio.Task[None] | None = None

    @property
    def open(self) -> bool:
        """Whether calls come; or do not by its own will, for a pause or for as many as it may have in hand."""
        if self._consumer is None:
            return self.pause.left > 0 or self._in_hand > self._prefetch
        return self._consumer.live

    def served(self, kind: str) -> ServedTarget:
        """This target as it is served here now."""
        return ServedTarget(
            name=self._name,
            kind=kind,
            slots=self._prefetch,
            in_flight=self._in_hand,
            paused_ms=math.ceil(self.pause.left * 1000) or None,
        )

    async def start(self) -> None:
        """Take calls, unless the target is paused, and keep to its pauses from then on.

        The queue is there: the metadata service declares it before it answers the registration, and again when a call
        finds it gone.
        """
        if not self.pause.left:
            await self._begin()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"intake-{self._name}")

    async def cancel(self) -> None:
        """Take no more; what was taken runs on."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.cancel()

    async def drain(self, timeout: float) -> bool:
        """Wait for what was taken, by whichever consumer; False when some of it still ran, and was cancelled."""
        self.pause.stop()
        consumers = [*self._retired, *([] if self._consumer is None else [self._consumer])]
        drained = await asyncio.gather(*(consumer.drain(timeout) for consumer in consumers))
        await asyncio.gather(*self._retired.values())
        return all(drained)

    async def _keep(self) -> None:
        while True:
            if self.pause.left:
                self._retire()
                if self.pause.too_long:
                    self._desk.admissions.let_go(self._name)
                await self.pause.news.wait(self.pause.left)
            elif self._consumer is None and self._in_hand <= self._prefetch:
                try:
                    await self._begin()
                    log.warning("Target %s goes on", self._name)
                except BusError as error:
                    log.error("Target %s does not go on yet: %s", self._name, error.message)
                    await asyncio.sleep(self._desk.timings.consume_pause_seconds)
            else:
                await self.pause.news.wait()

    async def _begin(self) -> None:
        queue = target_queue(self._name)
        self._consumer = await self._desk.bus.consume(queue, self._handle, prefetch=self._prefetch)

    def _retire(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        log.warning("Target %s is paused: nobody calls it for %.0f s", self._name, self.pause.left)
        # To drain is to cancel first, at once; then its calls end by themselves, within their deadlines.
        draining = asyncio.get_running_loop().create_task(consumer.drain(math.inf), name=f"retire-{self._name}")
        self._retired[consumer] = draining
        draining.add_done_callback(lambda _: self._retired.pop(consumer, None))

    async def _handle(self, delivery: Delivery) -> None:
        self._in_hand += 1
        try:
            await self._handler(delivery)
        finally:
            self._in_hand -= 1
            if self._consumer is None:
                self.pause.news.ring()
