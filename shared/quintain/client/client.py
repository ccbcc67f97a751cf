"""A session's client: invokes targets by name, under the session's budget, over AMQP or HTTP.

Every call ends with a `Result` or a typed `Fault`. The transport keeps the deadline itself, so a broker that is gone is
an error in time, not a wait without end. A call whose task is cancelled is cancelled in the fleet.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

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
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result
from quintain.contracts.message import describe_validation_error
from quintain.errors import BadRequest, BudgetUnavailable, Fault, NoAnswer
from quintain.routes import CANCEL, INFO, OPEN, RELEASE, RESERVE, ReplyT, RequestT, Route

#: One item of a batch: a request, its fields, or a question alone.
BatchRequest = InvokeRequest | Mapping[str, object] | str


class Client:
    """One session's right to call, as `quintain.connect` gives it.

    Every method raises a `Fault`, or a `BusError` where it could not be carried. Nothing is sent a second time by
    itself: that is what a ``request_id`` of the caller's own is for.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def close(self) -> None:
        """Finish cancelling the calls whose tasks were cancelled: a few seconds at most."""
        await self._transport.close()

    async def invoke(
        self,
        question: str | None = None,
        *,
        target: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[ChatMessage] | None = None,
        settings: InvokeSettings | None = None,
    ) -> Result:
        """Invoke a target, the session's default where none is named. Raises a `Fault`.

        Example::

            result = await client.invoke("What is the capital of France?", target="judge")
        """
        message_list = None if messages is None else list(messages)
        fields = {"question": question, "target": target, "system_prompt": system_prompt, "settings": settings}
        try:
            request = InvokeRequest.model_validate({**fields, "messages": message_list})
        except ValidationError as error:
            raise BadRequest(describe_validation_error(error)) from None
        return await self.send(request)

    async def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        on_chunk: OnChunk | None = None,
        on_progress: OnProgress | None = None,
        cancel_with_task: bool | None = None,
    ) -> Result:
        """Invoke with a whole request. The same ``request_id`` is the same call: charged once, answered alike.

        ``on_chunk`` is called with the answer's pieces as they come; a piece of a higher attempt voids those before it.
        ``on_progress`` is called every 10 s while the call runs. Over HTTP there is neither (`ConfigError`). A task
        cancelled here cancels its call (``cancel_with_task``), unless the caller named the ``request_id``: under that
        the call can be asked for again, so it goes on, and `cancel` ends it.

        Raises a `Fault`: `Expired` where nobody answered in time, `Overloaded` where the queue is full.
        """
        call = InvokeCall(
            request=request,
            request_id=request_id,
            deadline_seconds=deadline_seconds,
            on_chunk=on_chunk,
            on_progress=on_progress,
            cancel_with_task=not request_id if cancel_with_task is None else cancel_with_task,
        )
        return await self._transport.invoke(call)

    async def invoke_batch(
        self, requests: Sequence[BatchRequest], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Invoke all at once, answers in order. The budget is reserved all or nothing (`BudgetExhausted`); after
        that a failing item never loses the others, and what an item did not use is given back.

        An item is a request, its fields as a mapping, or a question alone; one that cannot be read is a
        `BadRequest` of its own. A cancelled batch is cancelled in the fleet: what runs, and what was only reserved.
        Over HTTP it is one body, 1 MiB at most (`PayloadTooLarge`).
        """
        if isinstance(requests, str):
            raise BadRequest("requests: a batch is a list of requests, and this is one text")
        items = [_parse_item(item) for item in requests]
        return await self._transport.invoke_batch(items, deadline_seconds=deadline_seconds)

    async def reserve(self, calls: int, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> list[str]:
        """Reserve so many calls, all or none (`BudgetExhausted`); returns their request ids. Only over a broker."""
        ids = [secrets.token_urlsafe(16) for _ in range(calls)]
        try:
            await self.reserve_ids(ids, deadline_seconds=deadline_seconds)
        except asyncio.CancelledError:
            # Nobody will ever know these ids: a reservation under way is given back.
            self._transport.cancel_later(ids)
            raise
        return ids

    async def reserve_ids(
        self, request_ids: Sequence[str], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> int:
        """Reserve these calls, all or none (`BudgetExhausted`); returns how many are new: one already known costs
        nothing. Only over a broker."""
        deadline = self._transport.clock.deadline_ms(deadline_seconds)
        request = session_messages.ReserveCalls(request_ids=list(request_ids), deadline=deadline)
        return (await self._call(RESERVE, request)).granted

    async def release(self, request_ids: Sequence[str]) -> None:
        """Give back reservations that were not used. Only over a broker."""
        if request_ids:
            await self._call(RELEASE, session_messages.ReleaseCalls(request_ids=list(request_ids)))

    async def cancel(self, request_ids: Sequence[str]) -> int:
        """Cancel these calls: what waits is refused uncharged, what runs is aborted, what is only reserved is given
        back. Returns how many were; one that has ended, or that another delivery waits for, is not. Only over a
        broker."""
        if not request_ids:
            return 0
        return (await self._call(CANCEL, session_messages.CancelCalls(request_ids=list(request_ids)))).cancelled

    async def get_info(self, *, per_target: bool = False) -> session_messages.Info:
        """The session, its counters and the targets it may call; and what went to which, where that is asked for."""
        return await self._call(INFO, session_messages.GetInfo(per_target=per_target))

    async def open_child(self, request: session_messages.OpenSession) -> session_messages.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""
        return await self._call(OPEN, request)

    async def _call(self, route: Route[RequestT, ReplyT], request: RequestT) -> ReplyT:
        try:
            return await self._transport.call_route(route, request, timeout_seconds=OPERATION_TIMEOUT_SECONDS)
        except NoAnswer as error:
            raise BudgetUnavailable(error.message) from None


def _parse_item(item: object) -> InvokeRequest | Fault:
    """An item of a batch as a request, or why it is none."""
    if isinstance(item, InvokeRequest):
        return item
    fields = {"question": item} if isinstance(item, str) else item
    try:
        return InvokeRequest.model_validate(dict(fields) if isinstance(fields, Mapping) else fields)
    except ValidationError as error:
        return BadRequest(describe_validation_error(error))
