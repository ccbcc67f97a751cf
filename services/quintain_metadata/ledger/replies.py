"""The stored replies: how long they are kept, and what repeated requests read of them. `settles` stores them."""

from __future__ import annotations

import zlib

from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission
from quintain.contracts.message import LARGE_REPLY_BYTES, MAX_BODY_BYTES
from quintain.errors import ReplyExpired
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.store.base import SqlProgram, execute, fetch_one

#: How long replies are stored, in milliseconds.
REPLY_RETENTION_MS = 24 * 60 * 60_000


class LargeReplay(Admission):
    """A replay of more than `LARGE_REPLY_BYTES`: `read_replay` reads it when it is sent, so that few are in memory."""

    session_id: str
    request_id: str

    @property
    def is_replay(self) -> bool:
        """It is one."""
        return True


def replay(session: SessionRow, call: CallRow, attempt_id: str) -> SqlProgram[Admission]:
    """Return the stored answer of a call that has ended. Raises `ReplyExpired`."""
    if call.fault is not None:
        return Admission(attempt_id=attempt_id, fault=FaultReply.from_wire(call.fault))
    body = yield from _load_body(call.session_id, call.request_id)
    wire = _decompress(body, LARGE_REPLY_BYTES)
    if len(wire) > LARGE_REPLY_BYTES:
        return LargeReplay(
            attempt_id=attempt_id,
            call_count=call.call_count,
            max_calls=session.max_calls,
            session_id=call.session_id,
            request_id=call.request_id,
        )
    return Admission(
        attempt_id=attempt_id, replay=_result(wire), call_count=call.call_count, max_calls=session.max_calls
    )


def read_replay(large: LargeReplay) -> SqlProgram[Admission]:
    """Return the admission with its reply. Raises `ReplyExpired`."""
    body = yield from _load_body(large.session_id, large.request_id)
    return Admission(
        attempt_id=large.attempt_id,
        replay=_result(_decompress(body, MAX_BODY_BYTES)),
        call_count=large.call_count,
        max_calls=large.max_calls,
    )


def load_reply(call: CallRow) -> SqlProgram[Result]:
    """Return the stored reply of a committed call, marked as replayed. Raises `ReplyExpired`."""
    return _result(_decompress((yield from _load_body(call.session_id, call.request_id)), MAX_BODY_BYTES))


def delete_expired(now: int) -> SqlProgram[None]:
    """Delete the replies that are kept no longer, so that no old call has one."""
    yield from execute("DELETE FROM reply WHERE expires_at <= ?", now)


def _load_body(session_id: str, request_id: str) -> SqlProgram[bytes]:
    # Nothing changes a call any more once its reply is stored.
    row = yield from fetch_one(
        "SELECT body FROM call JOIN reply ON reply.session_id = call.session_id"
        " AND reply.request_id = call.request_id AND reply.expires_at = call.updated_at + ?"
        " WHERE call.session_id = ? AND call.request_id = ?",
        *(REPLY_RETENTION_MS, session_id, request_id),
    )
    if row is None:
        raise ReplyExpired
    return bytes(row[0])


def _decompress(body: bytes, max_bytes: int) -> bytes:
    """Return the reply as it was sent; of a longer one than ``max_bytes`` only one byte more."""
    return body if body.startswith(b"{") else zlib.decompressobj().decompress(body, max_bytes + 1)


def _result(wire: bytes) -> Result:
    return Result.from_wire(wire).with_fields(replayed=True)
