"""Waits for the registration of targets, so that the services of a fleet may start in any order."""

from __future__ import annotations

import asyncio
import contextlib

from quintain.errors import BudgetUnavailable
from quintain_metadata.ledger.base import Ledger, SqlProgram
from quintain_metadata.rules import served_targets, targets

#: How many requests wait in this process at once; each is an unacknowledged message. The others wait in their queue.
MAX_WAITING = 4

#: How long a request stays here that goes back to the end of its queue to wait there, in seconds.
TURN_SECONDS = 0.05

#: How often the registered targets are read while a request waits, in seconds.
READ_SECONDS = 0.25


class RegistrationWait:
    """Lets requests wait for the registration of their target.

    They wait while no target is registered at all, and within ``window_seconds`` of the start of this service: workers
    that started before it, or start with it, have registered by then. That window ends as soon as each target has as
    many workers as before the start, whose leases were renewed since.
    """

    def __init__(self, ledger: Ledger, window_seconds: float, lease_ms: int) -> None:
        self._ledger, self._lease_ms = ledger, lease_ms
        self._window_ends_at = asyncio.get_running_loop().time() + window_seconds
        self._started_at = 0
        self._workers_before: dict[str, int] = {}
        self._stopped = asyncio.Event()
        self._read_lock = asyncio.Lock()
        self._read_at = 0.0
        self._registered: frozenset[str] | None = None
        self.waiting_count = 0

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    async def start(self) -> None:
        """Note which workers there were; called before a registration or a heartbeat is read."""
        self._started_at = await self._ledger.now()
        self._workers_before = await self._ledger.transact(lambda _: served_targets.count_last_workers(self._lease_ms))

    def stop(self) -> None:
        """End all waits at once."""
        self._stopped.set()

    async def wait(self, target: str, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` until this target is registered, or waiting has no reason any more.

        Returns False, after `TURN_SECONDS`, if it has to wait elsewhere: `MAX_WAITING` requests wait here already.
        """
        if timeout_seconds <= 0 or not await self._is_expected(target):
            return True
        if self.waiting_count >= MAX_WAITING:
            await asyncio.sleep(TURN_SECONDS)
            return self.is_stopped or not await self._is_expected(target)
        self.waiting_count += 1
        give_up_at = asyncio.get_running_loop().time() + timeout_seconds
        try:
            while not self.is_stopped and await self._is_expected(target):
                remaining_seconds = give_up_at - asyncio.get_running_loop().time()
                if remaining_seconds <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), min(READ_SECONDS, remaining_seconds))
        finally:
            self.waiting_count -= 1
        return True

    async def _is_expected(self, target: str) -> bool:
        """Whether the target is not registered, and a worker may still register it."""
        registered = await self._registered_targets()
        if registered is None:
            return True
        return target not in registered and (not registered or asyncio.get_running_loop().time() < self._window_ends_at)

    async def _registered_targets(self) -> frozenset[str] | None:
        """Return the registered targets, read at most every `READ_SECONDS`; None if the ledger was never read."""
        loop = asyncio.get_running_loop()
        async with self._read_lock:
            if self._registered is None or loop.time() - self._read_at >= READ_SECONDS:
                with contextlib.suppress(BudgetUnavailable):  # logged by the instrumented ledger
                    self._registered = await self._ledger.transact(lambda _: self._read())
                self._read_at = loop.time()
            return self._registered

    def _read(self) -> SqlProgram[frozenset[str]]:
        workers = yield from served_targets.count_workers(self._started_at + self._lease_ms)
        before = self._workers_before
        if before and all(workers.get(target, 0) >= count for target, count in before.items()):
            self._window_ends_at = 0.0
        return frozenset((yield from targets.target_names()))
