"""The slots of one target in a worker, and the calls that wait for one."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.bus.base import Delivery
from quintain_worker.copies import copied_attempt


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
        if delivery.redelivered or copied_attempt(delivery) is not None:
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
