"""Stored replies: kept for a day, compressed where they are long, and never in place of a counter."""

from __future__ import annotations

import zlib

from quintain.contracts.invoke import Result
from quintain_metadata.records import Call, Moment
from quintain_metadata.steps import Steps, one, run

#: Replies are kept this long, and not at all when larger than a mebibyte once compressed.
REPLY_KEPT_MS = 24 * 60 * 60_000
REPLY_MOST_BYTES = 1024 * 1024

#: What is shorter is kept as it is: to begin compressing takes longer than to write it. JSON begins with a brace, and
#: nothing that zlib makes does.
REPLY_SHORT_BYTES = 2048


def kept_reply(call: Call) -> Steps[Result | None]:
    """The stored reply of a committed call, marked as replayed; None where it is no longer kept."""
    row = yield from one(
        "SELECT body FROM reply WHERE session_id = ? AND request_id = ?", call.session_id, call.request_id
    )
    if row is None:
        return None
    body = bytes(row[0])
    wire = body if body.startswith(b"{") else zlib.decompress(body)
    return Result.from_wire(wire).model_copy(update={"replayed": True})


def keep_reply(moment: Moment, call: Call, reply: Result) -> Steps[None]:
    """Keep the reply of a call, unless it is too large."""
    body = reply.to_wire()
    if len(body) >= REPLY_SHORT_BYTES:
        body = zlib.compress(body, level=1)
    if len(body) > REPLY_MOST_BYTES:
        return
    yield from run(
        "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (session_id, request_id) DO NOTHING",
        *(call.session_id, call.request_id, body, moment.now + REPLY_KEPT_MS),
    )
