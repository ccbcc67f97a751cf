"""Leases made ahead, so that a factory's `create` has one ready: it is called on a loop that must not wait.

A lease that is over is replaced at once, for as long as the pool is open. Where no host is free, the pool goes on
asking; what the target's own factory raised is for whoever creates a target to hear.
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
from quintain.remote.lease import RemoteLease, lease
from quintain.remote.line import Line
from quintain.timings import DEFAULT_TIMINGS, Timings

log = logging.getLogger(__name__)

#: How long `take` waits for a lease, in seconds.
TAKE_SECONDS = 60.0

#: How long `close` waits for leases that are on their way, in seconds.
CLOSE_SECONDS = 0.5

#: The pause before the broker is asked again after an error of its own, in seconds.
PAUSE_SECONDS = 1.0


class Pool:
    """So many leases of one target made ahead, or none: then each is made when it is wanted."""

    def __init__(
        self,
        line: Line,
        name: str,
        ahead: int,
        *,
        timeout_seconds: float = TAKE_SECONDS,
        timings: Timings = DEFAULT_TIMINGS,
    ) -> None:
        self._line, self._name, self._ahead, self._timeout_seconds = line, name, ahead, timeout_seconds
        self._timings = timings
        self._ready: queue.SimpleQueue[RemoteLease | BaseException] = queue.SimpleQueue()
        self._trouble = ""
        # How many leases are ready or on their way, and how many wait for one: whoever finds fewer than are waited
        # for asks for another, as controllers that share a pool may want more at once than are made ahead.
        self._counting = threading.Lock()
        self._coming = self._takers = 0
        # On the line alone.
        self._asking: set[asyncio.Task[None]] = set()
        self._leases: set[RemoteLease] = set()
        self._open = True

    def fill(self) -> None:
        """Ask for all that are made ahead; returns at once."""
        for _ in range(self._ahead):
            self._ask_where(lambda: True)

    def take(self) -> RemoteLease:
        """A ready lease; waits for one that is on its way.

        Raises what the target's factory raised, and `NoAnswer` where no host has a free slot in time.
        """
        with self._counting:
            self._takers += 1
        try:
            return self._taken(time.monotonic() + self._timeout_seconds)
        finally:
            with self._counting:
                self._takers -= 1

    def _taken(self, ends: float) -> RemoteLease:
        while True:
            self._ask_where(lambda: self._coming < self._takers)
            try:
                ready = self._ready.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                raise NoAnswer(
                    f"No lease of target {self._name!r} within {self._timeout_seconds:.0f} s: every slot is taken, or "
                    f"no host serves it. Start one with `quintain serve host module:factory --name {self._name}`, or "
                    f"more --slots, or lower the concurrency{self._trouble}"
                ) from None
            self._came()
            if isinstance(ready, RemoteLease) and ready.gone:
                self._line.tell(self._leases.discard, ready)
                continue
            if isinstance(ready, BaseException):
                self._ask_where(lambda: self._coming < self._ahead)
                raise ready
            return ready

    def give_back(self, used: RemoteLease) -> None:
        """A lease is over: another one takes its place, where as many are made ahead."""
        self._line.tell(self._leases.discard, used)
        self._ask_where(lambda: self._coming < self._ahead)

    def close(self) -> None:
        """Give every lease up, and have the hosts end them at once."""
        self._line.call(self._close())

    def _ask_where(self, wanted: Callable[[], bool]) -> None:
        with self._counting:
            if not wanted():
                return
            self._coming += 1
        self._line.tell(self._begin)

    def _came(self) -> None:
        with self._counting:
            self._coming -= 1

    def _begin(self) -> None:
        if self._open:
            asking = asyncio.get_running_loop().create_task(self._lease())
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def _lease(self) -> None:
        line = self._line
        while True:
            try:
                leased = await lease(
                    line.bus, line.caller, self._name, timeout_seconds=self._timeout_seconds, timings=self._timings
                )
            except NoAnswer as silence:
                log.info("%s", silence.message)
                self._trouble = ""
            except BusError as error:
                self._trouble = f" ({error.message})"
                await asyncio.sleep(PAUSE_SECONDS)
            except Exception as error:
                self._ready.put(error)
                return
            else:
                self._leases.add(leased)
                self._ready.put(leased)
                return
            if self._coming > self._ahead + self._takers:
                # Whoever wanted this one has stopped waiting for it.
                self._came()
                return

    async def _close(self) -> None:
        self._open = False
        ending: list[Any] = list(self._asking)
        if ending:
            # A host that is just about to answer would hold its slot for a lease that nobody knows of.
            await asyncio.wait(ending, timeout=CLOSE_SECONDS)
        for asking in ending:
            asking.cancel()
        releasing = [each.release() for each in self._leases]
        self._leases.clear()
        await asyncio.gather(*ending, *releasing, return_exceptions=True)
