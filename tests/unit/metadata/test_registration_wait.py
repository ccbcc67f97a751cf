"""Requests that come before their target's worker: they wait for its registration, and block no other request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quintain.contracts.credentials import digest
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.message import CLIENT_QUEUE_PREFETCH
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, BudgetUnavailable, UnknownTarget
from quintain.topology import INVOKE, UNROUTED_QUEUE, target_queue, target_topology
from quintain_metadata import routing
from quintain_metadata.routing import WAIT_ENDS_HEADER
from quintain_metadata.service import MetadataService
from quintain_metadata.store.base import Ledger
from support.ledger_driver import memory_ledger_driver
from support.metadata_service import ADMIN_TOKEN, Metadata, next_delivery, run_metadata_service
from support.quick import timings
from support.waiting import wait_until

#: Longer than any test.
LONG = timings(unknown_target_seconds=60)

BODY = {"question": "x"}


@pytest.fixture
async def metadata(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Metadata]:
    """A service that has just started, with nothing registered."""
    monkeypatch.setattr(routing, "READ_SECONDS", 0.02)
    async with run_metadata_service(LONG, start_window_seconds=None) as alone:
        yield alone


async def publish(metadata: Metadata, session: SessionOpened, key: str, request_id: str) -> None:
    headers = {TOKEN_HEADER: session.token, REQUEST_ID_HEADER: request_id}
    await metadata.publish(INVOKE, key, BODY, headers=headers, correlation_id=request_id, reply_to="gone")


async def wait_for_waiting(service: MetadataService, count: int) -> None:
    await wait_until(lambda: service._router is not None and service._router._registration_wait.waiting_count == count)


async def register(metadata: Metadata, target: str) -> None:
    await metadata.bus.declare(target_topology(target))
    await metadata.driver.register(names=[target])


@pytest.mark.parametrize("key", ["a", ""])
async def test_a_call_before_its_worker_is_forwarded_after_the_registration(
    metadata: Metadata, session: SessionOpened, key: str
) -> None:
    await metadata.driver.reserve(session, ["r1"])
    await publish(metadata, session, key, "r1")
    await wait_for_waiting(metadata.service, 1)
    await metadata.driver.register(names="b")  # another target: the start is not over
    await asyncio.sleep(0.1)
    assert (await metadata.driver.info(session)).reserved == 1
    await register(metadata, "a")
    forwarded = await next_delivery(await metadata.consume_queue(target_queue("a")))
    assert (forwarded.correlation_id, forwarded.routing_key) == ("r1", "a")
    await wait_for_waiting(metadata.service, 0)


async def test_waiting_calls_block_no_other_request_of_the_queue(metadata: Metadata, session: SessionOpened) -> None:
    waiting = [f"r{number}" for number in range(2 * CLIENT_QUEUE_PREFETCH)]
    for request_id in waiting:
        await publish(metadata, session, "later", request_id)
    await wait_for_waiting(metadata.service, routing.MAX_WAITING)
    await register(metadata, "a")
    got = await metadata.consume_queue(target_queue("a"))
    await publish(metadata, session, "", "next")
    assert (await next_delivery(got)).correlation_id == "next"
    await register(metadata, "later")
    forwarded = await metadata.consume_queue(target_queue("later"))
    calls = [await next_delivery(forwarded) for _ in waiting]
    assert sorted(str(call.correlation_id) for call in calls) == sorted(waiting)
    assert not any(WAIT_ENDS_HEADER in call.headers for call in calls)
    assert len(metadata.memory.queue(UNROUTED_QUEUE.name).ready) == 0
    assert forwarded.empty()


@pytest.mark.parametrize("window_seconds", [600, 0], ids=["just started", "nothing registered"])
async def test_the_wait_ends_with_the_list_and_the_reservation(
    monkeypatch: pytest.MonkeyPatch, window_seconds: float
) -> None:
    monkeypatch.setattr(routing, "READ_SECONDS", 0.02)
    async with run_metadata_service(
        timings(unknown_target_seconds=0.2), start_window_seconds=window_seconds
    ) as metadata:
        session = await metadata.driver.open_session()
        await metadata.driver.reserve(session, ["r1"])
        if window_seconds:
            await metadata.driver.register(names="b")
        started_at = time.monotonic()
        with pytest.raises(UnknownTarget) as unknown:
            await metadata.invoke(session.token, BODY, "a", {REQUEST_ID_HEADER: "r1"})
        assert time.monotonic() - started_at >= 0.1
        assert unknown.value.available_targets == (() if window_seconds == 0 else ("b",))
        assert (await metadata.driver.info(session)).call_count == 0


async def test_the_start_is_over_when_all_workers_of_the_last_one_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "READ_SECONDS", 0.02)
    async with memory_ledger_driver() as before:
        for incarnation in ("w1", "w2"):
            await before.register(incarnation)
        registered_at = await before.ledger.now()
        while await before.ledger.now() == registered_at:
            await asyncio.sleep(0.001)
        async with run_metadata_service(LONG, start_window_seconds=None, ledger=before.ledger) as metadata:
            session = await metadata.driver.open_session()
            asking = asyncio.create_task(metadata.invoke(session.token, BODY, "b"))
            await wait_for_waiting(metadata.service, 1)
            await metadata.driver.register("w1")
            await asyncio.sleep(0.1)  # one of two is back
            assert not asking.done()
            await metadata.driver.register("w3")
            with pytest.raises(UnknownTarget) as unknown:
                await asking
            assert unknown.value.available_targets == ("a",)


class UnreachableOnce:
    """A ledger that is out of reach for the first two operations of a service's start."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._refusals = ledger, 2

    def __getattr__(self, name: str) -> object:
        if name in {"now", "transact"} and self._refusals:
            self._refusals -= 1
            raise BudgetUnavailable
        return getattr(self._ledger, name)


async def test_a_ledger_that_is_lost_while_the_service_starts_is_waited_for() -> None:
    async with memory_ledger_driver() as driver:
        unreachable: Any = UnreachableOnce(driver.ledger)
        async with run_metadata_service(LONG, ledger=unreachable) as metadata:
            assert (await metadata.driver.open_session()).session_id


async def test_a_wait_ends_at_the_deadline(metadata: Metadata, session: SessionOpened) -> None:
    deadline = int(time.time() * 1000) + 200
    with pytest.raises(UnknownTarget):
        await metadata.invoke(session.token, BODY, "a", {DEADLINE_HEADER: deadline})


@pytest.mark.parametrize("target", ["", "no/name", "c"])
async def test_a_name_that_no_registration_can_help_is_answered_at_once(metadata: Metadata, target: str) -> None:
    narrow = await metadata.driver.open_session(allowed_targets=["a"])
    with pytest.raises(UnknownTarget):
        await metadata.invoke(narrow.token, {**BODY, "target": target})


async def test_a_wait_in_the_queue_ends_with_its_time(
    metadata: Metadata, session: SessionOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "MAX_WAITING", 0)
    deadline = int(time.time() * 1000) + 200
    with pytest.raises(UnknownTarget):
        await metadata.invoke(session.token, BODY, "a", {DEADLINE_HEADER: deadline})
    # The header of another client may shorten its wait, and cannot extend it.
    with pytest.raises(UnknownTarget):
        await metadata.invoke(session.token, BODY, "a", {WAIT_ENDS_HEADER: 1})
    with pytest.raises(BadRequest):
        await metadata.invoke(session.token, BODY, "a", {WAIT_ENDS_HEADER: "soon"})


@pytest.mark.parametrize("ending", ["crash", "stop"])
async def test_waiting_calls_survive_their_service(metadata: Metadata, session: SessionOpened, ending: str) -> None:
    for request_id in ("r1", "r2"):
        await publish(metadata, session, "a", request_id)
    await wait_for_waiting(metadata.service, 2)
    if ending == "crash":
        await metadata.service_bus.close()  # as after kill -9: nothing was acknowledged
    else:
        async with asyncio.timeout(2):
            await metadata.service.stop()
    bus = metadata.memory.connect()
    successor = MetadataService(bus, metadata.driver.ledger, digest(ADMIN_TOKEN), timings=LONG)
    await successor.start()
    try:
        await wait_for_waiting(successor, 2)
        await register(metadata, "a")
        got = await metadata.consume_queue(target_queue("a"))
        assert sorted([str((await next_delivery(got)).correlation_id) for _ in range(2)]) == ["r1", "r2"]
        await wait_for_waiting(successor, 0)
        assert got.empty()
    finally:
        await successor.stop()
        await bus.close()
