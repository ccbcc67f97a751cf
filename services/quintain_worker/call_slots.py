"""Where calls wait in a worker: for a slot of their target, and of each session so many for a quota or for money.

A target's queue is served in order. So that no session's calls keep those of others behind them, a session may have as
many calls waiting here as there are free places: one alone takes half of all, and those of others find room. What is
beyond that goes to the end of the target's backlog, once: what comes from there stays.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.bus.failure_log import FailureLog
from quintain.contracts.credentials import public_id
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE
from quintain.contracts.headers import TOKEN_HEADER
from quintain.runtime.concurrency import BatchSender
from quintain.topology import BACKLOG, CONVERSATION
from quintain_worker.request import is_begun
from quintain_worker.returns import MessageHolder, copy_of

log = logging.getLogger(__name__)

#: How many more calls a worker takes than it may run, of a target with a quota or a price.
WAITING_PLACES = 128

#: So many calls of a session may wait although no place is free.
MIN_WAITING = 4

#: How many messages are moved at a time: all that wait for the confirms of those before.
MAX_MOVED, MAX_MOVED_BYTES = 512, 4 * 1024 * 1024

#: How long nothing is moved once the backlog took no call, in seconds.
BACKLOG_RETRY_SECONDS = 10.0


class SlotDecision(Enum):
    """What becomes of a call that waited for a slot."""

    #: It has a slot, which must be released.
    GRANTED = auto()
    #: Its deadline has passed; it has no slot.
    EXPIRED = auto()
    #: It does not run here: its taker puts it back.
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


class SessionWaits:
    """The calls that wait for one target, by session. ``free_places`` returns how many more would find room.

    A session has no more than half of all ``places``: what is delivered again must find one, as calls that wait may
    wait for the money that it reserved.
    """

    def __init__(self, bus: Bus, target: str, free_places: Callable[[], int], places: int = 2 * MIN_WAITING) -> None:
        self._bus, self._target, self._free_places = bus, target, free_places
        self._min_waiting = min(MIN_WAITING, places // 2)
        self._waiting: Counter[str] = Counter()
        self._moves = BatchSender[None, tuple[Envelope, asyncio.Future[bool]]](self._publish_moved, count=_count_moves)
        begun = f"Calls could not be moved to the backlog of {target}"
        self._not_moved = FailureLog(log, begun, f"Calls are moved to the backlog of {target}", bus)
        #: How many calls are on their way to the backlog: their places are as good as free.
        self._leaving = 0
        #: Until then, on the loop's clock, nothing is moved.
        self._stays_until = -math.inf

    def has_room(self, session: str) -> bool:
        """Whether a further call of this session may wait here."""
        is_among_few = self._waiting[session] < max(self._min_waiting, self._free_places() + self._leaving)
        return is_among_few or asyncio.get_running_loop().time() < self._stays_until

    def begin(self, session: str) -> None:
        """Count a call that begins to wait."""
        self._waiting[session] += 1

    def end(self, session: str) -> None:
        """Count out a call that waits no more."""
        self._waiting[session] -= 1
        if not self._waiting[session]:
            del self._waiting[session]

    def leave(self) -> None:
        """Count a call that is moved to the backlog, until `left`."""
        self._leaving += 1

    def left(self) -> None:
        """Count out a call that was moved."""
        self._leaving -= 1

    async def move_to_backlog(
        self,
        delivery: Delivery,
        remaining_seconds: float | None = None,
        holder: MessageHolder | None = None,
    ) -> bool:
        """Put a message, which may be a group, at the end of the target's backlog, and acknowledge it at its holder.

        Returns False where the backlog does not take it: then it is not settled, and for a while all stay here.
        """
        copy = copy_of(delivery, remaining_seconds)
        if delivery.type == INVOKE_GROUP_TYPE:
            copy = dataclasses.replace(copy, content_type=GROUP_CONTENT_TYPE)
        is_moved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._moves.add(None, (copy, is_moved), max_batch=MAX_MOVED)
        if not await is_moved:
            return False
        await (holder or delivery).ack()
        return True

    async def _publish_moved(self, _key: None, moves: list[tuple[Envelope, asyncio.Future[bool]]]) -> None:
        """Publish a batch of messages to the backlog, and tell for each whether it is there."""
        try:
            outcomes = await self._bus.publish_all(BACKLOG, self._target, [copy for copy, _ in moves])
        except Exception as defect:
            for _, is_moved in moves:
                if not is_moved.done():
                    is_moved.set_exception(defect)
            return
        if error := next(filter(None, outcomes), None):
            self._not_moved.failed(error)
            self._stays_until = asyncio.get_running_loop().time() + BACKLOG_RETRY_SECONDS
        else:
            self._not_moved.worked()
        for (_, is_moved), outcome in zip(moves, outcomes, strict=True):
            if not is_moved.done():  # of a handler that was cancelled
                is_moved.set_result(outcome is None)


def _count_moves(moves: list[tuple[Envelope, asyncio.Future[bool]]]) -> int:
    """Return how many of these are moved together: as many as `MAX_MOVED_BYTES` takes, and one in any case."""
    sizes = itertools.accumulate(len(copy.body) for copy, _ in moves)
    return max(1, sum(size <= MAX_MOVED_BYTES for size in sizes))


class CallPlace:
    """The place of a call in its worker: its slot, and while it waits, one of so many of its session.

    ``waits`` is None where calls of its target wait neither for a quota nor for money.
    """

    def __init__(self, delivery: Delivery, slots: CallSlots, waits: SessionWaits | None) -> None:
        self._delivery, self._slots, self._waits = delivery, slots, waits
        self._has_slot = self._is_waiting = self._is_beyond_share = False
        #: Whether nobody has begun with the call, so that it may be moved.
        self._is_new = waits is not None and may_be_moved(delivery)
        self._may_be_returned = waits is not None and delivery.exchange != CONVERSATION.name and not is_begun(delivery)

    def try_acquire(self) -> bool:
        """Take a slot, if one is free."""
        self._has_slot = self._slots.try_acquire()
        return self._has_slot

    async def wait(self, timeout_seconds: float | None) -> bool:
        """Wait for a slot until the deadline of the call: the ledger refuses one that is late, which needs no slot.

        Returns False where the call does not run here: its taker puts it back.
        """
        self.begin_waiting()
        decision = await self._slots.wait(self._delivery, timeout_seconds)
        self._has_slot = decision is SlotDecision.GRANTED
        return decision is not SlotDecision.TAKEN

    def begin_waiting(self, give_back: Callable[[], object] | None = None) -> None:
        """Count the call among those that wait; where its session has its share, ``give_back`` is called instead."""
        if self._waits is None or self._is_beyond_share:
            return
        if not self._is_waiting:
            session = session_of(self._delivery)
            if give_back is not None and self._is_new and not self._waits.has_room(session):
                self._is_beyond_share = True
                self._waits.leave()
                give_back()
                return
            self._is_waiting = True
            self._waits.begin(session)
        if give_back is not None and self._may_be_returned:
            self._slots.hold(self, give_back)

    async def move_to_backlog(self, remaining_seconds: float, holder: MessageHolder) -> bool:
        """Move the call if it is beyond its session's share, and acknowledge it; returns whether it was moved."""
        if self._waits is None or not self._is_beyond_share:
            return False
        return await self._waits.move_to_backlog(self._delivery, remaining_seconds, holder)

    def end_waiting(self) -> None:
        """Count out the call, if it waits: it was decided."""
        if self._waits is None:
            return
        self._is_new = self._may_be_returned = False
        self._slots.end_hold(self)
        if self._is_waiting:
            self._is_waiting = False
            self._waits.end(session_of(self._delivery))

    def release(self) -> None:
        """Leave the place, whether the call has run, waits or was moved."""
        if self._has_slot:
            self._has_slot = False
            self._slots.release()
        self.end_waiting()
        if self._waits is not None and self._is_beyond_share:
            self._is_beyond_share = False
            self._waits.left()


def may_be_moved(delivery: Delivery) -> bool:
    """Whether a message may go to the backlog: it is no turn, not from there, and no worker may have begun with it."""
    return delivery.exchange not in {BACKLOG.name, CONVERSATION.name} and not is_begun(delivery)


def session_of(delivery: Delivery) -> str:
    """Return the session that a call, or a group, says it is of: nothing is proven yet."""
    token = str(delivery.headers.get(TOKEN_HEADER, ""))
    return public_id(token) or token
