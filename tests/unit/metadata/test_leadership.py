"""One leader of a ledger, on any clock: nobody says anything past its lease, whenever it was stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.bus.memory import MemoryBroker
from quintain.errors import BrokerRefused, BudgetUnavailable, LedgerInUse
from quintain_metadata import replicas
from quintain_metadata.replicas import leading, replicated
from quintain_metadata.store import leadership as leadership_module
from quintain_metadata.store.leadership import LAPSED_SECONDS, LEASE_SECONDS, Leadership, boot_seconds


class VirtualRow:
    """The row of the leader on a virtual clock. Each statement takes so long to arrive, and its answer as long."""

    def __init__(self) -> None:
        self.time, self.epoch, self.lease_until = 0.0, 0, 0.0
        self.latency, self.is_away = 0.0, False

    def clock(self) -> float:
        return self.time

    @contextlib.contextmanager
    def statement(self) -> Any:
        self.time += self.latency
        if self.is_away:
            raise BudgetUnavailable
        yield
        self.time += self.latency

    async def take(self) -> int | None:
        with self.statement():
            if self.lease_until > self.time:
                return None
            self.epoch, self.lease_until = self.epoch + 1, self.time + LEASE_SECONDS
            return self.epoch

    async def renew(self, epoch: int) -> bool:
        with self.statement():
            if self.epoch != epoch:
                return False
            self.lease_until = self.time + LEASE_SECONDS
            return True

    async def release(self, epoch: int) -> None:
        with self.statement():
            if self.epoch == epoch:
                self.lease_until = self.time


@pytest.fixture
def row() -> VirtualRow:
    return VirtualRow()


def process(row: VirtualRow) -> Leadership:
    return Leadership(row, row.clock)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "renew", "renew", "leave"]),
        st.integers(0, 2),
        st.sampled_from([0.0, 0.0, 0.4, 1.0, 2.9, 3.1, 3600.0]),
        st.sampled_from([0.0, 0.01, 1.4, 2.0]),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_never_two_processes_speak_however_long_each_was_stopped_and_however_slow_the_ledger_is(
    steps: list[tuple[str, int, float, float]],
) -> None:
    async def run() -> None:
        row = VirtualRow()
        processes = [process(row) for _ in range(3)]
        for step, number, passed, row.latency in steps:
            row.time += passed
            one = processes[number]
            if step == "take" and one.epoch is None:
                await one.take()
            elif step == "renew" and one.epoch is not None:
                await one.renew()
            elif step == "leave":
                await one.leave()
            assert sum(each.epoch is not None and each.may_publish() for each in processes) <= 1

    asyncio.run(run())


async def test_one_that_wakes_after_an_hour_says_nothing_and_learns_that_another_one_leads(row: VirtualRow) -> None:
    sleeping, other = process(row), process(row)
    assert await sleeping.take()
    assert not await other.take()
    row.time += 3600
    assert await other.take()
    assert (sleeping.may_publish(), other.may_publish()) == (False, True)
    assert not await sleeping.renew()
    assert not sleeping.may_publish()


async def test_one_that_wakes_when_nobody_has_led_meanwhile_goes_on(row: VirtualRow) -> None:
    sleeping = process(row)
    assert await sleeping.take()
    row.time += 3600
    assert not sleeping.may_publish()
    assert await sleeping.renew()
    assert sleeping.may_publish()


async def test_one_that_leaves_is_followed_at_once(row: VirtualRow) -> None:
    leaving, other = process(row), process(row)
    assert await leaving.take()
    await leaving.leave()
    assert await other.take()


async def test_a_lease_is_kept_until_the_ledger_is_away_for_long(
    row: VirtualRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership_module, "RENEW_SECONDS", 0.0)
    leader, row.latency = process(row), 0.5
    assert await leader.take()
    keeping = asyncio.create_task(leader.keep())
    while row.time < 100:
        await asyncio.sleep(0)
        assert leader.may_publish()
    row.is_away, away_at = True, row.time
    await keeping
    assert not leader.may_publish()
    assert away_at + LAPSED_SECONDS <= row.time < away_at + LEASE_SECONDS + LAPSED_SECONDS + 1


def test_the_clock_of_a_lease_goes_on_while_the_machine_sleeps() -> None:
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    assert abs(boot_seconds() - uptime) < 60


class LedgerOf:
    """What replicas ask of a ledger: whose lead it is."""

    kind = "virtual"

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership


class Services:
    """The services that were started: which of them runs."""

    def __init__(self) -> None:
        self.started, self.running = 0, 0
        self.error: Exception | None = None

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Any]:
        if self.error is not None:
            raise self.error
        self.started, self.running = self.started + 1, self.running + 1
        try:
            yield self
        finally:
            self.running -= 1


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership_module, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(replicas, "LOOK_SECONDS", 0.001)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def start(row: VirtualRow, services: Services) -> contextlib.AbstractAsyncContextManager[Any]:
    return replicated(MemoryBroker().connect(), LedgerOf(process(row)), services.serve)  # type: ignore[arg-type]


async def test_of_two_replicas_one_serves_and_the_other_one_when_it_is_gone(row: VirtualRow, fast: None) -> None:
    first, second = Services(), Services()
    async with contextlib.AsyncExitStack() as stack:
        async with start(row, first):
            await stack.enter_async_context(start(row, second))
            assert (first.running, second.running) == (1, 0)
        await until(lambda: second.running)
    assert (first.running, second.running) == (0, 0)


async def test_a_replica_that_another_one_has_followed_ends_its_service_and_stands_by(
    row: VirtualRow, fast: None
) -> None:
    services = Services()
    async with start(row, services):
        assert services.running == 1
        row.epoch, row.lease_until = row.epoch + 1, row.time + LEASE_SECONDS  # another one took it
        await until(lambda: not services.running)
        row.time += LEASE_SECONDS
        await until(lambda: services.started == 2)


async def test_a_service_that_does_not_start_ends_its_process_and_not_one_that_stood_by(
    row: VirtualRow, fast: None
) -> None:
    services = Services()
    services.error = BrokerRefused("no rights")
    with pytest.raises(BrokerRefused, match="no rights"):
        async with start(row, services):
            pass
    assert row.lease_until <= row.time, "it leads no more"
    row.lease_until = row.time + LEASE_SECONDS
    async with start(row, services):
        row.time += LEASE_SECONDS
        await until(lambda: row.epoch > 2)
        services.error = None
        await until(lambda: services.running)


async def test_a_process_that_has_its_ledger_alone_is_refused_while_another_one_leads(
    row: VirtualRow, fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "LEASE_SECONDS", 0.01)
    async with leading(MemoryBroker().connect(), LedgerOf(process(row))):  # type: ignore[arg-type]
        with pytest.raises(LedgerInUse):
            async with leading(MemoryBroker().connect(), LedgerOf(process(row))):  # type: ignore[arg-type]
                pass
    async with leading(MemoryBroker().connect(), LedgerOf(process(row))):  # type: ignore[arg-type]
        assert row.lease_until > row.time
