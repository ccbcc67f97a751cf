"""One lease of a hosted instance, on the controller side: requests, renewal, and detection of a lost host.

Everything here runs on the connection thread's loop. A request is resent until it is answered; the host executes each
request id once. A host is lost that is silent for too long, whose process has ended, or that deleted the lease's queue:
pending requests raise `HostLost`. The process of a slot is watched through its supervisor, another process: a target
that holds its interpreter's lock, or boots for minutes, is not taken for lost, and its end is known at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quintain.bus.base import Bus, Delivery
from quintain.contracts.message import MAX_BODY_BYTES
from quintain.contracts.remote_target import (
    BareLeaseRequest,
    LeaseOffered,
    LeaseOpened,
    LeaseResult,
    ProcessStatus,
    TargetDescriptor,
    Teardown,
    WatchProcess,
)
from quintain.errors import BusError, HostLost, LeaseRequestNotDelivered, NoAnswer, QuintainError, Unroutable
from quintain.routes import RENEW, TEARDOWN, WATCH_PROCESS, Route
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.target.exceptions import RemoteExceptions
from quintain.target.type_registry import require_size
from quintain.timings import Timings
from quintain.topology import HOST


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


class SilenceMeter:
    """Measures a silence in intervals, without the time in which this process itself did not run.

    A process that was stopped, or whose interpreter's lock was held, has messages waiting that it has not read yet.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval_seconds = interval_seconds
        self._heard_at = self._loop.time()

    def record(self) -> None:
        """Record that a message of the other side has just arrived."""
        self._heard_at = self._loop.time()

    async def wait_interval(self, event: asyncio.Event | None = None) -> float:
        """Wait for one interval, or for the event; return the silence since the last message, in seconds."""
        slept_at = self._loop.time()
        try:
            async with asyncio.timeout(self._interval_seconds):
                await (asyncio.Event() if event is None else event).wait()
        except TimeoutError:
            stalled_seconds = self._loop.time() - slept_at - self._interval_seconds
            if stalled_seconds > self._interval_seconds:
                self._heard_at += stalled_seconds
        return max(0.0, self._loop.time() - self._heard_at)


log = logging.getLogger(__name__)


class ProcessWatch:
    """Asks the supervisor of a slot's process in every heartbeat whether it runs.

    Without a supervisor (``supervisor_key`` is empty) it does nothing.
    """

    def __init__(self, rpc_client: RpcClient, offer: LeaseOffered, timings: Timings) -> None:
        self.offer = offer
        self._rpc_client, self._timings = rpc_client, timings
        self._on_heard: Callable[[], None] = lambda: None
        self._on_ended: Callable[[ProcessStatus], None] = lambda status: None
        #: Since when the supervisor's queue does not exist, on the loop's clock: it has ended, or lost its connection.
        self._gone_since: float | None = None
        #: What the supervisor said of the process's end; None before.
        self.end: ProcessStatus | None = None
        self._correlation_id = secrets.token_urlsafe(16)
        self._unsubscribe = rpc_client.subscribe(self._correlation_id, self._on_status)
        self._task = asyncio.get_running_loop().create_task(self._watch()) if offer.supervisor_key else None

    @property
    def lost_seconds(self) -> float:
        """After how long without any message of the host it is lost.

        After a restart of the broker a supervisor needs some time to connect again: its absence counts only when it has
        lasted.
        """
        gone_seconds = self._timings.host_gone_seconds
        is_gone = self._gone_since is not None and asyncio.get_running_loop().time() - self._gone_since >= gone_seconds
        return gone_seconds if is_gone else self._timings.host_lost_seconds

    def listen(
        self, on_heard: Callable[[], None], on_ended: Callable[[ProcessStatus], None] = lambda status: None
    ) -> None:
        """Call ``on_heard`` for each answer of the supervisor, and ``on_ended`` once it says that the process ended."""
        self._on_heard, self._on_ended = on_heard, on_ended
        if self.end is not None:
            on_ended(self.end)

    def close(self) -> None:
        """Stop asking."""
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        request = RpcRequest(
            exchange=HOST,
            key=self.offer.supervisor_key,
            type=WATCH_PROCESS.key,
            body=WatchProcess(process_id=self.offer.process_id).to_wire(),
            headers={},
            deadline_seconds=self._timings.host_heartbeat_seconds,
        )
        while self.end is None:
            try:
                await self._rpc_client.publish(request, self._correlation_id)
                self._gone_since = None
            except Unroutable:
                if self._gone_since is None:
                    self._gone_since = asyncio.get_running_loop().time()
            except QuintainError as error:
                log.debug("The supervisor of a host was not asked: %s", error.message)
            await asyncio.sleep(self._timings.host_heartbeat_seconds)

    def _on_status(self, reply: Delivery) -> None:
        try:
            status = parse_reply(reply, ProcessStatus)
        except QuintainError as error:
            log.debug("The supervisor of a host refused: %s", error.message)
            return
        if not status.is_known:
            return
        self._on_heard()
        if status.ended and self.end is None:
            self.end = status
            self._on_ended(status)


#: Why a lease has ended, for error messages.
REASON_ENDED_BY_HOST = "its host has ended it"
REASON_RELEASED = "it was released here"


class RemoteLease:
    """A lease of a hosted instance, renewed in the background until it is released or its host is lost.

    ``watch`` is that of the process that has the instance; it is closed with the lease. ``request_seconds`` is the
    limit of each request.
    """

    def __init__(  # noqa: PLR0913 -- one lease with all its collaborators
        self,
        bus: Bus,
        rpc_client: RpcClient,
        name: str,
        opened: LeaseOpened,
        watch: ProcessWatch,
        timings: Timings,
        *,
        request_seconds: float | None = DEFAULT_TIMEOUTS.request_seconds,
    ) -> None:
        assert opened.descriptor is not None, "a lease without a failure has a descriptor"
        self._request_seconds = request_seconds
        #: Why the instance can only be torn down: a request was not answered in time, and others would wait behind it.
        self._overdue = ""
        self.bus, self._rpc_client, self.timings = bus, rpc_client, timings
        self.name, self.key, self.lease_id, self.host_id = name, opened.key, opened.lease_id, opened.host_id
        self.descriptor: TargetDescriptor = opened.descriptor
        #: The fingerprint of the host's factory; None if the host computes none.
        self.fingerprint = opened.fingerprint
        self.exceptions = RemoteExceptions()
        self._loop = asyncio.get_running_loop()
        self._silence = SilenceMeter(timings.host_heartbeat_seconds / 4)
        self._end_reason = self._log_tail = ""
        self.ended_future: asyncio.Future[None] = self._loop.create_future()
        self._watch = watch
        self._tasks = [
            self._loop.create_task(self._renew_periodically(), name=f"renew {self.lease_id[:8]}"),
            self._loop.create_task(self._watch_silence(), name=f"watch {self.lease_id[:8]}"),
        ]
        watch.listen(self._silence.record, self._on_process_ended)

    def record_host_activity(self) -> None:
        """Record that a message of the host has just arrived."""
        self._silence.record()

    @property
    def ended(self) -> bool:
        """Whether the host was lost or the lease released."""
        return self.ended_future.done()

    @property
    def host_lost(self) -> bool:
        """Whether the lease ended without being released here."""
        return self.ended and self._end_reason != REASON_RELEASED

    async def call(self, route: Route[Any, LeaseResult], **fields: Any) -> LeaseResult:
        """Send a request to the instance and wait for its reply.

        Raises the target's exception, with its class if that is known here; `HostLost`; `LeaseRequestNotDelivered` if
        the host provably did not receive the request; `TimeoutError` after ``request_seconds``, and at once for all
        further requests but the teardown; and `ValueError` for a request that is too large for the broker.
        """
        if self._overdue and route is not TEARDOWN:
            raise TimeoutError(self._overdue)
        request = route.request_type(lease_id=self.lease_id, request_id=secrets.token_hex(8), **fields)
        body = request.to_wire()
        require_size(len(body), MAX_BODY_BYTES, f"A {route.name} request")
        task = self._loop.create_task(self._call_until_answered(route, body))
        try:
            futures: set[asyncio.Future[Any]] = {task, self.ended_future}
            done, _ = await asyncio.wait(futures, timeout=self._request_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._overdue = (
                    f"Target {self.name!r} did not answer {route.name} within {self._request_seconds:g} s: "
                    "request_seconds of TargetTimeouts is its limit. The instance can only be torn down now"
                )
                raise TimeoutError(self._overdue)
            if not task.done():
                raise self.host_lost_error()
            result = task.result()
        finally:
            task.cancel()
        if result.failure is not None:
            raise self.exceptions.from_failure(result.failure)
        return result

    def host_lost_error(self) -> HostLost:
        """Return the error for requests and runs of an ended lease; the end of the host's log is a note of it."""
        error = HostLost(
            f"Lease {self.lease_id[:8]} of target {self.name!r} on host {self.host_id} is over: {self._end_reason}. A "
            "run is never repeated by itself: it may have had effects"
        )
        if self._log_tail:
            error.add_note(f"The end of the log of host {self.host_id}:\n{self._log_tail}")
        return error

    async def stop_renewing(self) -> None:
        """Stop renewing the lease, and mark it as ended."""
        self._watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(REASON_RELEASED)

    async def release(self, *, reset: bool = False) -> None:
        """End the lease, and ask its host to tear the instance down without waiting for that. Never raises.

        With ``reset`` the instance's reset is called before.
        """
        already_ended = self.ended
        await self.stop_renewing()
        if not already_ended:
            with contextlib.suppress(BusError):
                body = Teardown(lease_id=self.lease_id, request_id=secrets.token_hex(8), reset=reset).to_wire()
                request = self._rpc_request(TEARDOWN, body, self.timings.host_heartbeat_seconds)
                await self._rpc_client.publish(request, secrets.token_urlsafe(16))

    def _end(self, reason: str) -> None:
        if not self.ended_future.done():
            self._end_reason = reason
            self._watch.close()
            self.ended_future.set_result(None)

    def _on_process_ended(self, status: ProcessStatus) -> None:
        self._log_tail = status.log_tail
        self._end(f"its process {status.ended}")

    async def _call_until_answered(self, route: Route[Any, LeaseResult], body: bytes) -> LeaseResult:
        sent_before = False
        while True:
            try:
                return await self._call_once(route, body, self.timings.host_repeat_seconds)
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

    async def _call_once(self, route: Route[Any, LeaseResult], body: bytes, timeout_seconds: float) -> LeaseResult:
        result = parse_reply(await self._rpc_client.call(self._rpc_request(route, body, timeout_seconds)), LeaseResult)
        self.record_host_activity()
        return result

    def _rpc_request(self, route: Route[Any, LeaseResult], body: bytes, timeout_seconds: float) -> RpcRequest:
        return RpcRequest(
            exchange=HOST,
            key=self.key,
            type=route.key,
            body=body,
            headers={},
            deadline_seconds=timeout_seconds,
        )

    async def _watch_silence(self) -> None:
        """End the lease as soon as the host and its supervisor were silent for `ProcessWatch.lost_seconds`."""
        silent_seconds = 0.0
        while silent_seconds < self._watch.lost_seconds:
            silent_seconds = await self._silence.wait_interval()
        self._end(f"nothing was heard of it for {silent_seconds:.3g} s")

    async def _renew_periodically(self) -> None:
        while not self.ended_future.done():
            await asyncio.sleep(self.timings.host_heartbeat_seconds)
            body = BareLeaseRequest(lease_id=self.lease_id, request_id=secrets.token_hex(8)).to_wire()
            try:
                await self._call_once(RENEW, body, self.timings.host_heartbeat_seconds)
            except Unroutable:
                self._end(REASON_ENDED_BY_HOST)
            except QuintainError as error:
                log.debug("Lease %s was not renewed: %s", self.lease_id[:8], error.message)
        log.info("%s", self.host_lost_error().message)
