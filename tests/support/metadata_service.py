"""The metadata service alone on a memory broker, without any worker: asked as a client would ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from quintain.bus.base import Bus, Delivery, Envelope, HeaderValue
from quintain.bus.memory import MemoryBroker
from quintain.contracts.credentials import digest
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.rpc.requests import RpcClient, RpcRequest
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import INVOKE, METADATA, Exchange, Queue
from quintain_metadata.service import MetadataService
from quintain_metadata.store.base import Ledger
from support.ledger_driver import Driver, memory_ledger_driver

ADMIN_TOKEN = "the admin token of a test"


@dataclass
class Metadata:
    """One running service, its books, and a caller of its own."""

    memory: MemoryBroker
    bus: Bus
    driver: Driver
    rpc_client: RpcClient
    service: MetadataService
    service_bus: Bus
    queues: dict[str, asyncio.Queue[Delivery]] = field(default_factory=dict)

    async def consume_queue(self, queue: Queue, *, settle: str = "ack") -> asyncio.Queue[Delivery]:
        """Take everything from this queue, as a worker would."""
        deliveries = self.queues[queue.name] = asyncio.Queue()

        async def on_delivery(delivery: Delivery) -> None:
            await getattr(delivery, settle)()
            deliveries.put_nowait(delivery)

        await self.bus.consume(queue, on_delivery, prefetch=100)
        return deliveries

    async def call_operation(self, operation: str, token: str | None, body: object = None) -> dict[str, object]:
        """Ask an operation of the metadata queue; its answer as plain JSON. Raises the `Fault`."""
        return await self.call(METADATA, operation, token, body)

    async def invoke(
        self, token: str | None, body: object, key: str = "", headers: Mapping[str, HeaderValue] | None = None
    ) -> dict[str, object]:
        """Publish an invoke request and wait for its answer."""
        return await self.call(INVOKE, key, token, body, headers)

    async def call(
        self,
        exchange: Exchange,
        key: str,
        token: str | None,
        body: object,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> dict[str, object]:
        request = RpcRequest(
            exchange=exchange,
            key=key,
            type=key or "invoke",
            body=encode_body(body),
            headers={**({} if token is None else {TOKEN_HEADER: token}), **(headers or {})},
            deadline_seconds=10,
        )
        return result_body(await self.rpc_client.call(request))

    async def publish(self, exchange: Exchange, key: str, body: object, **properties: object) -> None:
        """Publish without waiting for anything."""
        envelope = Envelope(body=encode_body(body), type="invoke", **properties)  # type: ignore[arg-type]
        await self.bus.publish(exchange, key, envelope)


def encode_body(body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if body is None else json.dumps(body).encode()


def result_body(reply: Delivery) -> dict[str, object]:
    """The body of a result. Raises the `Fault` of a fault."""
    if reply.type == "fault":
        raise FaultReply.from_wire(reply.body).to_fault()
    assert reply.type == "result"
    body: dict[str, object] = json.loads(reply.body)
    return body


async def next_delivery(queue: asyncio.Queue[Delivery]) -> Delivery:
    """The next delivery, soon."""
    async with asyncio.timeout(5):
        return await queue.get()


@contextlib.asynccontextmanager
async def run_metadata_service(
    timings: Timings = DEFAULT_TIMINGS,
    *,
    start_window_seconds: float | None = 0,
    ledger: Ledger | None = None,
) -> AsyncIterator[Metadata]:
    """A running metadata service, stopped at the end; by default one that has run for a while, on a ledger of its own.

    A ledger that is given stays open.
    """
    memory = MemoryBroker()
    bus, client_bus = memory.connect(), memory.connect()
    drivers = memory_ledger_driver() if ledger is None else contextlib.nullcontext(Driver(ledger))
    async with drivers as driver:
        service = MetadataService(
            bus,
            driver.ledger,
            digest(ADMIN_TOKEN),
            timings=timings,
            start_window_seconds=start_window_seconds,
        )
        await service.start()
        rpc_client = RpcClient(client_bus)
        await rpc_client.start()
        try:
            yield Metadata(memory, client_bus, driver, rpc_client, service, bus)
        finally:
            await service.stop()
            await client_bus.close()
            await bus.close()
            memory.close()
