"""Consumes the dead-letter queue: requests that expired, or that no worker could finish.

Each is answered with the state of its call in the ledger. Only an unreadable message goes to the poison queue,
with its token masked.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from quintain.bus.base import Bus, Delivery, Envelope, Handler, HeaderValue, earlier_deliveries, may_be_delivered_again
from quintain.contracts.credentials import SessionToken, mask_tokens, public_id
from quintain.contracts.headers import PROOF_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.contracts.values import sanitize_request_id
from quintain.dlq import DEAD_LETTERED_AT_HEADER, EXCHANGE_HEADER, POISON_HEADER_PREFIX, POISON_ID_HEADER, REASON_HEADER
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault, InternalFault, ReplyExpired, Unauthorized
from quintain.observe.semconv import process_span
from quintain.rpc.server import delivery_context, delivery_credential, request_id_of, result_or_fault, send_reply
from quintain.timings import Timings
from quintain.topology import DEAD, DEAD_QUEUE, DELIVERY_LIMIT, POISON
from quintain_metadata.ledger import calls, replies, sessions
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.lifecycle import CallState
from quintain_metadata.routing import forwarded_headers
from quintain_metadata.store.base import Ledger, Moment, SqlProgram

log = logging.getLogger(__name__)

#: RabbitMQ's values of the ``x-first-death-reason`` header.
DEATH_REASONS = frozenset({"rejected", "expired", "maxlen", "delivery_limit"})

_PROCESS_SPAN = process_span(DEAD.name, "", DEAD_QUEUE.name)


class DeadLetterConsumer:
    """Consumes quintain.metadata.dead: ends each dead-lettered call in the ledger and answers its caller."""

    def __init__(self, bus: Bus, ledger: Ledger, timings: Timings) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Answer one dead-lettered request, or move it to the poison queue."""
        with delivery_context(delivery, _PROCESS_SPAN):
            await self._handle(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        reason = death_reason(delivery)
        if not delivery.reply_to or not delivery.correlation_id:
            await publish_poison(self._bus, delivery, f"{reason}: no reply_to or no correlation_id")
            await delivery.ack()
            return
        answer = await result_or_fault(self._end_call(delivery, reason), "answering a dead letter")
        log.debug("A dead letter is answered: %s", reason)
        await send_reply(self._bus, delivery, answer, {REQUEST_ID_HEADER: request_id_of(delivery)})
        await delivery.ack()

    async def _end_call(self, delivery: Delivery, reason: str) -> Message:
        """End the call in the ledger and return the answer for its caller.

        Retries while the ledger is out of reach: only the ledger knows whether the call was charged.
        """
        credential = delivery_credential(delivery)
        request_id = sanitize_request_id(request_id_of(delivery))

        def operation(moment: Moment) -> SqlProgram[Message]:
            session = yield from sessions.authenticate(moment.now, credential)
            call, lost = yield from calls.end_dead_letter(moment, session, request_id)
            if lost is not None:
                return FaultReply.from_fault(lost)
            if call is not None and call.state is CallState.RUNNING:
                # A duplicate was dead-lettered while the call runs: its worker answers, or the sweep ends it, and only
                # then it is decided whether the call stays charged.
                running = "The deadline passed while the call was running"
                return FaultReply.from_fault(Expired(running, charge_unknown=True))
            if call is not None and call.state in {CallState.COMMITTED, CallState.IN_DOUBT}:
                return (yield from stored_answer(call))
            was_cancelled = call is not None and call.is_cancelled
            return FaultReply.from_fault(Cancelled() if was_cancelled else uncharged_fault(reason))

        while True:
            try:
                return await self._ledger.transact(operation)
            except BudgetUnavailable:
                await asyncio.sleep(self._timings.dead_letter_pause_seconds)


async def publish_poison(bus: Bus, delivery: Delivery, reason: str) -> None:
    """Put a copy of a message that cannot be processed into the poison queue."""
    log.warning("A message that cannot be answered was moved to %s: %s", POISON.name, mask_tokens(reason))
    envelope = Envelope(
        body=delivery.body, type=mask_and_truncate(delivery.type), headers=poison_headers(delivery, reason)
    )
    await bus.publish(POISON, mask_and_truncate(delivery.routing_key), envelope)


def poison_handler(bus: Bus, handler: Handler) -> Handler:
    """Return a handler that runs ``handler``, and moves a message that it cannot end to the poison queue."""

    async def handle(delivery: Delivery) -> None:
        reason = f"delivered {DELIVERY_LIMIT} times"
        if earlier_deliveries(delivery) < DELIVERY_LIMIT - 1:
            try:
                await handler(delivery)
            except Exception as error:
                if may_be_delivered_again(delivery, error):
                    raise
                log.exception("The handler of a message to %s failed again", delivery.exchange)
                reason = f"failed: {type(error).__name__}"
            else:
                return
        await publish_poison(bus, delivery, reason)
        await delivery.ack()

    return handle


def death_reason(delivery: Delivery) -> str:
    """Return RabbitMQ's reason for the dead-lettering, or ``unknown``: publishers can set the header to anything."""
    reason = delivery.headers.get("x-first-death-reason")
    return reason if isinstance(reason, str) and reason in DEATH_REASONS else "unknown"


def uncharged_fault(reason: str) -> Fault:
    """Return the fault for a request that ended in its queue and was never charged."""
    if reason == "expired":
        return Expired("The deadline passed before a worker was free")
    return InternalFault(f"No worker could finish this request ({reason})")


def poison_headers(delivery: Delivery, reason: str) -> dict[str, HeaderValue]:
    """Return the headers for the poison queue.

    These are the original headers with tokens masked and without a proof, plus the reason, the time, the original
    exchange and a new id.
    """
    original_headers = {
        key: value
        for key, value in forwarded_headers(delivery).items()
        if key != PROOF_HEADER and not key.startswith(POISON_HEADER_PREFIX)
    }
    headers: dict[str, HeaderValue] = {
        mask_tokens(key): mask_tokens(value) if isinstance(value, str) else value
        for key, value in original_headers.items()
    }
    if TOKEN_HEADER in headers:
        headers[TOKEN_HEADER] = public_token_part(delivery.headers[TOKEN_HEADER])
    return headers | {
        REASON_HEADER: mask_tokens(reason),
        POISON_ID_HEADER: secrets.token_hex(8),
        DEAD_LETTERED_AT_HEADER: int(time.time() * 1000),
        EXCHANGE_HEADER: mask_and_truncate(str(delivery.headers.get("x-first-death-exchange", delivery.exchange))),
    }


def mask_and_truncate(text: str) -> str:
    """Return the text with tokens masked, cut to the longest allowed target name (63 characters)."""
    return mask_tokens(text)[:63]


def public_token_part(value: object) -> str:
    """Return the public part of a session token (its id), or the id beside a proof, and "…" for any other value."""
    if isinstance(value, str) and public_id(value) == value:
        return value
    try:
        return mask_tokens(SessionToken.parse(value if isinstance(value, str) else "").text)
    except Unauthorized:
        return "…"


def stored_answer(call: CallRow) -> SqlProgram[Message]:
    """Return the stored reply or fault of a call that has ended."""
    if call.fault is not None:
        return FaultReply.from_wire(call.fault)
    try:
        return (yield from replies.load_reply(call))
    except ReplyExpired as expired:
        return FaultReply.from_fault(expired)
