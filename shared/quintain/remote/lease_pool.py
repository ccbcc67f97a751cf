"""Prefetches leases, so that a factory's `create` returns at once: it is called on a loop that must not block.

A lease that has ended is replaced while the pool is open. While no host has a free slot the pool keeps requesting; an
exception of the target's own factory is raised to the caller of `create`. Everything happens on the connection's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from quintain.errors import BusError, NoAnswer
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import DEFAULT_TIMEOUTS, RemoteLease, TargetTimeouts, acquire_lease
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: How often a caller that waits looks whether an unused lease was returned, in seconds.
POLL_SECONDS = 0.02

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
        self._last_error = ""
        #: The number of waiting callers, and of instances that hosts are creating.
        self._waiting = self._booting = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._is_open = True
        for _ in range(prefetch):
            connection.call_soon(self._request_below, prefetch)

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
        self._connection.call_soon(self._ready.append, lease)

    def count_slots(self, wanted: int) -> int:
        """Return how many of the ``wanted`` slots are leased here; blocks until no further lease comes.

        At least 1, also if there is none within the pool's timeout: then `acquire` raises why. Without prefetched
        leases it is ``wanted``.
        """
        most = min(wanted, self._prefetch)
        return self._connection.run_blocking(self._count_slots(most)) if most else wanted

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
                if not self._ready:
                    if loop.time() >= deadline and not self._booting:
                        raise self._no_answer()
                    await asyncio.wait(self._requests, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    continue
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

    def _no_answer(self) -> NoAnswer:
        return NoAnswer(
            f"No lease of target {self._name!r} within {self._timeouts.slot_seconds:.0f} s: every slot is taken, or no "
            f"host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or more "
            f"--slots, or lower the concurrency{self._last_error}"
        )

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
            await asyncio.sleep(POLL_SECONDS)

    def _count_boot(self, change: int) -> None:
        self._booting += change

    def _request_below(self, wanted: int) -> None:
        """Request one more lease if fewer than ``wanted`` are ready or requested."""
        if self._is_open and len(self._ready) + len(self._requests) < wanted:
            task = asyncio.get_running_loop().create_task(self._request())
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _request(self) -> None:
        """Lease an instance; what its factory raises is for a caller. Ends where nobody wants it any more."""
        while True:
            try:
                leased = await acquire_lease(
                    *(self._connection.bus, self._connection.rpc_client, self._name),
                    timeouts=self._timeouts,
                    timings=self._timings,
                    on_boot=self._count_boot,
                )
                self._leases.add(leased)
                self._ready.append(leased)
            except NoAnswer as no_answer:
                log.info("%s", no_answer.message)
                self._last_error = ""
            except BusError as error:
                self._last_error = f" ({error.message})"
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                self._ready.append(error)
                return
            else:
                return
            if len(self._ready) + len(self._requests) > self._prefetch + self._waiting:
                # The caller that wanted this lease has stopped waiting.
                return

    async def _close(self) -> None:
        self._is_open = False
        for task in self._requests:
            task.cancel()
        releases = [lease.release() for lease in self._leases]
        await asyncio.gather(*self._requests, *releases, return_exceptions=True)
        self._leases.clear()
