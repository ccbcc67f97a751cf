"""Prefetches leases, so that a factory's `create` returns at once: it is called on a loop that must not block.

A lease that has ended is replaced while the pool is open. While no host has a free slot the pool keeps requesting; an
exception of the target's own factory is raised to the caller of `create`. Everything happens on the connection's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import Any

from quintain.errors import BusError, NoAnswer
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts, acquire_lease
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: How often is looked whether an instance is still being created once the time for a slot is over, in seconds.
BOOT_POLL_SECONDS = 0.1

#: After how long without a further lease the slots are counted, in seconds.
SETTLE_SECONDS = 0.5

#: Pause after an error of the broker, in seconds.
PAUSE_SECONDS = 1.0


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
        #: Leases, and what the target's factory raised.
        self._ready: deque[RemoteLease | Exception] = deque()
        self._arrived = asyncio.Event()
        self._last_error = ""
        #: The number of waiting callers, and of instances that hosts are creating.
        self._waiting = self._booting = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._is_open = True

    def fill(self) -> None:
        """Request all prefetched leases; returns at once."""
        for _ in range(self._prefetch):
            self._connection.call_soon(self._request_below, self._prefetch)

    def acquire(self) -> RemoteLease:
        """Return a ready lease, blocking until there is one.

        Raises what the target's factory raised, and `NoAnswer` if no host has a free slot in time. While an instance is
        being created it waits for that one.
        """
        return self._connection.run_blocking(self._acquire())

    async def acquire_async(self) -> RemoteLease:
        """Return a ready lease, as `acquire`, without blocking the caller's event loop."""
        return await self._connection.run(self._acquire())

    def return_unused(self, lease: RemoteLease) -> None:
        """Make an acquired lease, to which no request was sent, available again."""
        self._connection.call_soon(self._put, lease)

    def count_slots(self, wanted: int) -> int:
        """Return how many of the ``wanted`` slots are leased here; blocks until no further lease comes.

        At least 1, also if there is none within the pool's timeout: then `acquire` raises why.
        """
        return self._connection.run_blocking(self._count_slots(wanted))

    def release(self, ended: RemoteLease) -> None:
        """Forget an ended lease, and request another one to keep the pool full."""
        self._connection.call_soon(self._leases.discard, ended)
        self._connection.call_soon(self._request_below, self._prefetch)

    def close(self) -> None:
        """Release all leases; their hosts end them at once."""
        self._connection.run_blocking(self._close())

    async def _acquire(self) -> RemoteLease:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeouts.slot_seconds
        self._waiting += 1
        try:
            while True:
                # Several controllers that share a pool may need more leases than are prefetched.
                self._request_below(self._waiting)
                while not self._ready:
                    await self._wait_arrived(deadline - loop.time())
                ready = self._ready.popleft()
                if isinstance(ready, Exception):
                    self._request_below(self._prefetch)
                    raise ready
                if not ready.ended:
                    return ready
                self._leases.discard(ready)
                await ready.close()
        finally:
            self._waiting -= 1

    async def _wait_arrived(self, remaining_seconds: float) -> None:
        """Wait until a lease may be ready. Raises `NoAnswer` once the time for a slot is over."""
        if remaining_seconds <= 0 and not self._booting:
            raise NoAnswer(
                f"No lease of target {self._name!r} within {self._timeouts.slot_seconds:.0f} s: every slot is taken, "
                f"or no host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or "
                f"more --slots, or lower the concurrency{self._last_error}"
            )
        self._arrived.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(remaining_seconds, BOOT_POLL_SECONDS)):
                await self._arrived.wait()

    async def _count_slots(self, wanted: int) -> int:
        loop = asyncio.get_running_loop()
        count, ends_at = 0, loop.time() + self._timeouts.slot_seconds
        while True:
            live = sum(not lease.ended for lease in self._leases)
            if live > count:
                count, ends_at = live, loop.time() + SETTLE_SECONDS
            has_failed = any(isinstance(ready, Exception) for ready in self._ready)
            if count >= wanted or has_failed or (loop.time() >= ends_at and not self._booting):
                return max(1, min(count, wanted))
            await asyncio.sleep(0.01)

    def _put(self, ready: RemoteLease | Exception) -> None:
        self._ready.append(ready)
        self._arrived.set()

    def _count_boot(self, change: int) -> None:
        self._booting += change

    def _request_below(self, wanted: int) -> None:
        """Request one more lease if fewer than ``wanted`` are ready or requested."""
        if self._is_open and len(self._ready) + len(self._requests) < wanted:
            task = asyncio.get_running_loop().create_task(self._request())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _request(self) -> None:
        ready = await self._acquire_one()
        self._requests.discard(asyncio.current_task())
        if ready is not None:
            self._put(ready)

    async def _acquire_one(self) -> RemoteLease | Exception | None:
        """Lease an instance, or return what its factory raised; None where nobody wants it any more."""
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
                return error
            else:
                self._leases.add(leased)
                return leased
            if len(self._ready) + len(self._requests) > self._prefetch + self._waiting:
                # The caller that wanted this lease has stopped waiting.
                return None

    async def _close(self) -> None:
        self._is_open = False
        requests: list[Any] = list(self._requests)
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, *(lease.release() for lease in self._leases), return_exceptions=True)
        self._leases.clear()
