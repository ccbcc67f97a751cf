"""The calls in flight in this worker, and the message of each: duplicates wait for them, cancellations abort them.

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
from dataclasses import dataclass
from typing import NamedTuple

from quintain.bus.base import Bus, Delivery
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import CallKey
from quintain.errors import BusError, Expired, Overloaded
from quintain.runtime.concurrency import start_task
from quintain.topology import BACKLOG, CONVERSATION, held_key
from quintain_worker.returns import copy_of

log = logging.getLogger(__name__)

#: After how many seconds a message is published again, and a second time where that failed.
MOVE_SECONDS = 600.0

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
    #: The delivery that came first.
    delivery: Delivery
    #: The message now: that delivery, or the same message delivered again. None once it is acknowledged or requeued, or
    #: is in the backlog, from where another worker may have it: that one answers it then.
    held: Delivery | None
    #: When an attempt was granted, in the loop's seconds; 0 before.
    granted_at: float = 0.0
    #: When its message is published again, in the loop's seconds.
    move_at: float = 0.0
    waiting_duplicates: int = 0
    is_settled: bool = False
    #: Whether its message was acknowledged or requeued.
    is_released: bool = False
    #: The task that handles the call, while the call may be aborted.
    task: asyncio.Task[object] | None = None
    _is_aborted: bool = False
    _result: Result | None = None
    #: Made by the first duplicate that waits.
    _settled: asyncio.Event | None = None

    async def hold(self, delivery: Delivery) -> None:
        """Hold this message in the place of the one before."""
        if self.is_released:
            await delivery.ack()
            return
        before, self.held = self.held, delivery
        self.move_at = asyncio.get_running_loop().time() + MOVE_SECONDS
        if before is not None:
            await before.ack()

    async def ack(self) -> None:
        """Acknowledge the message."""
        held, self.held, self.is_released = self.held, None, True
        if held is not None:
            await held.ack()

    async def requeue(self) -> None:
        """Return the message to its queue."""
        held, self.held, self.is_released = self.held, None, True
        if held is not None:
            await held.requeue()

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

    def __init__(self, bus: Bus, slots: int) -> None:
        self._bus = bus
        self._moving: set[asyncio.Task[None]] = set()
        self._move_timer: asyncio.TimerHandle | None = None
        self._calls: dict[tuple[str, str], list[InflightCall]] = {}
        self._max_waiting = max(MIN_WAITING_DUPLICATES, int(slots * DUPLICATES_SHARE))
        self._waiting = 0

    def find(self, identity: CallIdentity) -> InflightCall | None:
        """Return the unsettled call with this identity, if there is one."""
        for call in self._calls.get(identity.key, ()):
            if call.identity == identity and not call.is_settled:
                return call
        return None

    def has(self, key: tuple[str, str]) -> bool:
        """Return whether a call with this session and request id is in flight."""
        return key in self._calls

    def find_same(self, identity: CallIdentity, delivery: Delivery) -> InflightCall | None:
        """Return the call whose message this is, delivered or published again: its caller waits for one reply."""
        for call in self._calls.get(identity.key, ()):
            first = call.delivery
            is_same = (delivery.correlation_id, delivery.reply_to) == (first.correlation_id, first.reply_to)
            if is_same and call.identity == identity:
                return call
        return None

    def running(self) -> list[InflightCall]:
        """Return the calls of which an attempt runs, the oldest first."""
        running = [call for calls in self._calls.values() for call in calls if call.granted_at]
        return sorted(running, key=lambda call: call.granted_at)

    async def wait_for_duplicate(self, call: InflightCall, ends_at: float) -> Result | None:
        """Wait for the result of a call as its duplicate, as `InflightCall.wait_for_result` does.

        Raises `Overloaded` where `MAX_WAITING_DUPLICATES` of this call wait already, or too many of all calls, and
        `Expired` at ``ends_at``, in the loop's seconds.
        """
        if call.waiting_duplicates >= MAX_WAITING_DUPLICATES or self._waiting >= self._max_waiting:
            # The call itself runs or waits: it is not decided yet whether it is charged.
            message = "Too many duplicates of calls are waiting already"
            raise Overloaded(message, retry_after_ms=1000, charge_unknown=True)
        self._waiting += 1
        call.waiting_duplicates += 1
        try:
            return await call.wait_for_result(ends_at - asyncio.get_running_loop().time())
        except TimeoutError:
            raise Expired("The deadline passed while another delivery ran the call", charge_unknown=True) from None
        finally:
            self._waiting -= 1
            call.waiting_duplicates -= 1

    def add(self, identity: CallIdentity, delivery: Delivery) -> InflightCall:
        """Register a call, which `remove` must end."""
        loop = asyncio.get_running_loop()
        call = InflightCall(identity, delivery, held=delivery, move_at=loop.time() + MOVE_SECONDS)
        self._calls.setdefault(identity.key, []).append(call)
        if self._move_timer is None:
            self._move_timer = loop.call_later(MOVE_SECONDS, self._move_due)
        return call

    def remove(self, call: InflightCall) -> None:
        """End a call, if that is not done; its waiting duplicates are released now at the latest."""
        calls = self._calls.get(call.identity.key, [])
        if call in calls:
            calls.remove(call)
            if not calls:
                del self._calls[call.identity.key]
            call.settle(None)

    def abort(self, keys: Iterable[CallKey]) -> None:
        """Abort those of these calls that are in flight here."""
        for key in keys:
            for inflight_call in self._calls.get((key.session_id, key.request_id), ()):
                inflight_call.abort()

    def _move_due(self) -> None:
        """Publish the messages again that are held for long: one timer serves all calls."""
        loop = asyncio.get_running_loop()
        for call in [each for calls in self._calls.values() for each in calls]:
            held = call.held
            if held is not None and call.move_at <= loop.time() and _may_be_moved(call, held):
                call.move_at = loop.time() + MOVE_SECONDS
                start_task(self._moving, self._move(call, held), name="move a message")
        self._move_timer = loop.call_later(MOVE_SECONDS / 10, self._move_due) if self._calls else None

    async def _move(self, call: InflightCall, held: Delivery) -> None:
        """Publish a message to its target's backlog, and acknowledge the one before."""
        target = call.identity.target
        try:
            await self._bus.publish(BACKLOG, held_key(target), copy_of(held, None))
        except BusError as error:
            log.warning("The message of a long call stays in the queue of %s for now: %s", target, error.message)
            return
        # It may have been acknowledged meanwhile, or have come back already.
        if call.held is held:
            call.held = None
            await held.ack()


def _may_be_moved(call: InflightCall, held: Delivery) -> bool:
    """Return whether a message is to be published again: once, and by the worker that has its call."""
    is_own = call.granted_at or not held.redelivered
    return bool(is_own) and held.exchange not in {BACKLOG.name, CONVERSATION.name}
