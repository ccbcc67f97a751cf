"""Sends many small items in few messages, without delaying the first one."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from functools import partial
from typing import Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


class BatchSender(Generic[Item]):
    """Sends items in batches: at once while nothing is being sent, otherwise together when the batch before is done.

    ``send`` tells the items itself what became of them, and raises nothing. At most ``max_concurrent`` batches of up to
    ``max_batch`` items are sent at a time; with ``full_at_once``, so many items that wait are sent whatever is under
    way, because a full batch gains nothing by waiting. ``count`` may let a batch end earlier: it gets the items that
    wait, at most ``max_batch``, and returns how many of them go together, at least one. Items that are not ``wanted``
    any more when their batch is put together are dropped. ``on_idle`` is called when nothing waits or is sent any more.
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[None]],
        *,
        max_concurrent: int = 1,
        full_at_once: bool = False,
        count: Callable[[list[Item]], int] = len,
        wanted: Callable[[Item], bool] | None = None,
        on_idle: Callable[[], object] = lambda: None,
    ) -> None:
        #: How many items a batch may have; it may be changed at any time.
        self.max_batch = 64
        self._full_at_once = full_at_once
        self._send, self._count, self._wanted, self._on_idle = send, count, wanted, on_idle
        #: Less than zero while full batches are sent beside the others.
        self._free_slots = self._slots = max_concurrent
        self._collecting = False
        self._waiting: list[Item] = []
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> None:
        """Add an item to the next batch."""
        self._waiting.append(item)
        while self._full_at_once and len(self._waiting) >= self.max_batch:
            self._start(self._send_batch(self._take()))
        self._start_next()

    def _start_next(self) -> None:
        if self._free_slots > 0 and self._waiting and not self._collecting:
            self._collecting = True
            self._start(self._send_collected())

    def _start(self, sending: Coroutine[None, None, None]) -> None:
        self._free_slots -= 1
        # An empty context: the batch must not inherit the log ids and the span of the call that started it.
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_collected(self) -> None:
        # One iteration of the loop, so that items added in the same iteration share a batch.
        await asyncio.sleep(0)
        batch = self._take()
        self._collecting = False
        self._start_next()
        await self._send_batch(batch)

    async def _send_batch(self, batch: list[Item]) -> None:
        try:
            if batch:
                await self._send(batch)
        finally:
            self._free_slots += 1
            self._start_next()
            if self._free_slots == self._slots:
                self._on_idle()

    def _take(self) -> list[Item]:
        """Remove the items of the next batch from those that wait."""
        if self._wanted is not None:
            self._waiting = [item for item in self._waiting if self._wanted(item)]
        first = self._waiting[: self.max_batch]
        count = self._count(first) if first else 0
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch


class Batcher(Generic[Item]):
    """A `BatchSender` whose items are awaited: if ``send`` fails, all items of the batch fail with its error.

    An item is sent even if the task that added it was cancelled. The options are those of `BatchSender`.

    Example::

        batcher = Batcher(send_all)
        await batcher.add(item)
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[None]], *, max_batch: int = 64, max_concurrent: int = 1
    ) -> None:
        self._send = send
        self._sender = BatchSender[tuple[Item, asyncio.Future[None]]](self._send_awaited, max_concurrent=max_concurrent)
        self._sender.max_batch = max_batch

    def add(self, item: Item) -> asyncio.Future[None]:
        """Add an item to the next batch; returns a future that is done when the batch was sent."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sender.add((item, sent))
        return sent

    async def _send_awaited(self, batch: list[tuple[Item, asyncio.Future[None]]]) -> None:
        try:
            await self._send([item for item, _ in batch])
        except BaseException as error:
            # Every item gets the error; if the batch is cancelled, so are its items.
            self._resolve(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            self._resolve(batch, None)

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


class KeyedBatchSender(Generic[Key, Item]):
    """A `BatchSender` for each key, which exists while items of that key wait or are sent; full batches do not wait."""

    def __init__(
        self,
        send: Callable[[Key, list[Item]], Awaitable[None]],
        *,
        count: Callable[[list[Item]], int],
        wanted: Callable[[Item], bool] | None = None,
    ) -> None:
        self._send, self._count, self._wanted = send, count, wanted
        self._senders: dict[Key, BatchSender[Item]] = {}

    def add(self, key: Key, item: Item, *, max_batch: int = 64) -> None:
        """Add an item to the next batch of this key, which has at most ``max_batch`` items."""
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = BatchSender(
                partial(self._send, key),
                full_at_once=True,
                count=self._count,
                wanted=self._wanted,
                on_idle=partial(self._senders.pop, key),
            )
        sender.max_batch = max_batch
        sender.add(item)
