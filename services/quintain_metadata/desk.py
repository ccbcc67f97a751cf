"""The admission desk: answers workers' admits, and keeps those that must wait until something changes.

An admit waits while another attempt runs its call, while its target is at its limit over the fleet or paused, or
while its worker has no lease. It is tried again when a call of that target is settled, when its call is cancelled, and
at every sweep, because leases lapse and pauses end without a message. Where its request names no deadline, that
begins when it is first heard. The worker repeats an admit it has no answer to, so what waits here may be lost with
this process and comes back; and what is repeated no more is forgotten, because nobody is there to run it. While the
ledger is out of reach nothing is answered at all: the worker repeats that too, and knows how long to.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from functools import partial

from quintain import logs
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, Admit, AdmitBatch
from quintain.contracts.token import public_id
from quintain.errors import BudgetUnavailable, BusError, Fault, Overloaded
from quintain.service import defect
from quintain.telemetry.context import traceparent_in
from quintain.telemetry.conventions import ledger_admit
from quintain.telemetry.spans import past
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain_metadata import calls
from quintain_metadata.ledger import Ledger
from quintain_metadata.lifecycle import MOST_HELD
from quintain_metadata.metrics import MetadataMetrics
from quintain_metadata.records import Held, Wait

log = logging.getLogger(__name__)

#: How an answer gets to the worker that asked: what is decided, and which attempts were heard and must wait.
Reply = Callable[[list[Admission], list[str]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Waiting:
    ask: Admit
    incarnation: str
    reply: Reply
    held: Held
    #: When its worker last asked, in the loop's seconds.
    asked_at: float

    @property
    def call(self) -> tuple[str, str]:
        """Which call it waits to run: session id, request id."""
        return self.held.session_id, self.held.request_id


class Desk:
    """Decides admits, one by one, and remembers the ones it could not decide yet."""

    def __init__(
        self, ledger: Ledger, metrics: MetadataMetrics | None = None, timings: Timings = DEFAULT_TIMINGS
    ) -> None:
        self._ledger, self._metrics, self._timings = ledger, metrics or MetadataMetrics(), timings
        self._waiting: dict[str, _Waiting] = {}
        self._retrying = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """How many admits wait here."""
        return len(self._waiting)

    async def admit(self, batch: AdmitBatch, reply: Reply) -> None:
        """Answer what can be answered now; the rest when it can be."""
        self._metrics.batch("admit", len(batch.items))
        asks = [self._as_first_asked(ask) for ask in batch.items]
        verdicts = await self._decide(asks, batch.incarnation)
        answers: list[Admission] = []
        held: list[str] = []
        for ask, verdict in zip(asks, verdicts, strict=True):
            if isinstance(verdict, Held):
                asked_at = asyncio.get_running_loop().time()
                refusal = self._hold(_Waiting(_timed(ask, verdict), batch.incarnation, reply, verdict, asked_at))
                answers += refusal
                held += [] if refusal else [ask.attempt_id]
            elif verdict is not None:
                self._waiting.pop(ask.attempt_id, None)
                answers.append(verdict)
        await reply(answers, held)

    def _as_first_asked(self, ask: Admit) -> Admit:
        """The ask with the deadline that began when it was first heard, where it names none."""
        waiting = self._waiting.get(ask.attempt_id)
        if ask.deadline is not None or waiting is None:
            return ask
        return ask.model_copy(update={"deadline": waiting.ask.deadline})

    async def try_again(self, target: str | None = None) -> None:
        """Something changed (at this target): decide again what waits, in the order it came."""
        async with self._retrying:
            self._forget_the_gone()
            closed = False
            for waiting in list(self._waiting.values()):
                if target is not None and waiting.ask.target != target:
                    continue
                if closed and waiting.held.wait is Wait.TARGET:
                    continue  # it would hear the same as the one before it
                verdict = await self._retry(waiting)
                if verdict is None:
                    return
                if target is not None and isinstance(verdict, Held):
                    closed = closed or verdict.wait is Wait.TARGET

    async def try_calls_again(self, calls: Set[tuple[str, str]]) -> None:
        """Something changed at these calls: decide again what waits to run them."""
        async with self._retrying:
            self._forget_the_gone()
            for waiting in [one for one in self._waiting.values() if one.call in calls]:
                await self._retry(waiting)

    async def _retry(self, waiting: _Waiting) -> Admission | Held | None:
        (verdict,) = await self._decide([waiting.ask], waiting.incarnation)
        attempt_id = waiting.ask.attempt_id
        if isinstance(verdict, Admission):
            await self._tell(waiting, verdict)
        elif verdict is not None and self._waiting.get(attempt_id) is waiting:
            self._waiting[attempt_id] = dataclasses.replace(waiting, held=verdict)
        return verdict

    def _forget_the_gone(self) -> None:
        oldest = asyncio.get_running_loop().time() - self._timings.held_admit_seconds
        for waiting in list(self._waiting.values()):
            if waiting.asked_at < oldest:
                del self._waiting[waiting.ask.attempt_id]

    async def _tell(self, waiting: _Waiting, verdict: Admission) -> None:
        self._waiting.pop(waiting.ask.attempt_id, None)
        try:
            await waiting.reply([verdict], [])
        except (BusError, Fault) as error:
            log.warning("An admission could not be told, and will be when it is asked for again: %s", error.message)

    def _hold(self, waiting: _Waiting) -> list[Admission]:
        joined = Counter(
            other.call
            for other in self._waiting.values()
            if other.held.joined and other.ask.attempt_id != waiting.ask.attempt_id
        )
        if waiting.held.joined and joined[waiting.call] >= MOST_HELD:
            refusal = Overloaded(f"{MOST_HELD} duplicates of this call are waiting already", retry_after_ms=1000)
            return [_refused(waiting.ask, refusal)]
        self._waiting[waiting.ask.attempt_id] = waiting
        return []

    async def _decide(self, asks: list[Admit], incarnation: str) -> list[Admission | Held | None]:
        """The ledger's word on each; None where it has none, because it is out of reach. A word that ends the waiting
        is a span of the call's trace: what must wait is decided again and again."""
        began = time.perf_counter()
        outcomes = await self._ledger.do_each([partial(calls.admit, ask=ask, incarnation=incarnation) for ask in asks])
        seconds = time.perf_counter() - began
        verdicts = [_verdict(ask, outcome) for ask, outcome in zip(asks, outcomes, strict=True)]
        for ask, verdict in zip(asks, verdicts, strict=True):
            if isinstance(verdict, Admission):
                self._metrics.admitted(verdict)
                _trace(ask, verdict, seconds=seconds)
        return verdicts


def _verdict(ask: Admit, outcome: Admission | Held | Exception) -> Admission | Held | None:
    if isinstance(outcome, BudgetUnavailable):
        return None
    if isinstance(outcome, Fault):
        return _refused(ask, outcome)
    if isinstance(outcome, Exception):
        # Each admit is decided singly: a defect at one is no answer to the others of its batch.
        with logs.about(request_id=ask.request_id, session_id=public_id(ask.token), target=ask.target):
            return _refused(ask, defect(outcome, f"admitting call {ask.request_id!r}"))
    return outcome


def _timed(ask: Admit, held: Held) -> Admit:
    """The ask with its deadline, which begins now where it names none."""
    return ask if ask.deadline is not None else ask.model_copy(update={"deadline": held.deadline})


def _refused(ask: Admit, fault: Fault) -> Admission:
    return Admission(attempt_id=ask.attempt_id, fault=FaultReply.of(fault))


def _trace(ask: Admit, verdict: Admission, *, seconds: float) -> None:
    """A span of the call's trace, where it has one."""
    came = traceparent_in(ask.traceparent)
    if came is None:
        return
    fault = None if verdict.fault is None else verdict.fault.code
    outcome = fault or ("granted" if verdict.replay is None else "replayed")
    past(ledger_admit(ask.request_id, outcome), seconds=seconds, parent=came, failed=fault)
