"""Tasks, batches, budgets of bytes, limits of time and random ids, for many calls at a time in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Returned = TypeVar("Returned")


async def cancel_and_wait(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel these tasks, if there are any, and wait until they have ended. Raises no error of theirs."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)


def start_task(
    tasks: set[asyncio.Task[Returned]], work: Coroutine[Any, Any, Returned], *, name: str | None = None
) -> asyncio.Task[Returned]:
    """Start a task, which is kept in ``tasks`` until it has ended: the loop itself does not keep it."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


@contextlib.asynccontextmanager
async def running_task(work: Coroutine[Any, Any, object], name: str) -> AsyncIterator[None]:
    """Run a task while the context is open; it is cancelled at the end."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    try:
        yield
    finally:
        await cancel_and_wait(task)


@dataclass(slots=True, eq=False)
class _KeyedItems(Generic[Item]):
    """The items of one key that wait, and how many of its batches are under way; ``is_due``: one takes them next."""

    waiting: list[Item] = field(default_factory=list)
    max_batch: int = 64
    under_way: int = 0
    is_due: bool = False


class BatchSender(Generic[Key, Item]):
    """Sends the items of each key in batches: at once while nothing is being sent, otherwise together when the batch
    before is done.

    ``send`` tells the items itself what became of them, and raises nothing. At most ``max_concurrent`` batches of a key
    are sent at a time; with ``full_at_once``, as many items as a batch may have are sent whatever is under way, because
    a full batch gains nothing by waiting. ``count`` may let a batch end earlier: it gets the items that wait, and
    returns how many of them go together, at least one. What is added within ``gather_seconds`` shares a batch.
    """

    def __init__(
        self,
        send: Callable[[Key, list[Item]], Awaitable[None]],
        *,
        max_concurrent: int = 1,
        full_at_once: bool = False,
        count: Callable[[list[Item]], int] = len,
        gather_seconds: float = 0,
    ) -> None:
        self._send, self._max_concurrent, self._full_at_once = send, max_concurrent, full_at_once
        self._count, self._gather_seconds = count, gather_seconds
        self._lines: dict[Key, _KeyedItems[Item]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def add(self, key: Key, item: Item, *, max_batch: int = 64) -> None:
        """Add an item to the next batch of this key, which has at most ``max_batch`` items; after `close` none is."""
        if self._is_closed:
            return
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _KeyedItems()
        line.waiting.append(item)
        line.max_batch = max_batch
        is_full = self._full_at_once and len(line.waiting) >= max_batch
        if not line.is_due and (is_full or line.under_way < self._max_concurrent):
            self._start(key, line)

    async def close(self, timeout_seconds: float) -> None:
        """Take no more items, and wait up to ``timeout_seconds`` until those that wait are sent; cancel it then."""
        self._is_closed = True
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    while self._lines:
                        await (asyncio.wait(self._sending) if self._sending else asyncio.sleep(0))
        finally:
            for line in self._lines.values():
                line.waiting.clear()
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)

    def _start(self, key: Key, line: _KeyedItems[Item], *, at_once: bool = False) -> None:
        """Start to send a batch of what waits after an iteration of the loop, or ``at_once``."""
        line.is_due = True
        line.under_way += 1
        # An empty context: the batch must not inherit the log ids and the span of the call that started it.
        sending = self._send_batch(key, line, at_once=at_once)
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_batch(self, key: Key, line: _KeyedItems[Item], *, at_once: bool) -> None:
        try:
            if not at_once:
                await asyncio.sleep(self._gather_seconds)  # Items that are added until then share the batch.
            line.is_due = False
            batch = line.waiting[: line.max_batch]
            if len(batch) > 1:
                batch = batch[: self._count(batch)]
            line.waiting = line.waiting[len(batch) :]
            if line.waiting and (self._full_at_once or line.under_way < self._max_concurrent):
                self._start(key, line, at_once=True)
            if batch:  # none where `close` gave up what waited
                await self._send(key, batch)
        finally:
            line.under_way -= 1
            if line.waiting and not line.is_due and line.under_way < self._max_concurrent:
                self._start(key, line)
            elif not (line.waiting or line.under_way):
                self._lines.pop(key, None)


class Batcher(Generic[Item]):
    """A `BatchSender` whose items are awaited: if ``send`` fails, all items of the batch fail with its error.

    An item is sent even if the task that added it was cancelled. The options are those of `BatchSender`.

    Example::

        batcher = Batcher(send_all)
        await batcher.add(item)
    """

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[None]],
        *,
        max_batch: int = 64,
        max_concurrent: int = 1,
        gather_seconds: float = 0,
    ) -> None:
        self._send, self._max_batch = send, max_batch
        self._sender = BatchSender[None, tuple[Item, asyncio.Future[None]]](
            self._send_awaited, max_concurrent=max_concurrent, gather_seconds=gather_seconds
        )

    def add(self, item: Item) -> asyncio.Future[None]:
        """Add an item to the next batch; returns a future that is done when the batch was sent."""
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sender.add(None, (item, sent), max_batch=self._max_batch)
        return sent

    async def _send_awaited(self, _: None, batch: list[tuple[Item, asyncio.Future[None]]]) -> None:
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


class ByteBudget:
    """So many bytes may be held at a time; who wants more than are left waits, in the order of asking.

    Example::

        async with budget.hold(len(body)):
            await send(body)
    """

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._turn = asyncio.Lock()
        self._given_back = asyncio.Event()

    @contextlib.asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold ``size`` bytes while the context is open; more than there are is all of them."""
        size = min(size, self._total)
        async with self._turn:
            while self._free < size:
                self._given_back.clear()
                await self._given_back.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._given_back.set()


#: Size of one id, and of the block of random bytes read at a time, in bytes.
NAME_BYTES = 16
BLOCK_BYTES = 256 * NAME_BYTES


class RandomIds:
    """Generates unguessable ids. Do not share it between a process and its fork: both would generate the same ids."""

    def __init__(self) -> None:
        self._unused: list[bytes] = []

    def next(self) -> str:
        """Return an id of 32 hexadecimal digits."""
        if not self._unused:
            block = os.urandom(BLOCK_BYTES)
            self._unused = [block[offset : offset + NAME_BYTES] for offset in range(0, BLOCK_BYTES, NAME_BYTES)]
        return self._unused.pop().hex()


#: How much later than its time a `TimeLimit` ends its block at most, in seconds.
LATENESS_SECONDS = 0.01


class TimeLimits:
    """The blocks that run under a `TimeLimit`, with one timer of the event loop for all."""

    def __init__(self) -> None:
        #: Those whose blocks run, in the order in which they began.
        self.running: dict[TimeLimit, None] = {}
        self.checked_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def check_at(self, at: float) -> None:
        """Look at this time of the loop which blocks are to end, and not before."""
        if self._timer is not None:
            self._timer.cancel()
        self.checked_at, self._timer = at, asyncio.get_running_loop().call_at(at, self._check)

    def _check(self) -> None:
        now, self.checked_at = asyncio.get_running_loop().time(), math.inf
        for limit in [each for each in self.running if each.ends_at <= now]:
            limit.end()
        if (next_at := min((each.ends_at for each in self.running), default=math.inf)) < math.inf:
            self.check_at(max(next_at, now + LATENESS_SECONDS))


@dataclass(slots=True, eq=False)
class TimeLimit:
    """Ends a block with `TimeoutError` at this time of the loop: `asyncio.timeout_at` at a fifth of its cost.

    Example::

        with TimeLimit(time_limits, loop.time() + 30):
            answer = await reply
    """

    limits: TimeLimits
    ends_at: float
    _task: asyncio.Task[object] = field(init=False)
    _cancelling: int = field(init=False)
    _is_over: bool = False

    def __enter__(self) -> None:
        """Begin."""
        task = asyncio.current_task()
        assert task is not None, "only a task can be cancelled"
        self._task, self._cancelling = task, task.cancelling()
        self.limits.running[self] = None
        if self.ends_at < self.limits.checked_at:
            self.limits.check_at(self.ends_at)

    def end(self) -> None:
        """End the block."""
        self._is_over = True
        del self.limits.running[self]
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End. Raises `TimeoutError` where it was this limit that cancelled the task."""
        if not self._is_over:
            del self.limits.running[self]
        elif self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error


class IdleLimit:
    """Ends a block with `TimeoutError` when `touch` was not called for ``seconds``; None is no limit.

    Example::

        idle = IdleLimit(60)
        async with idle.watch():
            async for piece in pieces:
                idle.touch()
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._timeout: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Watch the block; the silence begins now."""
        async with asyncio.timeout(self._seconds) as self._timeout:
            yield
        self._timeout = None

    def touch(self) -> None:
        """Begin the silence anew."""
        if self._seconds is not None and self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
