"""A broker that refuses what it allowed before: told once, tried less and less, and found again when it allows it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

from quintain.bus.base import Consumer, Delivery, Envelope
from quintain.bus.rabbit import RabbitBus
from quintain.topology import Binding, Exchange, Queue, Topology
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.waiting import wait_until

EXCHANGE = Exchange("quintain.test.refusals", "direct")
QUEUES = [Queue(f"quintain.test.refusals.{number}", "classic") for number in range(3)]
TOPOLOGY = Topology((EXCHANGE,), tuple(QUEUES), tuple(Binding(EXCHANGE, queue, queue.name) for queue in QUEUES))

_PERMIT = 'ok = rabbit_auth_backend_internal:set_permissions(<<"USER">>, <<"VHOST">>, RIGHTS, <<"test">>)'
_MAKE = f'ok = rabbit_vhost:add(<<"VHOST">>, <<"test">>), {_PERMIT}'
_DELETE = 'ok = rabbit_vhost:delete(<<"VHOST">>, <<"test">>)'
_CLOSE = '[rabbit_networking:close_connection(Pid, "test") || Pid <- rabbit_networking:connections()]'

_ALL, _NONE = ", ".join(['<<".*">>'] * 3), ", ".join(['<<"^$">>'] * 3)


@dataclass
class Served:
    """A bus with three consumers in a virtual host of its own."""

    admin: BrokerAdmin
    vhost: str
    user: str
    bus: RabbitBus
    consumers: list[Consumer] = field(default_factory=list)
    received: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def evaluate(self, expressions: str, rights: str = _ALL) -> None:
        text = expressions.replace("VHOST", self.vhost).replace("USER", self.user).replace("RIGHTS", rights)
        await asyncio.to_thread(self.admin.evaluate, text)

    async def on_delivery(self, delivery: Delivery) -> None:
        await delivery.ack()
        self.received.put_nowait(delivery.body)

    async def check_all_consumed(self, body: bytes) -> None:
        """Publish to each queue; all come."""
        for queue in QUEUES:
            await self.bus.publish(EXCHANGE, queue.name, Envelope(body=body, type="test"))
        async with asyncio.timeout(60):
            assert [await self.received.get() for _ in QUEUES] == [body] * 3


@pytest.fixture
async def served(breakable_broker: BrokerUnderTest, broker_admin: BrokerAdmin) -> AsyncIterator[Served]:
    vhost, parts = f"refusals-{secrets.token_hex(4)}", urlsplit(breakable_broker.url)
    bus = RabbitBus(parts._replace(path=f"/{vhost}").geturl(), "refused", declare_seconds=None)
    served = Served(broker_admin, vhost, parts.username or "guest", bus)
    await served.evaluate(_MAKE)
    await bus.start()
    await bus.declare(TOPOLOGY)
    for queue in QUEUES:
        served.consumers.append(await bus.consume(queue, served.on_delivery, prefetch=10))
    await served.check_all_consumed(b"before")
    yield served
    await bus.close()
    await served.evaluate(_DELETE)


async def test_a_virtual_host_that_is_deleted_and_made_again_is_found_again(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await served.evaluate(_DELETE)
    await wait_until(lambda: "refused the virtual host" in caplog.text)
    # Before, each consumer took a line every 0.2 s, and the connection was given up.
    await asyncio.sleep(2)
    told = [message for message in caplog.messages if "no connection to the broker" in message]
    # The broker may end the queues before the connections: that is a line of its own.
    assert (len(told), len(caplog.messages) <= 4) == (2, True), caplog.messages
    await served.evaluate(_MAKE)
    # The first consumer that is attached again has declared what the new virtual host lacks.
    await wait_until(lambda: all(consumer.active for consumer in served.consumers))
    await served.check_all_consumed(b"after")
    assert "connected to the broker again" in caplog.text


async def test_a_permission_that_is_withdrawn_and_given_back_takes_a_line_each(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    await served.evaluate(f"{_PERMIT}, {_CLOSE}", _NONE)
    await wait_until(lambda: "not consumed: declaring: this user may not do that" in caplog.text)
    # Before, each of the three consumers took a line at each of its attempts.
    await asyncio.sleep(2)
    told = [message for message in caplog.messages if "not consumed" in message]
    assert len(told) <= 2, caplog.messages
    await served.evaluate(_PERMIT)
    await served.check_all_consumed(b"after")
    assert "consumed again" in caplog.text


async def test_a_refused_exchange_does_not_refuse_what_goes_to_another_one(
    served: Served, broker_admin: BrokerAdmin
) -> None:
    other = Exchange("quintain.other", "direct")
    await served.bus.declare(Topology((other,), (), ()))
    await served.evaluate(_PERMIT, '<<".*">>, <<"^quintain.test">>, <<".*">>')
    # The broker closes the channel of the refused one, while the others wait for their confirms on it.
    sent = [served.bus.publish(EXCHANGE, QUEUES[0].name, Envelope(body=b"x", type="test")) for _ in range(20)]
    refused = served.bus.publish(other, "x", Envelope(body=b"x", type="test"))
    results = await asyncio.gather(*sent[:10], refused, *sent[10:], return_exceptions=True)
    assert [type(one).__name__ for one in results if one is not None] == ["BrokerRefused"]
