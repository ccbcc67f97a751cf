"""Stores the body of a request that is larger than a message, so that its message can name it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from quintain.client.transport import OPERATION_TIMEOUT_SECONDS, expired_fault
from quintain.contracts.contents import ContentReference, ContentStatus, PutContent, encode_piece
from quintain.contracts.limits import CONTENT_PIECE_BYTES, DEFAULT_REQUEST_BYTES, MAX_BODY_BYTES
from quintain.contracts.session import Info
from quintain.errors import BudgetUnavailable, NoAnswer, PayloadTooLarge, QueueFull
from quintain.runtime.concurrency import run_for_each

#: How many pieces of one body are under way at a time.
CONCURRENT_PIECES = 4

#: The pause before a piece is sent again that the full queue of operations refused, in seconds.
FULL_QUEUE_PAUSE_SECONDS = 0.5

#: Sends one request to store a piece, and returns its answer.
Put = Callable[[PutContent], Awaitable[ContentStatus]]

#: Asks for the session's information, for at most so many seconds.
ReadInfo = Callable[[float], Awaitable[Info]]


async def store_body(
    put: Put,
    read_info: ReadInfo,
    body: bytes,
    request_id: str,
    deadline_ms: int,
    timeout_seconds: float,
) -> ContentReference:
    """Store the body of this request, and return the reference to it; pieces that are stored are not sent again.

    Raises `PayloadTooLarge` where the session may not send it, `Overloaded` where the store is full, `Expired` after
    ``timeout_seconds``, and what ``put`` raises.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            _require_body_allowed(len(body), await read_info(OPERATION_TIMEOUT_SECONDS))
            return await _store_body(put, body, request_id, deadline_ms)
    except TimeoutError:
        raise expired_fault(timeout_seconds) from None
    except NoAnswer as error:
        raise BudgetUnavailable(error.message) from None


def _require_body_allowed(size: int, info: Info) -> None:
    """Raise `PayloadTooLarge` for a body of more bytes than its session may send."""
    if size > (limit := info.max_body_bytes or DEFAULT_REQUEST_BYTES):
        raise PayloadTooLarge(
            f"The request has {size} bytes; the limit of this session is {limit}. More than {MAX_BODY_BYTES} needs a "
            "fleet with a content store (QUINTAIN_CONTENT_STORE) and a session with a larger maxBodyBytes"
        )


async def _store_body(put: Put, body: bytes, request_id: str, deadline_ms: int) -> ContentReference:
    digest = await asyncio.to_thread(hashlib.sha256, body)
    reference = ContentReference(sha256=digest.hexdigest(), size=len(body))
    request = PutContent(sha256=reference.sha256, size=reference.size, request_id=request_id, deadline=deadline_ms)

    async def send(piece: int) -> None:
        start = piece * CONTENT_PIECE_BYTES
        data = encode_piece(memoryview(body)[start : start + CONTENT_PIECE_BYTES])
        await _put_when_possible(put, request.with_fields(piece=piece, data=data))

    while not (status := await _put_when_possible(put, request)).complete:
        await run_for_each(status.missing or (), send, limit=CONCURRENT_PIECES)
    return reference


async def _put_when_possible(put: Put, request: PutContent) -> ContentStatus:
    while True:
        try:
            return await put(request)
        except QueueFull:
            await asyncio.sleep(FULL_QUEUE_PAUSE_SECONDS)
