"""A slot and its leases over a broker in memory: one at a time, each thing asked done once, and never held for ever."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quintain.bus.base import Bus
from quintain.bus.memory import MemoryBroker
from quintain.caller import Caller, Question, understood
from quintain.contracts.hosted import HOSTING_VERSION, AskLease, Done, LeaseAnswer, Plain, Query, SetConfig
from quintain.errors import BadRequest
from quintain.routes import DESCRIBE, LEASE, QUERY, RENEW, SET_CONFIG, START_RUN, TEARDOWN, Route
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST
from quintain_host.host import Host
from support.quick import timings
from support.standing import scripted

Bot: Any = scripted("ours")


async def nothing(target: Any, emit: Any, send: Any) -> None: ...


class Desk:
    """A host of some slots, and somebody who asks it."""

    def __init__(self, bus: Bus, caller: Caller) -> None:
        self.bus, self.caller = bus, caller
        self.made: list[Any] = []
        self.factory: Callable[[], Any] = lambda: Bot(nothing)
        self.host: Host | None = None

    async def serve(self, slots: int = 1, timings: Timings = DEFAULT_TIMINGS) -> None:
        def make() -> Any:
            self.made.append(self.factory())
            return self.made[-1]

        self.host = Host(self.bus, "bot", make, slots, timings=timings)
        await self.host.start()

    async def ask(self, key: str, route: Route[Any, Any], asked: Any, seconds: float = 10) -> Any:
        question = Question(
            exchange=HOST, key=key, type=route.key, body=asked.to_wire(), headers={}, deadline_seconds=seconds
        )
        return understood(await self.caller.ask(question), route.answers)

    async def lease(self, version: int = HOSTING_VERSION) -> LeaseAnswer:
        answer: LeaseAnswer = await self.ask("bot", LEASE, AskLease(controller_id="me", version=version))
        return answer

    async def asks(self, leased: LeaseAnswer, route: Route[Any, Done], **fields: Any) -> Done:
        named = {"lease_id": leased.lease_id, "request_id": secrets.token_hex(4), **fields}
        done: Done = await self.ask(leased.key, route, route.asks(**named))
        return done


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    broker = MemoryBroker()
    bus, theirs = broker.connect(), broker.connect()
    caller = Caller(bus)
    await caller.start()
    desk = Desk(theirs, caller)
    yield desk
    if desk.host is not None:
        await desk.host.stop(0)
    await caller.close()
    await bus.close()
    await theirs.close()
    broker.close()


async def until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not reached():
            await asyncio.sleep(0.005)


async def test_a_busy_slot_takes_no_second_lease_until_the_first_is_over(desk: Desk) -> None:
    await desk.serve()
    first = await desk.lease()
    second = asyncio.create_task(desk.lease())
    await asyncio.sleep(0.05)
    assert len(desk.made) == 1
    await desk.asks(first, TEARDOWN)
    assert (await second).lease_id != first.lease_id
    assert desk.made[0].torn_down
    assert not desk.made[1].torn_down


async def test_each_lease_has_a_fresh_instance_described_as_it_is_configured(desk: Desk) -> None:
    await desk.serve(slots=2)
    one, two = await desk.lease(), await desk.lease()
    await desk.asks(one, SET_CONFIG, name="persona", value="pirate")
    names = [
        [each.name for each in (await desk.asks(leased, DESCRIBE)).descriptor.controllables] for leased in (one, two)
    ]
    assert names == [["question", "voice of pirate"], ["question", "voice of plain"]]


async def test_what_is_asked_again_is_answered_alike_and_not_done_again(desk: Desk) -> None:
    counted = 0

    class Counting(Bot):
        def query(self, name: str, **params: str) -> str:
            nonlocal counted
            counted += 1
            if name == "fail":
                raise ValueError("no")
            return str(counted)

    desk.factory = lambda: Counting(nothing)
    await desk.serve()
    leased = await desk.lease()
    for name in ("runs", "fail"):
        answers = [await desk.asks(leased, QUERY, request_id=name, name=name) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
    assert counted == 2
    assert answers[0].failure is not None
    assert (answers[0].failure.type, answers[0].failure.message) == ("ValueError", "no")


async def test_what_is_asked_while_it_is_being_done_waits_for_the_same_answer(desk: Desk) -> None:
    release, counted = threading.Event(), 0

    class Slow(Bot):
        def query(self, name: str, **params: str) -> str:
            nonlocal counted
            counted += 1
            release.wait(10)
            return "done"

    desk.factory = lambda: Slow(nothing)
    await desk.serve()
    leased = await desk.lease()
    asking = [asyncio.create_task(desk.asks(leased, QUERY, request_id="r", name="n")) for _ in range(3)]
    await until(lambda: counted)
    # A blocked target keeps its lease.
    assert await desk.asks(leased, RENEW) == Done()
    release.set()
    assert [each.value for each in await asyncio.gather(*asking)] == ["done"] * 3
    assert counted == 1


async def test_a_lease_that_nobody_renews_ends_and_its_slot_is_free(desk: Desk) -> None:
    await desk.serve(timings=timings(host_heartbeat_seconds=0.05, host_lost_seconds=0.2))
    await desk.lease()
    await until(lambda: desk.made[0].torn_down)
    again = await desk.lease()
    for _ in range(5):
        await asyncio.sleep(0.08)
        assert await desk.asks(again, RENEW) == Done()
    assert not desk.made[1].torn_down


async def test_a_factory_that_fails_is_answered_with_its_words(desk: Desk) -> None:
    def broken() -> Any:
        raise KeyError("model")

    desk.factory = broken
    await desk.serve()
    for _ in range(2):
        answer = await desk.lease()
        assert answer.failure is not None
        assert (answer.failure.type, answer.failure.message, answer.lease_id) == ("KeyError", "model", "")
        assert "in broken" in answer.failure.traceback


async def test_a_controller_of_another_version_is_refused(desk: Desk) -> None:
    await desk.serve()
    with pytest.raises(BadRequest, match="this host speaks version 1 of hosting, the controller 7"):
        await desk.lease(version=7)
    assert (await desk.lease()).descriptor


async def test_what_cannot_be_read_or_is_unknown_is_refused_and_the_lease_goes_on(desk: Desk) -> None:
    await desk.serve()
    leased = await desk.lease()
    with pytest.raises(BadRequest, match="name"):
        await desk.ask(leased.key, SET_CONFIG, Plain(lease_id=leased.lease_id, request_id="r"))
    with pytest.raises(BadRequest, match="'admit' is nothing that can be asked of a lease"):
        await desk.ask(leased.key, Route("x", HOST, "admit", Plain, Done), Plain(lease_id="l", request_id="s"))
    asked = Query(lease_id=leased.lease_id, request_id="t", name="runs", params={"since": "reset"})
    assert (await desk.ask(leased.key, QUERY, asked)).value == "0"


async def test_a_teardown_that_fails_is_told_and_the_slot_is_free(desk: Desk) -> None:
    class Stubborn(Bot):
        async def teardown(self) -> None:
            raise OSError("a container is left")

    desk.factory = lambda: Stubborn(nothing)
    await desk.serve()
    done = await desk.asks(await desk.lease(), TEARDOWN)
    assert done.failure is not None
    assert done.failure.message == "a container is left"
    assert (await desk.lease()).descriptor


async def test_a_query_that_gives_no_text_is_an_error_that_says_so(desk: Desk) -> None:
    class Numeric(Bot):
        def query(self, name: str, **params: str) -> Any:
            return 5

    desk.factory = lambda: Numeric(nothing)
    await desk.serve()
    done = await desk.asks(await desk.lease(), QUERY, name="runs")
    assert done.failure is not None
    assert done.failure.type == "TypeError"
    assert "'runs' was answered with a int: a target's values are text" in done.failure.message


async def test_a_host_that_stops_tears_down_what_is_leased(desk: Desk) -> None:
    await desk.serve(slots=2)
    leased = await desk.lease()
    await desk.asks(leased, SET_CONFIG, name="persona", value="busy")
    assert desk.host is not None
    await desk.host.stop(0.05)
    assert desk.made[0].torn_down
    set_config = SetConfig(lease_id=leased.lease_id, request_id="r", name="persona", value="x")
    with pytest.raises(Exception, match="lease"):
        await desk.ask(leased.key, SET_CONFIG, set_config, seconds=0.5)


async def test_leases_and_runs_are_counted_by_how_they_ended(desk: Desk) -> None:
    release = threading.Event()

    async def play(target: Any, emit: Any, send: Any) -> None:
        if len(desk.made) == 2:
            raise ValueError("the second one fails")
        while len(desk.made) == 3 and not release.is_set():
            await asyncio.sleep(0.01)

    desk.factory = lambda: Bot(play)
    await desk.serve()
    assert desk.host is not None
    tally, card = desk.host.tally, desk.host.card
    for number, end in enumerate(("ended", "failed", "cancelled"), start=1):
        leased = await desk.lease()
        await desk.asks(leased, START_RUN, run_id=f"r{number}", run_key=f"k{number}", kinds=[])
        assert (card().in_flight, card().slots) == (1, 1)
        hosted: Any = desk.host._slots[0].lease
        await until(lambda run=hosted._run, end=end: run._end == end)  # type: ignore[misc]
        await desk.asks(leased, TEARDOWN)
        await until(lambda end=end: tally.runs[end])  # type: ignore[misc]
    assert (tally.leases, dict(tally.runs)) == (3, {"ended": 1, "failed": 1, "cancelled": 1})
    release.set()
