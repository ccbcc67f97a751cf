"""The consumer of one target's queue.

So many of the target's calls run at a time as it has slots. The others of a group wait for one, and those that wait
while other workers have free slots are put back into the queue. What a session has waiting here beyond its share, for
the target's quota or for money, goes to the target's backlog (`SessionWaits`), which is consumed
beside its queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from functools import partial

from quintain.bus.base import Consumer, Delivery, earlier_deliveries
from quintain.contracts.group import INVOKE_GROUP_TYPE
from quintain.contracts.ledger import TargetCard
from quintain.contracts.service_card import ServedTarget
from quintain.errors import Fault
from quintain.rpc.groups import handle_each, refuse_broken, refuse_group, split_group_or_fault
from quintain.topology import backlog_queue, target_queue
from quintain_worker.call import Call, CallMessage
from quintain_worker.call_runner import CallRunner
from quintain_worker.call_slots import WAITING_PLACES, CallPlace, CallSlots, SessionWaits, may_be_moved, session_of
from quintain_worker.request import is_held, is_returned
from quintain_worker.returns import return_calls, return_copy
from quintain_worker.target import GIVEN_BACK, WorkerTarget

#: Calls that a worker starts within this time, in seconds, stay with it although others have free slots.
MOMENT_SECONDS = 0.5


class TargetConsumer:
    """Consumes one target's queue, and its backlog.

    ``card.slots`` is how many calls run here at a time, and how many messages are taken; a call of a group waits until
    a slot is free. Of a target with a quota or a price, calls that wait for the quota or for money take a slot too. So
    there are `WAITING_PLACES` more, and as many again for the backlog, where the fleet bounds what runs as closely as
    this worker.
    """

    def __init__(self, target: WorkerTarget, runner: CallRunner, card: TargetCard) -> None:
        self._target, self._name, self._runner, self._slots = target, target.name, runner, card.slots
        has_line = card.quota is not None or target.price is not None
        has_places = has_line and card.slots == card.max_concurrency
        #: How many messages of each of the two queues are taken.
        self._places = card.slots + (WAITING_PLACES if has_places else 0)
        self._call_slots = CallSlots(self._places)
        self._backlog_slots = CallSlots(self._places) if has_places else self._call_slots
        #: Turns of conversations that are held here run beside other calls: what has begun is not kept by what begins.
        self._turn_slots = CallSlots(card.slots)
        self._waits: SessionWaits | None = None
        if has_line:
            self._waits = SessionWaits(runner.bus, target.name, lambda: self._call_slots.free, self._places)
        #: Of its queue, and of its backlog.
        self._consumers: list[Consumer] = []

    @property
    def is_open(self) -> bool:
        """Whether the queue is consumed."""
        return bool(self._consumers) and self._consumers[-1].active

    def served_target(self, kind: str) -> ServedTarget:
        """Describe this target for the worker's card."""
        in_flight = sum(slots.in_flight for slots in {self._call_slots, self._backlog_slots, self._turn_slots})
        return ServedTarget(name=self._name, kind=kind, slots=self._slots, in_flight=in_flight)

    async def start(self) -> None:
        """Start consuming.

        The queues exist: the metadata service declares them before it answers the registration, and again when a call
        finds one deleted.
        """
        queues = {backlog_queue(self._name): self._backlog_slots, target_queue(self._name): self._call_slots}
        for queue, slots in queues.items():
            handler = partial(self._handle, slots)
            self._consumers.append(await self._runner.bus.consume(queue, handler, prefetch=self._places))

    async def cancel(self) -> None:
        """Stop consuming; deliveries in flight go on."""
        for consumer in self._consumers:
            await consumer.cancel()
        for slots in (self._call_slots, self._backlog_slots, self._turn_slots):
            await self._return(slots, slots.waiting_deliveries)

    def calls_for_others(self, free_slots: int) -> list[Delivery]:
        """Return the calls that this worker cannot start within a moment, as many as others have free slots for.

        It is called with each renewal of the lease: a moment is measured by what ended since the one before.
        """
        released, self._call_slots.released_count = self._call_slots.released_count, 0
        soon = math.ceil(released * MOMENT_SECONDS / self._runner.timings.heartbeat_seconds)
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
        self._runner.metrics.calls(self._name, GIVEN_BACK).inc(len(taken))
        await return_calls(self._runner.bus, self._name, taken)

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` for the deliveries in flight. Returns False where some were cancelled."""
        return all(await asyncio.gather(*(consumer.drain(timeout_seconds) for consumer in self._consumers)))

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
            await refuse_group(self._runner.bus, delivery, calls)
            return
        calls = await refuse_broken(self._runner.bus, calls)
        if earlier_deliveries(delivery) > 1:
            # One of its calls may end every worker that runs it: from here on each is delivered by itself. Not at the
            # first time, because new messages go to the end of the queue, and calls of a dead worker wait long enough.
            await asyncio.gather(*(return_copy(self._runner.bus, call, self._name) for call in calls))
        else:
            await handle_each(partial(self._handle_call, slots), calls)

    async def _handle_call(self, slots: CallSlots, delivery: Delivery) -> None:
        # One that another worker may have run for long waits while that runs it: it keeps no call from a slot.
        place = None if is_held(delivery) else CallPlace(delivery, slots, self._waits)
        await self._runner.run(Call(self._target, CallMessage(delivery), place))

    async def _move_beyond_share(self, waits: SessionWaits, delivery: Delivery) -> bool:
        """Move a message to the backlog if its session has its share waiting here; returns whether it was moved."""
        if not may_be_moved(delivery) or waits.has_room(session_of(delivery)):
            return False
        self._runner.metrics.calls(self._name, GIVEN_BACK).inc()
        return await waits.move_to_backlog(delivery)
