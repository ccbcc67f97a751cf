"""Sessions that share one provider key, over RabbitMQ: how long the calls of each wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pika

from quintain.client.client import connect
from quintain.contracts.session import SessionOpened
from support.process_fleet import Process, ProcessFleet

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


def publish_plainly(broker_url: str, token: str, count: int, *, seconds: float = 600, word: str = "many") -> None:
    """Publish so many calls at once, as an AMQP client without the SDK may: nobody reads the replies.

    Their questions begin with ``word``.
    """
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel = connection.channel()
    for number in range(count):
        properties = pika.BasicProperties(
            reply_to="nobody.reads.this",
            correlation_id=f"{word}-{number}",
            type="invoke",
            content_type="application/json",
            delivery_mode=2,
            headers={"x-quintain-session": token, "x-quintain-deadline": int((time.time() + seconds) * 1000)},
        )
        body = json.dumps({"question": f"{word} {number}"}).encode()
        channel.basic_publish("quintain.invoke", "small", body, properties)
    connection.close()


def wait_until_moved(broker_url: str, *, seconds: float = 20) -> None:
    """Wait until the target's queue is empty: what its sessions published beyond their share is in the backlog."""
    connection = pika.BlockingConnection(pika.URLParameters(broker_url))
    channel, ends = connection.channel(), time.monotonic() + seconds
    while channel.queue_declare("quintain.target.small", passive=True).method.message_count:
        assert time.monotonic() < ends, f"calls wait in the queue after {seconds} s"
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


async def measure_waits(broker_url: str, token: str, count: int, service_seconds: float = SERVICE_SECONDS) -> Waits:
    """Make so many calls at once."""
    async with connect(broker_url, token) as client:
        await client.get_info()

        async def one(number: int) -> float:
            began = time.monotonic()
            await client.invoke(f"few {number}")
            return time.monotonic() - began - service_seconds

        return Waits(sorted(await asyncio.gather(*(one(number) for number in range(count)))))


EVALUATION = """
dataset: {name}.jsonl
targets: [small]
graders: [{{name: same, builtin: regex, pattern: Paris}}]
"""


def start_run(fleet: ProcessFleet, name: str, cases: int, weight: int) -> Process:
    """Start a run of so many cases, whose questions begin with its name."""
    rows = (json.dumps({"id": str(number), "question": f"{name} asks {number}"}) for number in range(cases))
    (fleet.folder / f"{name}.jsonl").write_text("\n".join(rows))
    (fleet.folder / f"{name}.yaml").write_text(EVALUATION.format(name=name))
    return fleet.start("run", f"{name}.yaml", "--weight", str(weight))


@dataclass(frozen=True)
class Shares:
    """How runs shared a key: the time they took by that of the limit, and how far the worst is off its weight's share
    while all of them run.
    """

    answered: int
    part_of_the_time: float
    worst: float

    @classmethod
    def of(cls, answers: Sequence[tuple[float, str]], weights: Mapping[str, int], *, per_minute: float) -> Self:
        """Measure them by the times of the answers to each."""
        times = {name: [at for at, word in answers if word == name] for name in weights}
        begin, end = max(min(each) for each in times.values()), min(max(each) for each in times.values())
        counts = {name: sum(begin <= at <= end for at in each) for name, each in times.items()}
        parts = [
            counts[name] / sum(counts.values()) / (weight / sum(weights.values())) for name, weight in weights.items()
        ]
        seconds = max(at for at, _ in answers) - min(at for at, _ in answers)
        allowed = len(answers) / per_minute * 60
        return cls(len(answers), seconds / allowed, max(abs(part - 1) for part in parts))

    def __str__(self) -> str:
        return f"{self.answered} answers in {self.part_of_the_time:.2f} of the time, a share is off by {self.worst:.2f}"
