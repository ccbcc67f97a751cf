"""Tells the metadata services on one PostgreSQL which targets got free capacity, by LISTEN and NOTIFY.

A notification only saves the others the wait for their next sweep: one that is lost is no error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import asyncpg

log = logging.getLogger(__name__)

CHANNEL: Final = "quintain_capacity"

#: Pause before listening again after the connection was lost, in seconds.
RECONNECT_SECONDS = 1.0

#: Notifications are collected for so long, in seconds: each one wakes every service.
COLLECT_SECONDS = 0.01

_NOTIFY_SQL: Final = f"SELECT pg_notify('{CHANNEL}', $1 || ' ' || target) FROM unnest($2::text[]) AS target"

#: What a lost server raises.
_ERRORS = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)


class CapacityNotifications:
    """Sends and receives notifications of one service.

    ``connect`` opens a connection to listen on; ``execute`` runs one statement on any connection.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[asyncpg.Connection[asyncpg.Record]]],
        execute: Callable[[str, str, list[str]], Awaitable[object]],
    ) -> None:
        self._connect, self._execute = connect, execute
        self._service_id = secrets.token_hex(8)
        self._unsent: set[str] = set()
        self._send_task: asyncio.Task[None] | None = None
        self._listen_task: asyncio.Task[None] | None = None

    def listen(self, callback: Callable[[str], None]) -> None:
        """Call ``callback`` with a target's name when another service announces it, from now on."""
        self._listen_task = asyncio.get_running_loop().create_task(self._listen(callback), name="ledger-listen")

    def announce(self, targets: Iterable[str]) -> None:
        """Notify the other services of these targets, soon."""
        self._unsent.update(targets)
        if self._unsent and (self._send_task is None or self._send_task.done()):
            self._send_task = asyncio.get_running_loop().create_task(self._send(), name="ledger-notify")

    async def close(self) -> None:
        """Send and receive no more."""
        tasks = [task for task in (self._send_task, self._listen_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self) -> None:
        while self._unsent:
            await asyncio.sleep(COLLECT_SECONDS)
            targets, self._unsent = sorted(self._unsent), set()
            try:
                await self._execute(_NOTIFY_SQL, self._service_id, targets)
            except _ERRORS as error:
                log.debug("Free capacity was not announced: %s", error)

    async def _listen(self, callback: Callable[[str], None]) -> None:
        def on_notification(*arguments: Any) -> None:
            service_id, _, target = arguments[-1].partition(" ")
            if service_id != self._service_id:
                callback(target)

        while True:
            with contextlib.suppress(*_ERRORS):
                connection = await self._connect()
                try:
                    closed = asyncio.Event()
                    connection.add_termination_listener(lambda _, closed=closed: closed.set())
                    await connection.add_listener(CHANNEL, on_notification)
                    await closed.wait()
                finally:
                    connection.terminate()
            await asyncio.sleep(RECONNECT_SECONDS)
