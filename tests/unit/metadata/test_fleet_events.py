"""What the metadata service says of the fleet: what changed between two readings, and what it publishes."""

from __future__ import annotations

import asyncio

import pytest

from quintain.bus.base import Delivery
from quintain.contracts.fleet import CallCounts, FleetChanged, FleetSession, FleetState, RegisteredTarget
from quintain.contracts.ledger import AttemptOutcome, DrainState, Settle
from quintain.contracts.session import CostUsage, RegisteredWorker, SessionState
from quintain.topology import EVENTS, Binding, Queue, Topology, events_topology
from quintain_metadata.events import find_changes, find_events, pause_seconds
from quintain_metadata.metrics import CallCounter
from support.ledger_driver import admit_request
from support.metadata_service import next_delivery, run_metadata_service
from support.quick import timings


def state(**fields: object) -> FleetState:
    return FleetState(targets=[], workers=[], sessions=[], now=5).model_copy(update=fields)


def target(**fields: object) -> RegisteredTarget:
    return RegisteredTarget(name="a.b", provider="mock", max_concurrency=4).model_copy(update=fields)


def worker(**fields: object) -> RegisteredWorker:
    one = RegisteredWorker(worker_id="w", incarnation="i", lease_until=9, drain=DrainState.SUPPORTED)
    return one.model_copy(update=fields)


def session(used: int = 0, **fields: object) -> FleetSession:
    one = FleetSession(session_id="s", default_target="a.b", call_count=used, max_calls=3, state=SessionState.OPEN)
    return one.model_copy(update=fields)


def spending(part: float) -> FleetSession:
    """A session that has spent and held so much of its limit, and is to tell at 0.8 of it."""
    cost = CostUsage(spent_usd=10 * part - 1, held_usd=1, reserved_usd=1)
    return session(max_cost_usd=10.0, warn_at=0.8, cost=cost)


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        ({}, {"targets": [target()]}, ["target.a.b.registered"]),
        ({"targets": [target()]}, {"targets": [target(running=2)]}, []),
        ({"targets": [target()]}, {"targets": [target(paused_until=9)]}, ["target.a.b.paused"]),
        ({"targets": [target(paused_until=8)]}, {"targets": [target(paused_until=9)]}, []),
        ({"targets": [target(paused_until=9)]}, {"targets": [target()]}, ["target.a.b.resumed"]),
        ({}, {"workers": [worker()]}, ["worker.w.registered"]),
        ({"workers": [worker()]}, {"workers": [worker(lease_until=19)]}, []),
        ({"workers": [worker()]}, {"workers": [worker(drain=DrainState.DRAINING)]}, ["worker.w.draining"]),
        ({"workers": [worker()]}, {}, ["worker.w.lost"]),
        ({"workers": [worker(drain=DrainState.DRAINED)]}, {}, []),
        ({}, {"sessions": [session()]}, ["session.s.opened"]),
        ({"sessions": [session()]}, {"sessions": [session(2)]}, []),
        ({"sessions": [session(2)]}, {"sessions": [session(3)]}, ["session.s.spent"]),
        ({"sessions": [spending(0.7)]}, {"sessions": [spending(0.79)]}, []),
        ({"sessions": [spending(0.7)]}, {"sessions": [spending(0.8)]}, ["session.s.warned"]),
        ({"sessions": [spending(0.8)]}, {"sessions": [spending(0.9)]}, []),
        ({"sessions": [spending(0.7)]}, {"sessions": [spending(0.9).model_copy(update={"warn_at": None})]}, []),
        ({"sessions": [session()]}, {"sessions": [session(state=SessionState.PAUSED)]}, ["session.s.paused"]),
        ({"sessions": [session(state=SessionState.PAUSED)]}, {"sessions": [session()]}, ["session.s.resumed"]),
        ({"sessions": [session()]}, {}, ["session.s.ended"]),
        ({"sessions": [session()]}, {"more_sessions": 1}, []),
    ],
)
def test_each_change_of_state_is_one_event(
    before: dict[str, object], after: dict[str, object], keys: list[str]
) -> None:
    old, new = state(**before), state(**after)
    changed = find_changes(old, new)
    assert [event.key for event in find_events(old, new, changed)] == keys
    # Heartbeats move the ends of leases all the time.
    assert changed.workers == [] or changed.workers[0].drain is DrainState.DRAINING or not old.workers


def test_one_reading_that_waited_for_something_else_makes_the_next_ones_no_rarer() -> None:
    assert pause_seconds([0.002, 0.3, 0.5], is_heard=True) == pytest.approx(0.1)
    assert pause_seconds([0.2, 0.3], is_heard=True) == pytest.approx(10)
    assert pause_seconds([0.002], is_heard=False) == 5


def test_calls_are_counted_by_target_until_they_are_taken() -> None:
    counter = CallCounter()
    for code in ("granted", "replayed", "budget_exhausted"):
        counter.count_admission("a", code)
    assert counter.take() == {"a": CallCounts(started=1, faults={"budget_exhausted": 1})}
    assert counter.take() == {}


def test_a_result_counts_with_its_times_and_cost() -> None:
    settle = Settle(session_id="s", request_id="r", attempt_id="a", outcome=AttemptOutcome.RESULT)
    counter = CallCounter()
    counter.count_settle("a", settle.with_fields(queued_ms=3.0, duration_ms=40.0, cost_usd=0.5))
    counts = counter.take()["a"]
    assert (sum(counts.wait.values()), sum(counts.service.values()), counts.cost_usd) == (1, 1, 0.5)


async def test_a_listener_hears_what_becomes_of_calls_and_what_changes() -> None:
    async with run_metadata_service(timings(sweep_seconds=0.02)) as metadata:
        heard: asyncio.Queue[Delivery] = asyncio.Queue()

        async def hear(delivery: Delivery) -> None:
            heard.put_nowait(delivery)
            await delivery.ack()

        async def wait_for(is_met: str) -> FleetChanged:
            while True:
                changed = FleetChanged.from_wire((await next_delivery(heard)).body)
                if eval(is_met, {"changed": changed}):
                    return changed

        topology = events_topology("test")
        paused = Queue("quintain.events.paused", "classic", exclusive=True)
        topology += Topology((EVENTS,), (paused,), (Binding(EVENTS, paused, "target.a.paused"),))
        await metadata.bus.declare(topology)
        await metadata.bus.consume(topology.queues[0], hear, prefetch=8)
        consumed = await wait_for("changed.consumers")
        assert {name: consumed.consumers[name] for name in ("quintain.metadata", "quintain.ledger.settle")} == {
            "quintain.metadata": 1,
            "quintain.ledger.settle": 1,
        }
        driver = metadata.ledger_driver
        await wait_for("changed")  # and with it the first reading, before which nothing is a change
        await driver.register("a")
        session = await driver.open_session(max_calls=2)
        request = admit_request(session, "r1")
        registered = await wait_for("changed.sessions and changed.workers")
        assert [one.name for one in registered.targets] == ["a"]
        await driver.admit(request)
        await wait_for("changed.sessions and changed.sessions[0].call_count == 1")
        await driver.settle(session, request)
        await driver.pause("a", 60_000)
        assert (await wait_for("changed.targets and changed.targets[0].paused_until")).targets[0].running == 0
        single: asyncio.Queue[Delivery] = asyncio.Queue()

        async def hear_single(delivery: Delivery) -> None:
            single.put_nowait(delivery)
            await delivery.ack()

        await metadata.bus.consume(paused, hear_single, prefetch=8)
        assert (await next_delivery(single)).type == "target"
