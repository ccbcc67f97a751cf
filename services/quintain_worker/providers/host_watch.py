"""Knows which factory the hosts of a target run: it asks them every few seconds, and hears it with each lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from quintain.errors import BusError, Fault, NoAnswer
from quintain.remote.lease_request import describe_host
from quintain.rpc.client import RpcClient
from quintain.timings import Timings

log = logging.getLogger(__name__)


class HostWatch:
    """The fingerprint of the factory behind one name, as a host reported it last.

    A host without a free slot does not reply. What it reported before counts until a host reports something else.
    """

    def __init__(self, rpc_client: RpcClient, name: str, timings: Timings) -> None:
        self._rpc_client, self._name, self._timings = rpc_client, name, timings
        #: None where no host has reported one yet, or the last one that replied computes none.
        self.fingerprint: str | None = None
        self._task: asyncio.Task[None] | None = None

    def note(self, fingerprint: str | None) -> None:
        """Record what a host has just reported."""
        if self.fingerprint not in (None, fingerprint):
            log.info("A host of %s runs another factory, or another version of it, than the one before", self._name)
        self.fingerprint = fingerprint

    async def start(self) -> None:
        """Ask once, for ``host_heartbeat_seconds`` at most, and then in that interval until `stop`."""
        await self._ask()
        self._task = asyncio.create_task(self._ask_periodically(), name=f"hosts of {self._name}")

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._timings.host_heartbeat_seconds)
            await self._ask()

    async def _ask(self) -> None:
        with contextlib.suppress(NoAnswer, BusError, Fault):
            self.note(
                await describe_host(self._rpc_client, self._name, timeout_seconds=self._timings.host_heartbeat_seconds)
            )
