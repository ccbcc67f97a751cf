"""Being found: everybody answers one question with a card, a refusal is taken once, and calls go on beside it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.contracts.fleet import Discover, ServiceCard
from quintain.errors import BrokerRefused, Fault, Unroutable
from quintain.fleet.announce import Announcer, ServiceIdentity, announce
from quintain.fleet.fleet_figures import WorkerCondition
from quintain.routes import DISCOVER
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.topology import DISCOVERY, Exchange, Topology, discovery_topology
from quintain_cli.commands.status import look_at_fleet
from support.memory_fleet import ADMIN_TOKEN, memory_fleet

CONFIG = "targets: {echo: {provider: mock, max_concurrency: 3}, other: {provider: mock}}\n"

#: Long enough for every answer over memory.
WAIT = 0.1


@pytest.fixture
async def memory() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    yield broker
    broker.close()


async def discover(memory: MemoryBroker, *, rounds: int = 1) -> list[ServiceCard]:
    """Who answers; asked once more where ``rounds`` is 2."""
    bus, cards = memory.connect(), dict[str, ServiceCard]()
    caller = RpcClient(bus)
    await caller.start()

    def on_reply(reply: Delivery) -> None:
        with contextlib.suppress(Fault):
            card = parse_reply(reply, DISCOVER.reply_type)
            cards[card.instance] = card

    try:
        caller.subscribe("who", on_reply)
        body = Discover().to_wire()
        request = RpcRequest(DISCOVERY, DISCOVER.key, DISCOVER.key, body, headers={}, deadline_seconds=WAIT)
        for _ in range(rounds):
            with contextlib.suppress(Unroutable):
                await caller.publish(request, "who")
            await asyncio.sleep(WAIT)
    finally:
        await caller.close()
        await bus.close()
    return sorted(cards.values(), key=lambda card: card.service)


async def wait_until_bound(memory: MemoryBroker, queues: int) -> None:
    async with asyncio.timeout(5):
        while len(memory._bindings.get(DISCOVERY.name, [])) < queues:
            await asyncio.sleep(0)


async def test_every_service_of_a_fleet_answers_with_its_card(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        memory = fleet.running.memory
        assert memory is not None
        await wait_until_bound(memory, 3)
        gateway, metadata, worker = await discover(memory)
    assert [one.service for one in (gateway, metadata, worker)] == ["gateway", "metadata", "worker"]
    assert metadata.ledger == "sqlite"
    assert [(one.name, one.kind, one.slots, one.in_flight) for one in worker.targets] == [
        ("echo", "mock", 3, 0),
        ("other", "mock", 64, 0),
    ]
    assert worker.slots == 67
    assert worker.heartbeat_age_ms is not None
    assert worker.heartbeat_age_ms < 15_000
    assert len({one.instance for one in (gateway, metadata, worker)}) == 3


async def test_nobody_is_there_and_that_is_no_error(memory: MemoryBroker) -> None:
    assert await discover(memory, rounds=2) == []


async def test_a_card_is_as_it_is_when_it_is_asked_for_and_one_process_is_one_card(memory: MemoryBroker) -> None:
    bus, identity, busy = memory.connect(), ServiceIdentity("worker"), 0
    async with announce(bus, lambda: identity.card(in_flight=busy)):
        await wait_until_bound(memory, 1)
        assert [one.in_flight for one in await discover(memory)] == [0]
        busy = 5
        assert [one.in_flight for one in await discover(memory, rounds=2)] == [5]
    assert await discover(memory) == []
    await bus.close()


async def test_a_queue_that_was_lost_is_made_anew(memory: MemoryBroker) -> None:
    bus, identity = memory.connect(), ServiceIdentity("worker")
    async with announce(bus, identity.card):
        await wait_until_bound(memory, 1)
        (name, _), *_ = memory._bindings[DISCOVERY.name]
        memory.delete_queue(name)
        await wait_until_bound(memory, 1)
        assert [one.service for one in await discover(memory, rounds=2)] == ["worker"]
    await bus.close()


async def test_a_defect_in_a_card_is_answered_and_ends_nothing(memory: MemoryBroker) -> None:
    bus = memory.connect()

    def broken() -> ServiceCard:
        raise RuntimeError("a defect")

    async with announce(bus, broken), announce(bus, ServiceIdentity("host").card):
        await wait_until_bound(memory, 2)
        assert [one.service for one in await discover(memory)] == ["host"]
    await bus.close()


class RefusingBus(MemoryBus):
    """A bus whose user may not declare what discovery stands on, or not answer."""

    refuses = "declare"

    async def declare(self, topology: Topology, *, redeclare: bool = True) -> None:
        if self.refuses == "declare" and DISCOVERY in {bound.exchange for bound in topology.bindings}:
            raise BrokerRefused("declaring queues: this user may not do that")
        await super().declare(topology, redeclare=redeclare)

    async def publish(self, exchange: Exchange, key: str, *args: object, **options: object) -> None:
        if self.refuses == "publish":
            raise BrokerRefused(f"publishing to {exchange.name}: this user may not do that")
        await super().publish(exchange, key, *args, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["declare", "publish"])
async def test_a_refusal_is_told_once_and_ends_when_the_broker_permits(
    memory: MemoryBroker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("quintain.fleet.announce.REFUSED_PAUSE_SECONDS", 0.01)
    bus = RefusingBus(memory)
    bus.refuses = what
    being = asyncio.create_task(Announcer(bus, ServiceIdentity("gateway").card).run())
    if what == "publish":
        await wait_until_bound(memory, 1)
    assert await discover(memory) == []
    assert caplog.text.count("does not show this service") == 1
    bus.refuses = ""
    await wait_until_bound(memory, 1)
    assert [card.service for card in await discover(memory)] == ["gateway"]
    being.cancel()
    await asyncio.gather(being, return_exceptions=True)
    await bus.close()


async def test_what_is_not_kept_is_not_declared_again(memory: MemoryBroker) -> None:
    bus, topology = memory.connect(), discovery_topology("x")
    await bus.declare(topology, redeclare=False)
    memory.delete_queue(topology.queues[0].name)
    bus._redeclare()
    assert not memory.has_queue(topology.queues[0].name)
    await bus.declare(topology)
    memory.delete_queue(topology.queues[0].name)
    bus._redeclare()
    assert memory.has_queue(topology.queues[0].name)
    await bus.close()


@pytest.mark.parametrize("token", [ADMIN_TOKEN, "another admin token", None])
async def test_status_holds_the_cards_against_the_ledger(tmp_path: Path, token: str | None) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        memory = fleet.running.memory
        assert memory is not None
        await wait_until_bound(memory, 3)
        bus = memory.connect()
        found = await look_at_fleet(bus, token, wait_seconds=WAIT, timeout_seconds=2)
        await bus.close()
    assert [(one.name, one.workers, one.slots, one.running, one.limit) for one in found.targets] == [
        ("echo", 1, 3, 0, 3),
        ("other", 1, 64, 0, 64),
    ]
    assert [(one.condition, one.slots) for one in found.workers] == [(WorkerCondition.LIVE, 67)]
    assert [one.service for one in found.services] == ["gateway", "metadata"]
    assert (len(found.problems), len(found.notes)) == (int(token == "another admin token"), int(token is None))
    assert all("refuses QUINTAIN_ADMIN_TOKEN" in problem for problem in found.problems)


async def test_a_clock_that_is_five_minutes_off_is_named_with_its_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = SimpleNamespace(time=lambda: time.time() - 300, monotonic=time.monotonic, thread_time=time.thread_time)
    monkeypatch.setattr("quintain.fleet.watch.time", behind)
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        memory = fleet.running.memory
        assert memory is not None
        await wait_until_bound(memory, 3)
        bus = memory.connect()
        found = await look_at_fleet(bus, ADMIN_TOKEN, wait_seconds=WAIT, timeout_seconds=2)
        await bus.close()
    (problem,) = found.problems
    assert "clock is 300 s ahead of this machine's" in problem
    assert "NTP" in problem


async def test_who_may_not_ask_services_gets_the_refusal(memory: MemoryBroker) -> None:
    bus = RefusingBus(memory)
    bus.refuses = "publish"
    with pytest.raises(BrokerRefused):
        await look_at_fleet(bus, None, wait_seconds=WAIT, timeout_seconds=2)
