"""Runs the calls of one HTTP request concurrently while its response is written, under its idempotency key.

Status and headers can be sent only once. Before they are sent, `CallGroup.check_and_reserve` makes sure that the
session may call the target and that the budget suffices. After that, keep-alive bytes hold the connection open while
the calls wait in a queue. A request repeated under the same key is the same call and is charged once
(``docs/protocol/README.md``).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request

from quintain.client.client import Client
from quintain.client.transport import DEFAULT_DEADLINE_SECONDS
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER
from quintain.contracts.invoke import Chunk, InvokeRequest, Result
from quintain.contracts.values import RequestId, require_possible_deadline
from quintain.errors import BadRequest, BudgetExhausted, BusError, Expired, Fault, ForbiddenTarget, NoAnswer
from quintain.rpc.server import integer_header, log_defect
from quintain.runtime.concurrency import cancel_and_wait
from quintain.timings import Clock
from quintain_gateway.endpoint import context_of, unreachable_fault

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
        timeout_seconds: float = math.inf,
        *,
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
        """Start all calls, but those that the request that this one repeats has started.

        The budget for several is reserved first, for all or none. Raises the `Fault` of the reservation.
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
        await cancel_and_wait(*self._calls)
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
                self._deadline_seconds,
                request_id=self._request_ids[choice],
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
    timeout_seconds: float,
    deadline_seconds: float,
    **options: Any,
) -> Result:
    """Send a call that waits no longer than its client, which gives up after ``timeout_seconds``.

    The fleet refuses one that waits before that, and tells of one that runs. Raises `Expired` where it says neither.
    """
    if timeout_seconds >= deadline_seconds:
        return await client.send(request, deadline_seconds=deadline_seconds, **options)
    try:
        async with asyncio.timeout(answered_seconds(timeout_seconds, 0.75)) as limit:

            def on_progress(_: object) -> None:
                if not limit.expired():
                    limit.reschedule(None)

            options |= {"on_progress": on_progress, "wait_seconds": answered_seconds(timeout_seconds, 1.5)}
            return await client.send(request, deadline_seconds=deadline_seconds, **options)
    except TimeoutError:
        raise Expired(
            f"The call waits, and its client gives up after {timeout_seconds:g} s", charge_unknown=True
        ) from None


def answered_seconds(timeout_seconds: float, before: float) -> float:
    """Return the seconds until so long before a client gives up; less before where that is soon."""
    return timeout_seconds - before * min(1.0, timeout_seconds / 2)


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


#: The common HTTP header for a request id.
IDEMPOTENCY_KEY_HEADER = "idempotency-key"

#: In which the official clients of OpenAI and Anthropic count the retries of a request.
RETRY_COUNT_HEADER = "x-stainless-retry-count"

#: The maximum length of an idempotency key: that of a request id, less the suffix for the choice.
MAX_KEY_LENGTH = 120


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The idempotency key of one HTTP request.

    If the client sent the key (``is_from_client``), its calls continue when the client disconnects, so that a retry
    gets their results. Calls under a generated key are cancelled.
    """

    text: str
    is_from_client: bool

    def request_ids(self, choice_count: int) -> list[str]:
        """Return the request id of each choice: the key itself, then the key with a number."""
        return [self.text, *(f"{self.text}.{choice}" for choice in range(1, choice_count))]


def read_idempotency_key(request: Request) -> IdempotencyKey:
    """Return the client's idempotency key, or a new random one. Raises `BadRequest` if the client's is not valid."""
    value = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    if value is None:
        return IdempotencyKey(secrets.token_urlsafe(16), is_from_client=False)
    if not 1 <= len(value) <= MAX_KEY_LENGTH or not value.isprintable():
        raise BadRequest(f"Idempotency-Key: 1 to {MAX_KEY_LENGTH} printable characters")
    return IdempotencyKey(value, is_from_client=True)


_REQUEST_ID_ADAPTER: TypeAdapter[str] = TypeAdapter(RequestId)


def read_request_id(request: Request) -> str | None:
    """Return the request id from ``x-quintain-request-id`` or ``idempotency-key``, or None if the client sent neither.

    Raises `BadRequest` if it is empty or too long.
    """
    value = request.headers.get(REQUEST_ID_HEADER, request.headers.get(IDEMPOTENCY_KEY_HEADER))
    if value is None:
        return None
    try:
        return _REQUEST_ID_ADAPTER.validate_python(value)
    except ValidationError:
        raise BadRequest(f"{REQUEST_ID_HEADER}: 1 to 128 characters") from None


def read_deadline_seconds(request: Request, clock: Clock) -> float:
    """Return the seconds until the deadline that the client set, or the default if it set none.

    The header holds milliseconds since the epoch, and ``clock`` is the time of the metadata service. Raises
    `BadRequest` if it is not a whole number or too far ahead, and `Expired` if the deadline has passed.
    """
    deadline = integer_header(request.headers, DEADLINE_HEADER)
    if deadline is None:
        return DEFAULT_DEADLINE_SECONDS
    remaining_seconds = clock.seconds_until(deadline)
    if remaining_seconds <= 0:
        raise Expired("The deadline had passed before the request arrived")
    require_possible_deadline(remaining_seconds)
    return remaining_seconds


#: In which the official clients say their own timeout, in seconds.
TIMEOUT_HEADERS = ("x-stainless-read-timeout", "x-stainless-timeout")


def read_client_timeout(request: Request) -> float:
    """Return the seconds after which the client gives up; infinite where it says no positive number of them."""
    values = (value for name in TIMEOUT_HEADERS for value in request.headers.getlist(name))
    found = (float(value) for value in values if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value))
    return min(filter(None, found), default=math.inf)


def retry_identity(request: Request, body: bytes) -> tuple[str, bool]:
    """Return what identifies a request to its own retries, and whether it is a retry.

    The identity covers the token, the path and the body. It is empty if the client does not count its retries, or has
    an idempotency key, which identifies the call better.
    """
    count = request.headers.get(RETRY_COUNT_HEADER)
    if count is None or not count.isdecimal() or IDEMPOTENCY_KEY_HEADER in request.headers:
        return "", False
    parts = (context_of(request).session_key.encode(), request.scope["raw_path"], body)
    return hashlib.sha256(b"\0".join(parts)).hexdigest(), bool(count.strip("0"))
