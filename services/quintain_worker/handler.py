"""A call's life in the worker: read, join or admit, ask the provider, settle, reply, acknowledge. In this order.

The delivery is acknowledged only after the settle is confirmed into its quorum queue and the reply is confirmed or
returned: whatever dies in between, the message comes again and the ledger knows what became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from quintain import logs
from quintain.bus.base import Delivery
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission, Admit, Outcome, Settle
from quintain.contracts.message import Message
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault
from quintain.routes import ACCEPT_CHUNKS, ACCEPT_PROGRESS, INVOKE
from quintain.service import request_id_of
from quintain.telemetry.context import TRACEPARENT_HEADER
from quintain.telemetry.conventions import (
    ADMIT,
    ATTEMPT,
    CALL_COUNT,
    OUTCOME,
    QUEUE_WAIT,
    SETTLE,
    Value,
    answered,
    processed,
)
from quintain.telemetry.spans import past, span, traceparent
from quintain.topology import REPLY, target_queue
from quintain_worker.answering import Said, Took, said_of
from quintain_worker.desk import Desk
from quintain_worker.incoming import Incoming, read
from quintain_worker.interim import PROGRESS_SECONDS, progress, say_before
from quintain_worker.pause import Pause
from quintain_worker.pieces import Pieces
from quintain_worker.port import Provider, for_caller
from quintain_worker.running import Question, Run
from quintain_worker.trying import Attempt, Ending, Patience

#: A deadline where the request names none, for waiting at the admission desk: the ledger has the session's own.
UNNAMED_DEADLINE_SECONDS = 600.0

#: Deadlines are at most this far ahead (``protocol.md`` §2): a delivery is never held for longer.
MOST_AHEAD_SECONDS = 25 * 60.0

#: More tries than any target allows: a later attempt's pieces void those of every try of an earlier one.
MOST_TRIES = 1_000

_REPLYING = answered(REPLY.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One target as this worker serves it. ``trace_content``: questions and answers are part of the spans."""

    name: str
    provider: Provider
    most_tries: int = 3
    timeout_seconds: float | None = None
    progress_seconds: float = PROGRESS_SECONDS
    trace_content: bool = False


def handler_of(served: Served, desk: Desk, pause: Pause) -> Callable[[Delivery], Awaitable[None]]:
    """The handler of one target's queue."""
    queue = target_queue(served.name).name

    async def handle(delivery: Delivery) -> None:
        if not delivery.reply_to or not delivery.correlation_id:
            await delivery.dead_letter()
            return
        try:
            incoming = read(delivery, served.name)
        except Fault as fault:
            await desk.tell(delivery, fault, request_id_of(delivery))
            await delivery.ack()
            return
        ids = {"request_id": incoming.request_id, "session_id": incoming.token.id, "target": served.name}
        opening = partial(processed, INVOKE.exchange.name, served.name, queue, **ids)
        with span(opening, parent=delivery.headers.get(TRACEPARENT_HEADER)), logs.about(**ids):
            await _Call(served, desk, pause, delivery, incoming).live()

    return handle


def _granted(admission: Admission | None) -> dict[str, Value]:
    """What the ledger's word tells a trace."""
    if admission is None:
        return {OUTCOME: "given_back"}
    if admission.fault is not None:
        return {OUTCOME: admission.fault.code}
    if admission.replay is not None:
        return {OUTCOME: "replayed"}
    return {OUTCOME: "granted", ATTEMPT: admission.attempt, CALL_COUNT: admission.call_count}


class _Call:
    """One delivery, from its arrival to its acknowledgement."""

    def __init__(self, served: Served, desk: Desk, pause: Pause, delivery: Delivery, incoming: Incoming) -> None:
        self._served, self._desk, self._pause = served, desk, pause
        self._delivery, self._incoming = delivery, incoming
        self._attempt_id = desk.attempt_ids.next()
        self._arrived_ms = desk.clock.now_ms()

    async def live(self) -> None:
        past(QUEUE_WAIT, seconds=self._queued_ms / 1000)
        question = self._question()
        try:
            while (other := self._desk.running.of(question)) is not None:
                if (result := await self._join(other)) is not None:
                    await self._end(result)
                    return
        except Fault as fault:
            await self._end(fault)
            return
        with self._desk.running.begin(question) as run:
            await self._live(run)

    @property
    def _queued_ms(self) -> int:
        """How long it was in the queue, as far as its publisher said when that began."""
        published = self._incoming.published
        return 0 if published is None else max(0, self._arrived_ms - published)

    def _question(self) -> Question:
        problem = self._incoming.problem
        return Question(
            token=self._incoming.token.text,
            session_id=self._incoming.token.id,
            request_id=self._incoming.request_id,
            target=self._served.name,
            body_sha256=self._incoming.body_sha256,
            problem=None if problem is None else problem.message,
        )

    async def _join(self, other: Run) -> Result | None:
        """The result of the same call, which is in this worker's hands already; None when that ended otherwise."""
        try:
            return await other.join(max(self._left(), 0.0) + self._desk.timings.deadline_grace_seconds)
        except TimeoutError:
            raise Expired("The deadline passed while another delivery ran the call", charged=other.granted) from None

    async def _live(self, run: Run) -> None:
        try:
            async with run.abortable():
                with span(ADMIT) as asking:
                    admission = await self._admit()
                    asking.tell(_granted(admission))
        except (Expired, BudgetUnavailable, Cancelled) as fault:
            # A grant may still be on its way: this makes it void.
            await self._settle(Outcome.NEVER_SENT, fault)
            await self._end(fault)
            return
        if admission is None:
            await self._give_back(run, Outcome.NEVER_SENT)
        elif admission.fault is not None:
            await self._end(admission.fault.raised())
        elif admission.replay is not None:
            await self._end(admission.replay)
        else:
            await self._run(run, admission)

    async def _admit(self) -> Admission | None:
        if self._pause.too_long:
            return None
        incoming = self._incoming
        ask = Admit.trusted(
            token=incoming.token.text,
            request_id=incoming.request_id,
            attempt_id=self._attempt_id,
            target=self._served.name,
            body_sha256=incoming.body_sha256,
            deadline=incoming.deadline,
            problem=None if incoming.problem is None else FaultReply.of(incoming.problem),
            traceparent=traceparent(),
        )
        timeout_seconds = max(self._left(), self._desk.timings.deadline_grace_seconds)
        return await self._desk.admissions.ask(ask, timeout_seconds=timeout_seconds)

    def _left(self) -> float:
        """Seconds until the deadline, as far as this worker knows it."""
        if self._incoming.deadline is None:
            return UNNAMED_DEADLINE_SECONDS
        return min(self._desk.clock.seconds_until(self._incoming.deadline), MOST_AHEAD_SECONDS)

    async def _run(self, run: Run, grant: Admission) -> None:
        run.granted = True
        began = time.perf_counter()
        ending = await self._ending(run, grant)
        if ending.given_back:
            await self._give_back(run, ending.outcome)
            return
        took_ms = (time.perf_counter() - began) * 1000
        if self._incoming.published is not None:
            self._desk.metrics.waited(self._served.name, self._queued_ms / 1000)
        took = Took(target=self._served.name, duration_ms=took_ms, queued_ms=self._queued_ms)
        said = said_of(ending, grant, took)
        # In this order: a reply that went out before its settle, with a worker that then died, would be followed by
        # the answer of another attempt.
        await self._record(run, said, grant)
        await self._end(said.answer)

    async def _ending(self, run: Run, grant: Admission) -> Ending:
        ends = asyncio.get_running_loop().time() + self._desk.clock.seconds_until(grant.deadline)
        patience = Patience(self._served.most_tries, ends, self._served.timeout_seconds, grant.unproven)
        if not self._incoming.accepts:
            return await self._attempt(run, patience)
        async with self._pieces(grant) as heard, self._progress(grant):
            return await self._attempt(run, patience, heard)

    async def _attempt(self, run: Run, patience: Patience, heard: Callable[[int, str], None] | None = None) -> Ending:
        assert self._incoming.request is not None, "the ledger refuses a request with a problem"
        provider = for_caller(self._served.provider, self._incoming.token)
        attempt = Attempt(provider, self._incoming.request, patience, self._pause, heard)
        try:
            async with run.abortable():
                return await attempt.run()
        except Cancelled:
            return attempt.taken_back()

    @contextlib.asynccontextmanager
    async def _pieces(self, grant: Admission) -> AsyncIterator[Callable[[int, str], None] | None]:
        """Whom to tell the pieces of the answer, for a caller that asked for them."""
        if ACCEPT_CHUNKS not in self._incoming.accepts:
            yield None
            return
        pieces = Pieces(
            self._desk.bus, self._delivery, self._incoming.request_id, before=(grant.attempt - 1) * MOST_TRIES
        )
        try:
            yield pieces.heard
        finally:
            await pieces.close()

    @contextlib.asynccontextmanager
    async def _progress(self, grant: Admission) -> AsyncIterator[None]:
        """Tell a caller that asked for it that the call still runs."""
        if ACCEPT_PROGRESS not in self._incoming.accepts:
            yield
            return
        say = partial(say_before, self._desk.bus, self._delivery, self._incoming.request_id)
        async with progress(self._served.progress_seconds, grant.attempt, say):
            yield

    async def _record(self, run: Run, said: Said, grant: Admission) -> None:
        await self._settle(said.outcome, said.answer, keep=grant.store_replies, size=said.size)
        run.end(said.answer if isinstance(said.answer, Result) else None)

    async def _give_back(self, run: Run, outcome: Outcome) -> None:
        """The call goes on elsewhere, or later: nobody is answered, and nothing is owed."""
        await self._settle(outcome)
        run.end(None)
        self._desk.metrics.given_back(self._served.name)
        await self._desk.give_back(self._delivery, self._served.name, left_seconds=self._left())

    async def _settle(
        self, outcome: Outcome, answer: Result | Fault | None = None, *, keep: bool = False, size: int = 0
    ) -> None:
        result = answer if isinstance(answer, Result) else None
        self._desk.metrics.settled(self._served.name, outcome)
        with span(SETTLE) as settling:
            settling.tell({OUTCOME: outcome.value})
            item = Settle.trusted(
                session_id=self._incoming.token.id,
                request_id=self._incoming.request_id,
                attempt_id=self._attempt_id,
                outcome=outcome,
                reply=result if keep else None,
                fault=FaultReply.of(answer) if isinstance(answer, Fault) else None,
                token_usage=None if result is None else result.token_usage,
                traceparent=traceparent(),
            )
            await self._desk.settle(item, size=size)

    async def _end(self, answer: Message | Fault) -> None:
        self._desk.metrics.ended(self._served.name, answer)
        with span(_REPLYING):
            await self._desk.tell(self._delivery, answer, self._incoming.request_id)
        await self._delivery.ack()
