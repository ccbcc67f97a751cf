"""Consumes requests that no target queue took: forwards them to their target, or answers with the available targets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.bus.failure_log import FailureLog
from quintain.contracts.api_request import read_request
from quintain.contracts.headers import DEADLINE_HEADER, PROOF_HEADER, REQUEST_ID_HEADER, ROUTED_HEADER
from quintain.contracts.invoke import InvokeRequest
from quintain.contracts.message import DEFAULT_REQUEST_BYTES
from quintain.contracts.values import is_target_name, sanitize_request_id, shorten
from quintain.errors import (
    BadRequest,
    BrokerUnavailable,
    BudgetUnavailable,
    BusError,
    Fault,
    Overloaded,
    PayloadTooLarge,
    QueueFull,
)
from quintain.observe.semconv import process_span
from quintain.rpc.server import (
    copyable_headers,
    delivery_context,
    delivery_credential,
    integer_header,
    request_id_of,
    result_or_fault,
    send_reply,
)
from quintain.timings import Timings
from quintain.topology import INVOKE, UNROUTED, UNROUTED_QUEUE, target_of_key, target_topology
from quintain_metadata.ledger import call_rows, calls, sessions, targets
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.ledger.targets import RouteRequest, unknown_target
from quintain_metadata.store.base import Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)

#: Until when a request may wait for the registration of its target that waits in the queue; only this service sets it.
WAIT_ENDS_HEADER = "x-quintain-wait-ends"

_PROCESS_SPAN = process_span(UNROUTED.name, "", UNROUTED_QUEUE.name)


class Router:
    """Consumes the unrouted queue: forwards each request to its target, or answers it."""

    def __init__(self, bus: Bus, ledger: Ledger, timings: Timings, start_window_seconds: float | None = None) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings
        self._registration_wait = RegistrationWait(
            ledger,
            timings.unknown_target_seconds if start_window_seconds is None else start_window_seconds,
            timings.lease_ms,
        )
        begun, ended = "Requests could not be forwarded to their targets yet", "Requests are forwarded"
        self._not_forwarded = FailureLog(log, begun, ended, bus)
        #: Target → the connection's reconnects when its queue was declared.
        self._declared: dict[str, int] = {}

    async def start(self) -> None:
        """Note which workers there were; called before anything is consumed."""
        await self._registration_wait.start()

    def stop(self) -> None:
        """Return the requests that wait for a registration to the queue, for another metadata service."""
        self._registration_wait.stop()

    async def __call__(self, delivery: Delivery) -> None:
        """Forward one request to its target's queue, or answer it with a fault.

        A request that waits for the registration of its target stays unacknowledged: if this service dies, the broker
        delivers it to the next one.
        """
        with delivery_context(delivery, _PROCESS_SPAN):
            answer = await self._route_or_fault(delivery, may_wait=True)
            if isinstance(answer, RouteRequest):
                ends_at = await self._wait_ends_at(delivery)
                is_over = await self._wait_for_registration(answer.target, ends_at)
                if self._registration_wait.is_stopped:
                    await delivery.requeue()
                    return
                if not is_over and await self._send_to_end_of_queue(delivery, ends_at):
                    log.debug("A request waits for the registration of target %r", answer.target)
                    await delivery.ack()
                    return
                answer = await self._route_or_fault(delivery, may_wait=False)
            log.debug("A request without a queue: %s", answer.code if isinstance(answer, Fault) else "forwarded")
            if isinstance(answer, Fault):
                await send_reply(self._bus, delivery, answer, {REQUEST_ID_HEADER: request_id_of(delivery)})
            await delivery.ack()

    async def _wait_ends_at(self, delivery: Delivery) -> int:
        """Return until when the request may wait, in milliseconds on the ledger's clock; 0 if the ledger is away.

        It is its deadline, the end of a wait that began before, or the end of a wait that begins now.
        """
        try:
            now = await self._ledger.now()
        except BudgetUnavailable:
            return 0  # routing the request again says so to the caller
        ends = [integer_header(delivery.headers, name) for name in (DEADLINE_HEADER, WAIT_ENDS_HEADER)]
        return min([now + int(self._timings.unknown_target_seconds * 1000), *(end for end in ends if end is not None)])

    async def _wait_for_registration(self, target: str, ends_at: int) -> bool:
        """Wait; False if the request has to wait in its queue."""
        try:
            return await self._registration_wait.wait(target, (ends_at - await self._ledger.now()) / 1000)
        except BudgetUnavailable:
            return True

    async def _send_to_end_of_queue(self, delivery: Delivery, ends_at: int) -> bool:
        """Publish the request to its own queue again, so that it waits there; False if the queue is full."""
        envelope = envelope_of(delivery, {**forwarded_headers(delivery), WAIT_ENDS_HEADER: ends_at})
        try:
            await self._bus.publish(UNROUTED, delivery.routing_key, envelope)
        except BusError as error:
            log.warning("A request cannot wait in its queue and is answered: %s", error.message)
            return False
        return True

    async def _route_or_fault(self, delivery: Delivery, *, may_wait: bool) -> Fault | RouteRequest | None:
        return await result_or_fault(self._route(delivery, may_wait=may_wait), "routing a request")

    async def _route(self, delivery: Delivery, *, may_wait: bool) -> Fault | RouteRequest | None:
        """Forward the request; otherwise return the fault, or the route of a target that may still be registered."""
        resolved = await self._resolve(delivery, may_wait=may_wait)
        if not isinstance(resolved, str):
            return resolved
        await self._forward(delivery, resolved)
        return None

    async def _resolve(self, delivery: Delivery, *, may_wait: bool) -> str | Fault | RouteRequest:
        """Return the target to forward to, or the fault for the caller; a fault releases the call's reservation.

        With ``may_wait``, return the route of a valid and allowed target name that is not registered.
        """
        credential = delivery_credential(delivery)
        request_id = sanitize_request_id(request_id_of(delivery))

        def operation(moment: Moment) -> SqlProgram[str | Fault | RouteRequest]:
            session = yield from sessions.authenticate(moment.now, credential)
            refusal: Fault
            try:
                route = yield from read_route_request(session, delivery)
            except (BadRequest, PayloadTooLarge) as error:
                refusal = error
            else:
                if route.is_registered and not delivery.headers.get(ROUTED_HEADER):
                    return route.target
                if (yield from call_rows.load_call(session.id, request_id)) is None:
                    # As in AgentV, a spent budget comes before a bad target; a call that is known was paid for.
                    session.require_calls_left()
                if (
                    may_wait
                    and len(delivery.body) <= DEFAULT_REQUEST_BYTES
                    and not route.is_registered
                    and is_target_name(route.target)
                    and session.allows(route.target)
                ):
                    return route
                refusal = unknown_target(route)
            yield from calls.release(moment, session, [request_id])
            return refusal

        return await self._ledger.transact(operation)

    async def _forward(self, delivery: Delivery, target: str) -> None:
        """Publish the request to its target's queue unchanged.

        The queue is declared if this connection has not done so, or if the request was published with the target's key
        and no queue took it. A header then prevents a routing loop: a request that comes back without it did not find
        the queue that was declared before. Retries while the broker is away: the request is then redelivered, and a
        fault now would be a second answer.
        """
        headers = forwarded_headers(delivery)
        headers.pop(WAIT_ENDS_HEADER, None)
        while True:
            try:
                if delivery.routing_key or self._declared.get(target) != self._bus.reconnects:
                    reconnects = self._bus.reconnects
                    await self._bus.declare(target_topology(target))
                    self._declared[target] = reconnects
                    headers[ROUTED_HEADER] = 1
                await self._bus.publish(INVOKE, target, envelope_of(delivery, headers))
            except QueueFull:
                # Another copy of the request may have been admitted before.
                message = f"The broker nacked it: the queue of target {target!r} is full, or cannot be reached now"
                raise Overloaded(message, retry_after_ms=1000, charge_unknown=True) from None
            except BrokerUnavailable as error:
                self._not_forwarded.failed(error, delivery)
                await asyncio.sleep(self._timings.route_pause_seconds)
            else:
                self._not_forwarded.worked(delivery)
                return


def _target_in_body(delivery: Delivery) -> tuple[str | None, str]:
    """Return the target that the body names, if any, and the field that names it.

    A large body is not parsed, because that would hold up all other operations: its target is its routing key, and its
    worker checks the body. Raises `BadRequest`, and `PayloadTooLarge` for a large
    body without a routing key.
    """
    if len(delivery.body) > DEFAULT_REQUEST_BYTES:
        if not delivery.routing_key:
            raise PayloadTooLarge(
                f"The body has {len(delivery.body)} bytes; a request of more than {DEFAULT_REQUEST_BYTES} bytes must "
                "name its target"
            )
        return None, "target"
    request = read_request(delivery.body)
    is_provider = isinstance(request, InvokeRequest) and request.target is None and request.provider is not None
    return request.requested_target, "provider" if is_provider else "target"


def read_route_request(session: SessionRow, delivery: Delivery) -> SqlProgram[RouteRequest]:
    """Determine the target that a request is for.

    Raises `BadRequest`, also if body and routing key differ, and `PayloadTooLarge`.
    """
    # A copy of the message may not carry a value of another type: the worker would take it for absent.
    for name in (DEADLINE_HEADER, WAIT_ENDS_HEADER):
        integer_header(delivery.headers, name)
    body_target, field_name = _target_in_body(delivery)
    key_target = target_of_key(delivery.routing_key)
    if key_target and body_target is not None and body_target != key_target:
        raise BadRequest(f"target: the body names {shorten(body_target)!r}, the routing key {delivery.routing_key!r}")
    previous_target = yield from call_rows.resolved_target(session.id, request_id_of(delivery))
    # An empty target name is an unknown target; it does not mean the default.
    target = key_target or (previous_target or session.default_target if body_target is None else body_target)
    registered = yield from targets.target_names()
    is_bound = bool(delivery.routing_key) or PROOF_HEADER not in delivery.headers
    if not is_bound and target in registered and target not in {previous_target, session.default_target}:
        raise BadRequest(f"{field_name}: with a proof, the target must be the routing key: publish with {target!r}")
    return RouteRequest(target, field_name, target in registered, session.available(registered))


def envelope_of(delivery: Delivery, headers: Mapping[str, HeaderValue]) -> Envelope:
    """Return a copy of the request with these headers."""
    return Envelope(
        body=delivery.body,
        type=delivery.type,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        headers=headers,
        expiration_ms=delivery.expiration_ms,
    )


def forwarded_headers(delivery: Delivery) -> dict[str, HeaderValue]:
    """Return the headers to forward, without those that the broker added."""
    headers = copyable_headers(delivery.headers)
    return {key: value for key, value in headers.items() if not key.startswith(("x-first-", "x-last-", "x-death"))}


#: How many requests wait in this process at once; each is an unacknowledged message. The others wait in their queue.
MAX_WAITING = 4

#: How long a request stays here that goes back to the end of its queue to wait there, in seconds.
TURN_SECONDS = 0.05

#: How often the registered targets are read while a request waits, in seconds.
READ_SECONDS = 0.25


class RegistrationWait:
    """Lets requests wait for the registration of their target.

    They wait while no target is registered at all, and within ``window_seconds`` of the start of this service: workers
    that started before it, or start with it, have registered by then. That window ends as soon as each target has as
    many workers as before the start, whose leases were renewed since.
    """

    def __init__(self, ledger: Ledger, window_seconds: float, lease_ms: int) -> None:
        self._ledger, self._lease_ms = ledger, lease_ms
        self._window_ends_at = asyncio.get_running_loop().time() + window_seconds
        self._started_at = 0
        self._workers_before: dict[str, int] = {}
        self._stopped = asyncio.Event()
        self._read_lock = asyncio.Lock()
        self._read_at = 0.0
        self._registered: frozenset[str] | None = None
        self.waiting_count = 0

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    async def start(self) -> None:
        """Note which workers there were; called before a registration or a heartbeat is read."""
        self._started_at = await self._ledger.now()
        self._workers_before = await self._ledger.transact(lambda _: targets.count_last_workers(self._lease_ms))

    def stop(self) -> None:
        """End all waits at once."""
        self._stopped.set()

    async def wait(self, target: str, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` until this target is registered, or waiting has no reason any more.

        Returns False, after `TURN_SECONDS`, if it has to wait elsewhere: `MAX_WAITING` requests wait here already.
        """
        if timeout_seconds <= 0 or not await self._is_expected(target):
            return True
        if self.waiting_count >= MAX_WAITING:
            await asyncio.sleep(TURN_SECONDS)
            return self.is_stopped or not await self._is_expected(target)
        self.waiting_count += 1
        give_up_at = asyncio.get_running_loop().time() + timeout_seconds
        try:
            while not self.is_stopped and await self._is_expected(target):
                remaining_seconds = give_up_at - asyncio.get_running_loop().time()
                if remaining_seconds <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), min(READ_SECONDS, remaining_seconds))
        finally:
            self.waiting_count -= 1
        return True

    async def _is_expected(self, target: str) -> bool:
        """Whether the target is not registered, and a worker may still register it."""
        registered = await self._registered_targets()
        if registered is None:
            return True
        return target not in registered and (not registered or asyncio.get_running_loop().time() < self._window_ends_at)

    async def _registered_targets(self) -> frozenset[str] | None:
        """Return the registered targets, read at most every `READ_SECONDS`; None if the ledger was never read."""
        loop = asyncio.get_running_loop()
        async with self._read_lock:
            if self._registered is None or loop.time() - self._read_at >= READ_SECONDS:
                with contextlib.suppress(BudgetUnavailable):  # logged by the instrumented ledger
                    self._registered = await self._ledger.transact(lambda _: self._read())
                self._read_at = loop.time()
            return self._registered

    def _read(self) -> SqlProgram[frozenset[str]]:
        workers = yield from targets.count_workers(self._started_at + self._lease_ms)
        before = self._workers_before
        if before and all(workers.get(target, 0) >= count for target, count in before.items()):
            self._window_ends_at = 0.0
        return frozenset((yield from targets.target_names()))
