"""Prefetches leases, so that a factory's `create` returns at once: it is called on a loop that must not block.

A lease that has ended is replaced while the pool is open. While no host has a free slot the pool keeps requesting; an
exception of the target's own factory is raised to the caller of `create`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent import futures
from concurrent.futures import Future
from typing import Any

from quintain.errors import BusError, NoAnswer
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts
from quintain.remote.lease_request import acquire_lease
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: How often a caller looks whether an instance is still being created once its time for a slot is over, in seconds.
BOOT_POLL_SECONDS = 0.1

#: After how long without a further lease the slots are counted, in seconds.
SETTLE_SECONDS = 0.5

#: Pause after an error of the broker, in seconds.
PAUSE_SECONDS = 1.0

#: A lease, or what the target's factory raised.
ReadyLease = RemoteLease | BaseException


class LeasePool:
    """Keeps ``prefetch`` leases of one target ready; with 0 each lease is requested when it is needed."""

    def __init__(
        self,
        connection: ConnectionThread,
        name: str,
        prefetch: int,
        *,
        timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._connection, self._name, self._prefetch = connection, name, prefetch
        self._timeouts, self._timings = timeouts, timings
        self._ready: deque[ReadyLease] = deque()
        self._futures: deque[Future[ReadyLease]] = deque()
        self._last_error = ""
        # The number of leases that are ready or requested, and the number of waiting callers. A caller that finds fewer
        # leases than callers requests another one, as several controllers that share a pool may need more than are
        # prefetched.
        self._lock = threading.Lock()
        self._available = self._waiters = 0
        #: The number of instances that hosts are creating; changed on the connection's loop only.
        self._booting = 0
        # Used on the connection's loop only.
        self._lease_tasks: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._open = True

    def fill(self) -> None:
        """Request all prefetched leases; returns at once."""
        for _ in range(self._prefetch):
            self._request_if(lambda: True)

    def acquire(self) -> RemoteLease:
        """Return a ready lease, blocking until there is one.

        Raises what the target's factory raised, and `NoAnswer` if no host has a free slot in time. While an instance is
        being created it waits for that one.
        """
        deadline = time.monotonic() + self._timeouts.slot_seconds
        with self._counted_waiter():
            while True:
                future = self._take()
                try:
                    while not future.done():
                        futures.wait([future], self._wait_seconds(deadline))
                except BaseException:
                    self._give_back(future)
                    raise
                if (lease := self._checked(future.result())) is not None:
                    return lease

    async def acquire_async(self) -> RemoteLease:
        """Return a ready lease, as `acquire`, without blocking the caller's event loop."""
        deadline = time.monotonic() + self._timeouts.slot_seconds
        with self._counted_waiter():
            while True:
                future = self._take()
                arrival = asyncio.wrap_future(future)
                try:
                    while not future.done():
                        await asyncio.wait([arrival], timeout=self._wait_seconds(deadline))
                except BaseException:
                    self._give_back(future)
                    raise
                if (lease := self._checked(future.result())) is not None:
                    return lease

    def return_unused(self, lease: RemoteLease) -> None:
        """Make an acquired lease, to which no request was sent, available again."""
        with self._lock:
            self._available += 1
        self._put(lease)

    def count_slots(self, wanted: int) -> int:
        """Return how many of the ``wanted`` slots are leased here; blocks until no further lease comes.

        At least 1, also if there is none within the pool's timeout: then `acquire` raises why.
        """
        begin = time.monotonic()
        count, ends_at = 0, begin + self._timeouts.slot_seconds
        while True:
            live = sum(not lease.ended for lease in list(self._leases))
            if live > count:
                count, ends_at = live, time.monotonic() + SETTLE_SECONDS
            has_failed = any(isinstance(ready, BaseException) for ready in list(self._ready))
            if count >= wanted or has_failed or (time.monotonic() >= ends_at and not self._booting):
                return max(1, min(count, wanted))
            time.sleep(0.01)

    @contextlib.contextmanager
    def _counted_waiter(self) -> Iterator[None]:
        with self._lock:
            self._waiters += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiters -= 1

    def _take(self) -> Future[ReadyLease]:
        """Return a future for the next ready lease, requesting one if there are fewer than callers."""
        self._request_if(lambda: self._available < self._waiters)
        future: Future[ReadyLease] = Future()
        with self._lock:
            if self._ready:
                future.set_result(self._ready.popleft())
            else:
                self._futures.append(future)
        return future

    def _put(self, ready: ReadyLease) -> None:
        with self._lock:
            while self._futures:
                future = self._futures.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(ready)
                    return
            self._ready.append(ready)

    def _give_back(self, future: Future[ReadyLease]) -> None:
        """Give up a future of `_take`; a lease that has arrived meanwhile is for the next caller."""
        if not future.cancel():
            self._put(future.result())

    def _wait_seconds(self, deadline: float) -> float:
        """Return how long to wait before the next look. Raises `NoAnswer` once the time for a slot is over."""
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds > 0 or self._booting:
            return max(remaining_seconds, BOOT_POLL_SECONDS)
        raise NoAnswer(
            f"No lease of target {self._name!r} within {self._timeouts.slot_seconds:.0f} s: every slot is taken, or "
            f"no host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or "
            f"more --slots, or lower the concurrency{self._last_error}"
        )

    def _count_boot(self, change: int) -> None:
        self._booting += change

    def _checked(self, ready: ReadyLease) -> RemoteLease | None:
        """Return a lease that has not ended, else None; raise what the target's factory raised."""
        self._decrement_available()
        if isinstance(ready, BaseException):
            self._request_if(lambda: self._available < self._prefetch)
            raise ready
        if ready.ended:
            self._connection.call_soon(self._leases.discard, ready)
            return None
        return ready

    def release(self, ended: RemoteLease) -> None:
        """Forget an ended lease, and request another one to keep the pool full."""
        self._connection.call_soon(self._leases.discard, ended)
        self._request_if(lambda: self._available < self._prefetch)

    def close(self) -> None:
        """Release all leases; their hosts end them at once."""
        self._connection.run_blocking(self._close())

    def _request_if(self, condition: Callable[[], bool]) -> None:
        with self._lock:
            if not condition():
                return
            self._available += 1
        self._connection.call_soon(self._start_lease_task)

    def _decrement_available(self) -> None:
        with self._lock:
            self._available -= 1

    def _start_lease_task(self) -> None:
        if self._open:
            task = asyncio.get_running_loop().create_task(self._acquire_one())
            self._lease_tasks.add(task)
            task.add_done_callback(self._lease_tasks.discard)

    async def _acquire_one(self) -> None:
        connection = self._connection
        while True:
            try:
                leased = await acquire_lease(
                    connection.bus,
                    connection.rpc_client,
                    self._name,
                    timeouts=self._timeouts,
                    timings=self._timings,
                    on_boot=self._count_boot,
                )
            except NoAnswer as no_answer:
                log.info("%s", no_answer.message)
                self._last_error = ""
            except BusError as error:
                self._last_error = f" ({error.message})"
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                self._put(error)
                return
            else:
                self._leases.add(leased)
                self._put(leased)
                return
            if self._available > self._prefetch + self._waiters:
                # The caller that wanted this lease has stopped waiting.
                self._decrement_available()
                return

    async def _close(self) -> None:
        self._open = False
        tasks: list[Any] = list(self._lease_tasks)
        for task in tasks:
            task.cancel()
        releases = [each.release() for each in self._leases]
        self._leases.clear()
        await asyncio.gather(*tasks, *releases, return_exceptions=True)
