"""A slot and its leases over a broker in memory: one at a time, each thing asked done once, and never held for ever."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quintain.bus.base import Bus, Consumer, Envelope, Handler
from quintain.bus.memory import MemoryBroker
from quintain.contracts.remote_target import (
    REMOTE_TARGET_VERSION,
    BareLeaseRequest,
    LeaseOpened,
    LeaseResult,
    OpenLease,
    Query,
    SetConfig,
)
from quintain.errors import BadRequest, NoAnswer
from quintain.remote.lease import TargetTimeouts
from quintain.remote.lease_request import acquire_lease, describe_host
from quintain.routes import LEASE, QUERY, RENEW, RESET, SET_CONFIG, START_RUN, TEARDOWN, Route
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST, Exchange, Queue, Topology
from quintain_host.host import Host
from support.quick import timings
from support.target_placements import scripted_target_class
from support.waiting import wait_until

Bot: Any = scripted_target_class("ours")


async def do_nothing(target: Any, emit: Any, send: Any) -> None: ...


class HostClient:
    """A host of some slots, and somebody who asks it."""

    def __init__(self, bus: Bus, caller: RpcClient) -> None:
        self.bus, self.rpc_client = bus, caller
        self.instances: list[Any] = []
        self.factory: Callable[[], Any] = lambda: Bot(do_nothing)
        self.host: Host | None = None

    async def serve(self, slots: int = 1, timings: Timings = DEFAULT_TIMINGS, **more: Any) -> None:
        def create() -> Any:
            self.instances.append(self.factory())
            return self.instances[-1]

        self.host = Host(self.bus, "bot", create, slots, timings=timings, **more)
        await self.host.start()

    async def call(self, key: str, route: Route[Any, Any], message: Any, seconds: float = 10) -> Any:
        request = RpcRequest(
            exchange=HOST, key=key, type=route.key, body=message.to_wire(), headers={}, deadline_seconds=seconds
        )
        return parse_reply(await self.rpc_client.call(request), route.reply_type)

    async def lease(self, version: int = REMOTE_TARGET_VERSION) -> LeaseOpened:
        answer: LeaseOpened = await self.call("bot", LEASE, OpenLease(controller_id="me", version=version))
        return answer

    async def call_lease(self, leased: LeaseOpened, route: Route[Any, LeaseResult], **fields: Any) -> LeaseResult:
        named = {"lease_id": leased.lease_id, "request_id": secrets.token_hex(4), **fields}
        done: LeaseResult = await self.call(leased.key, route, route.request_type(**named))
        return done


@pytest.fixture
async def host_client() -> AsyncIterator[HostClient]:
    broker = MemoryBroker()
    bus, theirs = broker.connect(), broker.connect()
    caller = RpcClient(bus)
    await caller.start()
    desk = HostClient(theirs, caller)
    yield desk
    if desk.host is not None:
        await desk.host.stop(0)
    await caller.close()
    await bus.close()
    await theirs.close()
    broker.close()


async def test_a_busy_slot_takes_no_second_lease_until_the_first_is_over(host_client: HostClient) -> None:
    await host_client.serve()
    first = await host_client.lease()
    second = asyncio.create_task(host_client.lease())
    await asyncio.sleep(0.05)
    assert len(host_client.instances) == 1
    await host_client.call_lease(first, TEARDOWN)
    assert (await second).lease_id != first.lease_id
    assert host_client.instances[0].torn_down
    assert not host_client.instances[1].torn_down


class NotingBus:
    """A bus whose operations are noted."""

    def __init__(self, bus: Bus, noted: list[str]) -> None:
        self._bus, self._noted = bus, noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, exchange: Exchange, key: str, envelope: Envelope, **more: Any) -> None:
        self._noted.append(f"publish {envelope.type}")
        await self._bus.publish(exchange, key, envelope, **more)

    async def declare(self, topology: Topology, **more: Any) -> None:
        self._noted.append("declare")
        await self._bus.declare(topology, **more)

    async def consume(self, queue: Queue, handler: Handler, **more: Any) -> Consumer:
        consumer = await self._bus.consume(queue, handler, **more)
        self._noted.append("consume requests" if queue.name == "quintain.host.bot" else "consume")
        return consumer


async def test_between_two_leases_a_slot_does_nothing_that_can_be_done_in_advance(host_client: HostClient) -> None:
    noted: list[str] = []

    class Noting(Bot):
        def __init__(self) -> None:
            super().__init__(do_nothing)
            noted.append("create")

        async def teardown(self) -> None:
            noted.append("tear down")

    host_client.bus = NotingBus(host_client.bus, noted)
    host_client.factory = Noting
    await host_client.serve()
    first = await host_client.lease()
    second = asyncio.create_task(host_client.lease())
    # The queues of the supervisor, of this lease and of the next one.
    await wait_until(lambda: noted.count("consume") == 3)
    noted.clear()
    await host_client.call_lease(first, TEARDOWN)
    await second
    until = noted.index("publish result", noted.index("create")) + 1
    assert sorted(noted[:until]) == sorted(
        ["tear down", "publish result", "consume requests", "publish lease_offer", "create", "publish result"]
    )


async def test_a_free_slot_says_which_factory_it_runs_and_a_busy_one_says_nothing(host_client: HostClient) -> None:
    await host_client.serve(fingerprint="of the module")
    for _ in range(2):
        assert await describe_host(host_client.rpc_client, "bot", timeout_seconds=10) == "of the module"
    assert host_client.instances == []
    assert (await host_client.lease()).fingerprint == "of the module"
    with pytest.raises(NoAnswer):
        await describe_host(host_client.rpc_client, "bot", timeout_seconds=0.1)


async def test_slots_are_set_in_order_until_one_fails(host_client: HostClient) -> None:
    await host_client.serve()
    leased = await host_client.lease()
    values = {"persona": "bold", "nothing": "x"}
    done = await host_client.call_lease(leased, SET_CONFIG, values=values, described=True)
    assert done.failure is not None
    assert (done.failure.type, done.descriptor) == ("ValueError", None)
    assert host_client.instances[0].persona == "bold"
    described = await host_client.call_lease(leased, SET_CONFIG, values={"persona": "calm"}, described=True)
    assert described.descriptor.controllables[1].name == "voice of calm"


async def test_what_is_asked_again_is_answered_alike_and_not_done_again(host_client: HostClient) -> None:
    counted = 0

    class Counting(Bot):
        def query(self, name: str, **params: str) -> str:
            nonlocal counted
            counted += 1
            if name == "fail":
                raise ValueError("no")
            return str(counted)

    host_client.factory = lambda: Counting(do_nothing)
    await host_client.serve()
    leased = await host_client.lease()
    for name in ("runs", "fail"):
        answers = [await host_client.call_lease(leased, QUERY, request_id=name, name=name) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
    assert counted == 2
    assert answers[0].failure is not None
    assert (answers[0].failure.type, answers[0].failure.message) == ("ValueError", "no")


async def test_what_is_asked_while_it_is_being_done_waits_for_the_same_answer(host_client: HostClient) -> None:
    release, counted = threading.Event(), 0

    class Slow(Bot):
        def query(self, name: str, **params: str) -> str:
            nonlocal counted
            counted += 1
            release.wait(10)
            return "done"

    host_client.factory = lambda: Slow(do_nothing)
    await host_client.serve()
    leased = await host_client.lease()
    asking = [asyncio.create_task(host_client.call_lease(leased, QUERY, request_id="r", name="n")) for _ in range(3)]
    await wait_until(lambda: counted)
    # A blocked target keeps its lease.
    assert await host_client.call_lease(leased, RENEW) == LeaseResult()
    release.set()
    assert [each.value for each in await asyncio.gather(*asking)] == ["done"] * 3
    assert counted == 1


async def test_a_lease_that_nobody_renews_ends_and_its_slot_is_free(host_client: HostClient) -> None:
    await host_client.serve(timings=timings(host_heartbeat_seconds=0.05, host_lost_seconds=0.2))
    await host_client.lease()
    await wait_until(lambda: host_client.instances[0].torn_down)
    again = await host_client.lease()
    for _ in range(5):
        await asyncio.sleep(0.08)
        assert await host_client.call_lease(again, RENEW) == LeaseResult()
    assert not host_client.instances[1].torn_down


async def test_requests_of_drivers_that_ended_cost_no_instance_and_no_wait(host_client: HostClient) -> None:
    await host_client.serve()
    first = await host_client.lease()
    for _ in range(4):
        driver = RpcClient(host_client.bus)
        await driver.start()
        ghost = RpcRequest(
            exchange=HOST,
            key="bot",
            type=LEASE.key,
            body=OpenLease(controller_id="gone").to_wire(),
            headers={},
            deadline_seconds=60,
        )
        await driver.publish(ghost, "nobody waits")
        await driver.close()
    await host_client.call_lease(first, TEARDOWN)
    async with asyncio.timeout(1):
        await host_client.lease()
    assert len(host_client.instances) == 2


async def test_a_lease_whose_answer_nobody_receives_ends_at_once(host_client: HostClient) -> None:
    await host_client.serve()
    is_made, may_go_on = threading.Event(), threading.Event()

    def slow() -> Any:
        is_made.set()
        may_go_on.wait(10)
        return Bot(do_nothing)

    host_client.factory = slow
    driver = RpcClient(host_client.bus)
    await driver.start()
    leasing = asyncio.create_task(acquire_lease(host_client.bus, driver, "bot"))
    await wait_until(is_made.is_set)
    leasing.cancel()
    await asyncio.gather(leasing, return_exceptions=True)
    await driver.close()
    may_go_on.set()
    async with asyncio.timeout(1):
        await wait_until(lambda: host_client.instances and host_client.instances[0].torn_down)
        await host_client.lease()


async def test_a_lease_that_comes_after_its_request_was_given_up_is_ended(host_client: HostClient) -> None:
    await host_client.serve()
    first = await host_client.lease()
    with pytest.raises(NoAnswer):
        await acquire_lease(host_client.bus, host_client.rpc_client, "bot", timeouts=TargetTimeouts(slot_seconds=0.1))
    leasing = asyncio.create_task(acquire_lease(host_client.bus, host_client.rpc_client, "bot"))
    await asyncio.sleep(0.05)
    leasing.cancel()
    await host_client.call_lease(first, TEARDOWN)
    async with asyncio.timeout(1):
        await wait_until(lambda: host_client.instances[-1].torn_down and len(host_client.instances) == 2)
        await host_client.lease()


async def test_a_controller_of_another_version_is_refused(host_client: HostClient) -> None:
    await host_client.serve()
    with pytest.raises(BadRequest, match="this host speaks version 3 of hosting, the controller 7"):
        await host_client.lease(version=7)
    assert (await host_client.lease()).descriptor


async def test_what_cannot_be_read_or_is_unknown_is_refused_and_the_lease_goes_on(host_client: HostClient) -> None:
    await host_client.serve()
    leased = await host_client.lease()
    with pytest.raises(BadRequest, match="values"):
        await host_client.call(leased.key, SET_CONFIG, BareLeaseRequest(lease_id=leased.lease_id, request_id="r"))
    with pytest.raises(BadRequest, match="'admit' is not an operation of a lease"):
        await host_client.call(
            leased.key,
            Route("x", HOST, "admit", BareLeaseRequest, LeaseResult),
            BareLeaseRequest(lease_id="l", request_id="s"),
        )
    asked = Query(lease_id=leased.lease_id, request_id="t", name="runs", params={"since": "reset"})
    assert (await host_client.call(leased.key, QUERY, asked)).value == "0"


async def test_a_teardown_that_fails_is_told_and_the_slot_is_free(host_client: HostClient) -> None:
    class Stubborn(Bot):
        async def teardown(self) -> None:
            raise OSError("a container is left")

    host_client.factory = lambda: Stubborn(do_nothing)
    await host_client.serve()
    done = await host_client.call_lease(await host_client.lease(), TEARDOWN)
    assert done.failure is not None
    assert done.failure.message == "a container is left"
    assert (await host_client.lease()).descriptor


async def test_a_query_that_gives_no_text_is_an_error_that_says_so(host_client: HostClient) -> None:
    class Numeric(Bot):
        def query(self, name: str, **params: str) -> Any:
            return 5

    host_client.factory = lambda: Numeric(do_nothing)
    await host_client.serve()
    done = await host_client.call_lease(await host_client.lease(), QUERY, name="runs")
    assert done.failure is not None
    assert done.failure.type == "TypeError"
    assert "'runs' was answered with a int: a target's values are text" in done.failure.message


async def test_a_host_that_stops_tears_down_what_is_leased(host_client: HostClient) -> None:
    await host_client.serve(slots=2)
    leased = await host_client.lease()
    await host_client.call_lease(leased, SET_CONFIG, values={"persona": "busy"})
    assert host_client.host is not None
    await host_client.host.stop(0.05)
    assert host_client.instances[0].torn_down
    set_config = SetConfig(lease_id=leased.lease_id, request_id="r", values={"persona": "x"})
    with pytest.raises(Exception, match="lease"):
        await host_client.call(leased.key, SET_CONFIG, set_config, seconds=0.5)


async def test_leases_and_runs_are_counted_by_how_they_ended(host_client: HostClient) -> None:
    release = threading.Event()

    async def play(target: Any, emit: Any, send: Any) -> None:
        if len(host_client.instances) == 2:
            raise ValueError("the second one fails")
        while len(host_client.instances) == 3 and not release.is_set():
            await asyncio.sleep(0.01)

    host_client.factory = lambda: Bot(play)
    await host_client.serve()
    assert host_client.host is not None
    tally, card = host_client.host.counters, host_client.host.card
    for number, end in enumerate(("ended", "failed", "cancelled"), start=1):
        leased = await host_client.lease()
        await host_client.call_lease(leased, START_RUN, run_id=f"r{number}", run_key=f"k{number}", kinds=[])
        assert (card().in_flight, card().slots) == (1, 1)
        hosted: Any = host_client.host._slots[0].lease
        await wait_until(lambda run=hosted._run, end=end: run._outcome == end)  # type: ignore[misc]
        await host_client.call_lease(leased, TEARDOWN)
        await wait_until(lambda end=end: tally.runs[end])  # type: ignore[misc]
    assert (tally.leases, dict(tally.runs)) == (3, {"ended": 1, "failed": 1, "cancelled": 1})
    release.set()


def stuck_target_class(what: str, may_end: threading.Event, began: threading.Event) -> Any:
    """A target of which one request never ends: "reset" waits, "query" blocks its thread."""

    class Stuck(Bot):
        async def reset_ephemeral_state(self) -> None:
            began.set()
            if what == "reset":
                await asyncio.Event().wait()

        def query(self, name: str, **params: str) -> str:
            began.set()
            may_end.wait(20)
            return ""

    return Stuck


@pytest.mark.parametrize(("what", "is_torn_down"), [("reset", True), ("query", False)])
async def test_a_teardown_overtakes_a_request_that_does_not_end(
    host_client: HostClient, monkeypatch: pytest.MonkeyPatch, what: str, is_torn_down: bool
) -> None:
    monkeypatch.setattr("quintain_host.instances.CANCEL_WAIT_SECONDS", 0.05)
    monkeypatch.setattr("quintain_host.instances.JOIN_SECONDS", 0.05)
    may_end, began = threading.Event(), threading.Event()
    target_class = stuck_target_class(what, may_end, began)
    host_client.factory = lambda: target_class(do_nothing)
    await host_client.serve(timings=timings(host_heartbeat_seconds=0.1, host_lost_seconds=0.5))
    leased = await host_client.lease()
    fields = {"name": "n"} if what == "query" else {}
    stuck = asyncio.create_task(host_client.call_lease(leased, QUERY if fields else RESET, **fields))
    await wait_until(began.is_set)
    done = await host_client.call_lease(leased, TEARDOWN)
    ended = await stuck
    assert ended.failure is not None
    assert ended.failure.type == "RuntimeError"
    assert (done.failure and done.failure.type) == (None if is_torn_down else "TimeoutError")
    assert host_client.instances[0].torn_down == is_torn_down
    assert host_client.host is not None
    # The slot is free again, on another thread.
    assert (await host_client.lease()).descriptor
    assert host_client.host.must_end.is_set() != is_torn_down
    may_end.set()


@pytest.mark.parametrize("what", ["factory", "description"])
async def test_an_instance_that_is_not_made_in_time_costs_no_slot(
    host_client: HostClient, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("quintain_host.instances.CANCEL_WAIT_SECONDS", 0.05)
    monkeypatch.setattr("quintain_host.instances.JOIN_SECONDS", 0.05)
    may_end = threading.Event()

    class Stuck(Bot):
        def __init__(self) -> None:
            super().__init__(do_nothing)
            if what == "factory":
                may_end.wait(20)

        def get_observables(self) -> Any:
            may_end.wait(20)
            return super().get_observables()

    host_client.factory = Stuck
    await host_client.serve(boot_seconds=0.2)
    failed = await host_client.lease()
    assert failed.failure is not None
    assert (failed.failure.type, "--boot-timeout-seconds" in str(failed.failure)) == ("TimeoutError", True)
    assert host_client.host is not None
    assert host_client.host.must_end.is_set()
    may_end.set()
    assert (await host_client.lease()).descriptor


async def test_a_request_that_does_not_end_is_an_error_in_time_and_then_only_a_teardown_is_sent(
    host_client: HostClient,
) -> None:
    may_end, began = threading.Event(), threading.Event()
    target_class = stuck_target_class("reset", may_end, began)
    host_client.factory = lambda: target_class(do_nothing)
    await host_client.serve()
    timeouts = TargetTimeouts(request_seconds=0.2)
    lease = await acquire_lease(host_client.bus, host_client.rpc_client, "bot", timeouts=timeouts)
    for route, fields in ((RESET, {}), (RESET, {}), (SET_CONFIG, {"values": {"persona": "calm"}})):
        with pytest.raises(TimeoutError, match=r"answer reset within 0.2 s: request_seconds"):
            await lease.call(route, **fields)
    await lease.call(TEARDOWN)
    await lease.stop_renewing()
    assert host_client.instances[0].torn_down
    assert host_client.instances[0].persona == "plain"
