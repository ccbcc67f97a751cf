"""Stores replies for a day, compressed when they are long, reads them, and sends admissions with them to workers."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, field

from quintain.bus.base import Bus, Delivery
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.ledger import Admission, AdmitReply, AttemptOutcome, Settle
from quintain.contracts.message import LARGE_REPLY_BYTES, MAX_BODY_BYTES, MAX_STORED_REPLY_BYTES
from quintain.errors import Cancelled, ProviderFailed, ReplyExpired
from quintain.rpc.server import send_reply
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.lifecycle import COUNTED_STATES, Transition
from quintain_metadata.ledger.session_rows import SessionRow
from quintain_metadata.store.base import Ledger, Moment, SqlProgram, SqlValue, execute, fetch_one

#: How long replies are stored, in milliseconds.
REPLY_RETENTION_MS = 24 * 60 * 60_000

STORE_REPLY_SQL = (
    "INSERT INTO reply (session_id, request_id, body, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)


#: Shorter replies are stored uncompressed, because compressing takes longer than writing them. Uncompressed JSON begins
#: with a brace, and zlib output never does.
COMPRESSION_MIN_BYTES = 2048


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


def stored_fault(settlement: Settle, change: Transition) -> str | None:
    """Return the fault to store for a call; one of a charged call says so, whatever its worker reported."""
    if settlement.outcome is AttemptOutcome.RESULT:
        return None
    fault = settlement.fault
    if fault is not None and fault.charge_unknown:
        # Its worker did not know; the transition decides.
        fault = fault.model_copy(update={"charged": False, "charge_unknown": None})
    if change.to in COUNTED_STATES and (fault is None or not fault.charged):
        if fault is not None and fault.code == Cancelled.code:
            return FaultReply.from_fault(Cancelled(fault.error, charged=True)).to_wire().decode()
        message = "The call did not finish" if fault is None else fault.error
        fault = FaultReply.from_fault(
            ProviderFailed(f"{message} (an earlier attempt may have been billed)", charged=True)
        )
    return None if fault is None else fault.to_wire().decode()


def reply_parameters(moment: Moment, call: CallRow, settlement: Settle) -> tuple[SqlValue, ...] | None:
    """Return the parameters of `STORE_REPLY_SQL`, or None where there is no reply, or it is too large."""
    body = settlement.compressed_reply
    if body is None:
        if settlement.reply is None:
            return None
        body = settlement.reply.to_wire()
        if len(body) >= COMPRESSION_MIN_BYTES:
            body = zlib.compress(body, level=1)
    if len(body) > MAX_STORED_REPLY_BYTES:
        return None
    return call.session_id, call.request_id, body, moment.now + REPLY_RETENTION_MS


class LargeReplays:
    """The large replays that this service sends: one is in memory at a time, and the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        #: The attempts whose replays are sent or wait. Their workers repeat their admits meanwhile.
        self.attempt_ids = set[str]()


@dataclass(frozen=True, slots=True)
class AdmitReplySender:
    """Sends admissions to the worker that asked. Two that have the same address are equal."""

    address: tuple[str | None, str | None]
    bus: Bus = field(compare=False)
    ledger: Ledger = field(compare=False)
    delivery: Delivery = field(compare=False)
    large_replays: LargeReplays = field(compare=False)

    async def __call__(self, items: list[Admission], waiting_ids: list[str]) -> None:
        """Send the decided admissions, and the attempt ids that must wait; then each large replay."""
        large = [item for item in items if isinstance(item, LargeReplay)]
        await self._send([item for item in items if item not in large] if large else items, waiting_ids)
        if large:
            await self._send_large(large)

    async def _send_large(self, large: list[LargeReplay]) -> None:
        pending = [item for item in large if item.attempt_id not in self.large_replays.attempt_ids]
        attempt_ids = {item.attempt_id for item in pending}
        self.large_replays.attempt_ids.update(attempt_ids)
        try:
            for item in pending:
                async with self.large_replays.lock:
                    await self._send([await self._read(item)], [])
        finally:
            self.large_replays.attempt_ids.difference_update(attempt_ids)

    async def _read(self, replay: LargeReplay) -> Admission:
        try:
            return await self.ledger.transact(lambda _: read_replay(replay))
        except ReplyExpired as expired:
            return Admission(attempt_id=replay.attempt_id, fault=FaultReply.from_fault(expired))

    async def _send(self, items: list[Admission], waiting_ids: list[str]) -> None:
        now = await self.ledger.now()
        await send_reply(self.bus, self.delivery, AdmitReply(items=items, held=waiting_ids or None, now=now))
