"""Reads and writes stored replies. They are kept for a day, compressed when they are long."""

from __future__ import annotations

import zlib

from quintain.contracts.invoke import Result
from quintain_metadata.ledger.base import Moment, SqlProgram, SqlValue, execute, fetch_one
from quintain_metadata.ledger.migrations import REPLY_RETENTION_MS
from quintain_metadata.rules.call_repository import CallRow

STORE_REPLY_SQL = (
    "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


#: The largest reply after compression, in bytes; larger ones are not stored.
MAX_STORED_REPLY_BYTES = 1024 * 1024


#: Shorter replies are stored uncompressed, because compressing takes longer than writing them. Uncompressed JSON begins
#: with a brace, and zlib output never does.
COMPRESSION_MIN_BYTES = 2048


def load_reply(call: CallRow) -> SqlProgram[Result | None]:
    """Return the stored reply of a committed call, marked as replayed; None where it is no longer stored."""
    # Nothing changes a call any more once its reply is stored.
    row = yield from fetch_one(
        "SELECT body FROM call JOIN reply ON reply.session_id = call.session_id"
        " AND reply.request_id = call.request_id AND reply.expires_at = call.updated_at + ?"
        " WHERE call.session_id = ? AND call.request_id = ?",
        *(REPLY_RETENTION_MS, call.session_id, call.request_id),
    )
    if row is None:
        return None
    body = bytes(row[0])
    wire = body if body.startswith(b"{") else zlib.decompress(body)
    return Result.from_wire(wire).model_copy(update={"replayed": True})


def store_reply(moment: Moment, call: CallRow, reply: Result) -> SqlProgram[None]:
    """Store the reply of a call for `REPLY_RETENTION_MS`, unless it is too large."""
    parameters = reply_parameters(moment, call, reply)
    if parameters is not None:
        yield from execute(STORE_REPLY_SQL, *parameters)


def reply_parameters(moment: Moment, call: CallRow, reply: Result) -> tuple[SqlValue, ...] | None:
    """Return the parameters of `STORE_REPLY_SQL`, or None for a reply that is too large."""
    body = reply.to_wire()
    if len(body) >= COMPRESSION_MIN_BYTES:
        body = zlib.compress(body, level=1)
    if len(body) > MAX_STORED_REPLY_BYTES:
        return None
    return call.session_id, call.request_id, body, moment.now + REPLY_RETENTION_MS
