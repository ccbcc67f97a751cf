"""Floods by a user of the broker who has no session: no service needs 512 MiB, the broker's disk holds no more than its
limits, and the calls of an evaluator go on beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pika
import pytest

import quintain
from faults.flood import KINDS, MESSAGE_BYTES, MIB
from faults.load import is_long
from quintain.bus.connect import open_bus
from quintain.errors import BrokerRefused, BusError
from quintain.settings import environment
from quintain.topology import target_topology
from support.broker_users import DEFINITIONS, USERS, BrokerUsers, apply_limits, apply_policies, broker_users, declarable
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerAdmin
from support.servers.rabbitmq_node import private_cluster

Returned = TypeVar("Returned")
Record = Callable[[str, str], None]

#: The worker serves one of them; nobody reads the queue of the other.
CONFIG, UNREAD = "targets:\n  served: {provider: mock}\n", "unread"


#: What a service and the broker's disk may have at most. The issue's flood of 70 messages took two replicas down.
SERVICE_BYTES, DISK_BYTES = 512 * MIB, 2048 * MIB

#: How many large operations are sent, how long an evaluator calls before that, and the shares of the limits in bytes,
#: and of those of messages, queues and connections.
OPERATIONS, QUIET_SECONDS, BYTE_SHARE, COUNT_SHARE = (70, 20.0, 1.0, 1.0) if is_long() else (32, 2.0, 1 / 16, 1 / 8)

POLICIES = {policy["name"]: policy["definition"] for policy in DEFINITIONS["policies"]}
TARGET_LIMIT_BYTES = BYTE_SHARE * POLICIES["quintain-target"]["max-length-bytes"]

RABBITMQ_CONF = Path(__file__).parents[2] / "deploy" / "rabbitmq" / "rabbitmq.conf"

#: Everybody but the metadata service, which all others rely on; in the short form a stranger and one service.
FLOODING_USERS = [
    user if user in {"evaluator", "worker"} else pytest.param(user, marks=pytest.mark.long)
    for user in USERS
    if user != "metadata"
]


@dataclass(frozen=True)
class Flooded:
    """A metadata service and a worker at a broker of their own, which has the users and limits of a deployment."""

    fleet: ProcessFleet
    admin: BrokerAdmin
    users: BrokerUsers

    def peak_bytes(self) -> dict[str, int]:
        """The largest resident size of each process so far, by its log's name."""
        return {process.log.stem: process.peak_bytes for process in self.fleet.processes}

    def disk_bytes(self) -> int:
        """What the broker has on the disk."""
        folder = Path(self.admin.evaluate('io:format("~s", [rabbit_mnesia:dir()])'))
        total = 0
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def delete(self, names: Iterable[str]) -> None:
        """Delete the exchanges and queues of these names, where they are."""
        with pika.BlockingConnection(pika.URLParameters(self.fleet.broker_url)) as connection:
            channel = connection.channel()
            for name in names:
                channel.exchange_delete(name)
                channel.queue_delete(name)


@pytest.fixture(scope="module")
def flooded(rabbitmq_server: Path) -> Iterator[Flooded]:
    with private_cluster(rabbitmq_server, environment(), size=1) as cluster:
        users = broker_users(cluster.admin, cluster.url, vhost="/")
        apply_policies(cluster.admin, byte_share=BYTE_SHARE, count_share=COUNT_SHARE)
        apply_limits(cluster.admin, share=COUNT_SHARE)
        (frame_max,) = re.findall(r"^frame_max = (\d+)$", RABBITMQ_CONF.read_text(), re.MULTILINE)
        cluster.admin.evaluate(f"ok = application:set_env(rabbit, frame_max, {frame_max})")
        with process_fleet(cluster.url, CONFIG, targets=["served", UNREAD]) as fleet:
            fleet.start_services("metadata", "worker")
            yield Flooded(fleet, cluster.admin, users)


async def call_while(
    work: Coroutine[object, object, Returned], client: quintain.Client
) -> tuple[Returned, list[float]]:
    """Call one target again and again until the work has ended; returns how long each call took, in seconds."""
    working, took = asyncio.ensure_future(work), list[float]()
    while not working.done() or not took:
        began = time.perf_counter()
        await client.invoke("hello", target="served")
        took.append(time.perf_counter() - began)
    return await working, took


async def calls_beside(flooded: Flooded, flood: Coroutine[object, object, Returned]) -> tuple[Returned, str]:
    """Flood while an evaluator calls, and services live on; returns a line about its calls before and during it too."""
    opened = await asyncio.to_thread(flooded.fleet.open_session, "served", 1_000_000)
    async with quintain.connect(flooded.fleet.broker_url, opened.token) as client:
        _, before = await call_while(asyncio.sleep(QUIET_SECONDS), client)
        returned, during = await call_while(flood, client)
    assert all(process.alive for process in flooded.fleet.processes)
    medians = [1000 * statistics.median(took) for took in (before, during)]
    return returned, (
        f"{len(before)} calls before, {len(during)} during it; median {medians[0]:.1f} and {medians[1]:.1f} ms "
        f"({medians[1] / medians[0]:.2f} times), longest {1000 * max(before):.0f} and {1000 * max(during):.0f} ms"
    )


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Adds a flood, and the calls beside it, to the summary of the tests."""
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    return lambda flood, calls: summary.add("floods", f"{flood}: {calls}")


async def publish(url: str, count: int, *places: str) -> int:
    """Publish so many large messages without a token to these exchanges and routing keys in turn; returns how many the
    broker took."""
    return int(await flood_by("messages", url, str(count), *places))


async def flood_by(*arguments: str) -> str:
    """Run the program that floods to its end; returns what it prints."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "faults.flood", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    printed, _ = await program.communicate()
    assert program.returncode == 0
    return printed.decode()


async def wait_until_read(admin: BrokerAdmin) -> None:
    """Wait until the services have taken what was sent to them."""
    async with asyncio.timeout(120):
        while any(
            queue["messages"]
            for queue in await asyncio.to_thread(admin.list_queues)
            if "metadata" in str(queue["name"])
        ):
            await asyncio.sleep(0.2)


async def test_large_operations_without_a_token_stop_no_service_and_no_caller(flooded: Flooded, record: Record) -> None:
    async def flood() -> None:
        assert await publish(flooded.fleet.broker_url, OPERATIONS, "quintain.metadata/info", "quintain.invoke/") > 0
        await wait_until_read(flooded.admin)

    _, calls = await calls_beside(flooded, flood())
    peaks = flooded.peak_bytes()
    assert max(peaks.values()) < SERVICE_BYTES, peaks
    record(f"{OPERATIONS} operations of 15 MiB, services at most {max(peaks.values()) / MIB:.0f} MiB", calls)


async def test_a_queue_that_nobody_reads_takes_no_more_than_its_limit(flooded: Flooded, record: Record) -> None:
    url = flooded.fleet.broker_url
    async with open_bus(url, "metadata") as bus:
        await bus.declare(target_topology(UNREAD))
    sent = 2 * int(TARGET_LIMIT_BYTES / MESSAGE_BYTES)
    taken, calls = await calls_beside(flooded, publish(url, sent, f"quintain.invoke/{UNREAD}"))
    # The broker looks at the limit when it has taken a message.
    assert 0 < taken * MESSAGE_BYTES <= TARGET_LIMIT_BYTES + 2 * MESSAGE_BYTES
    disk = await asyncio.to_thread(flooded.disk_bytes)
    assert disk < DISK_BYTES
    record(f"{sent} messages of 15 MiB, {taken} taken, {disk / MIB:.0f} MiB on the disk", calls)


@pytest.mark.parametrize("user", FLOODING_USERS)
async def test_what_a_user_declares_for_itself_takes_no_more_than_its_limit(
    flooded: Flooded, record: Record, user: str
) -> None:
    own = POLICIES["quintain-own"]
    largest, longest = int(BYTE_SHARE * own["max-length-bytes"] / MIB), int(COUNT_SHARE * own["max-length"])
    names = [name for name in declarable(user, "flood") if name.endswith(".flood")]
    # Messages of headers alone take long to send: one user is enough.
    headers = longest + 500 if user == "evaluator" else 0
    before_bytes = await asyncio.to_thread(flooded.disk_bytes)
    flood = flood_by("declares", flooded.users.url(user), str(3 * largest), str(headers), *names)
    try:
        printed, calls = await calls_beside(flooded, flood)
        taken: dict[str, tuple[int, int]] = json.loads(printed)
        assert taken
        for queue, (bodies, filled) in taken.items():
            # A stream takes every message, and throws the oldest away.
            if not queue.endswith("stream"):
                assert bodies <= largest + 2, queue
                assert bodies + filled <= longest + 2, queue
        disk = await asyncio.to_thread(flooded.disk_bytes) - before_bytes
        # A quorum queue writes each message to a log of all queues, and from there to its own.
        assert disk <= len(taken) * (3 * largest * MIB + headers * 16 * 1024) + 64 * MIB, taken
    finally:
        await asyncio.to_thread(flooded.delete, [f"{name}.{kind}" for name in names for kind in KINDS])
    messages = sum(map(sum, taken.values()))
    record(f"{user}: {len(taken)} queues, {messages} messages taken, {disk / MIB:.0f} MiB more", calls)


async def test_queues_without_end_are_refused_and_the_calls_go_on(flooded: Flooded) -> None:
    fleet = flooded.fleet
    most = int(COUNT_SHARE * DEFINITIONS["parameters"][0]["value"]["max-queues"])
    names = [f"quintain.reply.evaluator.flood.{number}" for number in range(most + 1)]
    opened = await asyncio.to_thread(fleet.open_session, "served", 1_000_000)

    def declare() -> None:
        with pika.BlockingConnection(pika.URLParameters(flooded.users.url("evaluator"))) as connection:
            channel = connection.channel()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="limit"):
                for name in names:
                    channel.queue_declare(name, durable=True)

    try:
        async with quintain.connect(fleet.broker_url, opened.token) as client:
            await call_while(asyncio.to_thread(declare), client)
            assert len(await asyncio.to_thread(flooded.admin.list_queues)) == most
            with pytest.raises(BrokerRefused) as refused:
                async with quintain.connect(flooded.users.url("evaluator"), opened.token):
                    pass
            assert "max-queues" in refused.value.message
    finally:
        await asyncio.to_thread(flooded.delete, names)
    assert all(process.alive for process in fleet.processes)


async def test_connections_without_end_are_refused_to_their_user_alone(flooded: Flooded) -> None:
    most = int(COUNT_SHARE * DEFINITIONS["users"][0]["limits"]["max-connections"])
    opened = await asyncio.to_thread(flooded.fleet.open_session, "served", 1_000_000)
    url = flooded.users.url("evaluator")

    def connect(connections: contextlib.ExitStack) -> None:
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            for _ in range(most + 1):
                connections.enter_context(pika.BlockingConnection(pika.URLParameters(url)))

    with contextlib.ExitStack() as connections:
        await asyncio.to_thread(connect, connections)
        with pytest.raises(BusError) as refused:
            async with quintain.connect(url, opened.token):
                pass
        assert "limit" in refused.value.message
        async with quintain.connect(flooded.fleet.broker_url, opened.token) as client:
            await client.invoke("hello", target="served")
