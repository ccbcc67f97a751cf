"""Dead letters: requests that expired in their queue, or that no worker could bring to an end.

Each is answered as the ledger says; only what nobody can read goes on to the poison queue, its token masked.
"""

from __future__ import annotations

import logging

from quintain.bus.base import Bus, Delivery, Envelope
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.message import Message
from quintain.contracts.token import SessionToken, mask
from quintain.errors import Expired, Fault, ReplyExpired
from quintain.routes import REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.service import defect, reply
from quintain.topology import POISON
from quintain_metadata import calls, sessions
from quintain_metadata.calls import Moment
from quintain_metadata.ledger import Ledger
from quintain_metadata.lifecycle import Event, State, transition
from quintain_metadata.routing import headers_of, request_id_of
from quintain_metadata.steps import Steps

log = logging.getLogger(__name__)


class Undertaker:
    """Answers the dead-letter queue."""

    def __init__(self, bus: Bus, ledger: Ledger) -> None:
        self._bus, self._ledger = bus, ledger

    async def __call__(self, delivery: Delivery) -> None:
        """Answer one dead request, or keep it as poison."""
        reason = str(delivery.headers.get("x-first-death-reason", "unknown"))
        if not delivery.reply_to or not request_id_of(delivery):
            await self._keep(delivery, f"{reason}: no reply_to or no request id")
            await delivery.ack()
            return
        answer: Message | Fault
        try:
            answer = await self._verdict(delivery)
        except Fault as fault:
            answer = fault
        except Exception as error:
            # Whatever went wrong, the caller gets its one answer.
            answer = defect(error, "answering a dead letter")
        await reply(self._bus, delivery, answer, {REQUEST_ID_HEADER: request_id_of(delivery)})
        await delivery.ack()

    async def _verdict(self, delivery: Delivery) -> Message:
        offered = delivery.headers.get(TOKEN_HEADER)
        token = SessionToken.parse(offered if isinstance(offered, str) else "")
        request_id = request_id_of(delivery)

        def steps(moment: Moment) -> Steps[Message]:
            session = yield from sessions.prove(moment.now, token)
            call = yield from calls.load(session.id, request_id)
            if call is None or call.state in {State.RELEASED, State.REFUNDED}:
                return FaultReply.of(Expired("The deadline passed before a worker was free"))
            if call.state is State.RESERVED:
                yield from calls.move(moment, session, call, transition(call.state, Event.RELEASED), None)
                return FaultReply.of(Expired("The deadline passed before a worker was free"))
            if call.state is State.RUNNING:
                # A copy died while the call runs: the worker that runs it answers, or the sweep ends it.
                return FaultReply.of(Expired("The deadline passed while the call was running", charged=True))
            return (yield from stored(call))

        return await self._ledger.do(steps)

    async def _keep(self, delivery: Delivery, reason: str) -> None:
        headers = {**headers_of(delivery), "x-quintain-reason": reason}
        offered = headers.get(TOKEN_HEADER)
        if isinstance(offered, str):
            headers[TOKEN_HEADER] = mask(offered)
        log.warning("A message nobody can answer is kept in %s: %s", POISON.name, reason)
        envelope = Envelope(body=delivery.body, type=delivery.type, headers=headers)
        await self._bus.publish(POISON, delivery.routing_key, envelope)


def stored(call: calls.Call) -> Steps[Message]:
    """The kept answer of a call that has ended."""
    if call.fault is not None:
        return FaultReply.from_wire(call.fault)
    kept: Result | None = yield from calls.kept_reply(call)
    return FaultReply.of(ReplyExpired()) if kept is None else kept
