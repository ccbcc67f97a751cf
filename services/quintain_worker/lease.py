"""The worker's lease: registered once, renewed every few seconds, so that its calls are known to be in hands."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from quintain.caller import Caller
from quintain.clock import Clock
from quintain.contracts.ledger import HEARTBEAT_SECONDS, Heartbeat, LeaseRenewed, Register, TargetCard
from quintain.errors import BrokerRefused, BusError, Fault, NoAnswer
from quintain.routes import HEARTBEAT, REGISTER

log = logging.getLogger(__name__)

#: The pause before another try to register, in seconds.
PAUSE_SECONDS = 0.5

#: How long a registration may take before it is tried again, in seconds.
REGISTER_SECONDS = 10.0


class Lease:
    """One worker process's lease."""

    def __init__(
        self, caller: Caller, clock: Clock, worker_id: str, incarnation: str, cards: Sequence[TargetCard]
    ) -> None:
        self._caller, self._clock = caller, clock
        self._worker_id, self._incarnation = worker_id, incarnation
        self._cards = list(cards)
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Register, however long it takes for a metadata service to come up, and renew from then on.

        Raises `BrokerRefused`: that would be refused again.
        """
        while True:
            try:
                self._learn(await self._register())
            except BrokerRefused:
                raise
            except (NoAnswer, BusError, Fault) as error:
                log.warning("Not registered yet: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                break
        self._beating = asyncio.get_running_loop().create_task(self._beat_on(), name="lease")

    async def stop(self) -> None:
        """Renew no more."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)

    async def _beat_on(self) -> None:
        known = True
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            beat = Heartbeat(worker_id=self._worker_id, incarnation=self._incarnation)
            try:
                renewed = await self._caller.request(HEARTBEAT, beat, {}, timeout_seconds=HEARTBEAT_SECONDS)
                self._learn(renewed)
                known = known and renewed.known
                if not known:
                    # The ledger is another one, or lost its memory: it must hear of the targets again, and says
                    # so only once.
                    self._learn(await self._register())
                    known = True
            except (NoAnswer, BusError, Fault) as error:
                log.warning("The lease was not renewed: %s", error.message)

    async def _register(self) -> LeaseRenewed:
        card = Register(worker_id=self._worker_id, incarnation=self._incarnation, targets=self._cards)
        return await self._caller.request(REGISTER, card, {}, timeout_seconds=REGISTER_SECONDS)

    def _learn(self, renewed: LeaseRenewed) -> None:
        self._clock.learn(renewed.now)
