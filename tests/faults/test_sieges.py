"""Real processes, a real broker, and something that breaks: every call still has its one final answer, nothing is
overspent, and the provider's own count is explained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from faults.harness import BOT, CONFIG, Ending, Siege, audited
from quintain.contracts.ledger import LEASE_SECONDS
from quintain.testing.under_test import BrokerUnderTest
from support.fleet import Process, ProcessFleet, process_fleet
from support.proxy import proxy_to


@pytest.fixture
def fleet(breakable_broker: BrokerUnderTest) -> Iterator[ProcessFleet]:
    with process_fleet(breakable_broker.url, CONFIG, targets=["bot"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        fleet.start_service("metadata")
        fleet.start_service("worker")
        fleet.start_service("worker")
        yield fleet


def metadata_of(fleet: ProcessFleet) -> Process:
    return fleet.processes[0]


async def reckon(fleet: ProcessFleet, ending: Ending, endings: list[Ending]) -> None:
    """What must hold after every fault."""
    endings.append(ending)
    assert ending.lost == 0
    assert ending.overspent == 0
    assert ending.charged == ending.calls - ending.refunded
    # Each attempt asks the provider once: more than one a call is a take-over, and nothing else.
    assert ending.calls <= ending.provider + ending.refunded
    for process in fleet.processes:
        await asyncio.to_thread(process.stop)
    verdict = await audited(fleet.folder)
    assert verdict.findings == ()


async def test_nothing_breaks(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(_: ProcessFleet) -> None:
        await asyncio.sleep(0)

    ending = await Siege(fleet).run("none", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_a_worker_is_killed(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(fleet.processes[1].kill)

    ending = await Siege(fleet).run("worker killed -9", strike)
    assert ending.provider <= ending.calls + 8  # what it held was asked twice at most, and is counted
    await reckon(fleet, ending, endings)


async def test_a_worker_is_asked_to_stop(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        assert await asyncio.to_thread(fleet.processes[1].stop) == 0

    ending = await Siege(fleet).run("worker SIGTERM", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_the_metadata_service_is_killed(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        await asyncio.to_thread(metadata_of(fleet).kill)
        await asyncio.sleep(1)
        fleet.processes[0] = await asyncio.to_thread(fleet.start_service, "metadata")
        fleet.processes.pop()

    ending = await Siege(fleet).run("metadata killed -9", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_the_broker_restarts(
    fleet: ProcessFleet, breakable_broker: BrokerUnderTest, endings: list[Ending]
) -> None:
    async def strike(_: ProcessFleet) -> None:
        admin = breakable_broker.admin
        assert admin is not None
        await asyncio.to_thread(admin.stop_app)
        await asyncio.to_thread(admin.start_app)

    ending = await Siege(fleet).run("broker restarted", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_every_call_is_published_three_times(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(_: ProcessFleet) -> None:
        await asyncio.sleep(0)

    ending = await Siege(fleet, calls=30, duplicates=2).run("duplicates", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_a_worker_freezes_past_its_lease_and_wakes_up(fleet: ProcessFleet, endings: list[Ending]) -> None:
    async def strike(fleet: ProcessFleet) -> None:
        frozen = fleet.processes[1].pid
        os.kill(frozen, signal.SIGSTOP)
        await asyncio.sleep(LEASE_SECONDS + 5)
        os.kill(frozen, signal.SIGCONT)

    ending = await Siege(fleet).run("worker frozen 20 s", strike)
    assert ending.provider <= ending.calls + 8
    await reckon(fleet, ending, endings)


async def test_the_broker_raises_its_memory_alarm(
    fleet: ProcessFleet, breakable_broker: BrokerUnderTest, endings: list[Ending]
) -> None:
    async def strike(_: ProcessFleet) -> None:
        admin = breakable_broker.admin
        assert admin is not None
        await asyncio.to_thread(admin.rabbitmqctl, "set_vm_memory_high_watermark", "0.0000001")
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.to_thread(admin.rabbitmqctl, "set_vm_memory_high_watermark", "0.4")

    ending = await Siege(fleet).run("memory alarm", strike)
    assert ending.provider == ending.calls
    await reckon(fleet, ending, endings)


async def test_every_connection_is_cut_again_and_again(
    breakable_broker: BrokerUnderTest, endings: list[Ending]
) -> None:
    url = urlsplit(breakable_broker.url)
    async with proxy_to(url.hostname or "127.0.0.1", url.port or 5672) as proxy:
        netloc = f"{url.username}:{url.password}@127.0.0.1:{proxy.port}"

        async def strike(_: ProcessFleet) -> None:
            for _ in range(3):
                proxy.cut()
                await asyncio.sleep(1)

        with process_fleet(breakable_broker.url, CONFIG, targets=["bot"]) as fleet:
            fleet.broker_url = url._replace(netloc=netloc).geturl()
            (fleet.folder / "bot.py").write_text(BOT)
            for service in ("metadata", "worker", "worker"):
                await asyncio.to_thread(fleet.start_service, service)
            ending = await Siege(fleet).run("connections cut", strike)
            assert ending.provider == ending.calls
            await reckon(fleet, ending, endings)
