"""The metadata service alone on a memory broker, without any worker: asked as a client would ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller, Question
from quintain.contracts.invoke import FaultReply
from quintain.contracts.token import digest
from quintain.routes import TOKEN_HEADER
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import INVOKE, METADATA, Exchange, Queue
from quintain_metadata.service import MetadataService
from support.books import Books, books

ADMIN_TOKEN = "the admin token of a test"


@dataclass
class MetadataAlone:
    """One running service, its books, and a caller of its own."""

    memory: MemoryBroker
    bus: Bus
    books: Books
    caller: Caller
    seen: dict[str, asyncio.Queue[Delivery]] = field(default_factory=dict)

    async def watch(self, queue: Queue, *, settle: str = "ack") -> asyncio.Queue[Delivery]:
        """Take everything from this queue, as a worker would."""
        got = self.seen[queue.name] = asyncio.Queue()

        async def take(delivery: Delivery) -> None:
            await getattr(delivery, settle)()
            got.put_nowait(delivery)

        await self.bus.consume(queue, take, prefetch=100)
        return got

    async def operate(self, operation: str, token: str | None, body: object = None) -> dict[str, object]:
        """Ask an operation of the metadata queue; its answer as plain JSON. Raises the `Fault`."""
        return await self.ask(METADATA, operation, token, body)

    async def invoke(
        self, token: str | None, body: object, key: str = "", headers: Mapping[str, HeaderValue] | None = None
    ) -> dict[str, object]:
        """Publish an invoke request and wait for its answer."""
        return await self.ask(INVOKE, key, token, body, headers)

    async def ask(
        self,
        exchange: Exchange,
        key: str,
        token: str | None,
        body: object,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> dict[str, object]:
        question = Question(
            exchange=exchange,
            key=key,
            type=key or "invoke",
            body=wire(body),
            headers={**({} if token is None else {TOKEN_HEADER: token}), **(headers or {})},
            deadline_seconds=10,
        )
        return plain(await self.caller.ask(question))

    async def publish(self, exchange: Exchange, key: str, body: object, **more: object) -> None:
        """Publish without waiting for anything."""
        envelope = Envelope(body=wire(body), type="invoke", **more)  # type: ignore[arg-type]
        await self.bus.publish(exchange, key, envelope)


def wire(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()


def plain(reply: Delivery) -> dict[str, object]:
    """The body of a result. Raises the `Fault` of a fault."""
    if reply.type == "fault":
        raise FaultReply.from_wire(reply.body).raised()
    assert reply.type == "result"
    body: dict[str, object] = json.loads(reply.body)
    return body


async def heard(queue: asyncio.Queue[Delivery]) -> Delivery:
    """The next delivery, soon."""
    async with asyncio.timeout(5):
        return await queue.get()


@contextlib.asynccontextmanager
async def metadata_alone(timings: Timings = DEFAULT_TIMINGS) -> AsyncIterator[MetadataAlone]:
    """A running metadata service, stopped at the end."""
    memory = MemoryBroker()
    bus, asking = memory.connect(), memory.connect()
    async with books() as kept:
        service = MetadataService(bus, kept.ledger, digest(ADMIN_TOKEN), timings=timings)
        await service.start()
        caller = Caller(asking)
        await caller.start()
        try:
            yield MetadataAlone(memory, asking, kept, caller)
        finally:
            await service.stop()
            await asking.close()
            await bus.close()
            memory.close()
