"""A caller whose every reply is heard, also those that nobody waits for any more."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.bus.connect import connect_bus
from quintain.caller import Caller
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.clock import Clock
from quintain.contracts.invoke import FaultReply, Result
from quintain.routes import REQUEST_ID_HEADER
from quintain.topology import Queue


@dataclass
class HearingBus:
    """Another bus; what its consumers are handed is noted: the replies' words, by request id."""

    bus: Bus
    heard: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bus, name)

    async def consume(self, queue: Queue, handler: Handler, **how: Any) -> Consumer:
        async def hear(delivery: Delivery) -> None:
            request_id = delivery.headers.get(REQUEST_ID_HEADER)
            if isinstance(request_id, str):
                self.heard[request_id].append(words_of(delivery))
            await handler(delivery)

        return await self.bus.consume(queue, hear, **how)


def words_of(reply: Delivery) -> str:
    """What a reply says: a result's text, a fault's code."""
    if reply.type == "fault":
        return FaultReply.from_wire(reply.body).code
    return Result.from_wire(reply.body).raw_text


@dataclass(frozen=True)
class Evaluator:
    """A session's client as `quintain.connect` makes one, with all it stands on in reach."""

    client: Client
    caller: Caller
    heard: dict[str, list[str]]


@contextlib.asynccontextmanager
async def evaluator(url: str, token: str) -> AsyncIterator[Evaluator]:
    """A client on a connection of its own, closed at the end."""
    bus = HearingBus(await connect_bus(url))
    caller, clock = Caller(bus), Clock()
    client = Client(AmqpTransport(caller, token, clock))
    try:
        await caller.start()
        clock.learn((await client.get_info()).now)
        yield Evaluator(client, caller, bus.heard)
    finally:
        await client.close()
        await caller.close()
        await bus.close()
