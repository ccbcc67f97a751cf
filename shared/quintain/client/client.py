"""An evaluator's client: invoke a target by name, under the session's budget.

Every call ends: with a `Result`, or with a typed `Fault`. The client keeps the deadline itself, so a broker that
is gone is an error in time, not a wait without end.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from quintain.caller import Answer, Ask, Caller, Question, understood
from quintain.clock import Clock
from quintain.contracts import metadata
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result
from quintain.contracts.message import explain
from quintain.contracts.names import TARGET_NAME_PATTERN
from quintain.errors import BadRequest, BudgetUnavailable, BusError, Expired, Fault, NoAnswer, Overloaded, QueueFull
from quintain.routes import (
    DEADLINE_HEADER,
    INFO,
    INVOKE,
    OPEN,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_HEADER,
    RELEASE,
    REQUEST_ID_HEADER,
    RESERVE,
    TOKEN_HEADER,
    Route,
)

#: A call's deadline where the caller names none, in seconds.
DEFAULT_DEADLINE_SECONDS = 600.0

#: The SDK outwaits the deadline by this much, so that the fleet's own word arrives first, in seconds.
GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch: its result, or the fault that took its place."""

    result: Result | None
    fault: Fault | None


class Client:
    """One session's right to call. Use it as an async context, from `quintain.connect`."""

    def __init__(self, caller: Caller, clock: Clock, token: str) -> None:
        self._caller, self._clock, self._token = caller, clock, token

    async def invoke(
        self,
        question: str | None = None,
        *,
        target: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[ChatMessage] | None = None,
        settings: InvokeSettings | None = None,
    ) -> Result:
        """Ask a target (the session's default where none is named). Raises a `Fault`."""
        try:
            request = InvokeRequest(
                question=question,
                system_prompt=system_prompt,
                messages=None if messages is None else list(messages),
                target=target,
                settings=settings,
            )
        except ValidationError as error:
            raise BadRequest(explain(error)) from None
        return await self.send(request)

    async def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> Result:
        """Ask with a whole request. The same ``request_id`` is the same call: charged once, answered alike.

        Raises a `Fault`: `Expired` where nobody answered in time, `Overloaded` where the queue is full.
        """
        question = self._invocation(request, request_id or secrets.token_urlsafe(16), deadline_seconds)
        try:
            return understood(await self._caller.ask(question), Result)
        except QueueFull:
            raise Overloaded("The target's queue is full", retry_after_ms=1000) from None
        except NoAnswer:
            raise Expired(
                f"No answer within {deadline_seconds:.0f} s; whether it was charged, `info` says",
                charged=True,
            ) from None

    async def invoke_batch(
        self, requests: Sequence[InvokeRequest], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> list[BatchItem]:
        """Ask all at once, answers in order. The budget is reserved all or nothing (`BudgetExhausted`); after
        that a failing item never loses the others, and what an item did not use is given back."""
        ids = await self.reserve(len(requests), deadline_seconds=deadline_seconds)
        calls = zip(requests, ids, strict=True)
        items = await asyncio.gather(*(self._item(ask, name, deadline_seconds) for ask, name in calls))
        await self.release([name for name, item in zip(ids, items, strict=True) if unspent(item)])
        return list(items)

    async def reserve(self, calls: int, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> list[str]:
        """Reserve so many calls, all or none (`BudgetExhausted`); returns their request ids."""
        ids = [secrets.token_urlsafe(16) for _ in range(calls)]
        deadline = int(self._clock.now_ms() + deadline_seconds * 1000)
        await self._request(RESERVE, metadata.ReserveCalls(request_ids=ids, deadline=deadline))
        return ids

    async def release(self, request_ids: Sequence[str]) -> None:
        """Give back reservations that were not used."""
        if request_ids:
            await self._request(RELEASE, metadata.ReleaseCalls(request_ids=list(request_ids)))

    async def get_info(self) -> metadata.Info:
        """The session, its counters and the targets it may call."""
        return await self._request(INFO, metadata.AskInfo())

    async def open_child(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""
        return await self._request(OPEN, ask)

    async def _item(self, request: InvokeRequest, request_id: str, deadline_seconds: float) -> BatchItem:
        try:
            return BatchItem(await self.send(request, request_id=request_id, deadline_seconds=deadline_seconds), None)
        except Fault as fault:
            return BatchItem(None, fault)
        except BusError as lost:
            # One item that could not be carried loses neither the others nor their reservations.
            return BatchItem(None, BudgetUnavailable(f"The fleet cannot be reached: {lost.message}"))

    async def _request(self, route: Route[Ask, Answer], ask: Ask) -> Answer:
        try:
            return await self._caller.request(route, ask, {TOKEN_HEADER: self._token})
        except NoAnswer as silence:
            raise BudgetUnavailable(silence.message) from None

    def _invocation(self, request: InvokeRequest, request_id: str, deadline_seconds: float) -> Question:
        now = self._clock.now_ms()
        return Question(
            exchange=INVOKE.exchange,
            key=routing_key(request),
            type=INVOKE.name,
            body=request.to_wire(),
            headers={
                TOKEN_HEADER: self._token,
                REQUEST_ID_HEADER: request_id,
                DEADLINE_HEADER: int(now + deadline_seconds * 1000),
                PROTOCOL_HEADER: PROTOCOL_VERSION,
                PUBLISHED_HEADER: now,
            },
            deadline_seconds=deadline_seconds + GRACE_SECONDS,
            # The fleet's own word on an expired call comes first: the client only outwaits it.
            expires_seconds=deadline_seconds,
        )


def unspent(item: BatchItem) -> bool:
    """Whether an item of a batch was not charged, so that its reservation is to be given back."""
    return item.fault is not None and not item.fault.charged


def routing_key(request: InvokeRequest) -> str:
    """Where to publish a request: its target's name, or empty, and the metadata service decides.

    What cannot be a target's name is not put on the wire as an address: the answer is `UnknownTarget` all the same.
    """
    name = request.names
    return name if name is not None and re.fullmatch(TARGET_NAME_PATTERN, name) else ""
