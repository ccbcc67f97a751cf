"""What a call needs to run in a worker: a slot of its target, and that no other call is to run alone meanwhile."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.bus.base import Delivery
from quintain.contracts.headers import COPY_HEADER


class SlotDecision(Enum):
    """What becomes of a call that waited for a slot."""

    #: It has a slot, which must be released.
    GRANTED = auto()
    #: Its deadline has passed; it has no slot.
    EXPIRED = auto()
    #: It does not run here: whoever took it puts it back.
    TAKEN = auto()
    #: Its message was held for as long as it may be: it goes back.
    HELD_LONG_ENOUGH = auto()


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits."""

    delivery: Delivery
    decision: asyncio.Future[SlotDecision] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def decide(self, decision: SlotDecision) -> bool:
        """Decide about the call; returns False if it is decided or cancelled already."""
        if self.decision.done():
            return False
        self.decision.set_result(decision)
        return True


class CallSlots:
    """Grants slots in the order of arrival; calls that were delivered before come first.

    Example::

        if call_slots.try_acquire() or await call_slots.wait(delivery, 60, return_at) is SlotDecision.GRANTED:
            try:
                await run_call()
            finally:
                call_slots.release()
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Waiting] = deque()
        self.released_count = 0

    @property
    def free(self) -> int:
        """How many slots nobody has."""
        return self._free

    @property
    def waiting_deliveries(self) -> list[Delivery]:
        """The calls that wait, in order of arrival."""
        return [waiting.delivery for waiting in self._waiting if not waiting.decision.done()]

    def try_acquire(self) -> bool:
        """Take a slot, if one is free; calls that wait have none."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def wait(self, delivery: Delivery, timeout_seconds: float | None, return_at: float) -> SlotDecision:
        """Wait until a slot is released, at most ``timeout_seconds``, and until ``return_at`` of the loop's clock."""
        waiting, loop = _Waiting(delivery), asyncio.get_running_loop()
        ends_at = math.inf if timeout_seconds is None else loop.time() + timeout_seconds
        if delivery.redelivered or COPY_HEADER in delivery.headers:
            # Its worker may have died: it was charged then, and its caller has waited longest.
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        at_end = SlotDecision.EXPIRED if ends_at <= return_at else SlotDecision.HELD_LONG_ENOUGH
        timer = loop.call_at(min(ends_at, return_at), waiting.decide, at_end)
        try:
            return await waiting.decision
        except asyncio.CancelledError:
            if not waiting.decision.cancelled() and waiting.decision.result() is SlotDecision.GRANTED:
                self.release()
            raise
        finally:
            timer.cancel()

    def release(self) -> None:
        """Give a slot to the next call that waits."""
        self.released_count += 1
        while self._waiting:
            if self._waiting.popleft().decide(SlotDecision.GRANTED):
                return
        self._free += 1

    def take(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """End the wait of these calls, which do not run here; returns those that still waited."""
        wanted = {id(delivery) for delivery in deliveries}
        return [
            waiting.delivery
            for waiting in self._waiting
            if id(waiting.delivery) in wanted and waiting.decide(SlotDecision.TAKEN)
        ]


@dataclass(slots=True, eq=False)
class GateVisit:
    """One call at the gate. ``is_alone``: it was let in, or waits, as one that is to be alone."""

    is_inside: bool = False
    is_alone: bool = False
    turn: asyncio.Future[None] | None = None


class CallGate:
    """Counts the calls that are inside: those that wait for their admission, and those that run.

    All targets of a worker share one gate, because a call that ends the process ends the calls of all of them. A call
    that is to be alone enters when all others have left, and none enters beside it. The others wait for one such call
    each, and enter before the next one, so that neither kind waits for ever.

    A call that runs may wait for others that the gate keeps out: those that its agent sends to this worker. So no call
    keeps others out, nor waits as the next to be alone, for more than ``max_wait_seconds``: then they enter.

    Example::

        visit = GateVisit()
        try:
            await call_gate.enter(visit, timeout_seconds=60)
            await call_gate.enter_alone(visit, timeout_seconds=60)
        finally:
            call_gate.leave(visit)
    """

    def __init__(self, max_wait_seconds: float) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._inside = 0
        self._waiting: list[GateVisit] = []
        #: Those that are to be alone, in order of arrival. The first one is inside, or the next to enter.
        self._alone: list[GateVisit] = []
        self._next: GateVisit | None = None
        self._is_open = False

    async def enter(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Enter, unless a call is or is to be alone: then after it, and after ``timeout_seconds`` at the latest."""
        if self._is_open or not self._alone:
            visit.is_inside = True
            self._inside += 1
        else:
            await self._wait(self._waiting, visit, min(timeout_seconds, self._max_wait_seconds))

    async def enter_alone(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Leave, and enter when nothing else is inside, and after ``timeout_seconds`` at the latest."""
        self._inside -= 1
        visit.is_inside, visit.is_alone = False, True
        await self._wait(self._alone, visit, timeout_seconds)

    def leave(self, visit: GateVisit) -> None:
        """Leave, or stop waiting."""
        self._inside -= visit.is_inside
        visit.is_inside = False
        if visit in self._waiting:
            self._waiting.remove(visit)
        elif visit in self._alone:
            is_first = self._alone[0] is visit
            self._alone.remove(visit)
            if is_first:
                self._let_in_all(self._waiting)
        if self._alone:
            self._let_next_in()

    def open(self) -> None:
        """Let all calls in, now and from now on: the worker stops and starts none of them."""
        self._is_open = True
        self._let_in_all(self._waiting + self._alone)

    async def _wait(self, line: list[GateVisit], visit: GateVisit, timeout_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        visit.turn = loop.create_future()
        line.append(visit)
        timer = loop.call_later(0 if self._is_open else timeout_seconds, self._let_in, visit)
        self._let_next_in()
        try:
            await visit.turn
        finally:
            timer.cancel()

    def _let_next_in(self) -> None:
        """Let the first that is to be alone in, when nothing is inside or it has waited for the longest time."""
        first = self._alone[0] if self._alone else None
        if first is None or first.is_inside:
            return
        if not self._inside:
            self._let_in(first)
        elif self._next is not first:
            self._next = first
            asyncio.get_running_loop().call_later(self._max_wait_seconds, self._let_in, first)

    def _let_in_all(self, visits: list[GateVisit]) -> None:
        for visit in list(visits):
            self._let_in(visit)

    def _let_in(self, visit: GateVisit) -> None:
        """Let a call in that waits; one that has stopped waiting, or is inside, is left as it is."""
        if visit.turn is None or visit.turn.done():
            return
        visit.turn.set_result(None)
        visit.is_inside = True
        self._inside += 1
        if visit in self._waiting:
            self._waiting.remove(visit)
