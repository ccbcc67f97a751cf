"""A broker that restarts, blocks, loses connections and loses queues, under load."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pika
import pytest

from faults.invariants import InvariantChecker
from faults.load import LOAD, Load, is_long
from faults.scenario import FaultScenario
from support.process_fleet import ProcessFleet
from support.servers.rabbitmq_admin import BrokerAdmin
from support.tcp_proxy import TcpProxy, open_tcp_proxy

#: What raises each of the broker's alarms, and what ends it.
ALARMS = {
    "memory": [f"vm_memory_monitor:set_vm_memory_high_watermark({part})" for part in ("0.0000001", "0.4")],
    "disk": [f'rabbit_disk_monitor:set_disk_free_limit("{limit}")' for limit in ("1000000GB", "50MB")],
}

#: How long an alarm lasts, how often the broker restarts, and how many calls two callers each make meanwhile.
ALARM_SECONDS, RESTARTS, CALLS = (5, 5, 1000) if is_long() else (2, 1, 60)


@dataclasses.dataclass(frozen=True)
class Place:
    """A fleet, the proxy between it and its broker, and the broker."""

    fleet: ProcessFleet
    proxy: TcpProxy
    admin: BrokerAdmin

    async def restart(self) -> None:
        await asyncio.to_thread(self.admin.stop_app)
        await asyncio.to_thread(self.admin.start_app)

    async def restart_again_and_again(self) -> None:
        for _ in range(RESTARTS):
            await self.restart()
            await asyncio.sleep(2)

    async def raise_alarm(self, alarm: str) -> None:
        raising, ending = ALARMS[alarm]
        printed = 'io:format("~p", [rabbit_alarm:get_alarms()])'
        await asyncio.to_thread(self.admin.evaluate, raising)
        try:
            async with asyncio.timeout(20):
                while alarm not in await asyncio.to_thread(self.admin.evaluate, printed):
                    await asyncio.sleep(0.2)
            await asyncio.sleep(ALARM_SECONDS)
        finally:
            await asyncio.to_thread(self.admin.evaluate, ending)

    async def cut_connections(self) -> None:
        for _ in range(3):
            self.proxy.drop_connections()
            await asyncio.sleep(1)

    async def lose_connections(self) -> None:
        self.proxy.blackhole()

    async def stall(self) -> None:
        self.proxy.stall()
        await asyncio.sleep(12)
        self.proxy.resume()

    async def delete_queues(self, *names: str, times: int = 1, seconds_between: float = 0.0) -> None:
        """Delete queues from outside, whoever consumes them and whatever waits in them."""

        def delete() -> None:
            with pika.BlockingConnection(pika.URLParameters(self.fleet.broker_url)) as connection:
                for name in names:
                    connection.channel().queue_delete(name)

        for _ in range(times):
            await asyncio.to_thread(delete)
            await asyncio.sleep(seconds_between)

    async def delete_ledger_queues(self) -> None:
        names = ("ledger.admit", "metadata", "metadata.unrouted", "metadata.dead")
        await self.delete_queues(*(f"quintain.{name}" for name in names), times=3, seconds_between=0.5)

    async def delete_settles(self) -> None:
        await self.delete_queues("quintain.ledger.settle", times=10, seconds_between=0.1)

    async def delete_replies(self) -> None:
        names = [str(queue["name"]) for queue in await asyncio.to_thread(self.admin.list_queues)]
        user = urlsplit(self.fleet.broker_url).username or "guest"
        replies = [name for name in names if name.startswith(f"quintain.reply.{user}.")]
        assert replies
        await self.delete_queues(*replies)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """What breaks, and how calls are made; ``options`` are those of the connections."""

    inject: Callable[[Place], Awaitable[None]]
    options: str = ""
    is_asked_once: bool = True
    calls: int | None = None
    scenario: Mapping[str, Any] = dataclasses.field(default_factory=dict)


#: The broker gives the two copies of a call to two workers in turn.
RESTARTED = Fault(inject=Place.restart_again_and_again, calls=CALLS, scenario={"duplicates": 2})

FAULTS = {
    "disk alarm": Fault(inject=lambda place: place.raise_alarm("disk")),
    "connections cut": Fault(inject=Place.cut_connections),
    # Each call names its target: what waits in the queue of those that name none is lost with it.
    "metadata's queues deleted": Fault(inject=Place.delete_ledger_queues, scenario={"names_target": True}),
}

LONG_FAULTS = {
    "memory alarm": Fault(inject=lambda place: place.raise_alarm("memory")),
    # A silent peer is noticed within three heartbeats, and a little.
    "connections lost without FIN": Fault(inject=Place.lose_connections, options="?heartbeat=2", is_asked_once=False),
    "network stalled 12 s": Fault(inject=Place.stall, options="?heartbeat=2", is_asked_once=False),
    # A settle that was in the queue is gone; its call is in doubt a minute after its deadline, and charged as it was.
    "settles' queue deleted": Fault(inject=Place.delete_settles, scenario={"deadline_seconds": 30}),
    "reply queue deleted": Fault(inject=Place.delete_replies),
}


@pytest.fixture
async def place(stopped_fleet: ProcessFleet, fault: Fault, broker_admin: BrokerAdmin) -> AsyncIterator[Place]:
    """A metadata service, two workers and their evaluators, every connection of which goes through a proxy."""
    parts = urlsplit(stopped_fleet.broker_url)
    async with open_tcp_proxy(parts.hostname or "127.0.0.1", parts.port or 5672) as proxy:
        netloc = f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}"
        stopped_fleet.broker_url = parts._replace(netloc=netloc).geturl() + fault.options
        await asyncio.to_thread(stopped_fleet.start_services, "metadata", "worker", "worker")
        yield Place(stopped_fleet, proxy, broker_admin)


@pytest.mark.parametrize(
    ("name", "fault", "load"),
    [
        pytest.param("broker restarted, two copies", RESTARTED, None, id="restarts", marks=pytest.mark.every_broker),
        *(pytest.param(*each, None, id=each[0]) for each in FAULTS.items()),
        *(pytest.param(*each, None, id=each[0], marks=pytest.mark.long) for each in LONG_FAULTS.items()),
        pytest.param("broker restarted", Fault(inject=Place.restart), LOAD, id="load", marks=pytest.mark.long),
    ],
)
async def test_no_answer_is_lost_and_none_is_charged_twice(
    name: str, fault: Fault, load: Load | None, place: Place, questions: list[str], invariants: InvariantChecker
) -> None:
    asked = questions if fault.calls is None else [f"q{number}" for number in range(fault.calls)]
    scenario = FaultScenario(place.fleet, asked, load=load, **fault.scenario)
    after = await scenario.run(name, lambda _: fault.inject(place))
    assert not fault.is_asked_once or set(after.provider_calls.values()) == {1}
    assert load or after.info.call_count == len(asked)
    # A caller was answered before its settle was lost; the ledger, asked again, knows only that the call is in doubt.
    await invariants.check(place.fleet, after, second_answers=after.info.in_doubt)


@pytest.mark.parametrize("fault", [Fault(inject=lambda place: place.delete_queues("quintain.target.bot"))], ids=[""])
async def test_the_targets_queue_is_deleted_while_calls_wait_in_it(
    fault: Fault, place: Place, questions: list[str], invariants: InvariantChecker
) -> None:
    scenario = FaultScenario(place.fleet, questions, names_target=True, deadline_seconds=8, may_expire=True)
    after = await scenario.run("target's queue deleted", lambda _: fault.inject(place))
    expired = [request_id for request_id, (said,) in after.outcomes.items() if said.is_fault]
    assert expired, "nothing waited in the queue"
    # What was lost in the queue was admitted by nobody, and costs nothing.
    assert [request_id for request_id in expired if request_id in after.ledger_calls] == []
    assert after.info.call_count == len(questions) - len(expired)
    ending = await invariants.check(place.fleet, after, faults=frozenset({"expired"}))
    assert ending.answers == ending.calls
