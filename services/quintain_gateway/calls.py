"""Runs the calls of one HTTP request concurrently while its response is written, under its idempotency key.

Status and headers can be sent only once. Before they are sent, `CallGroup.check_and_reserve` makes sure that the
session may call the target and that the budget suffices. After that, keep-alive bytes hold the connection open while
the calls wait in a queue. A request repeated under the same key is the same call and is charged once
(``docs/protocol.md``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quintain.client.client import Client
from quintain.client.transport import OnChunk
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.invoke import Chunk, InvokeRequest, Result
from quintain.errors import BudgetExhausted, BusError, Expired, Fault, ForbiddenTarget, NoAnswer
from quintain.rpc.server import log_defect
from quintain_gateway.endpoint import unreachable_fault
from quintain_gateway.request_terms import IdempotencyKey

log = logging.getLogger(__name__)

#: The timeout for releasing unused reservations, in seconds.
RELEASE_TIMEOUT_SECONDS = 5.0

#: How often a request whose target is not registered yet looks for its registration, in seconds.
REGISTRATION_CHECK_SECONDS = 0.5


#: How many calls go on for their clients' retries at once, at most; further ones are cancelled immediately.
MAX_KEPT_CALLS = 1000


@dataclass(frozen=True, slots=True)
class CallEvent:
    """An event of one call: a chunk of text, the result, or the fault that ended the call.

    ``choice`` is the index of the call within its `CallGroup`, from 0.
    """

    choice: int
    payload: Chunk | Result | Fault


class CallGroup:
    """The calls of one HTTP request, which run concurrently: one for each of ``requests``, all for the same target.

    ``key`` gives the request ids, ``deadline_seconds`` counts from now, ``timeout_seconds`` is the client's own, and
    ``stream`` asks the workers for chunks while they produce the text. The code that starts a group must close it.
    """

    def __init__(
        self,
        client: Client,
        requests: Sequence[ApiRequest],
        key: IdempotencyKey,
        deadline_seconds: float,
        *,
        timeout_seconds: float | None = None,
        stream: bool = False,
    ) -> None:
        self._client, self._requests, self.key = client, requests, key
        self._deadline_seconds, self._timeout_seconds, self._stream = deadline_seconds, timeout_seconds, stream
        self._retry_window: tuple[RetryWindow, str] | None = None
        self._request_ids = key.request_ids(len(requests))
        self._calls: list[asyncio.Task[Result]] = []
        # All events are kept, because a retry of the client reads them from the first one on.
        self._events: list[CallEvent] = []
        self._read_count, self._event_added = 0, asyncio.Event()
        self._reserved_ids = set[str]()

    def keep_for_retry(self, window: RetryWindow, identity: str) -> None:
        """Let the calls go on in ``window`` if the client disconnects, for the retry of the request with ``identity``.

        For the retry itself, the events begin with the first one again.
        """
        self._retry_window, self._read_count = (window, identity), 0

    @property
    def choice_count(self) -> int:
        """The number of calls in this group."""
        return len(self._request_ids)

    async def start(self) -> None:
        """Start all calls. The budget for several calls is reserved first, for all of them or for none.

        Nothing happens if they were started already, for the request that this one repeats. Raises `BudgetExhausted` if
        the budget does not suffice, or any other `Fault` of the reservation.
        """
        if self._calls:
            return
        if len(self._request_ids) > 1:
            await self._reserve(self._request_ids)
        loop = asyncio.get_running_loop()
        self._calls = [loop.create_task(self._run_call(choice)) for choice in range(len(self._request_ids))]

    async def check_and_reserve(self) -> None:
        """Check, before headers are sent, that the unfinished calls are allowed, and reserve the budget for them.

        Waits while the target is not registered yet. Raises `BudgetExhausted`, `ForbiddenTarget`, `UnknownTarget` or
        `Unauthorized`.
        """
        info = await self._client.get_info()
        target = self._requests[0].requested_target or info.target_name
        if info.allowed_targets is not None and target not in info.allowed_targets:
            raise ForbiddenTarget(f"This session may not call {target!r}")
        if target not in info.available_targets:
            await self._wait_for_registration(target)
        pending_ids = [name for name, call in zip(self._request_ids, self._calls, strict=True) if not call.done()]
        try:
            await self._reserve(pending_ids)
        except BudgetExhausted:
            if len(self._request_ids) > 1 or info.call_count < info.max_calls:
                raise
            # The client made a single call, so the message must not mention a batch.
            raise BudgetExhausted(f"Max calls exceeded (limit: {info.max_calls})") from None

    async def _wait_for_registration(self, target: str) -> None:
        """Wait until the target is registered. Raises the `Fault` of a call that the fleet ends before."""
        while target not in (await self._client.get_info()).available_targets:
            done, _ = await asyncio.wait(
                self._calls, timeout=REGISTRATION_CHECK_SECONDS, return_when=asyncio.FIRST_EXCEPTION
            )
            for call in done:
                call.result()

    async def next_event(self, timeout_seconds: float) -> CallEvent | None:
        """Return the next event of any call, or None if there is none within ``timeout_seconds``."""
        if self._read_count == len(self._events):
            self._event_added.clear()
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._event_added.wait()
            except TimeoutError:
                return None
        self._read_count += 1
        return self._events[self._read_count - 1]

    async def results(self, timeout_seconds: float | None) -> list[Result] | None:
        """Return the results in the order of the choices, or None if a call still runs after ``timeout_seconds``.

        Raises the first `Fault` of any call without waiting for the other calls.
        """
        done, pending = await asyncio.wait(self._calls, timeout=timeout_seconds, return_when=asyncio.FIRST_EXCEPTION)
        for call in done:
            call.result()
        return None if pending else [call.result() for call in self._calls]

    async def close(self, *, client_left: bool = False) -> None:
        """End the use of the calls: `cancel` them, or let them go on for a retry if the client disconnected."""
        if client_left and self._calls and self._retry_window is not None:
            window, identity = self._retry_window
            await window.keep(identity, self)
        else:
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the calls that still run, and release reservations that were not used."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        if not self._reserved_ids:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_SECONDS):
                await self._client.release(sorted(self._reserved_ids))
        except (Fault, BusError, TimeoutError) as error:
            log.warning("Unused reservations were not released and expire at their deadline: %s", error)

    async def _reserve(self, request_ids: list[str]) -> None:
        if not request_ids:
            return
        # Noted before the request is sent: it may reserve although the client disconnects before the reply.
        self._reserved_ids.update(request_ids)
        try:
            await self._client.reserve_ids(request_ids, deadline_seconds=self._deadline_seconds)
        except Fault:
            self._reserved_ids.clear()
            raise

    async def _run_call(self, choice: int) -> Result:
        try:
            result = await self._send(choice)
        except Fault as fault:
            if fault.charged:
                self._reserved_ids.discard(self._request_ids[choice])
            self._add_event(CallEvent(choice, fault))
            raise
        except asyncio.CancelledError:
            self._reserved_ids.discard(self._request_ids[choice])
            raise
        self._reserved_ids.discard(self._request_ids[choice])
        self._add_event(CallEvent(choice, result))
        return result

    def _add_event(self, event: CallEvent) -> None:
        self._events.append(event)
        self._event_added.set()

    async def _send(self, choice: int) -> Result:
        def on_chunk(chunk: Chunk) -> None:
            self._add_event(CallEvent(choice, chunk))

        try:
            return await send_in_time(
                self._client,
                self._requests[choice],
                self._timeout_seconds,
                request_id=self._request_ids[choice],
                deadline_seconds=self._deadline_seconds,
                on_chunk=on_chunk if self._stream else None,
                cancel_with_task=not self.key.is_from_client,
            )
        except (BusError, NoAnswer) as bus_error:
            raise unreachable_fault(bus_error) from None
        except Fault:
            raise
        except Exception as error:
            # Any other exception also ends the call with a fault, so that the client gets a response.
            raise log_defect(error, "calling a target") from None


async def send_in_time(
    client: Client,
    request: ApiRequest | InvokeRequest,
    timeout_seconds: float | None,
    *,
    deadline_seconds: float,
    on_chunk: OnChunk | None = None,
    **options: Any,
) -> Result:
    """Send a call that waits no longer than its client, which gives up after ``timeout_seconds`` of its own.

    The fleet refuses a call that waits a second before that, and one that runs then goes on. Raises `Expired` where the
    fleet says neither. ``options`` are those of `Client.send`.
    """
    if timeout_seconds is None or timeout_seconds >= deadline_seconds:
        return await client.send(request, deadline_seconds=deadline_seconds, on_chunk=on_chunk, **options)
    second = seconds_before(timeout_seconds)
    try:
        async with asyncio.timeout(timeout_seconds - second * 0.75) as limit:

            def on_progress(_: object) -> None:
                if not limit.expired():
                    limit.reschedule(None)

            def on_piece(chunk: Chunk) -> None:
                on_progress(chunk)
                assert on_chunk is not None, "the caller of this call asked for pieces"
                on_chunk(chunk)

            return await client.send(
                request,
                deadline_seconds=deadline_seconds,
                wait_seconds=timeout_seconds - second * 1.5,
                on_chunk=None if on_chunk is None else on_piece,
                on_progress=on_progress,
                **options,
            )
    except TimeoutError:
        raise Expired(
            f"The call still waits, and its client gives up after {timeout_seconds:g} s", charge_unknown=True
        ) from None


def seconds_before(timeout_seconds: float) -> float:
    """Return how long before its client's own timeout a call that waits is answered, in seconds."""
    return min(1.0, timeout_seconds / 2)


class RetryWindow:
    """The calls whose clients disconnected and may retry, each for ``seconds``; after that they are cancelled.

    The official clients of OpenAI and Anthropic repeat a request whose connection was lost, or that they gave up after
    their own timeout, within seconds. They count their retries in a header; clients without it get no such moment.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._kept: dict[asyncio.Task[None], tuple[str, CallGroup]] = {}

    async def keep(self, identity: str, calls: CallGroup) -> None:
        """Let calls go on for the retry of the request with this identity."""
        if len(self._kept) >= MAX_KEPT_CALLS:
            await calls.cancel()
            return
        task = asyncio.get_running_loop().create_task(self._cancel_after_window(calls))
        self._kept[task] = (identity, calls)
        task.add_done_callback(lambda _: self._kept.pop(task, None))

    def take(self, identity: str) -> CallGroup | None:
        """Return the calls of the request with this identity for its retry; None unless there is exactly one."""
        found = [task for task, (kept_identity, _) in self._kept.items() if kept_identity == identity]
        if len(found) != 1:
            return None
        _, calls = self._kept.pop(found[0])
        found[0].cancel()
        return calls

    async def close(self) -> None:
        """Cancel all kept calls."""
        kept = dict(self._kept)
        self._kept.clear()
        for task in kept:
            task.cancel()
        await asyncio.gather(*(calls.cancel() for _, calls in kept.values()), *kept, return_exceptions=True)

    async def _cancel_after_window(self, calls: CallGroup) -> None:
        await asyncio.sleep(self._seconds)
        await calls.cancel()
