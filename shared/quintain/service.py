"""Answering over the bus: every request gets one final answer, and is acknowledged when the answer has gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.contracts.invoke import FaultReply
from quintain.contracts.message import Message
from quintain.errors import Fault, InternalFault, QueueFull, Unroutable
from quintain.topology import REPLY

log = logging.getLogger(__name__)


async def reply(
    bus: Bus, request: Delivery, answer: Message | Fault, headers: Mapping[str, HeaderValue] | None = None
) -> None:
    """Send the final answer to where the request wants it. A client that has gone is no error: its reply queue
    was looked for and is not there."""
    if not request.reply_to:
        log.warning("A %s request named no reply_to; its answer goes nowhere", request.type)
        return
    said = FaultReply.of(answer) if isinstance(answer, Fault) else answer
    envelope = Envelope(
        body=said.to_wire(),
        type="fault" if isinstance(said, FaultReply) else "result",
        correlation_id=request.correlation_id,
        headers=headers or {},
    )
    try:
        await bus.publish(REPLY, request.reply_to, envelope)
    except (Unroutable, QueueFull):
        # Gone, or too full to take it: either way it is the client's own queue, and no reason to answer again.
        log.info("Nobody waits for the answer to a %s request any more", request.type)


def defect(error: Exception, doing: str) -> Fault:
    """What a caller is told of a defect of ours: no detail; the log has them."""
    log.error("A defect while %s", doing, exc_info=error)
    return InternalFault()
