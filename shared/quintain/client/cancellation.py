"""Cancels calls in the background after their caller stopped waiting: best effort, in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from quintain.errors import QuintainError

log = logging.getLogger(__name__)

#: How long sending one batch of cancellations may take, and how long `CancellationQueue.close` waits, in seconds.
CANCEL_TIMEOUT_SECONDS = 5.0

#: Maximum number of calls that one message cancels.
MAX_BATCH = 1000


class CancellationQueue:
    """The calls that one client still has to cancel; ``cancel`` sends one batch, and one batch is sent at a time."""

    def __init__(self, cancel: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._cancel = cancel
        self._request_ids: list[str] = []
        self._send_task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, request_ids: Sequence[str]) -> None:
        """Queue calls to be cancelled. After `close` this has no effect: the calls end with their deadlines."""
        if self._closed:
            return
        self._request_ids += request_ids
        if self._send_task is None or self._send_task.done():
            self._send_task = asyncio.get_running_loop().create_task(self._send(), name="cancel calls")

    async def close(self) -> None:
        """Stop sending, after waiting up to `CANCEL_TIMEOUT_SECONDS` for the batches under way."""
        self._closed = True
        if self._send_task is None:
            return
        try:
            await asyncio.wait([self._send_task], timeout=CANCEL_TIMEOUT_SECONDS)
        finally:
            self._send_task.cancel()
            await asyncio.gather(self._send_task, return_exceptions=True)

    async def _send(self) -> None:
        while self._request_ids:
            batch, self._request_ids = self._request_ids[:MAX_BATCH], self._request_ids[MAX_BATCH:]
            try:
                async with asyncio.timeout(CANCEL_TIMEOUT_SECONDS):
                    await self._cancel(batch)
            except (QuintainError, TimeoutError) as error:
                log.info("%d calls were not cancelled; they end with their deadlines: %s", len(batch), error)
