"""Requests a lease of a hosted instance: waits for a free slot, then for the instance, as long as its host is heard.

Everything here runs on the connection thread's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable

from quintain.bus.base import Bus, Delivery
from quintain.contracts.remote_target import (
    LEASE_OFFER_TYPE,
    DescribeHost,
    HostDescribed,
    LeaseOffered,
    LeaseOpened,
    OpenLease,
    Teardown,
)
from quintain.errors import BadRequest, HostLost, NoAnswer, QuintainError, Unroutable
from quintain.observe.spans import context_headers
from quintain.remote.lease import DEFAULT_TIMEOUTS, ProcessWatch, RemoteLease, SilenceMeter, TargetTimeouts
from quintain.routes import DESCRIBE_HOST, LEASE, TEARDOWN
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.target.exceptions import from_failure
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST

log = logging.getLogger(__name__)

#: How long after its request was given up a lease is still ended when it comes, in seconds: the boot of an instance.
LATE_LEASE_SECONDS = 600.0

#: How many hosts may be lost while they create an instance, before that is an error.
MAX_LOST_BOOTS = 3

#: Pause before a lease is requested again, in seconds.
RETRY_SECONDS = 0.2


async def acquire_lease(
    bus: Bus,
    rpc_client: RpcClient,
    name: str,
    *,
    timeouts: TargetTimeouts = DEFAULT_TIMEOUTS,
    timings: Timings = DEFAULT_TIMINGS,
    on_boot: Callable[[int], None] = lambda change: None,
) -> RemoteLease:
    """Lease a new instance, waiting for a free slot and for the instance.

    ``on_boot`` is called with 1 when a host begins to create the instance, and with -1 when that has ended.
    Raises `NoAnswer` if no slot is free within ``slot_seconds``, `TimeoutError` if the instance is not there within
    ``boot_seconds``, `HostLost` if several hosts were lost meanwhile, and what the target's factory raised.
    """
    loop = asyncio.get_running_loop()
    deadline, lost_boots = loop.time() + timeouts.slot_seconds, 0
    while True:
        attempt = _LeaseAttempt(rpc_client, timings, on_boot)
        try:
            reply = await attempt.wait(name, max(0.1, deadline - loop.time()), timeouts.boot_seconds)
            opened = parse_reply(reply, LeaseOpened)
            if opened.failure is not None:
                raise from_failure(opened.failure)
            watch = attempt.take_watch()
            return RemoteLease(bus, rpc_client, name, opened, watch, timings, request_seconds=timeouts.request_seconds)
        except HostLost as error:
            lost_boots += 1
            if lost_boots == MAX_LOST_BOOTS:
                raise
            log.warning("%s; another one is asked for", error.message)
            deadline = loop.time() + timeouts.slot_seconds
        except (NoAnswer, Unroutable):
            if loop.time() + RETRY_SECONDS >= deadline:
                raise NoAnswer(
                    f"No host leased target {name!r} within {timeouts.slot_seconds:.0f} s: start one with "
                    f"`quintain serve host module:factory --name {name}`, or more --slots"
                ) from None
        finally:
            attempt.close()
        await asyncio.sleep(RETRY_SECONDS)


class _LeaseAttempt:
    """One request for a lease; a lease that comes when nobody waits for it any more is ended at once."""

    def __init__(self, rpc_client: RpcClient, timings: Timings, on_boot: Callable[[int], None]) -> None:
        self._rpc_client, self._timings, self._on_boot = rpc_client, timings, on_boot
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[Delivery] = self._loop.create_future()
        self._offered, self._replied = asyncio.Event(), asyncio.Event()
        self._is_booting = False
        self._watch: ProcessWatch | None = None
        self._correlation_id = secrets.token_urlsafe(16)
        self._unsubscribe = rpc_client.subscribe(self._correlation_id, self._on_reply)

    def take_watch(self) -> ProcessWatch:
        """Return the watch of the instance's process; it is the caller's to close from now on."""
        watch, self._watch = self._watch, None
        return watch or ProcessWatch(self._rpc_client, LeaseOffered(), self._timings)

    def close(self) -> None:
        """End the watch of a process whose instance is not taken."""
        if self._watch is not None:
            self._watch.close()
        if self._is_booting:
            self._is_booting = False
            self._on_boot(-1)

    async def wait(self, name: str, slot_seconds: float, boot_seconds: float) -> Delivery:
        """Send the request and wait for its reply.

        Raises `NoAnswer` without a slot, `TimeoutError` without an instance, `HostLost` where the host was lost after
        its offer, and what `Bus.publish` raises.
        """
        request = RpcRequest(
            exchange=HOST,
            key=name,
            type=LEASE.key,
            body=OpenLease(controller_id=secrets.token_hex(8)).to_wire(),
            headers=context_headers(),
            deadline_seconds=slot_seconds,
        )
        try:
            async with asyncio.timeout(slot_seconds) as limit:
                await self._rpc_client.publish(request, self._correlation_id)
                await self._offered.wait()
                limit.reschedule(None)
            async with asyncio.timeout(boot_seconds):
                return await self._wait_for_instance(name)
        except BaseException as error:
            self._reply.add_done_callback(
                lambda late: self._loop.create_task(_end_late_lease(self._rpc_client, late.result()))
            )
            self._loop.call_later(LATE_LEASE_SECONDS, self._unsubscribe)
            if isinstance(error, TimeoutError):
                raise self._timeout(name, slot_seconds, boot_seconds) from None
            raise

    async def _wait_for_instance(self, name: str) -> Delivery:
        watch, silence = self._watch, SilenceMeter(self._timings.host_heartbeat_seconds / 4)
        if watch is None:
            return await self._reply
        watch.listen(silence.record)
        host = watch.offer.host_id
        while not self._replied.is_set():
            silent_seconds = await silence.wait_interval(self._replied)
            if watch.end is not None:
                lost = HostLost(f"Host {host} was creating an instance of {name!r} when its process {watch.end.ended}")
                lost.add_note(f"The end of the log of host {host}:\n{watch.end.log_tail}")
                raise lost
            if silent_seconds > watch.lost_seconds:
                raise HostLost(
                    f"Nothing was heard of host {host} for {silent_seconds:.3g} s while it was creating an instance of "
                    f"{name!r}"
                )
        return self._reply.result()

    def _timeout(self, name: str, slot_seconds: float, boot_seconds: float) -> Exception:
        if not self._offered.is_set():
            return NoAnswer(f"No slot within {slot_seconds:.1f} s")
        return TimeoutError(
            f"The instance of {name!r} was not created within {boot_seconds:.0f} s: raise boot_seconds of "
            "TargetTimeouts, and --boot-timeout-seconds of its host"
        )

    def _on_reply(self, delivery: Delivery) -> None:
        if delivery.type == LEASE_OFFER_TYPE:
            self._on_offer(delivery)
        elif delivery.type in {"result", "fault"} and not self._reply.done():
            self._unsubscribe()
            self._reply.set_result(delivery)
            self._offered.set()
            self._replied.set()

    def _on_offer(self, delivery: Delivery) -> None:
        offer = LeaseOffered()
        with contextlib.suppress(BadRequest):
            offer = LeaseOffered.from_wire(delivery.body)
        if self._watch is None and not self._reply.done():
            self._watch = ProcessWatch(self._rpc_client, offer, self._timings) if offer.supervisor_key else None
            self._is_booting = True
            self._offered.set()
            self._on_boot(1)


async def _end_late_lease(rpc_client: RpcClient, reply: Delivery) -> None:
    with contextlib.suppress(QuintainError):
        opened = parse_reply(reply, LeaseOpened)
        if opened.failure is None:
            body = Teardown(lease_id=opened.lease_id, request_id=secrets.token_hex(8)).to_wire()
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
    return parse_reply(await rpc_client.call(request), HostDescribed).fingerprint
