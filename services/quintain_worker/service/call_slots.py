"""The slots of one target in one worker: so many of its calls run here at a time, and the others of a group wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.bus.base import Delivery


class SlotDecision(Enum):
    """What becomes of a call that waited for a slot."""

    #: It has a slot, which must be released.
    GRANTED = auto()
    #: Its deadline has passed; it has no slot.
    EXPIRED = auto()
    #: It does not run here: whoever took it puts it back.
    TAKEN = auto()


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

        if call_slots.try_acquire() or await call_slots.wait(delivery, timeout_seconds=60) is SlotDecision.GRANTED:
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

    async def wait(self, delivery: Delivery, *, timeout_seconds: float | None) -> SlotDecision:
        """Wait until a slot is released, at most ``timeout_seconds``."""
        waiting = _Waiting(delivery)
        if delivery.redelivered:
            # Its worker may have died: it was charged then, and its caller has waited longest.
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)
        timer = (
            None
            if timeout_seconds is None
            else asyncio.get_running_loop().call_later(timeout_seconds, waiting.decide, SlotDecision.EXPIRED)
        )
        try:
            return await waiting.decision
        except asyncio.CancelledError:
            if not waiting.decision.cancelled() and waiting.decision.result() is SlotDecision.GRANTED:
                self.release()
            raise
        finally:
            if timer is not None:
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
