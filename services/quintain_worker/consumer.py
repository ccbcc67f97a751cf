"""The consumer of one target's queue: stopped while the target is paused, restarted afterwards, drained at the end.

So many of the target's calls run at a time as it has slots. The others of a group wait for one, and those that wait
while other workers have free slots are put back into the queue. What a session has waiting here beyond its share, for
the target's quota or for money, goes to the target's backlog (`quintain_worker.session_waits`), which is consumed
beside its queue.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from quintain.bus.base import Consumer, Delivery, earlier_deliveries
from quintain.bus.failure_log import FailureLog
from quintain.contracts.group import INVOKE_GROUP_TYPE
from quintain.contracts.headers import DEADLINE_HEADER
from quintain.contracts.ledger import TargetCard
from quintain.contracts.service_card import ServedTarget
from quintain.errors import BadRequest, BusError, Fault
from quintain.rpc.groups import handle_each, refuse_broken, refuse_group, split_group_or_fault
from quintain.rpc.server import integer_header, request_id_of
from quintain.runtime.concurrency import cancel_and_wait
from quintain.topology import backlog_queue, target_queue
from quintain_worker.context import WorkerContext
from quintain_worker.delivery import DeliveryHandler
from quintain_worker.returns import is_held, is_returned, return_calls, return_copy
from quintain_worker.session_waits import WAITING_PLACES, MessageHold, SessionWaits, may_be_moved, session_of
from quintain_worker.target import GIVEN_BACK, PauseState, WorkerTarget

log = logging.getLogger(__name__)

#: Calls that a worker starts within this time, in seconds, stay with it although others have free slots.
MOMENT_SECONDS = 0.5


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
        self._free = count
        self._waiting: deque[_Waiting] = deque()
        self.released_count = 0
        #: What gives back those with a slot that the ledger lets wait, and with which nobody has begun.
        self.held: dict[MessageHold, Callable[[], object]] = {}

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

    async def wait(self, delivery: Delivery, timeout_seconds: float | None) -> SlotDecision:
        """Wait until a slot is released, at most ``timeout_seconds``; None is for ever."""
        waiting, loop = _Waiting(delivery), asyncio.get_running_loop()
        if delivery.redelivered:
            # Its worker may have died: it was charged then, and what is held may wait for the money that it reserved.
            self._waiting.appendleft(waiting)
            if self.held:
                self.held.popitem()[1]()
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

    def take(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """End the wait of these calls, which do not run here; returns those that still waited."""
        wanted = {id(delivery) for delivery in deliveries}
        return [
            waiting.delivery
            for waiting in self._waiting
            if id(waiting.delivery) in wanted and waiting.decide(SlotDecision.TAKEN)
        ]


class TargetConsumer:
    """Consumes one target's queue, and stops while the target is paused.

    ``card.slots`` is how many calls run here at a time, and how many messages are taken; a call of a group waits until
    a slot is free. Of a target with a quota or a price, calls that wait for the quota or for money take a slot too. So
    there are `WAITING_PLACES` more, and as many again for the backlog, where the fleet bounds what runs as closely as
    this worker. ``report_pause`` is called with the seconds of each pause that the target's provider asks for.

    At a pause the consumer is cancelled at once, and closed after its last delivery. A new one starts after the pause,
    when no more than ``slots`` calls are in flight: repeated pauses accumulate no calls.
    """

    def __init__(
        self, target: WorkerTarget, context: WorkerContext, card: TargetCard, report_pause: Callable[[float], None]
    ) -> None:
        self._target, self._name, self._context, self._slots = target, target.name, context, card.slots
        has_line = card.quota is not None or target.price is not None
        self._has_places = has_line and card.slots == card.max_concurrency
        #: How many messages of each of the two queues are taken.
        self._places = card.slots + (WAITING_PLACES if self._has_places else 0)
        self._call_slots = self._backlog_slots = CallSlots(self._places)
        #: Turns of conversations that are held here run beside other calls: what has begun is not kept by what begins.
        self._turn_slots = CallSlots(card.slots)
        self._waits: SessionWaits | None = None
        if has_line:
            self._waits = SessionWaits(context.bus, target.name, lambda: self._call_slots.free, self._places)
        self.pause = PauseState(report_pause, context.timings)
        self._in_flight = 0
        self._not_resumed = FailureLog(log, f"Target {target.name} is not resumed", f"Target {target.name} is resumed")
        self._consumer: Consumer | None = None
        self._backlog_consumer: Consumer | None = None
        self._retired: dict[Consumer, asyncio.Task[bool]] = {}
        self._pause_task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the queue is consumed, or deliberately not: during a pause, or with too many calls in flight."""
        if self._consumer is None:
            return self.pause.remaining_seconds > 0 or self._in_flight > self._places
        return self._consumer.active

    def served_target(self, kind: str) -> ServedTarget:
        """Describe this target for the worker's card."""
        return ServedTarget(
            name=self._name,
            kind=kind,
            slots=self._slots,
            in_flight=self._in_flight,
            paused_ms=math.ceil(self.pause.remaining_seconds * 1000) or None,
        )

    async def start(self) -> None:
        """Start consuming unless the target is paused, and follow its pauses from then on.

        The queue exists: the metadata service declares it before it answers the registration, and again when a call
        finds it deleted.
        """
        if not self.pause.remaining_seconds:
            await self._start_consumer()
        self._pause_task = asyncio.get_running_loop().create_task(self._follow_pauses(), name=f"pauses-{self._name}")

    async def cancel(self) -> None:
        """Stop consuming; deliveries in flight go on."""
        await cancel_and_wait(self._pause_task)
        for consumer in self._open_consumers():
            await consumer.cancel()
        for slots in (self._call_slots, self._backlog_slots, self._turn_slots):
            await self._return(slots, slots.waiting_deliveries)

    def calls_for_others(self, free_slots: int) -> list[Delivery]:
        """Return the calls that this worker cannot start within a moment, as many as others have free slots for.

        It is called with each renewal of the lease: a moment is measured by what ended since the one before.
        """
        released, self._call_slots.released_count = self._call_slots.released_count, 0
        soon = math.ceil(released * MOMENT_SECONDS / self._context.timings.heartbeat_seconds)
        waiting = [
            call
            for call in self._call_slots.waiting_deliveries[soon:]
            if not is_returned(call) and not call.redelivered
        ]
        return waiting[-free_slots:] if free_slots else []

    async def return_waiting(self, calls: Sequence[Delivery]) -> None:
        """Put those of these calls back into the queue that still wait for a slot."""
        await self._return(self._call_slots, calls)

    async def _return(self, slots: CallSlots, calls: Sequence[Delivery]) -> None:
        taken = slots.take(calls)
        self._context.metrics.calls(self._name, GIVEN_BACK).inc(len(taken))
        await return_calls(self._context.bus, self._name, taken)

    def _remaining_seconds(self, delivery: Delivery) -> float | None:
        """Return the time to a call's deadline; None where it names none, or none that can be read."""
        try:
            deadline = integer_header(delivery.headers, DEADLINE_HEADER)
        except BadRequest:
            return None
        return None if deadline is None else max(0.0, self._context.clock.seconds_until(deadline))

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` for the deliveries in flight. Returns False where some were cancelled."""
        self.pause.stop(timeout_seconds)
        consumers = [*self._retired, *self._open_consumers()]
        drained = await asyncio.gather(*(consumer.drain(timeout_seconds) for consumer in consumers))
        await asyncio.gather(*self._retired.values())
        return all(drained)

    async def _follow_pauses(self) -> None:
        while True:
            if self.pause.remaining_seconds:
                self._retire_consumer()
                if self.pause.exceeds_hold_limit:
                    self._context.admission_client.return_calls(self._name)
                await self.pause.changed.wait(self.pause.remaining_seconds)
            elif self._consumer is None and self._in_flight <= self._places:
                try:
                    await self._start_consumer()
                    self._not_resumed.worked()
                    log.warning("Target %s is no longer paused", self._name)
                except BusError as error:
                    self._not_resumed.failed(error)
                    await asyncio.sleep(self._context.timings.consume_pause_seconds)
            else:
                await self.pause.changed.wait()

    async def _start_consumer(self) -> None:
        # Calls of the consumer before do not take this one's slots: a paused call must not keep others from running.
        self._call_slots = CallSlots(self._places)
        self._backlog_slots = CallSlots(self._places) if self._has_places else self._call_slots
        handler, bus = partial(self._handle, self._backlog_slots), self._context.bus
        self._backlog_consumer = await bus.consume(backlog_queue(self._name), handler, prefetch=self._places)
        handler = partial(self._handle, self._call_slots)
        self._consumer = await bus.consume(target_queue(self._name), handler, prefetch=self._places)

    def _retire_consumer(self) -> None:
        if self._consumer is None:
            return
        log.warning("Target %s is paused for %.0f s", self._name, self.pause.remaining_seconds)
        consumers, self._consumer, self._backlog_consumer = self._open_consumers(), None, None
        for consumer in consumers:
            self._retire(consumer)

    def _retire(self, consumer: Consumer) -> None:
        # `drain` cancels the consumer at once; its deliveries then end by themselves, within their deadlines.
        drain_task = asyncio.get_running_loop().create_task(consumer.drain(math.inf), name=f"retire-{self._name}")
        self._retired[consumer] = drain_task
        drain_task.add_done_callback(lambda _: self._retired.pop(consumer, None))

    def _open_consumers(self) -> list[Consumer]:
        own = self._consumer, self._backlog_consumer
        return [consumer for consumer in own if consumer is not None]

    async def handle_turn(self, delivery: Delivery) -> None:
        """Handle a turn of a conversation that is held here."""
        await self._handle(self._turn_slots, delivery)

    async def _handle(self, slots: CallSlots, delivery: Delivery) -> None:
        if self._waits is not None and await self._move_beyond_share(self._waits, delivery):
            return
        if delivery.type != INVOKE_GROUP_TYPE:
            await self._handle_call(slots, delivery)
            return
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        calls = split_group_or_fault(delivery)
        if isinstance(calls, Fault):
            await refuse_group(self._context.bus, delivery, calls)
            return
        calls = await refuse_broken(self._context.bus, calls)
        if earlier_deliveries(delivery) > 1:
            # One of its calls may end every worker that runs it: from here on each is delivered by itself. Not at the
            # first time, because new messages go to the end of the queue, and calls of a dead worker wait long enough.
            await asyncio.gather(*(return_copy(self._context.bus, call, self._name) for call in calls))
        else:
            await handle_each(partial(self._handle_call, slots), calls)

    async def _handle_call(self, slots: CallSlots, delivery: Delivery) -> None:
        hold = None if self._waits is None or is_held(delivery) else MessageHold(delivery, self._waits, slots.held)
        handler = DeliveryHandler(self._target, self._context, self.pause, delivery, hold)
        key = session_of(delivery), request_id_of(delivery)
        if self._context.inflight.has(key) and await handler.take_place():
            return
        if is_held(delivery):
            # It waits while another worker runs its call: that keeps no call from a slot, nor does one that goes on.
            await handler.run()
            return
        self._in_flight += 1
        try:
            decision = SlotDecision.GRANTED
            if not slots.try_acquire():
                if hold is not None:
                    hold.begin_waiting()
                decision = await slots.wait(delivery, self._remaining_seconds(delivery))
            if decision is SlotDecision.TAKEN:
                return
            try:
                # The ledger refuses a call whose deadline has passed; it needs no slot for that.
                await handler.run()
            finally:
                if decision is SlotDecision.GRANTED:
                    slots.release()
        finally:
            if hold is not None:
                hold.end()
            self._in_flight -= 1
            if self._consumer is None:
                self.pause.changed.notify_all()

    async def _move_beyond_share(self, waits: SessionWaits, delivery: Delivery) -> bool:
        """Move a message to the backlog if its session has its share waiting here; returns whether it was moved."""
        if not may_be_moved(delivery) or waits.has_room(session_of(delivery)):
            return False
        self._context.metrics.calls(self._name, GIVEN_BACK).inc()
        return await waits.move_to_backlog(delivery)
