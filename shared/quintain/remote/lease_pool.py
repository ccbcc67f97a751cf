"""Prefetches leases, so that a factory's `create` returns at once: it is called on a loop that must not block.

A lease that has ended is replaced while the pool is open. While no host has a free slot the pool keeps requesting; an
exception of the target's own factory is raised to the caller of `create`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from quintain.errors import BusError, NoAnswer
from quintain.remote.connection_thread import ConnectionThread
from quintain.remote.lease import RemoteLease, acquire_lease
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: Timeout of `acquire`, in seconds.
ACQUIRE_TIMEOUT_SECONDS = 60.0

#: How long `close` waits for leases that are being requested, in seconds.
CLOSE_SECONDS = 0.5

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
        timeout_seconds: float = ACQUIRE_TIMEOUT_SECONDS,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._connection, self._name, self._prefetch, self._timeout_seconds = (
            connection,
            name,
            prefetch,
            timeout_seconds,
        )
        self._timings = timings
        self._ready: queue.SimpleQueue[RemoteLease | BaseException] = queue.SimpleQueue()
        self._last_error = ""
        # The number of leases that are ready or requested, and the number of waiting callers. A caller that finds fewer
        # leases than callers requests another one, as several controllers that share a pool may need more than are
        # prefetched.
        self._lock = threading.Lock()
        self._available = self._waiters = 0
        # Used on the connection's loop only.
        self._lease_tasks: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._open = True

    def fill(self) -> None:
        """Request all prefetched leases; returns at once."""
        for _ in range(self._prefetch):
            self._request_if(lambda: True)

    def acquire(self) -> RemoteLease:
        """Return a ready lease, waiting for one if necessary.

        Raises what the target's factory raised, and `NoAnswer` if no host has a free slot in time.
        """
        with self._lock:
            self._waiters += 1
        try:
            return self._acquire_until(time.monotonic() + self._timeout_seconds)
        finally:
            with self._lock:
                self._waiters -= 1

    def _acquire_until(self, deadline: float) -> RemoteLease:
        while True:
            self._request_if(lambda: self._available < self._waiters)
            try:
                ready = self._ready.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise NoAnswer(
                    f"No lease of target {self._name!r} within {self._timeout_seconds:.0f} s: every slot is taken, or "
                    f"no host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or "
                    f"more --slots, or lower the concurrency{self._last_error}"
                ) from None
            self._decrement_available()
            if isinstance(ready, RemoteLease) and ready.ended:
                self._connection.call_soon(self._leases.discard, ready)
                continue
            if isinstance(ready, BaseException):
                self._request_if(lambda: self._available < self._prefetch)
                raise ready
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
                    timeout_seconds=self._timeout_seconds,
                    timings=self._timings,
                )
            except NoAnswer as no_answer:
                log.info("%s", no_answer.message)
                self._last_error = ""
            except BusError as error:
                self._last_error = f" ({error.message})"
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                self._ready.put(error)
                return
            else:
                self._leases.add(leased)
                self._ready.put(leased)
                return
            if self._available > self._prefetch + self._waiters:
                # The caller that wanted this lease has stopped waiting.
                self._decrement_available()
                return

    async def _close(self) -> None:
        self._open = False
        tasks: list[Any] = list(self._lease_tasks)
        if tasks:
            # Wait a little: a host that is about to answer would hold a slot for a lease that is not known here.
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in tasks:
            task.cancel()
        releases = [each.release() for each in self._leases]
        self._leases.clear()
        await asyncio.gather(*tasks, *releases, return_exceptions=True)
