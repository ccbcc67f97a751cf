"""Watches the process of a slot through its supervisor, another process: a target that holds its interpreter's lock, or
boots for minutes, is not taken for lost, and the end of a process is known at once.

Everything here runs on the connection thread's loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from quintain.bus.base import Delivery
from quintain.contracts.remote_target import LeaseOffered, ProcessStatus, WatchProcess
from quintain.errors import QuintainError, Unroutable
from quintain.routes import WATCH_PROCESS
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.timings import Timings
from quintain.topology import HOST

log = logging.getLogger(__name__)


class ProcessWatch:
    """Asks the supervisor of a slot's process in every heartbeat whether it runs.

    Without a supervisor (``supervisor_key`` is empty) it does nothing.
    """

    def __init__(self, rpc_client: RpcClient, offer: LeaseOffered, timings: Timings) -> None:
        self.offer = offer
        self._rpc_client, self._timings = rpc_client, timings
        self._on_heard: Callable[[], None] = lambda: None
        self._on_ended: Callable[[ProcessStatus], None] = lambda status: None
        #: Since when the supervisor's queue does not exist, on the loop's clock: it has ended, or lost its connection.
        self._gone_since: float | None = None
        #: What the supervisor said of the process's end; None before.
        self.end: ProcessStatus | None = None
        self._correlation_id = secrets.token_urlsafe(16)
        self._unsubscribe = rpc_client.subscribe(self._correlation_id, self._on_status)
        self._task = asyncio.get_running_loop().create_task(self._watch()) if offer.supervisor_key else None

    @property
    def lost_seconds(self) -> float:
        """After how long without any message of the host it is lost.

        After a restart of the broker a supervisor needs some time to connect again: its absence counts only when it has
        lasted.
        """
        gone_seconds = self._timings.host_gone_seconds
        is_gone = self._gone_since is not None and asyncio.get_running_loop().time() - self._gone_since >= gone_seconds
        return gone_seconds if is_gone else self._timings.host_lost_seconds

    def listen(
        self, on_heard: Callable[[], None], on_ended: Callable[[ProcessStatus], None] = lambda status: None
    ) -> None:
        """Call ``on_heard`` for each answer of the supervisor, and ``on_ended`` once it says that the process ended."""
        self._on_heard, self._on_ended = on_heard, on_ended
        if self.end is not None:
            on_ended(self.end)

    def close(self) -> None:
        """Stop asking."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        request = RpcRequest(
            exchange=HOST,
            key=self.offer.supervisor_key,
            type=WATCH_PROCESS.key,
            body=WatchProcess(process_id=self.offer.process_id).to_wire(),
            headers={},
            deadline_seconds=self._timings.host_heartbeat_seconds,
        )
        while self.end is None:
            try:
                await self._rpc_client.publish(request, self._correlation_id)
                self._gone_since = None
            except Unroutable:
                if self._gone_since is None:
                    self._gone_since = asyncio.get_running_loop().time()
            except QuintainError as error:
                log.debug("The supervisor of a host was not asked: %s", error.message)
            await asyncio.sleep(self._timings.host_heartbeat_seconds)

    def _on_status(self, reply: Delivery) -> None:
        try:
            status = parse_reply(reply, ProcessStatus)
        except QuintainError as error:
            log.debug("The supervisor of a host refused: %s", error.message)
            return
        if not status.is_known:
            return
        self._on_heard()
        if status.ended and self.end is None:
            self.end = status
            self._on_ended(status)
