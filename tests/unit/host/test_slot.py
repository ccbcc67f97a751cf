"""A slot and its leases over a broker in memory: what is asked of them, how they end, and never held for ever."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quintain.bus.base import Bus, Consumer, Envelope
from quintain.bus.memory import MemoryBroker
from quintain.contracts.hosting import (
    LEASE_TYPE,
    DescribeTarget,
    DriverMessage,
    LeaseRequest,
    LeaseResult,
    QueryTarget,
    ResetTarget,
    RunTarget,
    SetConfig,
    Teardown,
)
from quintain.errors import BadRequest, HostLost, NoAnswer
from quintain.remote.lease import RemoteLease, TargetTimeouts, acquire_lease, describe_host
from quintain.rpc.requests import RpcClient, RpcRequest, parse_reply
from quintain.timings import DEFAULT_TIMINGS, Timings
from quintain.topology import HOST
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

    async def lease(self, timings: Timings = DEFAULT_TIMINGS, **timeouts: float) -> RemoteLease:
        limits = TargetTimeouts(**{"slot_seconds": 10, **timeouts})  # type: ignore[arg-type]
        return await acquire_lease(self.bus, self.rpc_client, "bot", timeouts=limits, timings=timings)

    async def result(self, lease: RemoteLease, request: LeaseRequest) -> LeaseResult:
        """The result of a request as it comes, with the failure if it has one."""
        future: asyncio.Future[LeaseResult] = asyncio.get_running_loop().create_future()
        lease.stream.send(request.to_wire(), on_numbered=lambda number: lease._results.update({number: future}))
        async with asyncio.timeout(10):
            return await future

    async def refusal(self, body: bytes, amqp_type: str = LEASE_TYPE) -> None:
        """Raise the fault that answers a message to the host's queue."""
        request = RpcRequest(exchange=HOST, key="bot", type=amqp_type, body=body, headers={}, deadline_seconds=10)
        parse_reply(await self.rpc_client.call(request), LeaseResult)


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
    done = await host_client.result(leased, SetConfig(values=values))
    assert done.failure is not None
    assert done.failure.type == "ValueError"
    assert host_client.instances[0].persona == "bold"
    await leased.call(SetConfig(values={"persona": "calm"}))
    described = await leased.call(DescribeTarget())
    assert described.descriptor is not None
    assert described.descriptor.controllables[1].name == "voice of calm"


async def test_a_blocked_target_keeps_its_lease(host_client: HostClient) -> None:
    release, quick = threading.Event(), timings(host_heartbeat_seconds=0.05, host_lost_seconds=0.2)

    class Slow(Bot):
        def query(self, name: str, **params: str) -> str:
            release.wait(10)
            return "done"

    host_client.factory = lambda: Slow(do_nothing)
    await host_client.serve(timings=quick)
    leased = await host_client.lease(quick)
    asking = asyncio.create_task(leased.call(QueryTarget(name="n")))
    await asyncio.sleep(0.5)
    assert not asking.done()
    release.set()
    assert (await asking).value == "done"


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
    await first.call(Teardown())
    async with asyncio.timeout(1):
        await wait_until(lambda: host_client.instances[-1].torn_down and len(host_client.instances) == 2)
        await host_client.lease()


async def test_what_cannot_be_read_ends_the_lease_and_says_why(host_client: HostClient) -> None:
    await host_client.serve()
    with pytest.raises(BadRequest, match="open"):
        await host_client.refusal(DriverMessage(number=1, processed=0, items=[RunTarget(events=[])]).to_wire())
    leased = await host_client.lease()
    for key, correlation_id in ((leased.stream.key, "another"), (leased.stream.key, leased.lease_id)):
        envelope = Envelope(body=b'{"number": 2, "processed": 0, "items": [{"type": "set_config"}]}', type=LEASE_TYPE)
        await host_client.bus.publish(HOST, key, dataclasses.replace(envelope, correlation_id=correlation_id))
    with pytest.raises(HostLost, match=r"a message cannot be read \(.*values"):
        await leased.call(QueryTarget(name="runs", params={"since": "reset"}))
    assert (await host_client.lease()).descriptor


async def test_a_teardown_that_fails_is_told_and_the_slot_is_free(host_client: HostClient) -> None:
    class Stubborn(Bot):
        async def teardown(self) -> None:
            raise OSError("a container is left")

    host_client.factory = lambda: Stubborn(do_nothing)
    await host_client.serve()
    done = await host_client.result(await host_client.lease(), Teardown())
    assert done.failure is not None
    assert done.failure.message == "a container is left"
    assert (await host_client.lease()).descriptor


async def test_a_query_that_gives_no_text_is_an_error_that_says_so(host_client: HostClient) -> None:
    class Numeric(Bot):
        def query(self, name: str, **params: str) -> Any:
            return 5

    host_client.factory = lambda: Numeric(do_nothing)
    await host_client.serve()
    done = await host_client.result(await host_client.lease(), QueryTarget(name="runs"))
    assert done.failure is not None
    assert done.failure.type == "TypeError"
    assert "'runs' returned int, not str: return its text" in done.failure.message


async def test_a_host_that_stops_tears_down_what_is_leased(host_client: HostClient) -> None:
    await host_client.serve(slots=2)
    leased = await host_client.lease()
    await leased.call(SetConfig(values={"persona": "busy"}))
    assert host_client.host is not None
    await host_client.host.stop(0.05)
    assert host_client.instances[0].torn_down
    with pytest.raises(HostLost, match="its host has ended it"):
        await leased.call(SetConfig(values={"persona": "x"}))


async def test_a_host_that_stops_just_after_it_offered_a_lease_ends_it(
    host_client: HostClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await host_client.serve()
    assert host_client.host is not None
    [slot], is_offered = host_client.host._slots, asyncio.Event()
    await wait_until(lambda: slot._request_consumer is not None)

    async def drain(consumer: Consumer, seconds: float) -> None:
        monkeypatch.undo()
        is_offered.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(type(slot._request_consumer), "drain", drain)
    leasing = asyncio.create_task(host_client.lease(slot_seconds=0.5))
    await is_offered.wait()
    await host_client.host.stop(0)
    with pytest.raises(NoAnswer):  # it was told, and has asked for another one
        async with asyncio.timeout(10):
            await leasing


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
    for end in ("ended", "failed", "cancelled"):
        leased = await host_client.lease()
        leased.start_run([], lambda items: None)
        assert (card().in_flight, card().slots) == (1, 1)
        hosted: Any = host_client.host._slots[0].lease
        await wait_until(lambda lease=hosted, end=end: lease._run and lease._run._outcome == end)  # type: ignore[misc]
        await leased.call(Teardown())
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
    request = QueryTarget(name="n") if what == "query" else ResetTarget()
    stuck = asyncio.create_task(host_client.result(leased, request))
    await wait_until(began.is_set)
    done = await host_client.result(leased, Teardown())
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
    with pytest.raises(TimeoutError, match="--boot-timeout-seconds"):
        await host_client.lease()
    assert host_client.host is not None
    await wait_until(host_client.host.must_end.is_set)
    may_end.set()
    assert (await host_client.lease()).descriptor


async def test_a_request_that_does_not_end_is_an_error_in_time_and_then_only_a_teardown_is_sent(
    host_client: HostClient,
) -> None:
    may_end, began = threading.Event(), threading.Event()
    target_class = stuck_target_class("reset", may_end, began)
    host_client.factory = lambda: target_class(do_nothing)
    await host_client.serve()
    lease = await host_client.lease(request_seconds=0.2)
    for request in (ResetTarget(), ResetTarget(), SetConfig(values={"persona": "calm"})):
        with pytest.raises(TimeoutError, match=r"answer reset within 0.2 s: request_seconds"):
            await lease.call(request)
    await lease.call(Teardown())
    await lease.close()
    assert host_client.instances[0].torn_down
    assert host_client.instances[0].persona == "plain"
