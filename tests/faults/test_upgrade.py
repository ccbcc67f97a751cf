"""A ledger of the previous release, or of a copy, under this release's services: what it has counts, calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator

import pytest

import quintain
from faults.scenario import BOT, send_until_accepted
from quintain.contracts.invoke import InvokeRequest
from quintain_metadata.ledger.migrations import SCHEMA_VERSION
from support.old_ledger import Store, insert_session, old_postgres, old_sqlite
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerUnderTest

CONFIG = 'targets:\n  a: {provider: python, callable: "bot:answer"}\n'


@pytest.fixture
def fleet(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[ProcessFleet]:
    """A fleet of which nothing runs yet."""
    with process_fleet(breakable_broker.url, CONFIG, targets=["a"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        yield fleet


@pytest.fixture(params=["sqlite", "postgres"])
def previous_store(request: pytest.FixtureRequest, fleet: ProcessFleet) -> Iterator[Store]:
    """The fleet's ledger, empty, as the previous release left it."""
    if request.param == "sqlite":
        making = old_sqlite(fleet.folder / "previous.sqlite3", SCHEMA_VERSION - 1)
    else:
        making = old_postgres(request.getfixturevalue("fresh_postgres_url"), SCHEMA_VERSION - 1)
    with making as store:
        fleet.extra_env["QUINTAIN_LEDGER_URL"] = store.url
        yield store


async def test_a_ledger_of_the_previous_release_goes_on_under_this_one(
    fleet: ProcessFleet, previous_store: Store
) -> None:
    session = insert_session(previous_store)
    # The worker is there first, and the calls too: they wait for the service that upgrades.
    worker = fleet.start("serve", "worker")
    await asyncio.to_thread(fleet.start_service, "metadata")
    await asyncio.to_thread(worker.wait_for_output, "ready  worker")
    async with quintain.connect(fleet.broker_url, session.token) as target:
        info = await target.get_info()
        assert (info.call_count, info.committed, info.in_doubt, info.refunded) == (4, 1, 1, 1)

        async def told(name: str) -> str:
            return (await send_until_accepted(target, InvokeRequest(question=name), deadline_seconds=30)).text  # type: ignore[arg-type]

        # The calls of old are known by their ids, and by what was asked under them.
        assert {await told(name) for name in ("committed", "inDoubt")} == {"request_conflict"}
        assert (await told("reserved")).endswith("to reserved")
        # Six are left, and of ten that want one four are refused.
        answers = await asyncio.gather(*(told(f"new {number}") for number in range(10)))
        assert answers.count(quintain.BudgetExhausted.code) == 4
        # An answer may be here before its settle is in the ledger; one call of old runs for ever.
        async with asyncio.timeout(10):
            while (info := await target.get_info()).running > 1:
                await asyncio.sleep(0.05)
    assert (info.call_count, info.committed, info.reserved, info.running) == (10, 8, 0, 1)
    for process in reversed(fleet.processes):
        assert await asyncio.to_thread(process.stop) == 0, process.read_output()
    assert json.loads(await asyncio.to_thread(fleet.quintain, "ledger", "verify", "--json"))["findings"] == []


async def test_a_copy_of_a_live_ledger_is_restored(fleet: ProcessFleet) -> None:
    fleet.start_services("metadata", "worker")
    session = await asyncio.to_thread(fleet.open_session, "a", 3)
    async with quintain.connect(fleet.broker_url, session.token) as target:
        before = await target.invoke("before the copy")
        copy = fleet.folder / "copy.sqlite3"
        with (
            contextlib.closing(sqlite3.connect(fleet.ledger_url.removeprefix("sqlite://"))) as live,
            contextlib.closing(sqlite3.connect(copy)) as backup,
        ):
            live.backup(backup)
        await target.invoke("after it")
        assert await asyncio.to_thread(fleet.processes[0].stop) == 0
        fleet.extra_env["QUINTAIN_LEDGER_URL"] = f"sqlite://{copy}"
        await asyncio.to_thread(fleet.start_service, "metadata")
        # It knows what it knew: a call that was charged since is not in it.
        assert (await target.get_info()).call_count == before.call_count == 1
    assert json.loads(await asyncio.to_thread(fleet.quintain, "ledger", "verify", "--json"))["findings"] == []
