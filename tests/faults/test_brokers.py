"""A broker that restarts, blocks, loses connections and loses queues, under load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pika
import pytest

from faults.invariants import InvariantChecker
from faults.load import BATCH_AND_LOAD, Load, is_long
from faults.scenario import BOT, CONFIG, FaultScenario
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerAdmin, BrokerUnderTest
from support.tcp_proxy import TcpProxy, open_tcp_proxy

#: What raises each of the broker's alarms, and what ends it.
ALARMS = {
    "memory": (("set_vm_memory_high_watermark", "0.0000001"), ("set_vm_memory_high_watermark", "0.4")),
    "disk": (("set_disk_free_limit", "1000000GB"), ("set_disk_free_limit", "50MB")),
}
PRINT_ALARMS = 'io:format("~p", [rabbit_alarm:get_alarms()])'

#: A silent peer is noticed within three of these, and a little.
HEARTBEAT_SECONDS = 2


@pytest.mark.every_broker
@BATCH_AND_LOAD
async def test_the_broker_restarts(
    load: Load | None,
    fleet: ProcessFleet,
    broker_admin: BrokerAdmin,
    questions: list[str],
    invariants: InvariantChecker,
) -> None:
    async def inject_fault(_: ProcessFleet) -> None:
        await asyncio.to_thread(broker_admin.stop_app)
        await asyncio.to_thread(broker_admin.start_app)

    after = await FaultScenario(fleet, questions, load=load).run("broker restarted", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


async def test_two_copies_of_every_call_are_told_nothing_false_while_the_broker_restarts_again_and_again(
    fleet: ProcessFleet, broker_admin: BrokerAdmin, invariants: InvariantChecker
) -> None:
    restarts, calls = (5, 1000) if is_long() else (1, 60)

    async def inject_fault(_: ProcessFleet) -> None:
        for _ in range(restarts):
            await asyncio.to_thread(broker_admin.stop_app)
            await asyncio.to_thread(broker_admin.start_app)
            await asyncio.sleep(2)

    # The broker gives the two copies of a call to two workers in turn.
    questions = [f"q{number}" for number in range(calls)]
    after = await FaultScenario(fleet, questions, duplicates=2).run(
        f"broker restarted {restarts} ×, two copies", inject_fault
    )
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


@pytest.mark.parametrize("alarm", [pytest.param("memory", marks=pytest.mark.long), "disk"])
async def test_the_broker_raises_an_alarm(
    alarm: str, fleet: ProcessFleet, broker_admin: BrokerAdmin, questions: list[str], invariants: InvariantChecker
) -> None:
    raising, ending = ALARMS[alarm]

    async def inject_fault(_: ProcessFleet) -> None:
        await asyncio.to_thread(broker_admin.rabbitmqctl, *raising)
        try:
            await wait_for_alarm(broker_admin, alarm)
            await asyncio.sleep(5)
        finally:
            await asyncio.to_thread(broker_admin.rabbitmqctl, *ending)

    after = await FaultScenario(fleet, questions).run(f"{alarm} alarm", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


async def wait_for_alarm(admin: BrokerAdmin, alarm: str) -> None:
    """Wait until the broker blocks publishers because of this."""
    async with asyncio.timeout(20):
        while alarm not in await asyncio.to_thread(admin.evaluate, PRINT_ALARMS):
            await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def fleet_behind_a_proxy(url: str, options: str = "") -> AsyncIterator[tuple[ProcessFleet, TcpProxy]]:
    """A fleet, and its evaluators, every connection of which goes through a proxy."""
    parts = urlsplit(url)
    async with open_tcp_proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        with process_fleet(url, CONFIG, targets=["bot"]) as fleet:
            (fleet.folder / "bot.py").write_text(BOT)
            netloc = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
            fleet.broker_url = parts._replace(netloc=netloc).geturl() + options
            await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
            yield fleet, proxy


async def test_every_connection_is_cut_again_and_again(
    breakable_broker: BrokerUnderTest, questions: list[str], invariants: InvariantChecker
) -> None:
    async with fleet_behind_a_proxy(breakable_broker.url) as (fleet, proxy):

        async def inject_fault(_: ProcessFleet) -> None:
            for _ in range(3):
                proxy.drop_connections()
                await asyncio.sleep(1)

        after = await FaultScenario(fleet, questions).run("connections cut", inject_fault)
        assert set(after.provider_calls.values()) == {1}
        await invariants.check(fleet, after)


@pytest.mark.long
async def test_every_connection_ends_without_a_fin(
    breakable_broker: BrokerUnderTest, questions: list[str], invariants: InvariantChecker
) -> None:
    async with fleet_behind_a_proxy(breakable_broker.url, f"?heartbeat={HEARTBEAT_SECONDS}") as (fleet, proxy):

        async def inject_fault(_: ProcessFleet) -> None:
            proxy.blackhole()

        after = await FaultScenario(fleet, questions).run("connections lost without FIN", inject_fault)
        await invariants.check(fleet, after)


@pytest.mark.long
async def test_every_connection_stalls_and_goes_on(
    breakable_broker: BrokerUnderTest, questions: list[str], invariants: InvariantChecker
) -> None:
    async with fleet_behind_a_proxy(breakable_broker.url, f"?heartbeat={HEARTBEAT_SECONDS}") as (fleet, proxy):

        async def inject_fault(_: ProcessFleet) -> None:
            proxy.stall()
            await asyncio.sleep(12)
            proxy.resume()

        after = await FaultScenario(fleet, questions).run("network stalled 12 s", inject_fault)
        await invariants.check(fleet, after)


def delete_queues(url: str, *names: str) -> None:
    """Delete them from outside, whoever consumes them and whatever waits in them."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        for name in names:
            connection.channel().queue_delete(name)
    finally:
        connection.close()


async def test_the_targets_queue_is_deleted_while_calls_wait_in_it(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(delete_queues, fleet.broker_url, "quintain.target.bot")

    scenario = FaultScenario(fleet, questions, names_target=True, deadline_seconds=12, may_expire=True)
    after = await scenario.run("target's queue deleted", inject_fault)
    expired = [request_id for request_id, (said,) in after.outcomes.items() if said.is_fault]
    assert expired, "nothing waited in the queue"
    # What was lost in the queue was admitted by nobody, and costs nothing.
    assert [request_id for request_id in expired if request_id in after.ledger_calls] == []
    assert after.info.call_count == len(questions) - len(expired)
    ending = await invariants.check(fleet, after, faults=frozenset({"expired"}))
    assert ending.answers == ending.calls


async def test_the_metadata_services_queues_but_that_of_settles_are_deleted(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    queues = ("quintain.ledger.admit", "quintain.metadata", "quintain.metadata.unrouted", "quintain.metadata.dead")

    async def inject_fault(fleet: ProcessFleet) -> None:
        for _ in range(3):
            await asyncio.to_thread(delete_queues, fleet.broker_url, *queues)
            await asyncio.sleep(0.5)

    # Each call names its target: what waits in the queue of those that name none is lost with it.
    after = await FaultScenario(fleet, questions, names_target=True).run("metadata's queues deleted", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


@pytest.mark.long
async def test_the_settles_queue_is_deleted(
    fleet: ProcessFleet, questions: list[str], invariants: InvariantChecker
) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        for _ in range(10):
            await asyncio.to_thread(delete_queues, fleet.broker_url, "quintain.ledger.settle")
            await asyncio.sleep(0.1)

    # A settle that was in the queue is gone; its call is in doubt a minute after its deadline, and charged as it was.
    after = await FaultScenario(fleet, questions, deadline_seconds=30).run("settles' queue deleted", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    assert after.info.call_count == len(questions)
    # Its caller was answered before; the ledger, asked again, knows only that it is in doubt.
    await invariants.check(fleet, after, second_answers=after.info.in_doubt)


@pytest.mark.long
async def test_the_callers_reply_queue_is_deleted(
    fleet: ProcessFleet, broker_admin: BrokerAdmin, questions: list[str], invariants: InvariantChecker
) -> None:
    async def inject_fault(fleet: ProcessFleet) -> None:
        names = [str(queue["name"]) for queue in await asyncio.to_thread(broker_admin.list_queues)]
        user = urlsplit(fleet.broker_url).username or "guest"
        replies = [name for name in names if name.startswith(f"quintain.reply.{user}.")]
        assert replies
        await asyncio.to_thread(delete_queues, fleet.broker_url, *replies)

    after = await FaultScenario(fleet, questions).run("reply queue deleted", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)
