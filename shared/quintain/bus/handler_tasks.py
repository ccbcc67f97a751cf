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
        """Run the handler on this delivery."""
        # In a context of its own: in one process, what its publisher was about is not what its handler is about.
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._run(handler, delivery))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def finish(self, timeout_seconds: float) -> bool:
        """Wait for all of them; after the timeout (seconds) cancel the rest and return False."""
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

    async def _run(self, handler: Handler, delivery: Delivery) -> None:
        try:
            await handler(delivery)
        except asyncio.CancelledError:
            raise
        except Exception:
            # A handler answers its caller itself; what escapes is a defect. The message comes again, counted,
            # and ends as a dead letter rather than in a loop without end.
            log.exception("The handler of a message to %s failed; it will be delivered again", delivery.exchange)
            await delivery.requeue()
