"""An evaluator's client: invoke a target by name, under the session's budget.

Every call ends: with a `Result`, or with a typed `Fault`. The client keeps the deadline itself, so a broker that
is gone is an error in time, not a wait without end. A call whose task is cancelled is taken back.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import ValidationError

from quintain import logs
from quintain.caller import Answer, Ask, Caller, Question, understood
from quintain.client.ears import DEAF, Ears, Heard, HeardProgress
from quintain.client.taking_back import TakingBack
from quintain.clock import Clock
from quintain.contracts import metadata
from quintain.contracts.invoke import ChatMessage, InvokeRequest, InvokeSettings, Result
from quintain.contracts.message import explain
from quintain.contracts.names import TARGET_NAME_PATTERN
from quintain.contracts.token import public_id
from quintain.errors import BadRequest, BudgetUnavailable, BusError, Expired, Fault, NoAnswer, Overloaded, QueueFull
from quintain.routes import (
    ACCEPT_HEADER,
    CANCEL,
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
from quintain.telemetry import conventions
from quintain.telemetry.spans import span

log = logging.getLogger(__name__)

#: A call's deadline where the caller names none, in seconds.
DEFAULT_DEADLINE_SECONDS = 600.0

#: The SDK outwaits the deadline by this much, so that the fleet's own word arrives first, in seconds.
GRACE_SECONDS = 2.0

#: How long the metadata service may take to answer an operation, in seconds.
ANSWER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch: its result, or the fault that took its place."""

    result: Result | None
    fault: Fault | None


class Client:
    """One session's right to call. Use it as an async context, from `quintain.connect`."""

    def __init__(self, caller: Caller, clock: Clock, token: str) -> None:
        self._caller, self._clock, self._token = caller, clock, token
        self._session_id = public_id(token)
        self._taking_back = TakingBack(self.cancel)

    async def close(self) -> None:
        """Finish taking back the calls whose tasks were cancelled: a few seconds at most."""
        await self._taking_back.finish()

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
        return await self.send(
            request_from(
                question=question, target=target, system_prompt=system_prompt, messages=messages, settings=settings
            )
        )

    async def send(
        self,
        request: InvokeRequest,
        *,
        request_id: str | None = None,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
        heard: Heard | None = None,
        progress: HeardProgress | None = None,
        taken_back: bool | None = None,
    ) -> Result:
        """Ask with a whole request. The same ``request_id`` is the same call: charged once, answered alike.

        ``heard`` is given the answer's pieces as they come; a piece of a higher attempt voids those before it.
        ``progress`` is told every 10 s that the call still runs. A task cancelled here takes its call back
        (``taken_back``), unless the caller named the ``request_id``: under that the call can be asked for again, so
        it goes on, and `cancel` takes it back.

        Raises a `Fault`: `Expired` where nobody answered in time, `Overloaded` where the queue is full.
        """
        name = request_id or secrets.token_urlsafe(16)
        try:
            return await self._send(request, name, deadline_seconds, Ears(heard, progress))
        except asyncio.CancelledError:
            if not request_id if taken_back is None else taken_back:
                self._taking_back.add([name])
            raise

    async def _send(
        self, request: InvokeRequest, request_id: str, deadline_seconds: float, ears: Ears = DEAF
    ) -> Result:
        question = self._invocation(request, request_id, deadline_seconds, ears)
        opening = partial(conventions.sent, question.exchange.name, question.key, request_id=request_id)
        try:
            with (
                span(opening),
                logs.about(request_id=request_id, session_id=self._session_id, target=question.key),
            ):
                return understood(await self._caller.ask(question, ears.hear), Result)
        except QueueFull:
            raise Overloaded("The target's queue is full", retry_after_ms=1000) from None
        except NoAnswer:
            raise Expired(
                f"No answer within {deadline_seconds:.0f} s; whether it was charged, `info` says",
                charged=True,
            ) from None

    async def invoke_batch(
        self,
        requests: Sequence[InvokeRequest | Mapping[str, object] | str],
        *,
        deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    ) -> list[BatchItem]:
        """Ask all at once, answers in order. The budget is reserved all or nothing (`BudgetExhausted`); after
        that a failing item never loses the others, and what an item did not use is given back.

        An item is a request, its fields as a mapping, or a question alone; one that cannot be read is a
        `BadRequest` of its own. A cancelled batch is taken back: what runs, and what was only reserved.
        """
        if isinstance(requests, str):
            raise BadRequest("requests: a batch is a list of requests, and this is one text")
        asks = [request_of(item) for item in requests]
        ids = await self.reserve(len(asks), deadline_seconds=deadline_seconds)
        try:
            calls = zip(asks, ids, strict=True)
            items = await asyncio.gather(*(self._item(ask, name, deadline_seconds) for ask, name in calls))
            await self._give_back([name for name, item in zip(ids, items, strict=True) if unspent(item)])
        except asyncio.CancelledError:
            self._taking_back.add(ids)
            raise
        return list(items)

    async def reserve(self, calls: int, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS) -> list[str]:
        """Reserve so many calls, all or none (`BudgetExhausted`); returns their request ids."""
        ids = [secrets.token_urlsafe(16) for _ in range(calls)]
        try:
            await self.reserve_these(ids, deadline_seconds=deadline_seconds)
        except asyncio.CancelledError:
            # Nobody will ever know these ids: a reservation under way is given back.
            self._taking_back.add(ids)
            raise
        return ids

    async def reserve_these(
        self, request_ids: Sequence[str], *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    ) -> int:
        """Reserve these calls, all or none (`BudgetExhausted`); returns how many are new: one already known costs
        nothing."""
        deadline = int(self._clock.now_ms() + deadline_seconds * 1000)
        ask = metadata.ReserveCalls(request_ids=list(request_ids), deadline=deadline)
        return (await self._request(RESERVE, ask)).granted

    async def release(self, request_ids: Sequence[str]) -> None:
        """Give back reservations that were not used."""
        if request_ids:
            await self._request(RELEASE, metadata.ReleaseCalls(request_ids=list(request_ids)))

    async def cancel(self, request_ids: Sequence[str]) -> int:
        """Take these calls back: what waits is refused uncharged, what runs is aborted, what is only reserved is
        given back. Returns how many were; one that has ended, or that another delivery waits for, is not."""
        if not request_ids:
            return 0
        return (await self._request(CANCEL, metadata.CancelCalls(request_ids=list(request_ids)))).cancelled

    async def get_info(self, *, per_target: bool = False) -> metadata.Info:
        """The session, its counters and the targets it may call; and what went to which, where that is asked for."""
        return await self._request(INFO, metadata.AskInfo(per_target=per_target))

    async def open_child(self, ask: metadata.OpenSession) -> metadata.SessionOpened:
        """Open a session that may only narrow this one and draws on its budget."""
        return await self._request(OPEN, ask)

    async def _item(self, ask: InvokeRequest | Fault, request_id: str, deadline_seconds: float) -> BatchItem:
        if isinstance(ask, Fault):
            return BatchItem(None, ask)
        try:
            return BatchItem(await self._send(ask, request_id, deadline_seconds), None)
        except Fault as fault:
            return BatchItem(None, fault)
        except BusError as lost:
            # One item that could not be carried loses neither the others nor their reservations.
            return BatchItem(None, BudgetUnavailable(f"The fleet cannot be reached: {lost.message}"))

    async def _give_back(self, request_ids: Sequence[str]) -> None:
        try:
            await self.release(request_ids)
        except (Fault, BusError) as error:
            # The answers are there: what is not given back now ends with its deadline.
            log.warning("%d reservations could not be given back: %s", len(request_ids), error.message)

    async def _request(self, route: Route[Ask, Answer], ask: Ask) -> Answer:
        try:
            return await self._caller.request(route, ask, {TOKEN_HEADER: self._token}, timeout_seconds=ANSWER_SECONDS)
        except NoAnswer as silence:
            raise BudgetUnavailable(silence.message) from None

    def _invocation(self, request: InvokeRequest, request_id: str, deadline_seconds: float, ears: Ears) -> Question:
        now = self._clock.now_ms()
        accepts = {ACCEPT_HEADER: ears.accepts} if ears.accepts else {}
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
                **accepts,
            },
            deadline_seconds=deadline_seconds + GRACE_SECONDS,
            # The fleet's own word on an expired call comes first: the client only outwaits it.
            expires_seconds=deadline_seconds,
        )


def request_from(*, messages: Sequence[ChatMessage] | None, **fields: object) -> InvokeRequest:
    """The request of these fields. Raises `BadRequest` with the field's name."""
    turns = None if messages is None else list(messages)
    try:
        return InvokeRequest.model_validate({**fields, "messages": turns})
    except ValidationError as error:
        raise BadRequest(explain(error)) from None


def request_of(item: object) -> InvokeRequest | Fault:
    """An item of a batch as a request: a request, its fields, or a question alone; or why it is none."""
    if isinstance(item, InvokeRequest):
        return item
    fields = {"question": item} if isinstance(item, str) else item
    try:
        return InvokeRequest.model_validate(dict(fields) if isinstance(fields, Mapping) else fields)
    except ValidationError as error:
        return BadRequest(explain(error))


def unspent(item: BatchItem) -> bool:
    """Whether an item of a batch was not charged, so that its reservation is to be given back."""
    return item.fault is not None and not item.fault.charged


def routing_key(request: InvokeRequest) -> str:
    """Where to publish a request: its target's name, or empty, and the metadata service decides.

    What cannot be a target's name is not put on the wire as an address: the answer is `UnknownTarget` all the same.
    """
    name = request.names
    return name if name is not None and re.fullmatch(TARGET_NAME_PATTERN, name) else ""
