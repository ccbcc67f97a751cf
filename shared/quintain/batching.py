"""Sending many small things as few messages, without making the first of them wait."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Batcher(Generic[Item]):
    """Sends items in batches: at once while nothing is under way, otherwise together when that has gone.

    A batch's error is every item's error. At most ``lanes`` batches are under way at a time. An item whose owner
    was cancelled is sent all the same.
    """

    def __init__(self, send: Callable[[list[Item]], Awaitable[None]], *, most: int = 64, lanes: int = 1) -> None:
        self._send, self._most = send, most
        self._idle = lanes
        self._gathering = False
        self._waiting: list[tuple[Item, asyncio.Future[None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> asyncio.Future[None]:
        """Send the item with whatever else waits; done when its batch has gone."""
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, gone))
        self._start()
        return gone

    def _start(self) -> None:
        if self._idle and self._waiting and not self._gathering:
            self._idle -= 1
            self._gathering = True
            # A batch is nobody's in particular: no line of a log, no span takes it for the call that began it.
            task = contextvars.Context().run(asyncio.get_running_loop().create_task, self._send_waiting())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_waiting(self) -> None:
        # One turn of the loop lets what was made ready together travel together.
        await asyncio.sleep(0)
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        self._gathering = False
        self._start()
        try:
            await self._send([item for item, _ in batch])
        except BaseException as error:
            # Every item's owner hears it; a cancelled batch is a cancelled item.
            self._end(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._end(batch, None)
        finally:
            self._idle += 1
            self._start()

    @staticmethod
    def _end(batch: list[tuple[Item, asyncio.Future[None]]], error: BaseException | None) -> None:
        for _, gone in batch:
            if gone.done():
                continue
            if error is None:
                gone.set_result(None)
            elif isinstance(error, Exception):
                gone.set_exception(error)
            else:
                gone.cancel()
