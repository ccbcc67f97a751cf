"""The transport over a broker: one message for each call, answered into the caller's reply queue.

A call whose task is cancelled is cancelled in the fleet by a message in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import Sequence
from functools import partial

from quintain import logs
from quintain.bus.base import Delivery
from quintain.caller import Caller, Question, understood
from quintain.client.cancellation import CancellationQueue
from quintain.client.transport import ANSWER_SECONDS, GRACE_SECONDS, BatchItem, InvokeCall, expired, unspent
from quintain.clock import Clock
from quintain.contracts.invoke import Chunk, InvokeRequest, Progress, Result
from quintain.contracts.metadata import CancelCalls, ReleaseCalls, ReserveCalls
from quintain.contracts.names import TARGET_NAME_PATTERN
from quintain.contracts.token import public_id
from quintain.errors import BadRequest, BudgetUnavailable, BusError, Fault, NoAnswer, Overloaded, QueueFull
from quintain.routes import (
    ACCEPT_CHUNKS,
    ACCEPT_HEADER,
    ACCEPT_PROGRESS,
    CANCEL,
    CHUNK_TYPE,
    DEADLINE_HEADER,
    INVOKE,
    PROGRESS_TYPE,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_HEADER,
    RELEASE,
    REQUEST_ID_HEADER,
    RESERVE,
    TOKEN_HEADER,
    Answer,
    Ask,
    Route,
)
from quintain.telemetry import conventions
from quintain.telemetry.spans import span

log = logging.getLogger(__name__)


class AmqpTransport:
    """One token's calls over a caller that others may share. ``clock`` is the metadata service's, shared as well."""

    def __init__(self, caller: Caller, token: str, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self._caller, self._token = caller, token
        self._session_id = public_id(token)
        self._cancellations = CancellationQueue(self._cancel)

    async def close(self) -> None:
        """Finish the cancellations that are under way: a few seconds at most."""
        await self._cancellations.close()

    def cancel_later(self, request_ids: Sequence[str]) -> None:
        """Cancel these calls in the background."""
        self._cancellations.add(request_ids)

    async def invoke(self, call: InvokeCall) -> Result:
        """As `Transport.invoke`. Raises `Expired` where nobody answered in time, `Overloaded` where the target's
        queue is full."""
        request_id = call.request_id or secrets.token_urlsafe(16)
        try:
            return await self._invoke(call, request_id)
        except asyncio.CancelledError:
            if call.cancel_with_task:
                self.cancel_later([request_id])
            raise

    async def invoke_batch(self, items: Sequence[InvokeRequest | Fault], *, deadline_seconds: float) -> list[BatchItem]:
        """As `Transport.invoke_batch`: reserves all, invokes each by itself, and releases what was not charged."""
        ids = [secrets.token_urlsafe(16) for _ in items]
        reservation = ReserveCalls(request_ids=ids, deadline=self.clock.deadline_ms(deadline_seconds))
        try:
            await self._answered(RESERVE, reservation)
            calls = zip(items, ids, strict=True)
            ended = await asyncio.gather(*(self._item(item, name, deadline_seconds) for item, name in calls))
            await self._release([name for name, item in zip(ids, ended, strict=True) if unspent(item)])
        except asyncio.CancelledError:
            self.cancel_later(ids)
            raise
        return list(ended)

    async def request(self, route: Route[Ask, Answer], ask: Ask, *, timeout_seconds: float) -> Answer:
        """As `Transport.request`; raises `NoAnswer` where nobody answers in time."""
        return await self._caller.request(route, ask, {TOKEN_HEADER: self._token}, timeout_seconds=timeout_seconds)

    async def _answered(self, route: Route[Ask, Answer], ask: Ask) -> Answer:
        try:
            return await self.request(route, ask, timeout_seconds=ANSWER_SECONDS)
        except NoAnswer as silence:
            raise BudgetUnavailable(silence.message) from None

    async def _cancel(self, request_ids: Sequence[str]) -> None:
        await self._answered(CANCEL, CancelCalls(request_ids=list(request_ids)))

    async def _release(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        try:
            await self._answered(RELEASE, ReleaseCalls(request_ids=list(request_ids)))
        except (Fault, BusError) as error:
            # The answers are there: what is not given back now ends with its deadline.
            log.warning("%d reservations could not be given back: %s", len(request_ids), error.message)

    async def _item(self, item: InvokeRequest | Fault, request_id: str, deadline_seconds: float) -> BatchItem:
        if isinstance(item, Fault):
            return BatchItem(None, item)
        call = InvokeCall(request=item, request_id=request_id, deadline_seconds=deadline_seconds)
        try:
            return BatchItem(await self._invoke(call, request_id), None)
        except Fault as fault:
            return BatchItem(None, fault)
        except BusError as lost:
            # One item that could not be carried loses neither the others nor their reservations.
            return BatchItem(None, BudgetUnavailable(f"The fleet cannot be reached: {lost.message}"))

    async def _invoke(self, call: InvokeCall, request_id: str) -> Result:
        question = self._question(call, request_id)
        opening = partial(conventions.sent, question.exchange.name, question.key, request_id=request_id)
        try:
            with (
                span(opening),
                logs.about(request_id=request_id, session_id=self._session_id, target=question.key),
            ):
                return understood(await self._caller.ask(question, partial(_take_interim, call)), Result)
        except QueueFull:
            raise Overloaded("The target's queue is full", retry_after_ms=1000) from None
        except NoAnswer:
            raise expired(call.deadline_seconds) from None

    def _question(self, call: InvokeCall, request_id: str) -> Question:
        accepts = _accepts(call)
        return Question(
            exchange=INVOKE.exchange,
            key=routing_key(call.request),
            type=INVOKE.name,
            body=call.request.to_wire(),
            headers={
                TOKEN_HEADER: self._token,
                REQUEST_ID_HEADER: request_id,
                DEADLINE_HEADER: self.clock.deadline_ms(call.deadline_seconds),
                PROTOCOL_HEADER: PROTOCOL_VERSION,
                PUBLISHED_HEADER: self.clock.now_ms(),
                **({ACCEPT_HEADER: accepts} if accepts else {}),
            },
            deadline_seconds=call.deadline_seconds + GRACE_SECONDS,
            # The fleet's own answer to an expired call comes first: the client only waits longer than that.
            expires_seconds=call.deadline_seconds,
        )


def _accepts(call: InvokeCall) -> str:
    """The value of the request's header that asks for messages before the final one."""
    callbacks = {ACCEPT_CHUNKS: call.on_chunk, ACCEPT_PROGRESS: call.on_progress}
    return ", ".join(name for name, callback in callbacks.items() if callback is not None)


def _take_interim(call: InvokeCall, delivery: Delivery) -> None:
    """Pass on a message before the final one. One that cannot be read is dropped: the whole answer follows."""
    with contextlib.suppress(BadRequest):
        if delivery.type == CHUNK_TYPE and call.on_chunk is not None:
            call.on_chunk(Chunk.from_wire(delivery.body))
        elif delivery.type == PROGRESS_TYPE and call.on_progress is not None:
            call.on_progress(Progress.from_wire(delivery.body))


def routing_key(request: InvokeRequest) -> str:
    """Where to publish a request: its target's name, or empty, and the metadata service decides.

    What cannot be a target's name is not put on the wire as an address: the answer is `UnknownTarget` all the same.
    """
    name = request.names
    return name if name is not None and re.fullmatch(TARGET_NAME_PATTERN, name) else ""
