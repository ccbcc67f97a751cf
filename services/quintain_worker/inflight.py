"""The calls in flight in this worker: duplicates wait for them, cancellations abort them, a gate lets one run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from quintain.bus.base import Delivery
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import CallKey
from quintain.errors import Overloaded
from quintain_worker.copies import CallMessage, copied_attempt

#: How many duplicates of one call wait in this worker; a further one is refused as `overloaded`.
MAX_WAITING_DUPLICATES = 16

#: All waiting duplicates together take at most this part of the worker's slots, so that other calls can run; a worker
#: of few slots lets `MIN_WAITING_DUPLICATES` wait.
DUPLICATES_SHARE, MIN_WAITING_DUPLICATES = 0.25, 4


class CallIdentity(NamedTuple):
    """Everything that must be equal for two deliveries to be duplicates of one call.

    Deliveries that share the request id and differ in anything else are left to the ledger. ``credential`` is the
    whole token or proof, ``problem`` the message of a request error.
    """

    credential: str
    #: Session id and request id.
    key: tuple[str, str]
    target: str
    body_sha256: str
    problem: str | None


@dataclass(slots=True, eq=False)
class InflightCall:
    """One call in flight in this worker, from its arrival until it is settled."""

    identity: CallIdentity
    attempt_id: str = ""
    #: Its message, once an attempt was granted, and when that was, in the loop's seconds.
    message: CallMessage | None = None
    granted_at: float = 0.0
    waiting_duplicates: int = 0
    is_settled: bool = False
    #: The task that handles the call, while the call may be aborted.
    task: asyncio.Task[object] | None = None
    _is_aborted: bool = False
    _result: Result | None = None
    #: Made by the first duplicate that waits.
    _settled: asyncio.Event | None = None

    def settle(self, result: Result | None) -> None:
        """Record that the call is settled, with its result or None; only the first call has an effect."""
        if not self.is_settled:
            self.is_settled, self._result = True, result
            if self._settled is not None:
                self._settled.set()

    async def wait_for_result(self, timeout_seconds: float) -> Result | None:
        """Wait for the result, up to ``timeout_seconds``, and return it marked as replayed; None where there is none.

        Raises `TimeoutError`.
        """
        if self._settled is None:
            self._settled = asyncio.Event()
        if not self.is_settled:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._settled.wait()
            except TimeoutError:
                if not self.is_settled:
                    raise
        return None if self._result is None else self._result.with_fields(replayed=True)

    def abort(self) -> None:
        """Cancel the call's task in the next iteration of the event loop, if the call may be aborted then.

        A call for whose result a duplicate waits is not aborted.
        """
        if not self.waiting_duplicates:
            asyncio.get_running_loop().call_soon(self._cancel)

    def take_cancellation(self) -> bool:
        """Return whether the `asyncio.CancelledError` that ended the task's work came from `abort`: it goes on then."""
        task, self.task = self.task, None
        return self._is_aborted and task is not None and not task.uncancel()

    def _cancel(self) -> None:
        if self.task is not None and not self._is_aborted:
            self._is_aborted = True
            self.task.cancel()


class InflightCalls:
    """The calls in flight in a worker of so many slots, by session and request id."""

    def __init__(self, slots: int) -> None:
        self._calls: dict[tuple[str, str], list[InflightCall]] = {}
        self._max_waiting = max(MIN_WAITING_DUPLICATES, int(slots * DUPLICATES_SHARE))
        self._waiting = 0

    def find(self, identity: CallIdentity) -> InflightCall | None:
        """Return the unsettled call with this identity, if there is one."""
        for call in self._calls.get(identity.key, ()):
            if call.identity == identity and not call.is_settled:
                return call
        return None

    def find_message(self, identity: CallIdentity, delivery: Delivery) -> CallMessage | None:
        """Return the message of the running call that this delivery is: a copy of it, or itself, delivered again."""
        copied = copied_attempt(delivery)
        for call in self._calls.get(identity.key, ()):
            message = call.message
            if message is None or call.identity != identity:
                continue
            is_same = (delivery.correlation_id, delivery.reply_to) == (message.correlation_id, message.reply_to)
            if copied == call.attempt_id or (delivery.redelivered and is_same):
                return message
        return None

    def running(self) -> list[InflightCall]:
        """Return the calls that an attempt runs, the oldest first."""
        running = [call for calls in self._calls.values() for call in calls if call.message is not None]
        return sorted(running, key=lambda call: call.granted_at)

    async def wait_for_duplicate(self, call: InflightCall, timeout_seconds: float) -> Result | None:
        """Wait for the result of a call as its duplicate, as `InflightCall.wait_for_result` does.

        Raises `Overloaded` where `MAX_WAITING_DUPLICATES` of this call wait already, or too many of all calls.
        """
        if call.waiting_duplicates >= MAX_WAITING_DUPLICATES or self._waiting >= self._max_waiting:
            # The call itself runs or waits: it is not decided yet whether it is charged.
            message = "Too many duplicates of calls are waiting already"
            raise Overloaded(message, retry_after_ms=1000, charge_unknown=True)
        self._waiting += 1
        call.waiting_duplicates += 1
        try:
            return await call.wait_for_result(timeout_seconds)
        finally:
            self._waiting -= 1
            call.waiting_duplicates -= 1

    def add(self, identity: CallIdentity, attempt_id: str) -> InflightCall:
        """Register a call, which `remove` must end, and the attempt that is requested for it."""
        call = InflightCall(identity, attempt_id)
        self._calls.setdefault(identity.key, []).append(call)
        return call

    def remove(self, call: InflightCall) -> None:
        """End a call; its waiting duplicates are released now at the latest."""
        calls = self._calls[call.identity.key]
        calls.remove(call)
        if not calls:
            del self._calls[call.identity.key]
        if not call.is_settled:
            call.settle(None)

    def abort(self, keys: Iterable[CallKey]) -> None:
        """Abort those of these calls that are in flight here."""
        for key in keys:
            for inflight_call in self._calls.get((key.session_id, key.request_id), ()):
                inflight_call.abort()


@dataclass(slots=True, eq=False)
class GateVisit:
    """One call at the gate. ``is_alone``: it was let in, or waits, as one that is to be alone."""

    is_inside: bool = False
    is_alone: bool = False
    turn: asyncio.Future[None] | None = None


class CallGate:
    """Counts the calls that are inside: those that wait for their admission, and those that run.

    All targets of a worker share one gate, because a call that ends the process ends the calls of all of them. A call
    that is to be alone enters when all others have left, and none enters beside it. The others wait for one such call
    each, and enter before the next one, so that neither kind waits for ever.

    A call that runs may wait for others that the gate keeps out: those that its agent sends to this worker. So no call
    keeps others out, nor waits as the next to be alone, for more than ``max_wait_seconds``: then they enter.

    Example::

        visit = GateVisit()
        try:
            await call_gate.enter(visit, timeout_seconds=60)
            await call_gate.enter_alone(visit, timeout_seconds=60)
        finally:
            call_gate.leave(visit)
    """

    def __init__(self, max_wait_seconds: float) -> None:
        self._max_wait_seconds = max_wait_seconds
        self._inside = 0
        self._waiting: list[GateVisit] = []
        #: Those that are to be alone, in order of arrival. The first one is inside, or the next to enter.
        self._alone: list[GateVisit] = []
        self._next: GateVisit | None = None
        self._is_open = False

    async def enter(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Enter, unless a call is or is to be alone: then after it, and after ``timeout_seconds`` at the latest."""
        if self._is_open or not self._alone:
            visit.is_inside = True
            self._inside += 1
        else:
            await self._wait(self._waiting, visit, min(timeout_seconds, self._max_wait_seconds))

    async def enter_alone(self, visit: GateVisit, timeout_seconds: float) -> None:
        """Leave, and enter when nothing else is inside, and after ``timeout_seconds`` at the latest."""
        self._inside -= 1
        visit.is_inside, visit.is_alone = False, True
        await self._wait(self._alone, visit, timeout_seconds)

    def leave(self, visit: GateVisit) -> None:
        """Leave, or stop waiting."""
        self._inside -= visit.is_inside
        visit.is_inside = False
        if visit in self._waiting:
            self._waiting.remove(visit)
        elif visit in self._alone:
            is_first = self._alone[0] is visit
            self._alone.remove(visit)
            if is_first:
                self._let_in_all(self._waiting)
        if self._alone:
            self._let_next_in()

    def open(self) -> None:
        """Let all calls in, now and from now on: the worker stops and starts none of them."""
        self._is_open = True
        self._let_in_all(self._waiting + self._alone)

    async def _wait(self, line: list[GateVisit], visit: GateVisit, timeout_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        visit.turn = loop.create_future()
        line.append(visit)
        timer = loop.call_later(0 if self._is_open else timeout_seconds, self._let_in, visit)
        self._let_next_in()
        try:
            await visit.turn
        finally:
            timer.cancel()

    def _let_next_in(self) -> None:
        """Let the first that is to be alone in, when nothing is inside or it has waited for the longest time."""
        first = self._alone[0] if self._alone else None
        if first is None or first.is_inside:
            return
        if not self._inside:
            self._let_in(first)
        elif self._next is not first:
            self._next = first
            asyncio.get_running_loop().call_later(self._max_wait_seconds, self._let_in, first)

    def _let_in_all(self, visits: list[GateVisit]) -> None:
        for visit in list(visits):
            self._let_in(visit)

    def _let_in(self, visit: GateVisit) -> None:
        """Let a call in that waits; one that has stopped waiting, or is inside, is left as it is."""
        if visit.turn is None or visit.turn.done():
            return
        visit.turn.set_result(None)
        visit.is_inside = True
        self._inside += 1
        if visit in self._waiting:
            self._waiting.remove(visit)
