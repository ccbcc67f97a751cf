"""One lease of a hosted instance, on the driver's side: requests and their results, runs, and the loss of its host.

Everything here runs on the connection's loop, except where a method says so. A host is lost that is silent for too
long, whose process has ended, or that deleted the lease's queue: pending requests raise `HostLost`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from quintain.bus.base import Bus, Delivery
from quintain.contracts import hosting
from quintain.contracts.remote_target import TargetDescriptor
from quintain.errors import Fault, HostLost, LeaseRequestNotDelivered, NoAnswer, Unroutable
from quintain.observe import logs
from quintain.observe.spans import current_traceparent
from quintain.remote.stream import LeaseStream, encode_item
from quintain.routes import DESCRIBE_HOST
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.target.exceptions import RemoteExceptions, from_failure
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST

log = logging.getLogger(__name__)

#: How many hosts may be lost while they create an instance, before that is an error.
MAX_LOST_BOOTS = 3

#: Pause before a lease is requested again, in seconds.
RETRY_SECONDS = 0.2

#: Why a lease has ended, for error messages.
REASON_ENDED_BY_HOST = "its host has ended it"
REASON_RELEASED = "it was released here"

#: What a target says in a run, and at last how the run ended, each with its number.
RunItems: TypeAlias = list[tuple[int, hosting.EmitEvent | hosting.SendEvent | hosting.LogLine | hosting.LeaseResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTimeouts:
    """How long a driver waits, in seconds; None waits without a limit. Raises `ValueError` for a value of 0 or less.

    - ``slot_seconds``: for a free slot, until a host begins to create the instance.
    - ``boot_seconds``: for the instance, while its host is heard.
    - ``run_seconds``: for the end of a run; then it is cancelled, and `TimeoutError` is raised.
    - ``event_seconds``: for the controller's response to one event; then `TimeoutError` is raised in the target.
    - ``request_seconds``: for a `set_config`, `query`, reset, teardown or description; then `TimeoutError` is raised,
      and the instance can only be torn down.

    Example::

        remote_factory("sandbox", timeouts=TargetTimeouts(boot_seconds=1800, run_seconds=3600))
    """

    slot_seconds: float = 60.0
    boot_seconds: float = 600.0
    run_seconds: float | None = 6 * 3600.0
    event_seconds: float | None = 3600.0
    request_seconds: float | None = 600.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            seconds = getattr(self, field.name)
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{field.name} must be more than 0")


#: The defaults.
DEFAULT_TIMEOUTS = TargetTimeouts()


class RemoteLease:
    """A lease of a hosted instance, which `open` requests. ``request_seconds`` is the limit of each further request."""

    #: What the target exposes, as the host described it first; the fingerprint of its factory, None if it has none.
    descriptor: TargetDescriptor
    fingerprint: str | None = None

    def __init__(
        self,
        bus: Bus,
        rpc_client: RpcClient,
        name: str,
        timings: Timings = DEFAULT_TIMINGS,
        *,
        request_seconds: float | None = DEFAULT_TIMEOUTS.request_seconds,
    ) -> None:
        self.name, self._timings, self._request_seconds = name, timings, request_seconds
        self.lease_id, self.host_id = secrets.token_urlsafe(24), ""
        self.exceptions = RemoteExceptions()
        self._loop = asyncio.get_running_loop()
        self.ended_future: asyncio.Future[None] = self._loop.create_future()
        self.stream = LeaseStream(
            *(bus, HOST, self.lease_id, self._on_items),
            get_own_key=lambda: rpc_client.reply_key,
            on_unroutable=self._on_unroutable,
            on_broken=self._end,
            ended=self.ended_future,
            timings=timings,
        )
        self._unsubscribe = rpc_client.subscribe(self.lease_id, self._on_delivery, self._on_address_changed)
        #: Why the instance can only be torn down: a request was not answered in time, and others would wait behind it.
        self._overdue = self._end_reason = self._log_tail = ""
        self._offered: asyncio.Future[None] = self._loop.create_future()
        self._results: dict[int, asyncio.Future[hosting.LeaseResult]] = {}
        #: Who gets the items of the runs that have not ended at the host, by number; None where nobody does any more.
        self._runs: dict[int, Callable[[RunItems], None] | None] = {}
        #: The first item that the host did not get.
        self._undelivered: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the host was lost or the lease released."""
        return self.ended_future.done()

    @property
    def host_lost(self) -> bool:
        """Whether the lease ended without being released here."""
        return self.ended and self._end_reason != REASON_RELEASED

    async def open(self, slot_seconds: float, boot_seconds: float, on_boot: Callable[[int], None]) -> None:
        """Request the lease, and wait for a free slot, then for the instance.

        Raises `NoAnswer` without a slot, `TimeoutError` without an instance, `HostLost` where the host was lost after
        its offer, what the target's factory raised, and what `Bus.publish` raises.
        """
        try:
            await self._open(slot_seconds, boot_seconds, on_boot)
        except BaseException:
            # A slot that takes the request later is told that nobody wants the instance.
            self._end(REASON_RELEASED)
            self._tear_down()
            wait_seconds = self._timings.host_heartbeat_seconds if self._offered.done() else slot_seconds
            self._loop.call_later(wait_seconds, lambda: self._loop.create_task(self.close()))
            raise

    async def _open(self, slot_seconds: float, boot_seconds: float, on_boot: Callable[[int], None]) -> None:
        opened = self._results[1] = self._loop.create_future()
        request = hosting.OpenLease(traceparent=current_traceparent(), request_id=logs.current_ids().get("requestId"))
        await self.stream.send_now(request, self.name, max(1, int(1000 * slot_seconds)))
        await self._wait_for(self._offered, slot_seconds)
        if not self._offered.done():
            raise NoAnswer(f"No slot within {slot_seconds:.1f} s")
        on_boot(1)
        try:
            await self._wait_for(opened, boot_seconds)
        finally:
            on_boot(-1)
        if opened.done():
            result = opened.result()
            if result.failure is not None:
                raise from_failure(result.failure)
            if result.descriptor is not None:
                self.descriptor, self.fingerprint = result.descriptor, result.fingerprint
                return
        if self.ended:
            raise self._with_log(
                HostLost(f"Host {self.host_id} was creating an instance of {self.name!r}: {self._end_reason}")
            )
        raise TimeoutError(
            f"The instance of {self.name!r} was not created within {boot_seconds:.0f} s: raise boot_seconds of "
            "TargetTimeouts, and --boot-timeout-seconds of its host"
        )

    async def call(self, request: hosting.LeaseRequest) -> hosting.LeaseResult:
        """Send a request to the instance and wait for its result.

        Raises the target's exception, with its class if that is known here; `HostLost`; `LeaseRequestNotDelivered` if
        the host provably did not receive the request; `TimeoutError` after ``request_seconds``, and at once for all
        further requests but the teardown; and `ValueError` for a request that is too large for the broker.
        """
        if self._overdue and not isinstance(request, hosting.Teardown):
            raise TimeoutError(self._overdue)
        future: asyncio.Future[hosting.LeaseResult] = self._loop.create_future()
        number = self._send(request, lambda number: self._results.update({number: future}))
        await self._wait_for(future, self._request_seconds)
        if not future.done():
            if self.ended:
                raise self.host_lost_error(number)
            self._overdue = (
                f"Target {self.name!r} did not answer {request.type} within {self._request_seconds:g} "
                "s: request_seconds of TargetTimeouts is its limit. The instance can only be torn down now"
            )
            raise TimeoutError(self._overdue)
        if (result := future.result()).failure is not None:
            raise self.exceptions.from_failure(result.failure)
        return result

    def start_run(self, events: list[str], on_items: Callable[[RunItems], None]) -> int:
        """Start a run, and return its number. ``on_items`` is called with what the target says, until `leave_run`."""
        return self._send(hosting.RunTarget(events=events), lambda number: self._runs.update({number: on_items}))

    def _send(self, request: hosting.LeaseRequest, on_numbered: Callable[[int], None]) -> int:
        """Send a request, and return its number. Raises `LeaseRequestNotDelivered` if the lease has ended."""
        if self.ended:
            raise self.host_lost_error()
        item = encode_item(request.with_fields(traceparent=current_traceparent()))
        return self.stream.send(item, on_numbered=on_numbered)

    def leave_run(self, number: int) -> None:
        """Drop what still comes of this run."""
        if number in self._runs:
            self._runs[number] = None
        self.stream.released = self.stream.held

    def host_lost_error(self, number: int | None = None) -> HostLost:
        """Return the error for the request with this number, or for none, of an ended lease.

        The end of the host's log is a note of it.
        """
        was_sent = number is not None and (self._undelivered is None or number < self._undelivered)
        kind = HostLost if was_sent else LeaseRequestNotDelivered
        return self._with_log(
            kind(
                f"Lease {self.lease_id[:8]} of target {self.name!r} on host {self.host_id} is over: "
                f"{self._end_reason}. A run is never repeated by itself: it may have had effects"
            )
        )

    async def release(self, *, reset: bool = False) -> None:
        """End the lease, and ask its host to tear the instance down, with ``reset`` after a reset. Never raises."""
        if not self.ended:
            self._tear_down(reset=reset)
        await self.close()

    async def close(self) -> None:
        """End the lease here: nothing is sent any more, and its host ends it, too."""
        self._end(REASON_RELEASED)
        await self.stream.close(self._timings.host_heartbeat_seconds)
        self._unsubscribe()

    def _tear_down(self, *, reset: bool = False) -> None:
        if self.stream.key:
            self.stream.send(encode_item(hosting.Teardown(reset=reset)))

    async def _wait_for(self, future: asyncio.Future[Any], seconds: float | None) -> None:
        await asyncio.wait([future, self.ended_future], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _with_log(self, error: HostLost) -> HostLost:
        if self._log_tail:
            error.add_note(f"The end of the log of host {self.host_id}:\n{self._log_tail}")
        return error

    def _end(self, reason: str) -> None:
        if not self.ended:
            self._end_reason = reason
            self.ended_future.set_result(None)

    def _on_address_changed(self) -> None:
        if not self._offered.done():
            # An offer would not find this driver: the lease is requested again.
            self._end("its driver connected again")
        self.stream.ask_again()

    def _on_unroutable(self, number: int, error: Unroutable) -> None:
        if not self.ended and not error.maybe_delivered_before:
            self._undelivered = number
        self._end(REASON_ENDED_BY_HOST)

    def _on_delivery(self, delivery: Delivery) -> None:
        if delivery.type == "fault" and (opened := self._results.pop(1, None)) is not None:
            try:
                parse_reply(delivery, hosting.LeaseResult)
            except Fault as fault:
                if not self._offered.done():
                    self._offered.set_result(None)
                opened.set_exception(fault)
        # A host has one address; a request that was delivered twice has a second host.
        elif not self.stream.key or delivery.reply_to in {None, "", self.stream.key}:
            self.stream.on_delivery(delivery)

    def _on_items(self, first: int, items: Sequence[hosting.HostItem]) -> None:
        ready: RunItems = []
        for number, item in enumerate(items, first):
            match item:
                case hosting.LeaseOffered():
                    self._on_offered(item)
                case hosting.LeaseEnded():
                    self._log_tail = item.log_tail
                    self._end(item.reason)
                case hosting.LeaseResult() if item.to not in self._runs:
                    future = self._results.pop(item.to, None)
                    if future is not None and not future.done():
                        future.set_result(item)
                case _:
                    ready.append((number, item))
                    if isinstance(item, hosting.LeaseResult):
                        self._pass_on(ready)
                        ready = []
                        del self._runs[item.to]
        if ready:
            self._pass_on(ready)

    def _pass_on(self, items: RunItems) -> None:
        """Pass items of the oldest run on: a run that is started ends the one before it."""
        on_items = next(iter(self._runs.values()), None)
        if on_items is not None:
            self.stream.held = items[-1][0]
            on_items(items)

    def _on_offered(self, offered: hosting.LeaseOffered) -> None:
        self.host_id = offered.host_id
        if not self._offered.done():
            self._offered.set_result(None)
        if self.ended:
            self._tear_down()
        else:
            self.stream.start_beating()


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
        lease = RemoteLease(bus, rpc_client, name, timings, request_seconds=timeouts.request_seconds)
        try:
            await lease.open(max(0.1, deadline - loop.time()), timeouts.boot_seconds, on_boot)
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
        else:
            return lease
        await asyncio.sleep(RETRY_SECONDS)


async def describe_host(rpc_client: RpcClient, name: str, *, timeout_seconds: float) -> str | None:
    """Return the fingerprint of the factory of any host with a free slot, or None if that host computes none.

    Raises `NoAnswer` if no slot is free within ``timeout_seconds``, and `BusError` if there is no host or no broker.
    """
    request = RpcRequest(
        exchange=HOST,
        key=name,
        type=DESCRIBE_HOST.key,
        body=hosting.DescribeHost().to_wire(),
        headers={},
        deadline_seconds=timeout_seconds,
    )
    return parse_reply(await rpc_client.call(request), hosting.HostDescribed).fingerprint
