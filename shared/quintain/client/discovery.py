"""Asking who is there: one question to everybody, and as many answers as come while somebody listens."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from quintain.bus.base import Bus, Delivery
from quintain.caller import Caller, Question, understood
from quintain.contracts.discovery import Discover, ServiceCard
from quintain.errors import Fault, Unroutable
from quintain.routes import DISCOVER
from quintain.topology import Topology

log = logging.getLogger(__name__)

#: A busy service may answer late, so before anybody is missed everybody is asked once more.
ROUNDS = 2


async def discovered(
    bus: Bus, caller: Caller, *, wait_seconds: float, enough: Callable[[Sequence[ServiceCard]], bool]
) -> list[ServiceCard]:
    """The cards of all services that answer within the wait, and, where these are not enough, within another one.

    Sorted by service and id. Raises what `Bus.declare` and `Bus.publish` raise, but for nobody to hear it.
    """
    cards: dict[str, ServiceCard] = {}

    def heard(reply: Delivery) -> None:
        try:
            card = understood(reply, DISCOVER.answers)
        except Fault as unreadable:
            log.warning("A service's card cannot be read: %s", unreadable.message)
        else:
            cards[card.instance] = card

    await bus.declare(Topology((DISCOVER.exchange,)))
    correlation_id = secrets.token_hex(16)
    forget = caller.subscribe(correlation_id, heard)
    question = Question(
        exchange=DISCOVER.exchange,
        key=DISCOVER.key,
        type=DISCOVER.key,
        body=Discover().to_wire(),
        headers={},
        deadline_seconds=wait_seconds,
    )
    try:
        for _ in range(ROUNDS):
            try:
                await caller.send(question, correlation_id)
            except Unroutable:
                log.debug("No service is bound to %s", DISCOVER.exchange.name)
            await asyncio.sleep(wait_seconds)
            if enough(list(cards.values())):
                break
    finally:
        forget()
    return sorted(cards.values(), key=lambda card: (card.service, card.id, card.instance))
