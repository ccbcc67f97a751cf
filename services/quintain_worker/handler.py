"""A call's life in the worker: read, admit, ask the provider, settle and reply, acknowledge. In this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned: whatever dies in between, the message comes again and the ledger knows what became of it. What became of a
call is known here alone, so both are published again for as long as the broker is away.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quintain.batching import Batcher
from quintain.bus.base import Bus, Delivery, Envelope
from quintain.clock import Clock
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission, Admit, Outcome, Settle, SettleBatch
from quintain.contracts.message import Message
from quintain.errors import BrokerUnavailable, BudgetUnavailable, BusError, Expired, Fault
from quintain.routes import INVOKE, REQUEST_ID_HEADER, SETTLE
from quintain.service import reply
from quintain_worker.admissions import Admissions
from quintain_worker.answering import Took, said_of
from quintain_worker.incoming import Incoming, headers_of, read, request_id_of
from quintain_worker.port import Provider
from quintain_worker.trying import Patience, attempt

log = logging.getLogger(__name__)

#: A deadline where the request names none, for waiting at the admission desk: the ledger has the session's own.
UNNAMED_DEADLINE_SECONDS = 600.0

#: Deadlines are at most this far ahead (``protocol.md`` §2): a delivery is never held for longer.
MOST_AHEAD_SECONDS = 25 * 60.0

#: The pause before a settle or a reply that could not be published goes out again, in seconds.
PAUSE_SECONDS = 0.5

#: A settle with a result larger than this is a message of its own: a batch of them would be larger than a broker takes.
ALONE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One target as this worker serves it."""

    name: str
    provider: Provider
    most_tries: int = 3
    timeout_seconds: float | None = None


class Desk:
    """What every call of a worker shares: the bus, the ledger's door, the clock."""

    def __init__(self, bus: Bus, admissions: Admissions, clock: Clock, incarnation: str) -> None:
        self.bus, self.admissions, self.clock = bus, admissions, clock
        self._incarnation = incarnation
        self._settles: Batcher[Settle] = Batcher(self._send, lanes=4)

    async def settle(self, item: Settle, *, size: int = 0) -> None:
        """Record what became of an attempt: returns when the broker has it in a quorum queue, however long that
        takes. ``size`` is the length of its result in bytes."""
        while True:
            try:
                await (self._settles.add(item) if size <= ALONE_BYTES else self._send([item]))
            except BusError as error:
                log.warning("A settle could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def _send(self, items: list[Settle]) -> None:
        body = SettleBatch(incarnation=self._incarnation, items=items).to_wire()
        await self.bus.publish(SETTLE.exchange, SETTLE.key, Envelope(body=body, type=SETTLE.key))


def handler_of(served: Served, desk: Desk) -> Callable[[Delivery], Awaitable[None]]:
    """The handler of one target's queue."""

    async def handle(delivery: Delivery) -> None:
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        await _Call(served, desk, delivery).live()

    return handle


class _Call:
    """One delivery, from its arrival to its acknowledgement."""

    def __init__(self, served: Served, desk: Desk, delivery: Delivery) -> None:
        self._served, self._desk, self._delivery = served, desk, delivery
        self._attempt_id = secrets.token_hex(16)
        self._arrived_ms = desk.clock.now_ms()

    async def live(self) -> None:
        try:
            incoming = read(self._delivery, self._served.name)
        except Fault as fault:
            await self._end(fault, request_id_of(self._delivery))
            return
        try:
            admission = await self._admit(incoming)
        except (Expired, BudgetUnavailable) as silence:
            await self._give_up(incoming, silence)
            return
        if admission is None:
            await self._give_back(incoming)
        elif admission.fault is not None:
            await self._end(admission.fault.raised(), incoming.request_id)
        elif admission.replay is not None:
            await self._end(admission.replay, incoming.request_id)
        else:
            await self._run(incoming, admission)

    async def _admit(self, incoming: Incoming) -> Admission | None:
        ask = Admit.model_construct(
            token=incoming.token.text,
            request_id=incoming.request_id,
            attempt_id=self._attempt_id,
            target=self._served.name,
            body_sha256=incoming.body_sha256,
            deadline=incoming.deadline,
            problem=None if incoming.problem is None else FaultReply.of(incoming.problem),
        )
        return await self._desk.admissions.ask(ask, timeout_seconds=max(self._left(incoming), 1.0))

    def _left(self, incoming: Incoming) -> float:
        """Seconds until the deadline, as far as this worker knows it."""
        if incoming.deadline is None:
            return UNNAMED_DEADLINE_SECONDS
        return min(self._desk.clock.seconds_until(incoming.deadline), MOST_AHEAD_SECONDS)

    async def _give_up(self, incoming: Incoming, silence: Fault) -> None:
        # A grant may still be on its way: this makes it void.
        await self._desk.settle(self._settle(incoming, Outcome.NEVER_SENT, silence))
        await self._end(silence, incoming.request_id)

    async def _give_back(self, incoming: Incoming) -> None:
        """This worker stops: another one gets the call. As a copy, because what is given back counts as delivered,
        and a queue lets go of what was delivered too often."""
        await self._desk.settle(self._settle(incoming, Outcome.NEVER_SENT))
        copy = Envelope(
            body=self._delivery.body,
            type=self._delivery.type,
            correlation_id=self._delivery.correlation_id,
            reply_to=self._delivery.reply_to,
            headers=headers_of(self._delivery),
            expiration_ms=max(1, int(self._left(incoming) * 1000)),
        )
        await self._desk.bus.publish(INVOKE.exchange, self._served.name, copy)
        await self._delivery.ack()

    async def _run(self, incoming: Incoming, grant: Admission) -> None:
        assert incoming.request is not None, "the ledger refuses a request with a problem"
        left = self._desk.clock.seconds_until(grant.deadline)
        if self._served.timeout_seconds is not None:
            left = min(left, self._served.timeout_seconds)
        patience = Patience(self._served.most_tries, asyncio.get_running_loop().time() + left)
        began = time.perf_counter()
        ending = await attempt(self._served.provider, incoming.request, patience)
        took_ms = (time.perf_counter() - began) * 1000
        queued_ms = 0 if incoming.published is None else max(0, self._arrived_ms - incoming.published)
        said = said_of(ending, grant, Took(target=self._served.name, duration_ms=took_ms, queued_ms=queued_ms))
        await asyncio.gather(
            self._desk.settle(self._settle(incoming, said.outcome, said.answer, grant), size=said.size),
            self._reply(said.answer, incoming.request_id),
        )
        await self._delivery.ack()

    def _settle(
        self,
        incoming: Incoming,
        outcome: Outcome,
        answer: Result | Fault | None = None,
        grant: Admission | None = None,
    ) -> Settle:
        result = answer if isinstance(answer, Result) else None
        keep = result is not None and grant is not None and grant.store_replies
        return Settle.model_construct(
            session_id=incoming.token.id,
            request_id=incoming.request_id,
            attempt_id=self._attempt_id,
            outcome=outcome,
            reply=result if keep else None,
            fault=FaultReply.of(answer) if isinstance(answer, Fault) else None,
            token_usage=None if result is None else result.token_usage,
        )

    async def _end(self, answer: Message | Fault, request_id: str) -> None:
        await self._reply(answer, request_id)
        await self._delivery.ack()

    async def _reply(self, answer: Message | Fault, request_id: str) -> None:
        while True:
            try:
                await reply(self._desk.bus, self._delivery, answer, {REQUEST_ID_HEADER: request_id})
            except BrokerUnavailable as error:
                log.warning("A reply could not be sent and will be repeated: %s", error.message)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return
