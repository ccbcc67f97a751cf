"""Sends chunks and progress messages to callers that asked for them, before the final reply.

These messages are best effort: a message that cannot be sent is dropped, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.group import GroupItem
from quintain.contracts.headers import (
    ACCEPT_CHUNKS,
    ACCEPT_GROUPS,
    ACCEPT_PROGRESS,
    CHUNK_TYPE,
    PROGRESS_TYPE,
    REQUEST_ID_HEADER,
)
from quintain.contracts.invoke import Chunk, Progress, ReasoningChunk, ToolCallChunk
from quintain.contracts.values import MAX_DEADLINE_SECONDS, replace_surrogates
from quintain.errors import BadRequest, BusError
from quintain.rpc.server import ReplyGroups, truncate_echo
from quintain.runtime.concurrency import running_task
from quintain.timings import Timings
from quintain.topology import REPLY
from quintain_worker.providers.provider import Delta, OnText, next_join
from quintain_worker.request import IncomingRequest

log = logging.getLogger(__name__)

#: Interim messages expire after this time, in seconds: they are of no use later.
EXPIRATION_SECONDS = 30.0

#: Default interval of progress messages, in seconds.
PROGRESS_SECONDS = 10.0


async def send_progress(bus: Bus, delivery: Delivery, request_id: str, progress: Progress) -> None:
    """Publish a progress message to the caller's reply queue. Raises `BusError`."""
    headers = {REQUEST_ID_HEADER: truncate_echo(request_id)}
    await _publish(bus, delivery, GroupItem(delivery.correlation_id or "", progress.to_wire(), headers, PROGRESS_TYPE))


async def _publish(bus: Bus, delivery: Delivery, item: GroupItem) -> None:
    """Publish an interim message alone. Raises `BusError`."""
    envelope = Envelope(
        body=item.body,
        type=item.type,
        correlation_id=item.correlation_id,
        headers=item.headers,
        expiration_ms=int(EXPIRATION_SECONDS * 1000),
        persistent=False,
    )
    await bus.publish(REPLY, delivery.reply_to or "", envelope, timeout_seconds=EXPIRATION_SECONDS)


#: Within which part of the repeat interval of admits the ledger has refused a call that may wait no longer.
REFUSED_PART = 0.1


def progress_after_wait(
    bus: Bus, delivery: Delivery, request_id: str, seconds: float, timings: Timings
) -> contextlib.AbstractAsyncContextManager[None]:
    """Send one progress message, while the context is open, when the call may not wait any more: it runs then.

    ``seconds`` is how long it may wait; a call that still waits then is refused, which ends the context.
    """
    send = partial(send_progress, bus, delivery, request_id)
    first_seconds = max(0.0, seconds + timings.admit_repeat_seconds * REFUSED_PART)
    return report_progress(MAX_DEADLINE_SECONDS, 1, send, first_seconds=first_seconds)


@contextlib.asynccontextmanager
async def report_progress(
    interval_seconds: float,
    attempt: int,
    send: Callable[[Progress], Awaitable[None]],
    *,
    first_seconds: float | None = None,
) -> AsyncIterator[None]:
    """Send a progress message every ``interval_seconds`` while the context is open, the first after ``first_seconds``.

    Stops at the first message that cannot be sent.
    """

    async def send_periodically() -> None:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        seconds = interval_seconds if first_seconds is None else first_seconds
        while True:
            await asyncio.sleep(seconds)
            seconds = interval_seconds
            try:
                await send(Progress(attempt=attempt, elapsed_ms=int((loop.time() - started_at) * 1000)))
            except BusError as error:
                log.info("Progress messages of a call are no longer sent: %s", error.message)
                return

    async with running_task(send_periodically(), "progress"):
        yield


#: More tries than a call makes in one worker, so that the chunks of a later worker void those of all earlier tries.
MAX_TRIES_PER_WORKER = 1_000


@contextlib.asynccontextmanager
async def interim_messages(
    bus: Bus, groups: ReplyGroups, delivery: Delivery, request: IncomingRequest, attempt: InterimAttempt
) -> AsyncIterator[OnText | None]:
    """Send the caller the chunks and progress messages that it asked for, while the context is open.

    Yields what takes a piece of the answer; None where the caller wants no chunks.
    """
    sender = None
    if ACCEPT_CHUNKS in request.accepts:
        shared = groups if ACCEPT_GROUPS in request.accepts else None
        number = (attempt.number - 1) * MAX_TRIES_PER_WORKER + attempt.earlier_tries + 1
        sender = ChunkSender(bus, delivery, request.request_id, number, groups=shared)
    reporting: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
    if ACCEPT_PROGRESS in request.accepts:
        send = partial(send_progress, bus, delivery, request.request_id)
        reporting = report_progress(attempt.progress_seconds, attempt.number, send)
    try:
        async with reporting:
            yield None if sender is None else sender.add
    finally:
        if sender is not None:
            await sender.close()


class InterimAttempt(NamedTuple):
    """The number of the attempt whose messages are sent, and how often its worker called the provider before it."""

    number: int
    earlier_tries: int
    progress_seconds: float


class ChunkSender:
    """Streams the text, the tool calls and the reasoning of one attempt to the caller, in numbered chunks.

    Those of a later ``attempt`` void them. With ``groups`` the chunks of several calls share messages.
    """

    def __init__(
        self, bus: Bus, delivery: Delivery, request_id: str, attempt: int, *, groups: ReplyGroups | None = None
    ) -> None:
        self._bus, self._delivery, self._attempt, self._groups = bus, delivery, attempt, groups
        self._headers = {REQUEST_ID_HEADER: truncate_echo(request_id)}
        self._seq = 0
        self._unsent: list[Delta] = []
        self._has_failed = False
        #: When pieces may be sent again, on the loop's clock, and what sends those that wait for it.
        self._next_send_at = 0.0
        self._timer: asyncio.Handle | None = None
        #: How many chunks wait for their confirm, and what `close` awaits.
        self._unconfirmed = 0
        self._all_confirmed: asyncio.Future[None] | None = None
        self._sending_alone: asyncio.Task[None] | None = None

    def add(self, delta: Delta) -> None:
        """Queue a piece of the answer; pieces of the same text that wait are sent as one chunk."""
        joined = _join(self._unsent[-1], delta) if self._unsent else None
        if joined is None:
            self._unsent.append(delta)
        else:
            self._unsent[-1] = joined
        self._send_later()

    async def close(self) -> None:
        """Stop sending, after the events of a vendor's API that wait; the reply with the whole answer follows."""
        if self._timer is not None:
            self._timer.cancel()
        self._all_confirmed = asyncio.get_running_loop().create_future()
        has_events = bool(self._unsent) and isinstance(self._unsent[0], dict)
        if has_events and not self._has_failed:
            self._send()
        if self._unconfirmed:
            await self._all_confirmed

    def _send_later(self) -> None:
        """Send what waits: at once if nothing was sent since the last join, else at the next one."""
        if not (self._timer or self._unconfirmed or self._has_failed):
            # "At once" is the next turn of the loop: what other streams have in this one shares the message.
            loop, at = asyncio.get_running_loop(), self._next_send_at
            self._timer = loop.call_soon(self._send) if at <= loop.time() else loop.call_at(at, self._send)

    def _send(self) -> None:
        self._timer = None
        self._next_send_at = next_join(asyncio.get_running_loop().time())
        correlation_id = self._delivery.correlation_id or ""
        try:
            items = [
                GroupItem(correlation_id, chunk.to_wire(), self._headers, CHUNK_TYPE) for chunk in self._take_chunks()
            ]
        except BadRequest as unwritable:
            self._note_failure(unwritable)
            return
        self._unconfirmed += len(items)
        if self._groups is None:
            self._sending_alone = asyncio.get_running_loop().create_task(self._send_alone(items), name="chunks")
            return
        for item in items:
            self._groups.add(self._delivery.reply_to or "", item, self._on_sent)

    async def _send_alone(self, items: Sequence[GroupItem]) -> None:
        for item in items:
            try:
                if not self._has_failed:
                    await _publish(self._bus, self._delivery, item)
            except BusError as error:
                self._note_failure(error)
            finally:
                self._count_confirmed()

    def _on_sent(self, error: Exception | None) -> None:
        if error is not None:
            self._note_failure(error)
        self._count_confirmed()

    def _count_confirmed(self) -> None:
        self._unconfirmed -= 1
        if self._unconfirmed:
            return
        if self._all_confirmed is not None:
            if not self._all_confirmed.done():
                self._all_confirmed.set_result(None)
        elif self._unsent:
            self._send_later()

    def _note_failure(self, reason: Exception) -> None:
        log.info("Chunks of an answer are no longer sent: %s", reason)
        self._has_failed = True

    def _take_chunks(self) -> list[Chunk]:
        """Take the pieces that wait: events are one chunk, other pieces one each."""
        unsent, self._unsent = self._unsent, []
        # A stream has events or other pieces.
        pieces = [unsent] if unsent and isinstance(unsent[0], dict) else unsent
        first, self._seq = self._seq, self._seq + len(pieces)
        return [self._chunk(piece, seq) for seq, piece in enumerate(pieces, first)]

    def _chunk(self, piece: Delta | list[Delta], seq: int) -> Chunk:
        return Chunk.unchecked(
            attempt=self._attempt,
            seq=seq,
            delta=replace_surrogates(piece) if isinstance(piece, str) else "",
            tool_call=piece if isinstance(piece, ToolCallChunk) else None,
            reasoning=piece if isinstance(piece, ReasoningChunk) else None,
            events=piece if isinstance(piece, list) else None,
        )


def _join(first: Delta, second: Delta) -> Delta | None:
    """Return two pieces as one, or None if they are not of the same text, call or reasoning."""
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    if isinstance(first, ToolCallChunk) and isinstance(second, ToolCallChunk):
        is_same = first.index == second.index and second.id is None
        return first.model_copy(update={"arguments": first.arguments + second.arguments}) if is_same else None
    if isinstance(first, ReasoningChunk) and isinstance(second, ReasoningChunk):
        is_same = first.index == second.index and first.signature is None
        return second.model_copy(update={"text": first.text + second.text}) if is_same else None
    return None
