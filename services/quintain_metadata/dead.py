"""Dead letters: requests that expired in their queue, or that no worker could bring to an end.

Each is answered as the ledger says; only what nobody can read goes on to the poison queue, its token masked.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.message import Message
from quintain.contracts.poison import EXCHANGE_HEADER, KEPT_HEADER, POISON_HEADERS, POISON_ID_HEADER, REASON_HEADER
from quintain.contracts.token import SessionToken, mask
from quintain.errors import BudgetUnavailable, Cancelled, Expired, Fault, InternalFault, ReplyExpired, Unauthorized
from quintain.routes import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.service import answer_to, at_work, reply, request_id_of
from quintain.telemetry.conventions import processed
from quintain.timings import Timings
from quintain.topology import DEAD, DEAD_QUEUE, POISON
from quintain_metadata import records, sessions
from quintain_metadata.ledger import Ledger
from quintain_metadata.lifecycle import Event, State, transition
from quintain_metadata.records import Moment
from quintain_metadata.replies import kept_reply
from quintain_metadata.routing import headers_of
from quintain_metadata.steps import Steps

log = logging.getLogger(__name__)

#: RabbitMQ's words for why a message is dead.
REASONS = frozenset({"rejected", "expired", "maxlen", "delivery_limit"})

_BURYING = processed(DEAD.name, "", DEAD_QUEUE.name)


class Undertaker:
    """Answers the dead-letter queue."""

    def __init__(self, bus: Bus, ledger: Ledger, timings: Timings) -> None:
        self._bus, self._ledger, self._timings = bus, ledger, timings

    async def __call__(self, delivery: Delivery) -> None:
        """Answer one dead request, or keep it as poison."""
        with at_work(delivery, _BURYING):
            await self._bury(delivery)

    async def _bury(self, delivery: Delivery) -> None:
        reason = reason_of(delivery)
        if not delivery.reply_to or not delivery.correlation_id:
            await self._keep(delivery, f"{reason}: no reply_to or no correlation_id")
            await delivery.ack()
            return
        answer = await answer_to(self._verdict(delivery, reason), "answering a dead letter")
        await reply(self._bus, delivery, answer, {REQUEST_ID_HEADER: request_id_of(delivery)})
        await delivery.ack()

    async def _verdict(self, delivery: Delivery, reason: str) -> Message:
        """The ledger's word, however long it is out of reach: without it nobody knows what was charged."""
        offered = delivery.headers.get(TOKEN_HEADER)
        token = SessionToken.parse(offered if isinstance(offered, str) else "")
        request_id = request_id_of(delivery)

        def steps(moment: Moment) -> Steps[Message]:
            session = yield from sessions.prove(moment.now, token)
            call = yield from records.hold(session.id, request_id)
            if call is None or call.state in {State.RELEASED, State.REFUNDED}:
                taken_back = call is not None and call.cancelled
                return FaultReply.of(Cancelled() if taken_back else uncalled(reason))
            if call.state is State.RESERVED:
                yield from records.move(moment, session, call, transition(call.state, Event.RELEASED), None)
                return FaultReply.of(uncalled(reason))
            if call.state is State.RUNNING and not (yield from records.holder_alive(moment, call)):
                return FaultReply.of((yield from records.lose(moment, call)))
            if call.state is State.RUNNING:
                # A copy died while the call runs: the worker that runs it answers, or the sweep ends it.
                return FaultReply.of(Expired("The deadline passed while the call was running", charged=True))
            return (yield from stored(call))

        while True:
            try:
                return await self._ledger.do(steps)
            except BudgetUnavailable:
                await asyncio.sleep(self._timings.dead_letter_pause_seconds)

    async def _keep(self, delivery: Delivery, reason: str) -> None:
        log.warning("A message nobody can answer is kept in %s: %s", POISON.name, mask(reason))
        envelope = Envelope(body=delivery.body, type=brief(delivery.type), headers=kept_headers(delivery, reason))
        await self._bus.publish(POISON, brief(delivery.routing_key), envelope)


def reason_of(delivery: Delivery) -> str:
    """Why the broker let go of it. A publisher may write that header too: the broker's own words alone count."""
    told = delivery.headers.get("x-first-death-reason")
    return told if isinstance(told, str) and told in REASONS else "unknown"


def uncalled(reason: str) -> Fault:
    """What is told of a request that ended in its queue and was never charged."""
    if reason == "expired":
        return Expired("The deadline passed before a worker was free")
    return InternalFault(f"No worker brought this request to an end ({reason})")


def kept_headers(delivery: Delivery, reason: str) -> dict[str, HeaderValue]:
    """The headers a message is kept with: its own, tokens masked, and why, when, from where, under which id."""
    own = {key: value for key, value in headers_of(delivery).items() if not key.startswith(POISON_HEADERS)}
    headers: dict[str, HeaderValue] = {
        mask(key): mask(value) if isinstance(value, str) else value for key, value in own.items()
    }
    if TOKEN_HEADER in headers:
        headers[TOKEN_HEADER] = public_part(delivery.headers[TOKEN_HEADER])
    return headers | {
        REASON_HEADER: mask(reason),
        POISON_ID_HEADER: secrets.token_hex(8),
        KEPT_HEADER: int(time.time() * 1000),
        EXCHANGE_HEADER: brief(str(delivery.headers.get("x-first-death-exchange", delivery.exchange))),
    }


def brief(text: str) -> str:
    """The text masked, and short enough for a type or a routing key: a target's name has 63 characters at most."""
    return mask(text)[:63]


def public_part(offered: object) -> str:
    """What may be shown of what was offered as a token: of a session's its id, of anything else nothing."""
    try:
        return mask(SessionToken.parse(offered if isinstance(offered, str) else "").text)
    except Unauthorized:
        return "…"


def stored(call: records.Call) -> Steps[Message]:
    """The kept answer of a call that has ended."""
    if call.fault is not None:
        return FaultReply.from_wire(call.fault)
    kept: Result | None = yield from kept_reply(call)
    return FaultReply.of(ReplyExpired()) if kept is None else kept
