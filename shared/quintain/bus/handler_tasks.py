"""Runs message handlers as tasks that are independent of the channel their message arrived on."""

from __future__ import annotations

import asyncio
import contextvars
import logging

from quintain.bus.base import Delivery, Handler
from quintain.errors import BrokerUnavailable
from quintain.routes import DELIVERY_COUNT_HEADERS
from quintain.topology import DELIVERY_LIMIT

log = logging.getLogger(__name__)

#: A message that was delivered so often before, and whose handler fails again, is given up: it is dead-lettered where
#: its queue has an exchange for that, and dropped otherwise.
MAX_EARLIER_DELIVERIES = 2


class HandlerTasks:
    """The running handlers of one consumer; a message of its queue that was delivered so often is given up."""

    def __init__(self, max_deliveries: int = DELIVERY_LIMIT) -> None:
        self._max_deliveries = max_deliveries
        self._running: set[asyncio.Task[None]] = set()

    def start(self, handler: Handler, delivery: Delivery) -> None:
        """Start a task that runs the handler on this delivery."""
        # An empty context: with the memory transport the publisher's log ids and trace must not leak into the handler.
        task = contextvars.Context().run(
            asyncio.get_running_loop().create_task, run_handler(handler, delivery, self._max_deliveries)
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self, timeout_seconds: float) -> bool:
        """Wait for all running handlers; after the timeout (seconds) cancel the rest and return False."""
        current = asyncio.current_task()
        running = {task for task in self._running if task is not current}
        if not running:
            return True
        _, unfinished = (
            await asyncio.wait(running, timeout=timeout_seconds) if timeout_seconds > 0 else (set(), running)
        )
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.gather(*unfinished, return_exceptions=True)
        return not unfinished


async def run_handler(handler: Handler, delivery: Delivery, max_deliveries: int = DELIVERY_LIMIT) -> None:
    """Run the handler on this delivery; one that fails is delivered again, and given up the third time.

    So is a message that was delivered too often for any reason, as one that ends each process that takes it.
    """
    if earlier_deliveries(delivery) >= max_deliveries:
        log.error("A message to %s was delivered %d times, and is given up", delivery.exchange, max_deliveries)
        await delivery.dead_letter()
        return
    try:
        await handler(delivery)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # Handlers report errors to their callers themselves, so this is a bug, or the broker is away.
        if may_be_delivered_again(delivery, error):
            log.exception("The handler of a message to %s failed; it will be delivered again", delivery.exchange)
            await delivery.requeue()
        else:
            log.exception("The handler of a message to %s failed again; the message is given up", delivery.exchange)
            await delivery.dead_letter()


def earlier_deliveries(delivery: Delivery) -> int:
    """Return how often a message was delivered before; of one whose queue does not count that, 2 for any number."""
    if not delivery.redelivered:
        return 0
    counts = (delivery.headers.get(name) for name in DELIVERY_COUNT_HEADERS)
    return max((count for count in counts if isinstance(count, int)), default=MAX_EARLIER_DELIVERIES)


def may_be_delivered_again(delivery: Delivery, error: Exception) -> bool:
    """Return whether a delivery whose handler failed may help the next time: no message goes round for ever."""
    return isinstance(error, BrokerUnavailable) or earlier_deliveries(delivery) < MAX_EARLIER_DELIVERIES
