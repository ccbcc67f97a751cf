"""Stores the bodies of requests that are larger than a message, and gives them to the workers that run the calls."""

from __future__ import annotations

import asyncio
import hashlib
import math

from quintain.bus.base import Bus, Delivery
from quintain.contracts.contents import (
    ContentPiece,
    ContentStatus,
    GetContent,
    PutContent,
    count_pieces,
    decode_piece,
    encode_piece,
)
from quintain.contracts.limits import (
    CLIENT_QUEUE_PREFETCH,
    CONTENT_PIECE_BYTES,
    MAX_BODY_BYTES,
    MAX_CONTENT_BYTES,
)
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, Fault, PayloadTooLarge
from quintain.rpc.server import result_or_fault, send_reply
from quintain_metadata.contents.base import ContentStore
from quintain_metadata.ledger.base import Ledger, Moment, SqlProgram
from quintain_metadata.rules import contents, sessions
from quintain_metadata.rules.contents import ContentRow

#: How often what no ledger knows is deleted from the store, in seconds.
ABANDONED_CHECK_SECONDS = 60.0


class ContentOperations:
    """The operations on contents. Without a store, bodies have at most `MAX_BODY_BYTES`, and nothing is stored."""

    def __init__(self, bus: Bus, ledger: Ledger, store: ContentStore | None) -> None:
        self._bus, self._ledger, self._store = bus, ledger, store
        # A piece in a reply takes several times its size until its confirm.
        self._reading = asyncio.Semaphore(CLIENT_QUEUE_PREFETCH)
        self._checked_at = -math.inf

    @property
    def largest_body(self) -> int:
        """The size in bytes of the largest request that a session of this fleet may be allowed."""
        return MAX_BODY_BYTES if self._store is None else MAX_CONTENT_BYTES

    async def put(self, delivery: Delivery, token: SessionToken) -> ContentStatus:
        """Store a piece, or say which pieces are missing. Raises a `Fault`."""
        try:
            request: PutContent | BadRequest = PutContent.from_wire(delivery.body)
        except BadRequest as unreadable:
            request = unreadable
        row = await self._ledger.transact(lambda moment: self._accept(moment, token, request))
        assert isinstance(request, PutContent)
        assert self._store is not None
        if row is None or row.complete:
            return ContentStatus(complete=True)
        if request.piece is None:
            return await self._complete(self._store, row, request.sha256)
        await self._store.write(row.id, request.piece, _piece_of(request))
        return ContentStatus(complete=False)

    def _accept(
        self, moment: Moment, token: SessionToken, request: PutContent | BadRequest
    ) -> SqlProgram[ContentRow | None]:
        session = yield from sessions.authenticate(moment.now, token)
        if isinstance(request, BadRequest):
            raise request
        if self._store is None:
            raise PayloadTooLarge(
                f"The body has {request.size} bytes; without a content store (QUINTAIN_CONTENT_STORE of the metadata "
                f"service) a request may have {MAX_BODY_BYTES}"
            )
        return (yield from contents.accept_content(moment, session, request, self._store.max_bytes))

    async def _complete(self, store: ContentStore, row: ContentRow, sha256: str) -> ContentStatus:
        """Return the missing pieces; where there are none, check the hash, and record that the content is complete."""
        wanted = range(count_pieces(row.size))
        stored = await store.piece_numbers(row.id)
        if missing := [number for number in wanted if number not in stored]:
            return ContentStatus(complete=False, missing=missing)
        digest = hashlib.sha256()
        for number in wanted:
            digest.update(await store.read(row.id, number) or b"")
        if digest.hexdigest() != sha256:
            await store.delete(row.id)
            raise BadRequest("sha256: the stored pieces have another one; all of them were deleted")
        await self._ledger.transact(lambda _: contents.mark_complete(row.id))
        return ContentStatus(complete=True)

    async def answer_get(self, delivery: Delivery) -> None:
        """Answer a worker's request for a piece, and acknowledge it; few at a time."""
        async with self._reading:
            await send_reply(self._bus, delivery, await result_or_fault(self._get(delivery), "reading a content"))
        await delivery.ack()

    async def _get(self, delivery: Delivery) -> ContentPiece | Fault:
        request = GetContent.from_wire(delivery.body)
        content_id = await self._ledger.transact(lambda _: contents.find_content_of_attempt(request))
        data = None
        if content_id is not None and self._store is not None:
            data = await self._store.read(content_id, request.piece)
        if data is None:
            raise BadRequest("content: the body of this request is not stored, or not any more: put it again")
        return ContentPiece(data=encode_piece(data))

    async def sweep(self) -> None:
        """Delete the contents of calls that were answered, and those whose deadline has passed."""
        if self._store is None:
            return
        if ended := await self._ledger.transact(contents.ended_contents):
            for content_id in ended:
                await self._store.delete(content_id)
            await self._ledger.transact(lambda _: contents.forget_contents(ended))
        now = asyncio.get_running_loop().time()
        if now - self._checked_at >= ABANDONED_CHECK_SECONDS:
            self._checked_at = now
            await self._store.delete_abandoned()


def _piece_of(request: PutContent) -> bytes:
    """Return the bytes of a piece. Raises `BadRequest` for a number or a length that the content does not have."""
    assert request.piece is not None
    data = decode_piece(request.data or "")
    expected = min(CONTENT_PIECE_BYTES, request.size - request.piece * CONTENT_PIECE_BYTES)
    if len(data) != expected:
        raise BadRequest(f"data: piece {request.piece} of {request.size} bytes has {max(expected, 0)}, not {len(data)}")
    return data
