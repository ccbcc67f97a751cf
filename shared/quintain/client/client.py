"""A session's client: invokes targets by name, under the session's budget, over AMQP to a broker or HTTP to a gateway.

Every call ends with a `Result` or a typed `Fault`. The client enforces the deadline itself, so an unreachable broker
leads to an error at the deadline and not to an endless wait. A call whose task is cancelled is cancelled in the fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import math
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from pydantic import ValidationError

from quintain import routes
from quintain.bus.connect import open_bus
from quintain.bus.memory import MemoryBroker
from quintain.client.admin import Admin
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.transport import (
    DEFAULT_DEADLINE_SECONDS,
    OPERATION_TIMEOUT_SECONDS,
    BatchItem,
    InvokeCall,
    OnChunk,
    OnProgress,
    Transport,
)
from quintain.contracts import session as session_messages
from quintain.contracts.api_request import ApiRequest
from quintain.contracts.fleet import ListQuotas, QuotaList
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result
from quintain.contracts.message import describe_validation_error
from quintain.contracts.values import require_possible_deadline
from quintain.errors import BadRequest, BudgetUnavailable, Fault, NoAnswer
from quintain.rpc.requests import RpcClient
from quintain.settings import environment, read_settings

#: One item of a batch: a request, its fields, or only its question.
BatchRequest = InvokeRequest | Fault | Mapping[str, object] | str


class Client:
    """Client of one session, as `quintain.connect` gives it.

    Every method raises a `Fault`, or a `BusError` if the broker or gateway cannot be reached. A call whose charge is
    unknown is sent again until its deadline, over a broker; no other request is retried automatically. To retry safely,
    send it again with the same ``request_id``.

    Example::

        async with quintain.connect() as client:
            result = await client.invoke("What is the capital of France?")
            print(result.raw_text)
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def close(self) -> None:
        """Wait a few seconds for cancellations that are being sent; `quintain.connect` calls this at its end."""
        await self._transport.close()

    async def invoke(  # noqa: PLR0913 -- the fields of a request by name, and the call's own two
        self,
        question: str | None = None,
        *,
        target: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[ChatMessage] | None = None,
        settings: InvokeSettings | Mapping[str, object] | None = None,
        timeout: float = DEFAULT_DEADLINE_SECONDS,
        request_id: str | None = None,
    ) -> Result:
        """Invoke a target, by default the session's own default target.

        - ``question`` or ``messages`` is required, not both.
        - ``settings``: an `InvokeSettings`, or its fields as a mapping.
        - ``timeout`` is the call's deadline in seconds from now, at most 12 hours, waiting in queues included. The call
          then ends in the fleet too.
        - ``request_id`` is the idempotency key: the same id is the same call, charged once, with the same result.

        Raises a `Fault`: `Expired` at the deadline, `BadRequest` for invalid arguments; see `send`.

        Example::

            result = await client.invoke("What is 2 + 2?", target="judge", settings={"temperature": 0}, timeout=30)
        """
        if not 0 < timeout < math.inf:
            raise BadRequest(f"timeout: a number of seconds above 0 is needed, not {timeout}")
        require_possible_deadline(timeout, "timeout")
        fields = {
            "question": question,
            "target": target,
            "system_prompt": system_prompt,
            "messages": None if messages is None else list(messages),
            "settings": dict(settings) if isinstance(settings, Mapping) else settings,
        }
        try:
            request = InvokeRequest.model_validate(fields)
        except ValidationError as error:
            raise BadRequest(describe_validation_error(error)) from None
        return await self._transport.invoke(InvokeCall(request, request_id, timeout, cancel_with_task=not request_id))

    async def send(  # noqa: PLR0913 -- all that may be said of a call
        self,
        request: InvokeRequest | ApiRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        wait_seconds: float | None = None,
        on_chunk: OnChunk | None = None,
        on_progress: OnProgress | None = None,
        cancel_with_task: bool | None = None,
    ) -> Result:
        """Invoke with a complete `InvokeRequest`, or over a broker with an `ApiRequest` in the words of a vendor's API.

        - ``request_id`` is the idempotency key: the same id is the same call, charged once, with the same result.
        - ``deadline_seconds`` is the time limit from now, at most 12 hours.
        - ``wait_seconds`` is for how long the call may wait until its provider is asked, over a broker. One that runs
          then goes on, and ``on_progress`` is called.
        - ``on_chunk`` is called with each piece of the answer; a piece of a higher attempt voids all pieces before it.
        - ``on_progress`` is called every 10 s while the call runs. Neither callback is available over HTTP
          (`ConfigError`).
        - ``cancel_with_task``: cancel the call in the fleet if the calling task is cancelled. By default true unless a
          ``request_id`` is given, because such a call can be resumed under its id; `cancel` ends it.

        Raises a `Fault`: `Expired` if no reply arrives in time, `Overloaded` if the target's queue is full until then.

        Example::

            request = InvokeRequest(question="Explain TCP.", target="gpt4o")
            result = await client.send(request, deadline_seconds=60, on_chunk=lambda chunk: print(chunk.delta, end=""))
        """
        require_possible_deadline(deadline_seconds, "deadline_seconds")
        call = InvokeCall(
            request=request,
            request_id=request_id,
            deadline_seconds=deadline_seconds,
            on_chunk=on_chunk,
            on_progress=on_progress,
            cancel_with_task=not request_id if cancel_with_task is None else cancel_with_task,
            wait_until=None if wait_seconds is None else self._transport.clock.now_ms() + int(wait_seconds * 1000),
        )
        return await self._transport.invoke(call)

    async def invoke_batch(
        self, requests: Sequence[BatchRequest], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Invoke several requests concurrently; the results have the same order.

        The budget for all of them is reserved first, all or nothing (`BudgetExhausted`). After that a failing item does
        not affect the others, and calls that were not charged are released. An item is a request, its fields as a
        mapping, or only its question; an invalid one gets a `BadRequest` as its fault, and a `Fault` is its own. If the
        task is cancelled, running calls and reservations are cancelled in the fleet. Over HTTP the batch is one request
        of at most 1 MiB (`PayloadTooLarge`).

        Example::

            for item in await client.invoke_batch(["2 + 2?", {"question": "3 + 3?", "target": "judge"}]):
                print(item.fault or item.result.raw_text)
        """
        require_possible_deadline(deadline_seconds, "deadline_seconds")
        if isinstance(requests, str):
            raise BadRequest("requests: a batch is a list of requests, and this is one text")
        items = [_parse_item(item) for item in requests]
        return await self._transport.invoke_batch(items, deadline_seconds=deadline_seconds)

    async def reserve(self, calls: int, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> list[str]:
        """Reserve ``calls`` calls, all or none, and return their request ids. Over a broker only.

        Raises `BudgetExhausted`.

        Example::

            ids = await client.reserve(2)
            result = await client.send(request, request_id=ids[0])
            await client.release(ids[1:])
        """
        ids = [secrets.token_urlsafe(16) for _ in range(calls)]
        try:
            await self.reserve_ids(ids, deadline_seconds=deadline_seconds)
        except asyncio.CancelledError:
            # The ids are lost with the cancelled task, so a reservation under way must be undone.
            self._transport.cancel_later(ids)
            raise
        return ids

    async def reserve_ids(
        self, request_ids: Sequence[str], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> int:
        """Reserve calls with these request ids, all or none, and return how many are new. Over a broker only.

        An id that is already known costs nothing. Raises `BudgetExhausted`.

        Example::

            await client.reserve_ids(["case-1", "case-2"], deadline_seconds=300)
        """
        require_possible_deadline(deadline_seconds, "deadline_seconds")
        deadline = self._transport.clock.now_ms() + int(deadline_seconds * 1000)
        request = session_messages.ReserveCalls(request_ids=list(request_ids), deadline=deadline)
        return (await self._call(routes.RESERVE, request)).granted

    async def release(self, request_ids: Sequence[str]) -> None:
        """Release reservations that were not used. Over a broker only.

        Example::

            await client.release(unused_ids)
        """
        if request_ids:
            await self._call(routes.RELEASE, session_messages.ReleaseCalls(request_ids=list(request_ids)))

    async def cancel(self, request_ids: Sequence[str]) -> int:
        """Cancel calls by request id, and return how many were cancelled. Over a broker only.

        A waiting call is refused uncharged, a running one is aborted, a reservation is released. A call that has ended,
        or that another delivery waits for, is not cancelled.

        Example::

            await client.cancel(["case-1"])
        """
        if not request_ids:
            return 0
        return (await self._call(routes.CANCEL, session_messages.CancelCalls(request_ids=list(request_ids)))).cancelled

    async def end_conversation(self, conversation_id: str) -> None:
        """Say that a conversation gets no further turn: the worker that holds it ends it at once. Over a broker only.

        Not needed after a turn with ``last``. Without either it ends after its target's ``conversation_idle_seconds``.

        Example::

            await client.end_conversation("talk-17")
        """
        await self._call(routes.CANCEL, session_messages.CancelCalls(conversation_ids=[conversation_id]))

    async def get_info(self, *, usage: bool = False) -> session_messages.Info:
        """Return the session with its counters and targets; with ``usage`` also what its calls took.

        Example::

            info = await client.get_info()
            print(info.max_calls - info.call_count)
        """
        return await self._call(routes.INFO, session_messages.GetInfo(usage=usage))

    async def get_quotas(self) -> QuotaList:
        """Return what the quotas of the fleet's targets do at present: their limits, and how many calls wait.

        Example::

            waiting = sum(quota.waiting for quota in (await client.get_quotas()).quotas)
        """
        return await self._call(routes.QUOTAS, ListQuotas())

    async def open_child(self, request: session_messages.OpenSession) -> session_messages.SessionOpened:
        """Open a child session, which can only narrow this session's permissions and uses its budget.

        With ``reserve`` its calls are reserved from this session's budget until it is closed or expires: all of them
        (``True``) or a number. Raises `BudgetExhausted` if there are not as many.

        Example::

            child = await client.open_child(OpenSession(default_target="judge", max_calls=5))
            async with quintain.connect(token=child.token) as agent: ...
        """
        return await self._call(routes.OPEN, request)

    async def close_session(self) -> session_messages.Info:
        """Close the session and its children permanently, and return its last counters. Running calls end as they
        would; what a child reserved and did not use is its parent's again.

        Example::

            info = await client.close_session()
            print(info.call_count)
        """
        return await self._call(routes.CLOSE, session_messages.CloseSession())

    async def close_children(self) -> session_messages.Info:
        """Close all children of the session permanently, and return the session's counters. What they reserved and did
        not use is this session's again.

        Example::

            await client.close_children()
        """
        return await self._call(routes.CLOSE_CHILDREN, session_messages.CloseChildren())

    async def _call(
        self, route: routes.Route[routes.RequestT, routes.ReplyT], request: routes.RequestT
    ) -> routes.ReplyT:
        try:
            return await self._transport.call_route(route, request, timeout_seconds=OPERATION_TIMEOUT_SECONDS)
        except NoAnswer as error:
            raise BudgetUnavailable(error.message) from None


def _parse_item(item: object) -> InvokeRequest | Fault:
    """Return a batch item as a request, or the fault that describes why it is invalid."""
    if isinstance(item, InvokeRequest | Fault):
        return item
    fields = {"question": item} if isinstance(item, str) else item
    try:
        return InvokeRequest.model_validate(dict(fields) if isinstance(fields, Mapping) else fields)
    except ValidationError as error:
        return BadRequest(describe_validation_error(error))


@contextlib.asynccontextmanager
async def connect(
    url: str | None = None,
    token: str | None = None,
    *,
    memory: MemoryBroker | None = None,
    timeout_seconds: float = 30.0,
) -> AsyncIterator[Client]:
    """Connect a session's client and verify its token.

    - ``url``: a broker (``amqp://``, ``amqps://``) or a gateway (``http://``, ``https://``); by default
      ``QUINTAIN_BROKER_URL``, else ``QUINTAIN_GATEWAY_URL``.
    - ``token``: the session's token; by default ``QUINTAIN_SESSION_TOKEN``.
    - ``memory``: the in-memory broker of a fleet in this process, used with ``memory://``.
    - ``timeout_seconds``: time limit for connecting.

    Raises `ConfigError`, `BrokerUnavailable` or `GatewayUnavailable`, `Unauthorized`, and `BudgetUnavailable` if no
    metadata service answers in time.

    Example::

        async with quintain.connect() as target:
            result = await target.invoke("What is the capital of France?")
    """
    settings = read_settings(environment())
    token = token or settings.require_session_token()
    url = url or ("memory://" if memory is not None else settings.require_fleet_url())
    transport_context = _open_transport(url, token, memory, timeout_seconds, traceparent=settings.traceparent)
    async with transport_context as transport, verified_client(transport) as client:
        yield client


@contextlib.asynccontextmanager
async def verified_client(transport: Transport) -> AsyncIterator[Client]:
    """Create a client over this transport and verify its token. Raises `Unauthorized`, `BudgetUnavailable`."""
    client = Client(transport)
    # The first reply verifies the token, and carries the metadata service's time, to which deadlines refer.
    transport.clock.synchronize((await client.get_info()).now)
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def connect_admin(
    url: str, token: str, *, memory: MemoryBroker | None = None, timeout_seconds: float = 30.0
) -> AsyncIterator[Admin]:
    """Connect the administration client, over AMQP or HTTP.

    Raises `BrokerUnavailable`, `BrokerRefused`, `ConfigError`.

    Example::

        async with connect_admin("amqp://guest:guest@127.0.0.1:5672/", admin_token) as admin:
            print(await admin.targets())
    """
    async with _open_transport(url, token, memory, timeout_seconds) as transport:
        yield Admin(transport, timeout_seconds=timeout_seconds)


@contextlib.asynccontextmanager
async def _open_transport(
    url: str, token: str, memory: MemoryBroker | None, timeout_seconds: float, *, traceparent: str | None = None
) -> AsyncIterator[Transport]:
    """Open the transport for this URL, on a connection of its own."""
    if url.lower().startswith(("http://", "https://")):
        # Imported on demand: the HTTP library takes a third of the time of `import quintain`.
        http = importlib.import_module("quintain.client.http_transport")
        async with http.open_http_transport(url, token, traceparent=traceparent) as transport:
            yield transport
    else:
        async with (
            open_bus(url, "client", memory, timeout_seconds=timeout_seconds) as bus,
            RpcClient(bus) as rpc_client,
        ):
            yield AmqpTransport(rpc_client, token)
