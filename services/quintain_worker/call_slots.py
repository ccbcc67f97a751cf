"""The slots of a target's calls in one worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
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

        if call_slots.try_acquire() or await call_slots.wait(delivery, 60) is SlotDecision.GRANTED:
            try:
                await run_call()
            finally:
                call_slots.release()
    """

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._waiting: deque[_Waiting] = deque()
        self.released_count = 0
        #: What gives back those with a slot that the ledger lets wait, and with which nobody has begun.
        self._held: dict[object, Callable[[], object]] = {}

    @property
    def free(self) -> int:
        """How many slots nobody has."""
        return self._free

    @property
    def in_flight(self) -> int:
        """How many calls have a slot, or wait for one."""
        return self._count - self._free + len(self.waiting_deliveries)

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

    async def wait(self, delivery: Delivery, timeout_seconds: float | None) -> SlotDecision:
        """Wait until a slot is released, at most ``timeout_seconds``; None is for ever."""
        waiting, loop = _Waiting(delivery), asyncio.get_running_loop()
        if delivery.redelivered:
            # Its worker may have died: it was charged then, and what is held may wait for the money that it reserved.
            self._waiting.appendleft(waiting)
            self._make_room()
        else:
            self._waiting.append(waiting)
        timer = None
        if timeout_seconds is not None:
            timer = loop.call_later(timeout_seconds, waiting.decide, SlotDecision.EXPIRED)
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

    def hold(self, call: object, give_back: Callable[[], object]) -> None:
        """Note that the ledger lets a call with a slot wait: it makes room for one that was delivered before."""
        self._held[call] = give_back
        first = next((waiting for waiting in self._waiting if not waiting.decision.done()), None)
        if first is not None and first.delivery.redelivered:
            self._make_room()

    def end_hold(self, call: object) -> None:
        """Note that a call waits no more, or that it keeps its slot."""
        self._held.pop(call, None)

    def _make_room(self) -> None:
        if self._held:
            self._held.popitem()[1]()

    def take(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """End the wait of these calls, which do not run here; returns those that still waited."""
        wanted = {id(delivery) for delivery in deliveries}
        return [
            waiting.delivery
            for waiting in self._waiting
            if id(waiting.delivery) in wanted and waiting.decide(SlotDecision.TAKEN)
        ]
