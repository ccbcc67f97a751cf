"""Heartbeats: all services of a fleet are heard, a refusal is told once, and calls go on beside it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quintain.bus.base import Delivery
from quintain.bus.memory import MemoryBroker, MemoryBus
from quintain.client.admin import Admin
from quintain.client.client import connect_admin
from quintain.contracts.fleet_figures import FleetFigures, WorkerCondition
from quintain.contracts.service_card import ServiceCard
from quintain.errors import BrokerRefused, BudgetUnavailable, NoAnswer, Unauthorized
from quintain.fleet.beats import ServiceIdentity, send_beats
from quintain.fleet.look import FleetLook
from quintain.routes import BEAT
from quintain.runtime.concurrency import running_task
from quintain.topology import METADATA, Binding, Exchange, Queue, Topology
from support.memory_fleet import ADMIN_TOKEN, memory_fleet
from support.quick import QUICK

CONFIG = "targets: {echo: {provider: mock, max_concurrency: 3}, other: {provider: mock}}\n"


@contextlib.asynccontextmanager
async def heard(memory: MemoryBroker) -> AsyncIterator[asyncio.Queue[ServiceCard]]:
    """The cards that come to the metadata exchange."""
    bus, queue, cards = memory.connect(), Queue("heard", "classic", exclusive=True), asyncio.Queue[ServiceCard]()

    async def hear(delivery: Delivery) -> None:
        cards.put_nowait(ServiceCard.from_wire(delivery.body))
        await delivery.ack()

    await bus.declare(Topology((METADATA,), (queue,), (Binding(METADATA, queue, BEAT.key),)))
    await bus.consume(queue, hear, prefetch=8)
    yield cards
    await bus.close()


async def test_a_card_is_as_it_is_when_it_is_sent_again_and_again_and_a_defect_ends_nothing() -> None:
    memory, number = MemoryBroker(), 0
    bus, identity = memory.connect(), ServiceIdentity("gateway")

    def card() -> ServiceCard:
        nonlocal number
        number += 1
        if number == 2:
            raise RuntimeError("a defect")
        return identity.card(in_flight=number)

    async with heard(memory) as cards, asyncio.timeout(10), running_task(send_beats(bus, card, QUICK), "beats"):
        assert [(await cards.get()).in_flight for _ in range(3)] == [1, 3, 4]
    await bus.close()
    memory.close()


class RefusingBus(MemoryBus):
    """A bus whose user may not write to an exchange."""

    refuses = True

    async def publish(self, exchange: Exchange, key: str, *args: object, **options: object) -> None:
        if self.refuses:
            raise BrokerRefused(f"publishing to {exchange.name}: this user may not do that")
        await super().publish(exchange, key, *args, **options)


async def test_a_refusal_is_told_once_and_ends_when_the_broker_permits(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintain.fleet.beats.REFUSED_PAUSE_SECONDS", 0.01)
    memory = MemoryBroker()
    bus = RefusingBus(memory)
    async with (
        heard(memory) as cards,
        asyncio.timeout(10),
        running_task(send_beats(bus, ServiceIdentity("gateway").card, QUICK), "beats"),
    ):
        await asyncio.sleep(0.1)
        assert cards.empty()
        assert caplog.text.count("does not show this service") == 1
        bus.refuses = False
        assert (await cards.get()).service == "gateway"
    await bus.close()
    memory.close()


async def look_when(admin: Admin, is_met: str) -> FleetFigures:
    look = FleetLook(admin)
    async with asyncio.timeout(20):
        while not eval(is_met, {"fleet": (figures := await look.take())}):
            await asyncio.sleep(0.05)
    return figures


async def test_every_service_of_a_fleet_is_heard_and_held_against_the_ledger(tmp_path: Path) -> None:
    async with memory_fleet(tmp_path, CONFIG) as fleet:
        async with connect_admin(fleet.running.broker_url, ADMIN_TOKEN, memory=fleet.running.memory) as admin:
            found = await look_when(admin, "len(fleet.services) == 2 and fleet.workers[0].slots")
        async with connect_admin(fleet.running.broker_url, "another", memory=fleet.running.memory) as stranger:
            with pytest.raises(Unauthorized):
                await FleetLook(stranger).take()
    assert [(one.name, one.workers, one.slots, one.running, one.limit) for one in found.targets] == [
        ("echo", 1, 3, 0, 3),
        ("other", 1, 64, 0, 64),
    ]
    assert [(one.condition, one.slots) for one in found.workers] == [(WorkerCondition.LIVE, 67)]
    assert [(one.service, one.ledger) for one in found.services] == [("gateway", None), ("metadata", "sqlite")]
    assert (found.problems, found.answering) == ([], 3)


def told(*answers: FleetFigures | Exception) -> FleetLook:
    """A look at a fleet whose metadata service answers so."""
    left = list(answers)

    async def fleet() -> FleetFigures:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return FleetLook(cast(Admin, SimpleNamespace(fleet=fleet)))


async def test_a_clock_that_is_five_minutes_off_is_named_with_its_mend() -> None:
    figures = [FleetFigures(now=int((time.time() + seconds) * 1000)) for seconds in (300, 0)]
    look = told(*figures)
    (problem,) = (await look.take()).problems
    assert "clock is 300 s ahead of this machine's" in problem
    assert "NTP" in problem
    assert (await look.take()).problems == []


async def test_where_no_metadata_service_answers_the_last_figures_are_shown_with_that_problem() -> None:
    now = int(time.time() * 1000)
    look = told(NoAnswer("no"), FleetFigures(now=now, running=3), NoAnswer("no"), BudgetUnavailable("the disk is full"))
    nothing, known, silent, full = [await look.take() for _ in range(4)]
    assert (nothing.now, ["serve metadata" in text for text in nothing.problems]) == (0, [True])
    assert (known.running, known.problems) == (3, [])
    assert (silent.running, ["serve metadata" in text for text in silent.problems]) == (3, [True])
    assert (full.running, ["the disk is full" in text for text in full.problems]) == (3, [True])
