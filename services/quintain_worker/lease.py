"""The worker's lease: registered once, renewed every few seconds, so that its calls are known to be in hands.

With it the worker tells which targets' providers asked for a pause, and hears which targets are paused for everybody,
which of its calls were taken back, and whether an administrator asks it to drain: how far it is with that it tells too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable

from quintain.caller import Caller
from quintain.clock import Clock
from quintain.contracts.ledger import Drain, Heartbeat, LeaseRenewed, Register
from quintain.errors import BrokerRefused, BusError, Fault, NoAnswer
from quintain.routes import HEARTBEAT, REGISTER
from quintain.timings import Timings

log = logging.getLogger(__name__)


class Lease:
    """One worker process's lease. ``heard`` is given every answer of the ledger's."""

    def __init__(
        self,
        caller: Caller,
        clock: Clock,
        register: Register,
        heard: Callable[[LeaseRenewed], None],
        timings: Timings,
    ) -> None:
        self._caller, self._clock, self._timings = caller, clock, timings
        self._card, self._heard = register, heard
        self._known = True
        #: Until when a target is paused (the loop's seconds), as long as the ledger has not been told.
        self._untold: dict[str, float] = {}
        self._drain: Drain | None = None
        self._due = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._renewed_at = -math.inf

    @property
    def age_seconds(self) -> float:
        """How long ago the ledger last renewed it; endless before it was registered."""
        return asyncio.get_running_loop().time() - self._renewed_at

    async def start(self) -> None:
        """Register, however long it takes for a metadata service to come up, and renew from then on.

        Raises `BrokerRefused`: that would be refused again.
        """
        while True:
            try:
                await self._register()
            except BrokerRefused:
                raise
            except (NoAnswer, BusError, Fault) as error:
                log.warning("Not registered yet: %s", error.message)
                await asyncio.sleep(self._timings.register_pause_seconds)
            else:
                break
        self._beating = asyncio.get_running_loop().create_task(self._beat_on(), name="lease")

    async def stop(self) -> None:
        """Renew no more. Whoever asked for a drain hears that it is done."""
        beating, self._beating = self._beating, None
        if beating is None:
            return
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        if self._drain is not None:
            self._drain = Drain.DRAINED
            try:
                await self._beat()
            except (NoAnswer, BusError, Fault) as error:
                log.warning("Whoever asked for the drain was not told that it is done: %s", error.message)

    def pause(self, target: str, seconds: float) -> None:
        """Tell the ledger that this target is paused for so long: at once, and again until it has heard."""
        self._untold[target] = asyncio.get_running_loop().time() + seconds
        self._due.set()

    def is_told(self, target: str) -> bool:
        """Whether the ledger has heard every pause of this target's that it was to be told."""
        return target not in self._untold

    async def _beat_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timings.heartbeat_seconds):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._beat()
                if not self._known:
                    # The ledger is another one, or lost its memory: it must hear of the targets again, and says
                    # so only once.
                    await self._register()
                    self._known = True
            except (NoAnswer, BusError, Fault) as error:
                log.warning("The lease was not renewed: %s", error.message)

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        telling = {target: until for target, until in self._untold.items() if until > now}
        beat = Heartbeat(
            worker_id=self._card.worker_id,
            incarnation=self._card.incarnation,
            pauses={target: math.ceil((until - now) * 1000) for target, until in telling.items()} or None,
            drain=self._drain,
        )
        renewed = await self._caller.request(HEARTBEAT, beat, {}, timeout_seconds=self._timings.heartbeat_seconds)
        self._known = self._known and renewed.known
        # What was lengthened meanwhile, or told to a ledger that knows no such targets, is told again.
        heard = telling if renewed.known else {}
        self._untold = {
            target: until for target, until in self._untold.items() if until > now and heard.get(target) != until
        }
        self._learn(renewed)

    async def _register(self) -> None:
        timeout_seconds = self._timings.register_timeout_seconds
        self._learn(await self._caller.request(REGISTER, self._card, {}, timeout_seconds=timeout_seconds))

    def _learn(self, renewed: LeaseRenewed) -> None:
        self._renewed_at = asyncio.get_running_loop().time()
        self._clock.learn(renewed.now)
        if renewed.drain and self._drain is None:
            self._drain = Drain.DRAINING
            self._due.set()
        self._heard(renewed)
