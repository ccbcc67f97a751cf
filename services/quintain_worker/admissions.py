"""Asking the ledger for permission, in batches; repeated while no answer comes, because an admit may be lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from quintain.batching import Batcher
from quintain.bus.base import Bus, Delivery, Envelope
from quintain.caller import Caller
from quintain.clock import Clock
from quintain.contracts.ledger import Admission, Admit, AdmitAnswer, AdmitBatch
from quintain.errors import BudgetUnavailable, BusError, Expired, Fault
from quintain.routes import ADMIT
from quintain.timings import Timings

log = logging.getLogger(__name__)

#: All admits of a worker share one correlation id: their answers are told apart by the attempt.
CORRELATION_ID = "admit"

#: How often it is looked whose time has come, in parts of the repeat interval: one clock for all who wait.
LOOKS = 12


@dataclass(slots=True)
class _Waiting:
    admit: Admit
    #: None: the call is given back, and this attempt is not to run.
    answer: asyncio.Future[Admission | None]
    #: The admit's last batch: done when that has gone, or could not go.
    sent: asyncio.Future[None]
    asked_at: float
    heard_at: float
    ends: float

    def let_go(self) -> None:
        """Give the call back, unless its answer is here."""
        if not self.answer.done():
            self.answer.set_result(None)

    def late(self, now: float, silence_seconds: float) -> Fault | None:
        """Why it waits no more, if it does not."""
        if now - self.heard_at > silence_seconds:
            return BudgetUnavailable()
        if now >= self.ends:
            return Expired("The deadline passed before the call was admitted")
        return None


class Admissions:
    """The worker's side of the admission desk."""

    def __init__(self, bus: Bus, caller: Caller, clock: Clock, incarnation: str, timings: Timings) -> None:
        self._bus, self._caller, self._clock, self._incarnation = bus, caller, clock, incarnation
        self._timings = timings
        self._waiting: dict[str, _Waiting] = {}
        self._stopped = False
        self._out_of_reach = False
        self._batcher: Batcher[Admit] = Batcher(self._send_or_tell, lanes=2)
        self._looking: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Hear the answers."""
        self._caller.subscribe(CORRELATION_ID, self._on_answer)

    def stop(self) -> None:
        """Admit nothing from now on: what waits is told so at once."""
        self._stopped = True
        for waiting in self._waiting.values():
            waiting.let_go()

    def let_go(self, target: str) -> None:
        """Wait no more for this target: what waits is told so at once, what comes may wait again."""
        for waiting in self._waiting.values():
            if waiting.admit.target == target:
                waiting.let_go()

    async def ask(self, admit: Admit, *, timeout_seconds: float) -> Admission | None:
        """The ledger's word on this attempt; waits while another holds the call, or its target is at its limit.
        None where the call is to be given back: the worker stops, or its target was let go.

        Raises `Expired` when the time is over and `BudgetUnavailable` when the ledger is out of reach: the attempt
        must then be settled as never sent, so that a grant on its way is void.
        """
        if self._stopped:
            return None
        loop = asyncio.get_running_loop()
        now = loop.time()
        answer: asyncio.Future[Admission | None] = loop.create_future()
        self._waiting[admit.attempt_id] = _Waiting(
            admit, answer, self._batcher.add(admit), asked_at=now, heard_at=now, ends=now + timeout_seconds
        )
        if self._looking is None:
            self._looking = loop.call_later(self._timings.admit_repeat_seconds / LOOKS, self._look)
        try:
            return await answer
        finally:
            del self._waiting[admit.attempt_id]

    def _look(self) -> None:
        """Ask again whoever was not answered for long enough, and end the wait of whoever is late."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in self._waiting.values():
            if waiting.answer.done():
                continue
            if (late := waiting.late(now, self._timings.ledger_silence_seconds)) is not None:
                waiting.answer.set_exception(late)
            elif now - waiting.asked_at >= self._timings.admit_repeat_seconds and waiting.sent.done():
                waiting.asked_at, waiting.sent = now, self._batcher.add(waiting.admit)
        self._looking = (
            loop.call_later(self._timings.admit_repeat_seconds / LOOKS, self._look) if self._waiting else None
        )

    async def _send_or_tell(self, items: list[Admit]) -> None:
        try:
            await self._send(items)
        except BusError as error:
            # Every call that waits repeats its admit every few seconds: an outage is told when it begins, and ends.
            if not self._out_of_reach:
                log.warning("Admits cannot be sent and will be repeated: %s", error.message)
            self._out_of_reach = True
        except Exception as defect:
            # Whoever waits hears it: repeated, it would be the same.
            for admit in items:
                if (waiting := self._waiting.get(admit.attempt_id)) is not None and not waiting.answer.done():
                    waiting.answer.set_exception(defect)
        else:
            if self._out_of_reach:
                log.warning("Admits can be sent again")
            self._out_of_reach = False

    async def _send(self, items: list[Admit]) -> None:
        envelope = Envelope(
            body=AdmitBatch(incarnation=self._incarnation, items=items).to_wire(),
            type=ADMIT.key,
            correlation_id=CORRELATION_ID,
            reply_to=self._caller.reply_key,
            expiration_ms=int(self._timings.ledger_silence_seconds * 1000),
            persistent=False,
        )
        await self._bus.publish(ADMIT.exchange, ADMIT.key, envelope, timeout=self._timings.admit_repeat_seconds)

    def _on_answer(self, delivery: Delivery) -> None:
        if delivery.type != "result":
            log.error("The ledger could not read a batch of admits; they will be repeated")
            return
        try:
            answer = AdmitAnswer.from_wire(delivery.body)
        except Fault as unreadable:
            log.error("An answer of the ledger cannot be read: %s", unreadable.message)
            return
        self._clock.learn(answer.now)
        now = asyncio.get_running_loop().time()
        for attempt_id in answer.held or ():
            if attempt_id in self._waiting:
                self._waiting[attempt_id].heard_at = now
        for item in answer.items:
            waiting = self._waiting.get(item.attempt_id)
            if waiting is not None and not waiting.answer.done():
                waiting.answer.set_result(item)
