"""A call in this worker, from its message to its end, and all the calls that are in flight here.

The broker delivers a message again whose channel it has closed, or whose connection was lost. One that comes back to
the worker that has its call takes the former message's place there. One that comes to another worker joins the call at
the ledger, and waits for its outcome.

A quorum queue keeps on disk all that went through it since its oldest message that is not acknowledged. So the message
of a call that lasts is published again, to the target's backlog, from which it comes as one that is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from quintain.bus.base import Bus, Delivery
from quintain.contracts.headers import ACCEPT_GROUPS, PROOF_HEADER, TOKEN_HEADER
from quintain.contracts.ledger import Admit, CallKey
from quintain.contracts.values import MAX_DEADLINE_SECONDS
from quintain.errors import BusError, Fault
from quintain.rpc.server import request_id_of, truncate_echo
from quintain.runtime.concurrency import start_task
from quintain.timings import Clock
from quintain.topology import BACKLOG, CONVERSATION, held_key
from quintain_worker.attempt import Try
from quintain_worker.call_slots import CallPlace
from quintain_worker.request import IncomingRequest, parse_request
from quintain_worker.returns import copy_of
from quintain_worker.target import WorkerTarget

log = logging.getLogger(__name__)

#: After how many seconds a message is published again, and a second time where that failed.
MOVE_SECONDS = 600.0


class CallMessage:
    """The message of a call, which the broker may deliver again: the last one is acknowledged."""

    def __init__(self, delivery: Delivery) -> None:
        #: The delivery that came first.
        self.delivery = delivery
        #: The message now. None once it is acknowledged or requeued, or is in the backlog, from where another worker
        #: may have it: that one answers it then.
        self.held: Delivery | None = delivery
        #: When it is published again, in the loop's seconds.
        self.move_at = asyncio.get_running_loop().time() + MOVE_SECONDS
        self._is_released = False

    def is_again(self, delivery: Delivery) -> bool:
        """Return whether this is the same message, delivered or published again: its caller waits for one reply."""
        first = self.delivery
        return (
            (delivery.correlation_id, delivery.reply_to) == (first.correlation_id, first.reply_to)
            and all(delivery.headers.get(name) == first.headers.get(name) for name in (TOKEN_HEADER, PROOF_HEADER))
            and delivery.body == first.body
        )

    async def hold(self, delivery: Delivery) -> None:
        """Hold this message in the place of the one before."""
        if self._is_released:
            await delivery.ack()
            return
        before, self.held = self.held, delivery
        self.move_at = asyncio.get_running_loop().time() + MOVE_SECONDS
        if before is not None:
            await before.ack()

    async def ack(self) -> None:
        """Acknowledge the message."""
        held, self.held, self._is_released = self.held, None, True
        if held is not None:
            await held.ack()

    async def requeue(self) -> None:
        """Return the message to its queue."""
        held, self.held, self._is_released = self.held, None, True
        if held is not None:
            await held.requeue()


class CallStage(Enum):
    """Where a call is."""

    #: It waits for its slot, for its grant, or for its next try.
    WAITING = auto()
    #: An attempt asks its provider.
    RUNNING = auto()
    #: Its end is decided, or another worker decides it: nothing takes it back.
    ENDING = auto()


@dataclass(slots=True, eq=False)
class Call:
    """One call in flight in this worker. ``place`` is None where it runs beside the others."""

    target: WorkerTarget
    message: CallMessage
    place: CallPlace | None = None
    #: What its message says, once it is read.
    request: IncomingRequest = field(init=False)
    #: Its request id, as its reply repeats it; set with what its message says.
    request_id: str = ""
    #: Whether its caller reads groups of replies.
    reads_groups: bool = False
    #: Set by `CallRunner` alone.
    stage: CallStage = CallStage.WAITING
    #: What the ledger was asked last.
    admit: Admit = field(init=False)
    #: The deadline, and until when the call may wait, in the loop's seconds.
    ends_at: float = 0.0
    waits_until: float = 0.0
    #: When an attempt was granted, in the loop's seconds.
    granted_at: float = 0.0
    #: Those that failed, after which the call asked for another one.
    tries: list[Try] = field(default_factory=list)
    is_traced: bool = False
    _task: asyncio.Task[object] | None = None
    _is_aborted: bool = False

    def read(self, clock: Clock) -> None:
        """Parse the message, in the task that runs the call. Raises `Unauthorized`."""
        self._task = asyncio.current_task()
        try:
            request = parse_request(self.message.delivery, self.target.name, self.target.check)
        except Fault:
            self.request_id = str(truncate_echo(request_id_of(self.message.delivery)))
            raise
        self.request = request
        self.request_id, self.reads_groups = request.request_id, ACCEPT_GROUPS in request.accepts
        seconds = MAX_DEADLINE_SECONDS
        if request.deadline is not None and request.problem is None:
            seconds = max(0.0, min(clock.seconds_until(request.deadline), seconds))
        waits = seconds if request.wait_until is None else min(seconds, clock.seconds_until(request.wait_until))
        now = asyncio.get_running_loop().time()
        self.ends_at, self.waits_until = now + seconds, now + waits

    def abort(self) -> None:
        """Cancel the call's work in the next iteration of the event loop, if it may be aborted then."""
        asyncio.get_running_loop().call_soon(self._cancel)

    def take_cancellation(self) -> bool:
        """Return whether the `asyncio.CancelledError` that ended the task's work came from `abort`: it goes on then."""
        return self._is_aborted and self._task is not None and not self._task.uncancel()

    def _cancel(self) -> None:
        # Where another worker may run the call, the ledger's answer says what a cancellation leaves of it.
        is_elsewhere = self.stage is CallStage.WAITING and self.request.is_redelivered
        if self._task is not None and not (is_elsewhere or self._is_aborted or self.stage is CallStage.ENDING):
            self._is_aborted = True
            self._task.cancel()


class CallsInFlight:
    """The calls in flight in a worker, from their slot to their end, by their request id."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._calls: dict[str, list[Call]] = {}
        self._moving: set[asyncio.Task[None]] = set()
        self._move_timer: asyncio.TimerHandle | None = None

    def add(self, call: Call) -> None:
        """Register a call, which `remove` must end."""
        self._calls.setdefault(call.request_id, []).append(call)
        if self._move_timer is None:
            self._move_timer = asyncio.get_running_loop().call_later(MOVE_SECONDS, self._move_due)

    def remove(self, call: Call) -> None:
        """End a call, if that is not done."""
        calls = self._calls.get(call.request_id, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._calls[call.request_id]

    async def take_again(self, target: str, delivery: Delivery) -> bool:
        """Hold a message in the place of the one before, where its call is in flight here; returns whether it is."""
        for call in self._calls.get(request_id_of(delivery), ()):
            if call.target.name == target and call.message.is_again(delivery):
                await call.message.hold(delivery)
                return True
        return False

    def running(self) -> list[Call]:
        """Return the calls of which an attempt runs, the oldest first."""
        running = [call for calls in self._calls.values() for call in calls if call.stage is CallStage.RUNNING]
        return sorted(running, key=lambda call: call.granted_at)

    def abort(self, keys: Iterable[CallKey]) -> None:
        """Abort those of these calls that are in flight here."""
        for key in keys:
            for call in self._calls.get(key.request_id, ()):
                if call.request.credential.id == key.session_id:
                    call.abort()

    def _move_due(self) -> None:
        """Publish the messages again that are held for long: one timer serves all calls."""
        loop = asyncio.get_running_loop()
        for call in [each for calls in self._calls.values() for each in calls]:
            held = call.message.held
            if held is not None and call.message.move_at <= loop.time() and _may_be_moved(call, held):
                call.message.move_at = loop.time() + MOVE_SECONDS
                start_task(self._moving, self._move(call, held), name="move a message")
        self._move_timer = loop.call_later(MOVE_SECONDS / 10, self._move_due) if self._calls else None

    async def _move(self, call: Call, held: Delivery) -> None:
        """Publish a message to its target's backlog, and acknowledge the one before."""
        target = call.target.name
        try:
            await self._bus.publish(BACKLOG, held_key(target), copy_of(held, None))
        except BusError as error:
            log.warning("The message of a long call stays in the queue of %s for now: %s", target, error.message)
            return
        # It may have been acknowledged meanwhile, or have come back already.
        if call.message.held is held:
            call.message.held = None
            await held.ack()


def _may_be_moved(call: Call, held: Delivery) -> bool:
    """Return whether a message is to be published again: once, and by the worker that has its call."""
    is_own = call.granted_at or not held.redelivered
    return bool(is_own) and held.exchange not in {BACKLOG.name, CONVERSATION.name}
