"""A caller whose every reply is heard, also those that nobody waits for any more."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from quintain.bus.base import Bus, Consumer, Delivery, Handler
from quintain.bus.connect import connect_bus
from quintain.client.amqp_transport import AmqpTransport
from quintain.client.client import Client
from quintain.client.sessions import DefaultTargets, Sessions
from quintain.contracts.group import REPLY_GROUP_TYPE
from quintain.contracts.headers import REQUEST_ID_HEADER
from quintain.contracts.invoke import FaultReply, Result
from quintain.contracts.session import Info
from quintain.rpc.groups import split_replies
from quintain.rpc.requests import RpcClient
from quintain.timings import Clock
from quintain.topology import Queue


@dataclass
class RecordingBus:
    """Another bus; what its consumers are handed is noted: the replies' words, by request id."""

    bus: Bus
    reply_texts: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bus, name)

    async def consume(self, queue: Queue, handler: Handler, **options: Any) -> Consumer:
        async def record(delivery: Delivery) -> None:
            for reply in split_replies(delivery) if delivery.type == REPLY_GROUP_TYPE else [delivery]:
                request_id = reply.headers.get(REQUEST_ID_HEADER)
                if isinstance(request_id, str) and (text := final_text_or_code(reply)) is not None:
                    self.reply_texts[request_id].append(text)
            await handler(delivery)

        return await self.bus.consume(queue, record, **options)


def final_text_or_code(reply: Delivery) -> str | None:
    """What a reply says of its call: a result's text, a fault's code. None where it says that nothing is known."""
    if reply.type == "fault":
        fault = FaultReply.from_wire(reply.body)
        return None if fault.charge_unknown else fault.code
    return Result.from_wire(reply.body).raw_text


@dataclass(frozen=True)
class RecordingClient:
    """A session's client as `quintain.connect` makes one, with all it stands on in reach."""

    client: Client
    rpc_client: RpcClient
    reply_texts: dict[str, list[str]]


class NoDefaultTargets(DefaultTargets):
    """Knows none, as a plain client: its calls without a target go through the metadata service."""

    async def resolve(self, session_id: str, read_info: Callable[[], Awaitable[Info]]) -> str | None:
        return None


@contextlib.asynccontextmanager
async def recording_client(url: str, token: str, *, knows_defaults: bool = True) -> AsyncIterator[RecordingClient]:
    """A client on a connection of its own, closed at the end."""
    bus = RecordingBus(await connect_bus(url))
    rpc_client, clock = RpcClient(bus), Clock()
    sessions = Sessions(rpc_client, clock)
    if not knows_defaults:
        sessions.default_targets = NoDefaultTargets()
    client = Client(AmqpTransport(rpc_client, token, sessions))
    try:
        await rpc_client.start()
        clock.synchronize((await client.get_info()).now)
        yield RecordingClient(client, rpc_client, bus.reply_texts)
    finally:
        await client.close()
        await rpc_client.close()
        await bus.close()
