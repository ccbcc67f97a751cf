"""Queries all running services for their service cards: one broadcast request, collecting replies for a given time."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from quintain.bus.base import Bus, Delivery
from quintain.contracts.discovery import Discover, ServiceCard
from quintain.errors import Fault, Unroutable
from quintain.routes import DISCOVER
from quintain.rpc.client import RpcClient, parse_reply
from quintain.rpc.request import RpcRequest
from quintain.topology import Topology

log = logging.getLogger(__name__)

#: A busy service may answer late, so the request is repeated once before a service counts as missing.
MAX_REQUESTS = 2


async def discover_services(
    bus: Bus, rpc_client: RpcClient, *, wait_seconds: float, is_complete: Callable[[Sequence[ServiceCard]], bool]
) -> list[ServiceCard]:
    """Return the cards of all services that answer within ``wait_seconds``, sorted by service and id.

    If ``is_complete`` returns False for them, the request is repeated once. Raises what `Bus.declare` and `Bus.publish`
    raise, except `Unroutable`.
    """
    cards: dict[str, ServiceCard] = {}

    def on_reply(reply: Delivery) -> None:
        try:
            card = parse_reply(reply, DISCOVER.reply_type)
        except Fault as fault:
            log.warning("A service's card cannot be read: %s", fault.message)
        else:
            cards[card.instance] = card

    await bus.declare(Topology((DISCOVER.exchange,)))
    correlation_id = secrets.token_hex(16)
    unsubscribe = rpc_client.subscribe(correlation_id, on_reply)
    request = RpcRequest(
        exchange=DISCOVER.exchange,
        key=DISCOVER.key,
        type=DISCOVER.key,
        body=Discover().to_wire(),
        headers={},
        deadline_seconds=wait_seconds,
    )
    try:
        for _ in range(MAX_REQUESTS):
            try:
                await rpc_client.publish(request, correlation_id)
            except Unroutable:
                log.debug("No service is bound to %s", DISCOVER.exchange.name)
            await asyncio.sleep(wait_seconds)
            if is_complete(list(cards.values())):
                break
    finally:
        unsubscribe()
    return sorted(cards.values(), key=lambda card: (card.service, card.id, card.instance))
