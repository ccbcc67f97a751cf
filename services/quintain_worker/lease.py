"""The worker's lease: registers, and sends a heartbeat every few seconds.

It registers again where the fingerprint of a target has changed, because a file of that target has.

Heartbeats carry the worker's card and the state of a drain. Their answers carry the calls that were cancelled, and
whether an administrator asked for a drain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from quintain.bus.failure_log import FailureLog
from quintain.contracts.ledger import DrainState, Heartbeat, LeaseRenewed, Register
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BrokerUnavailable, BudgetUnavailable, BusError, Fault, NoAnswer
from quintain.routes import HEARTBEAT, REGISTER
from quintain.rpc.requests import RpcClient
from quintain.runtime.concurrency import cancel_and_wait
from quintain.timings import Clock, Timings

log = logging.getLogger(__name__)

#: The longest pause between two attempts to register, in seconds: what is refused is mended by people.
MAX_REGISTER_PAUSE_SECONDS = 5.0


class WorkerLease:
    """The lease of one worker process.

    ``read_registration`` gives the registration as the targets' files are now; it is called in a thread.
    ``on_renewed`` is called with every answer to a registration or heartbeat, and ``card`` for every heartbeat.
    """

    def __init__(
        self,
        rpc_client: RpcClient,
        clock: Clock,
        read_registration: Callable[[], Register],
        on_renewed: Callable[[LeaseRenewed], None],
        card: Callable[[], ServiceCard],
        timings: Timings,
    ) -> None:
        self._rpc_client, self._clock, self._timings = rpc_client, clock, timings
        self._read_registration, self._on_renewed, self._card = read_registration, on_renewed, card
        self._registered = read_registration()
        self._is_known = True
        #: Whether the targets were registered, and, where that fails, why: in the words of the broker or the ledger.
        self.is_registered = False
        self.problem: str | None = None
        self._drain: DrainState | None = None
        self._renewal_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed_at = -math.inf
        self._not_registered = FailureLog(log, "Not registered yet", "Registered")
        self._not_renewed = FailureLog(log, "The lease is not renewed", "The lease is renewed")

    @property
    def age_seconds(self) -> float:
        """Seconds since the last renewal; infinite before the registration."""
        return asyncio.get_running_loop().time() - self._renewed_at

    async def start(self) -> None:
        """Register with the metadata service, retrying until it is done, and send heartbeats from the first try on.

        A worker that is refused is seen by its heartbeats, and its card says why.
        """
        loop, pause_seconds = asyncio.get_running_loop(), self._timings.register_pause_seconds
        while not self.is_registered:
            try:
                await self._register()
            except (NoAnswer, BusError, Fault) as error:
                self._note_failure(error)
                self._not_registered.failed(error)
                self._tasks = self._tasks or [loop.create_task(self._send_heartbeats(), name="lease")]
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, MAX_REGISTER_PAUSE_SECONDS)
        self._not_registered.worked()
        self._tasks = self._tasks or [loop.create_task(self._send_heartbeats(), name="lease")]
        self._tasks.append(loop.create_task(self._watch_files(), name="files"))

    async def stop(self) -> None:
        """Stop the heartbeats; after a requested drain, report first that it is complete."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        await cancel_and_wait(*tasks)
        if self._drain is not None:
            self._drain = DrainState.DRAINED
            try:
                await self._send_heartbeat()
            except (NoAnswer, BusError, Fault) as error:
                log.warning("The end of the drain could not be reported: %s", error.message)

    async def _send_heartbeats(self) -> None:
        loop = asyncio.get_running_loop()
        next_at = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_at):
                    await self._renewal_due.wait()
            self._renewal_due.clear()
            # From its beginning: one that got no answer is followed at once, because the lease runs.
            next_at = loop.time() + self._timings.heartbeat_seconds
            try:
                await self._send_heartbeat()
                if self.is_registered and (not self._is_known or await self._is_changed()):
                    # A target's files have changed; or the ledger does not know this worker, because it was replaced
                    # or lost its data. It says so only once, and needs the targets again.
                    await self._register()
                    self._is_known = True
            except (NoAnswer, BusError, Fault) as error:
                self._note_failure(error)
                self._not_renewed.failed(error)
            else:
                self.problem = None if self.is_registered else self.problem
                self._not_renewed.worked()

    def _note_failure(self, error: NoAnswer | BusError | Fault) -> None:
        """Keep why the broker or the ledger refuses; that one of them is away says nothing of this worker."""
        self.problem = None if isinstance(error, NoAnswer | BrokerUnavailable | BudgetUnavailable) else error.message

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(self._timings.file_check_seconds)
            if await self._is_changed():
                self._renewal_due.set()

    async def _is_changed(self) -> bool:
        return await asyncio.to_thread(self._read_registration) != self._registered

    async def _send_heartbeat(self) -> None:
        heartbeat = Heartbeat(
            worker_id=self._registered.worker_id,
            incarnation=self._registered.incarnation,
            drain=self._drain,
            card=self._card(),
        )
        renewed = await self._rpc_client.call_route(
            HEARTBEAT,
            heartbeat,
            {},
            timeout_seconds=self._timings.heartbeat_seconds,
            # A metadata service keeps all leases if it reads later than that; else it must find the heartbeat.
            expires_seconds=self._timings.gap_seconds,
        )
        self._is_known = self._is_known and renewed.known
        self._apply_renewal(renewed)

    async def _register(self) -> None:
        registration = await asyncio.to_thread(self._read_registration)
        timeout_seconds = self._timings.register_timeout_seconds
        self._apply_renewal(
            await self._rpc_client.call_route(REGISTER, registration, {}, timeout_seconds=timeout_seconds)
        )
        self._registered, self.is_registered, self.problem = registration, True, None

    def _apply_renewal(self, renewed: LeaseRenewed) -> None:
        self._renewed_at = asyncio.get_running_loop().time()
        self._clock.synchronize(renewed.now)
        if renewed.drain and self._drain is None:
            self._drain = DrainState.DRAINING
            self._renewal_due.set()
        self._on_renewed(renewed)
