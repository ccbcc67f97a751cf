"""Sends many small items in few messages, without delaying the first one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """Sends items in batches: at once while nothing is being sent, otherwise together when the batch before is done.

    If ``send`` fails, all items of the batch fail with its error. At most ``max_concurrent`` batches of up to
    ``max_batch`` items are sent at a time. An item is sent even if the task that added it was cancelled.

    Example::

        batcher = Batcher(send_all)
        await batcher.add(item)
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[None]], *, max_batch: int = 64, max_concurrent: int = 1
    ) -> None:
        self._send, self._max_batch = send, max_batch
        self._free_slots = max_concurrent
        self._collecting = False
        self._waiting: list[tuple[Item, asyncio.Future[None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> asyncio.Future[None]:
        """Add an item to the next batch; returns a future that is done when the batch was sent."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, sent))
        self._start_batch()
        return sent

    def _start_batch(self) -> None:
        if self._free_slots and self._waiting and not self._collecting:
            self._free_slots -= 1
            self._collecting = True
            # An empty context: the batch must not inherit the log ids and the span of the call that started it.
            task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._send_batch())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_batch(self) -> None:
        # One iteration of the loop, so that items added in the same iteration share a batch.
        await asyncio.sleep(0)
        batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
        self._collecting = False
        self._start_batch()
        try:
            await self._send([item for item, _ in batch])
        except BaseException as error:
            # Every item gets the error; if the batch is cancelled, so are its items.
            self._resolve(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._resolve(batch, None)
        finally:
            self._free_slots += 1
            self._start_batch()

    @staticmethod
    def _resolve(batch: list[tuple[Item, asyncio.Future[None]]], error: BaseException | None) -> None:
        for _, sent in batch:
            if sent.done():
                continue
            if error is None:
                sent.set_result(None)
            elif isinstance(error, Exception):
                sent.set_exception(error)
            else:
                sent.cancel()
