"""A program on a bus whose broker goes away and comes back while messages are under way.

Its arguments are the broker's URL and ``unset`` or ``debug``: no logging is configured at all, or everything is
written to stderr. Every body holds `CANARY`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from urllib.parse import urlsplit

from quintain.bus.base import Delivery, Envelope
from quintain.bus.rabbit import RabbitBus
from quintain.errors import BusError
from quintain.topology import Binding, Exchange, Queue, Topology
from support.tcp_proxy import open_tcp_proxy
from support.waiting import wait_until

CANARY = "qtn_canary_in_a_body"
EXCHANGE = Exchange("quintain.test.outage", "direct")
QUEUE = Queue("quintain.test.outage", "classic", expires_ms=60_000)
ENVELOPE = Envelope(body=CANARY.encode(), type="test", headers={"x-quintain-session": CANARY})


async def run(broker_url: str) -> None:
    """Lose the broker twice, once for long enough that several attempts to connect fail."""
    parts = urlsplit(broker_url)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_delivery(delivery: Delivery) -> None:
        await delivery.ack()
        received.put_nowait(delivery.body)

    async with open_tcp_proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        netloc = f"{parts.username or 'guest'}:{parts.password or 'guest'}@127.0.0.1:{proxy.port}"
        bus = RabbitBus(parts._replace(netloc=netloc).geturl(), "outage test")
        await bus.start()
        await bus.declare(Topology((EXCHANGE,), (QUEUE,), (Binding(EXCHANGE, QUEUE, "here"),)))
        await bus.consume(QUEUE, on_delivery, prefetch=10)
        for publish_now in (False, True):
            await bus.publish(EXCHANGE, "here", ENVELOPE)
            await received.get()
            for key in ("here", "nowhere"):
                given_up = asyncio.ensure_future(bus.publish(EXCHANGE, key, ENVELOPE))
                await asyncio.sleep(0)
                given_up.cancel()
                with contextlib.suppress(asyncio.CancelledError, BusError):
                    await given_up
            proxy.refusing = True
            proxy.drop_connections()
            if publish_now:
                publishing = asyncio.ensure_future(bus.publish(EXCHANGE, "here", ENVELOPE))
            await asyncio.sleep(1.5)
            proxy.refusing = False
            if publish_now:
                await publishing
            await wait_until(lambda: bus.connected)
        await bus.publish(EXCHANGE, "here", ENVELOPE)
        await received.get()
        await bus.delete(QUEUE)
        await bus.close()


if __name__ == "__main__":
    if sys.argv[2] == "debug":
        logging.basicConfig(level=logging.DEBUG)
    asyncio.run(run(sys.argv[1]))
