"""The calls in flight in this worker, and the message of each: duplicates wait for them, cancellations abort them.

RabbitMQ closes the channel of a message that is unacknowledged for longer than its ``consumer_timeout``, and the ledger
holds no bodies. So a worker publishes a copy to the target's queue before half of that time has passed, and then
acknowledges the message: one queued or unacknowledged message holds the body at every moment. A copy that comes back
to the worker that runs the call takes the message's place there. Another worker holds it as long as the call runs, and
takes the call over where its worker dies. So does one of a call that waits for its admission, which keeps its place and
its tries; a duplicate that waits for another call, and a call that waits for a slot, are put back into their queue.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from quintain.bus.base import Bus, Delivery
from quintain.contracts.headers import COPY_HEADER
from quintain.contracts.invoke import Result
from quintain.contracts.ledger import PRINTABLE, CallKey
from quintain.errors import BusError, Expired, Overloaded
from quintain.routes import INVOKE
from quintain.runtime.concurrency import start_task
from quintain_worker.returns import copy_of

log = logging.getLogger(__name__)

#: For which part of the broker's consumer timeout a message is held. A publish may take 30 s to be confirmed.
HELD_PART = 0.45

#: After which part of that time it is checked again which copies are due, and after which one that could not be
#: published is tried again.
CHECK_PART, RETRY_PART = 0.02, 0.05

#: How many attempts are remembered that ended while a copy of their message was elsewhere.
MAX_ENDED_ATTEMPTS = 10_000

#: How many duplicates of one call wait in this worker; a further one is refused as `overloaded`.
MAX_WAITING_DUPLICATES = 16

#: All waiting duplicates together take at most this part of the worker's slots, so that other calls can run; a worker
#: of few slots lets `MIN_WAITING_DUPLICATES` wait.
DUPLICATES_SHARE, MIN_WAITING_DUPLICATES = 0.25, 4


class HeldLongEnough(Exception):
    """A call waits, and its message was held for as long as it may be: it returns to its queue."""


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
    """One call in flight in this worker, from its arrival until it is settled, and the message that holds its body.

    The message is the delivery that came first, a copy of it, or none while its copy is queued or held by another
    worker: to acknowledge or to requeue it has no effect then.
    """

    identity: CallIdentity
    delivery: Delivery
    attempt_id: str
    #: The message now.
    held: Delivery | None
    #: When an attempt was granted, in the loop's seconds; 0 before.
    granted_at: float = 0.0
    #: The deadline of the call, in the loop's seconds; None once its attempt has ended: no copy is published then.
    ends_at: float | None = None
    #: When a copy of the message is due, in the loop's seconds.
    copy_at: float = math.inf
    #: The attempts as copies of which its message was published, or may have been.
    copied_as: set[str] = field(default_factory=set)
    waiting_duplicates: int = 0
    is_settled: bool = False
    #: The task that handles the call, while the call may be aborted.
    task: asyncio.Task[object] | None = None
    _is_aborted: bool = False
    _result: Result | None = None
    #: Made by the first duplicate that waits.
    _settled: asyncio.Event | None = None
    #: Whether its message was acknowledged or requeued.
    _is_released: bool = False
    #: Done when the message that took the place of the delivery is held no longer.
    _released: asyncio.Future[None] | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether a copy of its message is queued, or another worker holds it."""
        return self.held is None and not self._is_released

    async def hold(self, delivery: Delivery, copy_at: float) -> None:
        """Hold this message in the place of the one before; returns when it is not held any more."""
        if self._is_released:
            await delivery.ack()
            return
        before, released_before = self.held, self._released
        released = self._released = asyncio.get_running_loop().create_future()
        self.held, self.copy_at = delivery, copy_at
        if before is not None:
            await before.ack()
        if released_before is not None and not released_before.done():
            released_before.set_result(None)
        await released

    async def ack(self) -> None:
        """Acknowledge the message."""
        held, self.held, self._is_released, self.ends_at = self.held, None, True, None
        if held is not None:
            await held.ack()
        if self._released is not None:
            self.release()

    async def requeue(self) -> None:
        """Return the message to its queue."""
        held, self.held, self._is_released, self.ends_at = self.held, None, True, None
        if held is not None:
            await held.requeue()
        self.release()

    def release(self) -> None:
        """End the wait of `hold`: the message is held no longer."""
        if self._released is not None and not self._released.done():
            self._released.set_result(None)

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
    """The calls in flight in a worker of so many slots, by session and request id, and the copies of their messages.

    ``held_seconds`` is for how long a message is held at most.
    """

    def __init__(self, bus: Bus, slots: int, held_seconds: float) -> None:
        self._bus, self._held_seconds = bus, held_seconds
        self._calls: dict[tuple[str, str], list[InflightCall]] = {}
        self._max_waiting = max(MIN_WAITING_DUPLICATES, int(slots * DUPLICATES_SHARE))
        self._waiting = 0
        self._copying: set[asyncio.Task[None]] = set()
        self._copy_timer: asyncio.TimerHandle | None = None

    def find(self, identity: CallIdentity) -> InflightCall | None:
        """Return the unsettled call with this identity, if there is one."""
        for call in self._calls.get(identity.key, ()):
            if call.identity == identity and not call.is_settled:
                return call
        return None

    def find_copied(self, identity: CallIdentity, delivery: Delivery) -> InflightCall | None:
        """Return the call whose message this delivery is: a copy of it, or itself, delivered again."""
        copied = copied_attempt(delivery)
        for call in self._calls.get(identity.key, ()):
            if call.identity != identity:
                continue
            first = call.delivery
            is_same = (delivery.correlation_id, delivery.reply_to) == (first.correlation_id, first.reply_to)
            if copied in call.copied_as or (delivery.redelivered and is_same):
                return call
        return None

    def running(self) -> list[InflightCall]:
        """Return the calls of which an attempt runs, the oldest first."""
        running = [call for calls in self._calls.values() for call in calls if call.granted_at]
        return sorted(running, key=lambda call: call.granted_at)

    async def wait_for_duplicate(self, call: InflightCall, ends_at: float, return_at: float) -> Result | None:
        """Wait for the result of a call as its duplicate, as `InflightCall.wait_for_result` does.

        Raises `Overloaded` where `MAX_WAITING_DUPLICATES` of this call wait already, or too many of all calls;
        `Expired` at ``ends_at`` and `HeldLongEnough` at ``return_at``, in the loop's seconds.
        """
        if call.waiting_duplicates >= MAX_WAITING_DUPLICATES or self._waiting >= self._max_waiting:
            # The call itself runs or waits: it is not decided yet whether it is charged.
            message = "Too many duplicates of calls are waiting already"
            raise Overloaded(message, retry_after_ms=1000, charge_unknown=True)
        self._waiting += 1
        call.waiting_duplicates += 1
        try:
            return await call.wait_for_result(min(ends_at, return_at) - asyncio.get_running_loop().time())
        except TimeoutError:
            if return_at < ends_at:
                raise HeldLongEnough from None
            raise Expired("The deadline passed while another delivery ran the call", charge_unknown=True) from None
        finally:
            self._waiting -= 1
            call.waiting_duplicates -= 1

    def add(self, identity: CallIdentity, delivery: Delivery, attempt_id: str) -> InflightCall:
        """Register a call, which `remove` must end, and the attempt that is requested for it."""
        call = InflightCall(identity, delivery, attempt_id, held=delivery)
        self._calls.setdefault(identity.key, []).append(call)
        if self._copy_timer is None:
            seconds = self._held_seconds * CHECK_PART
            self._copy_timer = asyncio.get_running_loop().call_later(seconds, self._publish_due_copies)
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

    def _publish_due_copies(self) -> None:
        """Publish the copies that are due before the next check: one timer serves all calls."""
        loop, seconds = asyncio.get_running_loop(), self._held_seconds * CHECK_PART
        due_until = loop.time() + seconds
        for calls in self._calls.values():
            for call in calls:
                if call.ends_at is not None and call.copy_at <= due_until and call.held is not None:
                    call.copy_at = math.inf
                    start_task(self._copying, self._copy(call, call.held, call.ends_at), name="copy a message")
        self._copy_timer = loop.call_later(seconds, self._publish_due_copies) if self._calls else None

    async def _copy(self, call: InflightCall, held: Delivery, ends_at: float) -> None:
        """Publish the message again, as a copy of the call's attempt that expires with the call."""
        loop = asyncio.get_running_loop()
        copy = copy_of(held, ends_at - loop.time(), call.attempt_id)
        call.copied_as.add(call.attempt_id)
        try:
            await self._bus.publish(INVOKE.exchange, call.identity.target, copy)
        except BusError as error:
            log.warning("A copy of a long call could not be published and will be repeated: %s", error.message)
            call.copy_at = loop.time() + self._held_seconds * RETRY_PART
            return
        # It may have been acknowledged meanwhile, or its copy may have come back already.
        if call.held is held:
            call.held = None
            await held.ack()
            call.release()


def copied_attempt(delivery: Delivery) -> str | None:
    """Return the attempt whose call's message this is a copy of; None where it is no copy that a worker has made."""
    attempt_id = delivery.headers.get(COPY_HEADER)
    return attempt_id if isinstance(attempt_id, str) and re.fullmatch(PRINTABLE, attempt_id) else None


class EndedAttempts:
    """The last attempts whose calls were answered while a copy of their message was elsewhere: it needs no answer."""

    def __init__(self) -> None:
        self._attempt_ids: dict[str, None] = {}

    def add(self, attempt_id: str) -> None:
        """Remember an attempt; the oldest is forgotten."""
        self._attempt_ids[attempt_id] = None
        if len(self._attempt_ids) > MAX_ENDED_ATTEMPTS:
            del self._attempt_ids[next(iter(self._attempt_ids))]

    def __contains__(self, attempt_id: str) -> bool:
        return attempt_id in self._attempt_ids
