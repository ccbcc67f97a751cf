"""Runs message handlers as tasks that are independent of the channel their message arrived on."""

from __future__ import annotations

import asyncio
import contextvars
import logging

from quintain.bus.base import Delivery, Handler

log = logging.getLogger(__name__)


class HandlerTasks:
    """The running handlers of one consumer."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, handler: Handler, delivery: Delivery) -> None:
        """Start a task that runs the handler on this delivery."""
        # An empty context: with the memory transport the publisher's log ids and trace must not leak into the handler.
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, run_handler(handler, delivery))
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


async def run_handler(handler: Handler, delivery: Delivery) -> None:
    """Run the handler on this delivery; one that fails is delivered again."""
    try:
        await handler(delivery)
    except asyncio.CancelledError:
        raise
    except Exception:
        # Handlers report errors to their callers themselves, so this is a bug. The message is redelivered, and the
        # delivery limit turns it into a dead letter instead of an endless loop.
        log.exception("The handler of a message to %s failed; it will be delivered again", delivery.exchange)
        await delivery.requeue()
