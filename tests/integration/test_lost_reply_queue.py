"""A reply queue lost under its client, at a real broker: every call is answered, and no provider is asked twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from quintain.bus.base import Delivery
from quintain.bus.rabbit import RabbitBus
from quintain.contracts.session import CallsReleased, ReleaseCalls
from quintain.routes import RELEASE
from quintain.rpc.requests import RpcClient
from quintain.rpc.server import send_reply
from quintain.topology import METADATA_QUEUE, METADATA_TOPOLOGY
from support.process_fleet import delete_protocol_queues
from support.tcp_proxy import TcpProxy, open_tcp_proxy


@pytest.fixture
async def raw_channel(broker_url: str) -> AsyncIterator[AbstractChannel]:
    """A channel of nobody's."""
    async with await aio_pika.connect(broker_url) as connection:
        yield await connection.channel()


def reply_queue_of(caller: RpcClient) -> str:
    return f"quintain.reply.{caller.reply_key}"


class ProxiedClient:
    """A caller behind a proxy, and a service that answers it; both on one bus, as in a worker."""

    def __init__(self, proxy: TcpProxy, bus: RabbitBus) -> None:
        self.proxy, self.bus = proxy, bus
        self.rpc_client = RpcClient(bus)
        self.requests: asyncio.Queue[Delivery] = asyncio.Queue()

    async def start(self) -> None:
        async def on_delivery(delivery: Delivery) -> None:
            await delivery.ack()
            self.requests.put_nowait(delivery)

        await self.bus.start()
        await self.bus.declare(METADATA_TOPOLOGY)
        await self.bus.consume(METADATA_QUEUE, on_delivery, prefetch=10)
        await self.rpc_client.start()


@pytest.fixture
async def proxied_client(broker_url: str) -> AsyncIterator[ProxiedClient]:
    parts = urlsplit(broker_url)
    async with open_tcp_proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        netloc = f"{parts.username or 'guest'}:{parts.password or 'guest'}@127.0.0.1:{proxy.port}"
        behind = ProxiedClient(proxy, RabbitBus(parts._replace(netloc=netloc).geturl(), "test"))
        await behind.start()
        yield behind
        await behind.rpc_client.close()
        await behind.bus.close()
    delete_protocol_queues(broker_url, [])


@pytest.mark.parametrize(
    "another",
    [{"exclusive": True}, {"durable": True, "arguments": {"x-queue-type": "classic", "x-expires": 60_000}}],
    ids=["of another connection", "with other arguments"],
)
async def test_a_reply_queue_that_cannot_be_attached_to_again_is_left_for_a_fresh_one(
    proxied_client: ProxiedClient, raw_channel: AbstractChannel, another: dict[str, object]
) -> None:
    asking = asyncio.create_task(proxied_client.rpc_client.call_route(RELEASE, ReleaseCalls(request_ids=["r"]), {}))
    async with asyncio.timeout(30):
        first = await proxied_client.requests.get()
        taken = reply_queue_of(proxied_client.rpc_client)
        proxied_client.proxy.refusing = True
        proxied_client.proxy.drop_connections()
        await raw_channel.queue_delete(taken)
        await raw_channel.declare_queue(taken, **another)  # type: ignore[arg-type]
        proxied_client.proxy.refusing = False
        while (again := await proxied_client.requests.get()).reply_to == first.reply_to:
            pass  # its acknowledgement was lost with the connection
        assert again.correlation_id == first.correlation_id
        assert again.reply_to == proxied_client.rpc_client.reply_key
        await send_reply(proxied_client.bus, again, CallsReleased(released=1))
        assert (await asking).released == 1
