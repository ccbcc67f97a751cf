"""Nodes of a broker's URL that do not answer are passed over, and connections that are lost early are opened again."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.connect import connect_bus
from quintain.errors import BrokerUnavailable
from quintain.topology import METADATA_TOPOLOGY, Binding, Exchange, Queue, Topology
from support.tcp_proxy import open_tcp_proxy

NOBODY = "amqp://me:secret@127.0.0.1:9/"


async def test_nodes_that_are_away_are_passed_over(broker_url: str) -> None:
    async with asyncio.timeout(30):
        for _ in range(4):  # each begins anywhere
            bus = await connect_bus(f"{NOBODY},{broker_url},{NOBODY}")
            await bus.declare(METADATA_TOPOLOGY)
            await bus.close()


async def test_where_no_node_answers_all_are_named_and_no_password() -> None:
    with pytest.raises(BrokerUnavailable) as unavailable:
        await connect_bus(f"{NOBODY},{NOBODY}", timeout_seconds=1)
    assert "No broker at amqp://me@127.0.0.1:9/, amqp://me@127.0.0.1:9/ within 1.0 s" in unavailable.value.message
    assert "secret" not in unavailable.value.message


@pytest.mark.parametrize("lost_at", ["t.start", "t.start.queue", "t.start.key"], ids=["exchange", "queue", "binding"])
async def test_a_connection_that_is_lost_while_a_service_declares_is_waited_for(broker_url: str, lost_at: str) -> None:
    address = urlsplit(broker_url)
    exchange, queue = Exchange("t.start", "direct"), Queue("t.start.queue", "classic", exclusive=True)
    async with asyncio.timeout(60), open_tcp_proxy(address.hostname or "", address.port or 5672) as proxy:
        bus = await connect_bus(address._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}").geturl())
        proxy.drops_at = lost_at.encode()
        await bus.declare(Topology((exchange,), (queue,), (Binding(exchange, queue, "t.start.key"),)))
        assert proxy.drops_at is None
        got = asyncio.Event()

        async def note(delivery: Delivery) -> None:
            await delivery.ack()
            got.set()

        await bus.consume(queue, note, prefetch=1)
        await bus.publish(exchange, "t.start.key", Envelope(body=b"", type="test"))
        await got.wait()
        await bus.close()


async def test_only_a_client_gives_a_declaration_up(broker_url: str) -> None:
    address = urlsplit(broker_url)
    async with asyncio.timeout(60), open_tcp_proxy(address.hostname or "", address.port or 5672) as proxy:
        url = address._replace(netloc=f"guest:guest@127.0.0.1:{proxy.port}").geturl()
        client = await connect_bus(url, declare_seconds=0.5)
        service = await connect_bus(url, declare_seconds=None)
        proxy.refusing = True
        proxy.drop_connections()
        waiting = asyncio.create_task(service.declare(METADATA_TOPOLOGY))
        with pytest.raises(BrokerUnavailable):
            await client.declare(METADATA_TOPOLOGY)
        assert not waiting.done()
        proxy.refusing = False
        await waiting
        await client.close()
        await service.close()
