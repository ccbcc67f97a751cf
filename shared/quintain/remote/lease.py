"""One lease of a hosted instance, on the controller side: requests, renewal, and detection of a lost host.

Everything here runs on the connection thread's loop. A request is resent until it is answered; the host executes each
request id once. A host that is silent for too long, or that deleted the lease's queue, is lost: pending requests raise
`HostLost`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import Any

from quintain.bus.base import Bus, Delivery
from quintain.contracts.remote_target import (
    BareLeaseRequest,
    DescribeHost,
    HostDescribed,
    LeaseOpened,
    LeaseRequest,
    LeaseResult,
    OpenLease,
    TargetDescriptor,
)
from quintain.errors import (
    BadRequest,
    BusError,
    HostLost,
    LeaseRequestNotDelivered,
    NoAnswer,
    QuintainError,
    Unroutable,
)
from quintain.routes import DESCRIBE_HOST, LEASE, RENEW, TEARDOWN, Route
from quintain.rpc.client import RpcClient, parse_reply
from quintain.rpc.request import RpcRequest
from quintain.target.exceptions import RemoteExceptions, from_failure
from quintain.telemetry.spans import context_headers
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST

log = logging.getLogger(__name__)

#: How long after its request was given up a lease is still ended when it comes, in seconds: the boot of an instance.
LATE_LEASE_SECONDS = 600.0

#: Why a lease has ended, for error messages.
REASON_ENDED_BY_HOST = "its host has ended it"
REASON_RELEASED = "it was released here"


class RemoteLease:
    """A lease of a hosted instance, renewed in the background until it is released or its host is lost."""

    def __init__(self, bus: Bus, rpc_client: RpcClient, name: str, opened: LeaseOpened, timings: Timings) -> None:
        assert opened.descriptor is not None, "a lease without a failure has a descriptor"
        self.bus, self._rpc_client, self.timings = bus, rpc_client, timings
        self.name, self.key, self.lease_id = name, opened.key, opened.lease_id
        self.descriptor: TargetDescriptor = opened.descriptor
        #: The fingerprint of the host's factory; None if the host computes none.
        self.fingerprint = opened.fingerprint
        self.exceptions = RemoteExceptions()
        self._loop = asyncio.get_running_loop()
        self._last_heard = self._loop.time()
        self._end_reason = ""
        self.ended_future: asyncio.Future[None] = self._loop.create_future()
        self._tasks = [
            self._loop.create_task(self._renew_periodically(), name=f"renew {self.lease_id[:8]}"),
            self._loop.create_task(self._watch_silence(), name=f"watch {self.lease_id[:8]}"),
        ]

    def record_host_activity(self) -> None:
        """Record that a message of the host has just arrived."""
        self._last_heard = self._loop.time()

    @property
    def ended(self) -> bool:
        """Whether the host was lost or the lease released."""
        return self.ended_future.done()

    @property
    def host_lost(self) -> bool:
        """Whether the lease ended without being released here."""
        return self.ended and self._end_reason != REASON_RELEASED

    async def call(self, route: Route[Any, LeaseResult], **fields: Any) -> LeaseResult:
        """Send a request to the instance and wait for its reply, however long the target takes.

        Raises the target's exception, with its class if that is known here; `HostLost`; and `LeaseRequestNotDelivered`
        if the host provably did not receive the request.
        """
        request = route.request_type(lease_id=self.lease_id, request_id=secrets.token_hex(8), **fields)
        task = self._loop.create_task(self._call_until_answered(route, request))
        try:
            futures: set[asyncio.Future[Any]] = {task, self.ended_future}
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.host_lost_error()
            result = task.result()
        finally:
            task.cancel()
        if result.failure is not None:
            raise self.exceptions.from_failure(result.failure)
        return result

    def host_lost_error(self) -> HostLost:
        """Return the error for requests and runs of an ended lease."""
        return HostLost(
            f"Lease {self.lease_id[:8]} of target {self.name!r} is over: {self._end_reason}. A run is never repeated "
            "by itself: it may have had effects"
        )

    async def stop_renewing(self) -> None:
        """Stop renewing the lease, and mark it as ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(REASON_RELEASED)

    async def release(self) -> None:
        """End the lease, and ask its host to tear the instance down without waiting for that. Never raises."""
        already_ended = self.ended
        await self.stop_renewing()
        if not already_ended:
            request = BareLeaseRequest(lease_id=self.lease_id, request_id=secrets.token_hex(8))
            with contextlib.suppress(BusError):
                await self._rpc_client.publish(
                    self._rpc_request(TEARDOWN, request, self.timings.host_heartbeat_seconds), secrets.token_urlsafe(16)
                )

    def _end(self, reason: str) -> None:
        if not self.ended_future.done():
            self._end_reason = reason
            self.ended_future.set_result(None)

    async def _call_until_answered(self, route: Route[Any, LeaseResult], request: LeaseRequest) -> LeaseResult:
        sent_before = False
        while True:
            try:
                return await self._call_once(route, request, self.timings.host_repeat_seconds)
            except Unroutable as unroutable:
                self._end(REASON_ENDED_BY_HOST)
                maybe_delivered = sent_before or unroutable.maybe_delivered_before
                raise (
                    self.host_lost_error()
                    if maybe_delivered
                    else LeaseRequestNotDelivered(self.host_lost_error().message)
                ) from None
            except (NoAnswer, BusError) as error:
                sent_before = True
                log.debug("%s was not answered and is sent again: %s", route.name, error.message)
                await asyncio.sleep(0.1)

    async def _call_once(
        self, route: Route[Any, LeaseResult], request: LeaseRequest, timeout_seconds: float
    ) -> LeaseResult:
        result = parse_reply(
            await self._rpc_client.call(self._rpc_request(route, request, timeout_seconds)), LeaseResult
        )
        self.record_host_activity()
        return result

    def _rpc_request(self, route: Route[Any, LeaseResult], request: LeaseRequest, timeout_seconds: float) -> RpcRequest:
        return RpcRequest(
            exchange=HOST,
            key=self.key,
            type=route.key,
            body=request.to_wire(),
            headers={},
            deadline_seconds=timeout_seconds,
        )

    async def _watch_silence(self) -> None:
        """End the lease as soon as the host was silent for ``host_lost_seconds``."""
        lost_seconds = self.timings.host_lost_seconds
        while (remaining_seconds := self._last_heard + lost_seconds - self._loop.time()) > 0:  # noqa: ASYNC110 -- one sleep
            await asyncio.sleep(remaining_seconds)
        self._end(f"nothing was heard of it for {lost_seconds:.3g} s")

    async def _renew_periodically(self) -> None:
        while not self.ended_future.done():
            await asyncio.sleep(self.timings.host_heartbeat_seconds)
            request = BareLeaseRequest(lease_id=self.lease_id, request_id=secrets.token_hex(8))
            try:
                await self._call_once(RENEW, request, self.timings.host_heartbeat_seconds)
            except Unroutable:
                self._end(REASON_ENDED_BY_HOST)
            except QuintainError as error:
                log.debug("Lease %s was not renewed: %s", self.lease_id[:8], error.message)
        log.info("%s", self.host_lost_error().message)


async def acquire_lease(
    bus: Bus, rpc_client: RpcClient, name: str, *, timeout_seconds: float, timings: Timings = DEFAULT_TIMINGS
) -> RemoteLease:
    """Lease a new instance, waiting for a free slot.

    Raises `NoAnswer` if no slot is free within ``timeout_seconds``, and what the target's factory raised.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    controller_id = secrets.token_hex(8)
    while True:
        request = RpcRequest(
            exchange=HOST,
            key=name,
            type=LEASE.key,
            body=OpenLease(controller_id=controller_id).to_wire(),
            headers=context_headers(),
            deadline_seconds=max(0.1, deadline - loop.time()),
        )
        try:
            opened = parse_reply(await _request_lease(rpc_client, request), LeaseOpened)
        except (NoAnswer, Unroutable):
            if loop.time() + 0.2 >= deadline:
                raise NoAnswer(
                    f"No host leased target {name!r} within {timeout_seconds:.0f} s: start one with "
                    f"`quintain serve host module:factory --name {name}`, or more --slots"
                ) from None
            await asyncio.sleep(0.2)
            continue
        if opened.failure is not None:
            raise from_failure(opened.failure)
        return RemoteLease(bus, rpc_client, name, opened, timings)


async def _request_lease(rpc_client: RpcClient, request: RpcRequest) -> Delivery:
    """Send a lease request and wait for its reply; a lease that comes when nobody waits any more is ended at once.

    Raises `NoAnswer`, and what `Bus.publish` raises.
    """
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[Delivery] = loop.create_future()
    correlation_id = secrets.token_urlsafe(16)

    def on_reply(delivery: Delivery) -> None:
        if delivery.type in {"result", "fault"} and not reply.done():
            unsubscribe()
            reply.set_result(delivery)

    unsubscribe = rpc_client.subscribe(correlation_id, on_reply)
    try:
        async with asyncio.timeout(request.deadline_seconds):
            await rpc_client.publish(request, correlation_id)
            return await asyncio.shield(reply)
    except BaseException as error:
        reply.add_done_callback(lambda late: loop.create_task(_end_late_lease(rpc_client, late.result())))
        loop.call_later(LATE_LEASE_SECONDS, unsubscribe)
        if isinstance(error, TimeoutError):
            raise NoAnswer(f"No lease within {request.deadline_seconds:.1f} s") from None
        raise


async def _end_late_lease(rpc_client: RpcClient, reply: Delivery) -> None:
    with contextlib.suppress(QuintainError):
        opened = parse_reply(reply, LeaseOpened)
        if opened.failure is None:
            body = BareLeaseRequest(lease_id=opened.lease_id, request_id=secrets.token_hex(8)).to_wire()
            request = RpcRequest(
                exchange=HOST, key=opened.key, type=TEARDOWN.key, body=body, headers={}, deadline_seconds=2.0
            )
            await rpc_client.publish(request, secrets.token_urlsafe(16))


async def describe_host(rpc_client: RpcClient, name: str, *, timeout_seconds: float) -> str | None:
    """Return the fingerprint of the factory of any host with a free slot, or None if that host computes none.

    Raises `NoAnswer` if no slot is free within ``timeout_seconds``, and `BusError` if there is no host or no broker.
    """
    request = RpcRequest(
        exchange=HOST,
        key=name,
        type=DESCRIBE_HOST.key,
        body=DescribeHost().to_wire(),
        headers={},
        deadline_seconds=timeout_seconds,
    )
    try:
        return parse_reply(await rpc_client.call(request), HostDescribed).fingerprint
    except BadRequest:
        # The answer of a host of an earlier release.
        return None
