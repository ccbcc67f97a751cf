"""Sends many small items in few messages, without delaying the first one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """Sends items in batches: at once while nothing is under way, otherwise together when that has gone.

    A batch's error is every item's error. At most ``max_concurrent`` batches are under way at a time. An item whose
    owner was cancelled is sent all the same.
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
        """Send the item with whatever else waits; done when its batch has gone."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, sent))
        self._start_batch()
        return sent

    def _start_batch(self) -> None:
        if self._free_slots and self._waiting and not self._collecting:
            self._free_slots -= 1
            self._collecting = True
            # A batch is nobody's in particular: no line of a log, no span takes it for the call that began it.
            task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._send_batch())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_batch(self) -> None:
        # One turn of the loop lets what was made ready together travel together.
        await asyncio.sleep(0)
        batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
        self._collecting = False
        self._start_batch()
        try:
            await self._send([item for item, _ in batch])
        except BaseException as error:
            # Every item's owner hears it; a cancelled batch is a cancelled item.
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
