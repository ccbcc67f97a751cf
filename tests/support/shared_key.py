"""Sessions that share one provider key, over RabbitMQ: how long the calls of each wait."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import pika

from quintain.client.client import connect
from quintain.contracts.session import SessionOpened
from support.process_fleet import ProcessFleet

CONFIG = """
targets:
  small: {{provider: openai, model: small, base_url: "{url}/v1", api_key: "${{{{ KEY }}}}"}}
"""

#: The provider's limit in flight, which nobody names, and how long each call takes.
LIMIT, SERVICE_SECONDS = 32, 1.0


def open_session(fleet: ProcessFleet, max_calls: int, *words: str) -> SessionOpened:
    """Open a session with these options."""
    options = ("session", "open", "--default-target", "small", "--max-calls", str(max_calls), "--json", *words)
    return SessionOpened.from_wire(fleet.quintain(*options))


def publish_plainly(broker_url: str, token: str, count: int) -> None:
    """Publish so many calls at once, as an AMQP client without the SDK may: nobody reads the replies."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel = connection.channel()
    for number in range(count):
        properties = pika.BasicProperties(
            reply_to="nobody.reads.this",
            correlation_id=f"many-{number}",
            type="invoke",
            content_type="application/json",
            delivery_mode=2,
            headers={"x-quintain-session": token, "x-quintain-deadline": int((time.time() + 600) * 1000)},
        )
        body = json.dumps({"question": f"many {number}"}).encode()
        channel.basic_publish("quintain.invoke", "small", body, properties)
    connection.close()


def wait_until_moved(broker_url: str) -> None:
    """Wait until the target's queue is empty: what its sessions published beyond their share is in the backlog."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel, ends = connection.channel(), time.monotonic() + 20
    while channel.queue_declare("quintain.target.small", passive=True).method.message_count:
        assert time.monotonic() < ends, "calls wait in the queue after 20 s"
        time.sleep(0.05)
    connection.close()


async def call_many(broker_url: str, token: str, count: int, *, in_flight: int) -> None:
    """Make so many calls with the SDK, of which so many are in flight."""
    async with connect(broker_url, token) as client:
        slots = asyncio.Semaphore(in_flight)

        async def one(number: int) -> None:
            async with slots:
                await client.invoke(f"many {number}")

        await asyncio.gather(*(one(number) for number in range(count)))


@dataclass(frozen=True)
class Waits:
    """How much longer than the provider took each of a session's calls, which were made at once, in order."""

    seconds: list[float]

    @property
    def p95(self) -> float:
        """What one in twenty of them exceeds."""
        return self.seconds[int(0.95 * (len(self.seconds) - 1))]

    def __str__(self) -> str:
        return f"{len(self.seconds)} calls waited {self.seconds[len(self.seconds) // 2]:.2f} s, p95 {self.p95:.2f} s"


async def measure_waits(broker_url: str, token: str, count: int) -> Waits:
    """Make so many calls at once."""
    async with connect(broker_url, token) as client:
        await client.get_info()

        async def one(number: int) -> float:
            began = time.monotonic()
            await client.invoke(f"few {number}")
            return time.monotonic() - began - SERVICE_SECONDS

        return Waits(sorted(await asyncio.gather(*(one(number) for number in range(count)))))
