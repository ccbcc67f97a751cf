"""RabbitMQ nodes that are killed: one of three, while whoever was connected to it goes to another, and the only one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from faults.conftest import LONG_CALLS
from faults.invariants import InvariantChecker, invariant_checker
from faults.load import BATCH_AND_LOAD, Load
from faults.scenario import BOT, MAX_CONCURRENCY, FaultScenario, config_with_limit
from quintain.bus.base import Bus, Envelope
from quintain.bus.connect import connect_bus
from quintain.errors import QueueFull
from quintain.settings import environment
from quintain.topology import Binding, Exchange, Queue, Topology
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_node import ClusterUnderTest, Node, private_cluster

#: Long enough, and so many, that calls are left when a node is back, on a machine that is busy too.
BOT_SECONDS = 1.5
QUESTIONS = [f"q{number}" for number in range(5 * LONG_CALLS)]


@pytest.fixture(scope="module", params=[3], ids=[""])
def cluster(rabbitmq_server: Path, request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    """Nodes that may be killed."""
    with private_cluster(rabbitmq_server, environment(), size=request.param) as cluster:
        for node in cluster.nodes:
            node.admin.evaluate("application:set_env(rabbit, quorum_tick_interval, 500)")
        yield cluster


@pytest.fixture
async def fleet(cluster: ClusterUnderTest, load: Load | None) -> AsyncIterator[ProcessFleet]:
    """One metadata service and two workers, each connected to any of the nodes. Evaluators know the last two."""
    config = config_with_limit(load.limit if load else MAX_CONCURRENCY)
    with process_fleet(cluster.nodes[0].url, config, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.broker_url = cluster.url
        fleet.extra_env["TEST_BOT_SECONDS"] = str(BOT_SECONDS)
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
        fleet.broker_url = ",".join(node.url for node in cluster.nodes[-2:])
        yield fleet


@pytest.fixture
def invariants(cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> InvariantChecker:
    return invariant_checker(cluster.admin, request.config)


@contextlib.asynccontextmanager
async def node_down(node: Node) -> AsyncIterator[None]:
    """The node is down, and comes back."""
    await asyncio.to_thread(node.kill)
    try:
        yield
    finally:
        node.begin()
        await asyncio.to_thread(node.answers)


async def wait_for_progress(scenario: FaultScenario) -> None:
    """Wait until more was asked than was under way: calls are admitted, run and answered."""
    before = scenario.provider_count().total()
    async with asyncio.timeout(60):
        while scenario.provider_count().total() <= before + MAX_CONCURRENCY:
            await asyncio.sleep(0.1)


@pytest.mark.long
@BATCH_AND_LOAD
async def test_each_node_is_killed_and_calls_go_on(
    load: Load | None, cluster: ClusterUnderTest, fleet: ProcessFleet, invariants: InvariantChecker
) -> None:
    scenario = FaultScenario(fleet, QUESTIONS, deadline_seconds=240, load=load)

    async def inject_fault(_: ProcessFleet) -> None:
        # Between them the three have each connection, each reply queue, and the lead of every other queue.
        for node in cluster.nodes:
            async with node_down(node):
                await wait_for_progress(scenario)

    after = await scenario.run("each of three nodes in turn killed -9", inject_fault)
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)


async def count_nacks(bus: Bus, exchange: Exchange, message: Envelope) -> int:
    """Publish this message until it is taken; returns how often it was nacked."""
    for nacks in itertools.count():
        try:
            await bus.publish(exchange, "here", message)
        except QueueFull:
            await asyncio.sleep(0.2)
        else:
            return nacks
    raise AssertionError("it ends with a return")


@pytest.mark.long
async def test_channels_whose_first_message_met_a_dead_leader_publish_while_its_node_is_down(
    cluster: ClusterUnderTest,
) -> None:
    exchange, queue = Exchange("quintain.test.led", "direct"), Queue("quintain.test.led", "quorum", expires_ms=600_000)
    buses = [await connect_bus(node.url) for node in cluster.nodes]
    # The node that it is declared at leads a quorum queue.
    await buses[0].declare(Topology((exchange,), (queue,), (Binding(exchange, queue, "here"),)), redeclare=False)
    async with node_down(cluster.nodes[0]), asyncio.timeout(30):
        nacks = await asyncio.gather(
            *(count_nacks(bus, exchange, Envelope(body=b"", type="test")) for bus in buses[1:])
        )
    for bus in buses:
        await bus.close()
    assert all(nacks), "no channel met the dead leader"


@pytest.mark.long
@pytest.mark.parametrize("cluster", [1], ids=[""], indirect=True)
async def test_two_copies_of_every_call_are_told_nothing_false_while_the_broker_crashes_again_and_again(
    cluster: ClusterUnderTest, fleet: ProcessFleet, invariants: InvariantChecker
) -> None:
    crashes, calls = 5, 1000

    # The broker gives the two copies of a call to two workers in turn.
    questions = [f"q{number}" for number in range(calls)]
    scenario = FaultScenario(fleet, questions, duplicates=2, deadline_seconds=600)

    async def inject_fault(_: ProcessFleet) -> None:
        for _crash in range(crashes):
            async with node_down(cluster.nodes[0]):
                pass
            await wait_for_progress(scenario)

    after = await scenario.run(f"broker killed -9 {crashes} ×, two copies", inject_fault)
    # Both workers live, and renew their leases within the 15 s after each crash in which none lapses: no take-over.
    assert {name: call for name, call in after.ledger_calls.items() if call.granted_attempts != 1} == {}
    assert set(after.provider_calls.values()) == {1}
    await invariants.check(fleet, after)
