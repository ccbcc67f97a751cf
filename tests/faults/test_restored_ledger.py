"""A ledger that was restored from a copy: what it has counts, and calls go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator

import pytest

import quintain
from faults.scenario import BOT
from support.process_fleet import ProcessFleet, process_fleet
from support.servers.rabbitmq_admin import BrokerUnderTest

CONFIG = 'targets:\n  a: {provider: python, callable: "bot:answer"}\n'


@pytest.fixture
def fleet(breakable_broker: BrokerUnderTest, fast_queue_stats: None) -> Iterator[ProcessFleet]:
    """A fleet of which nothing runs yet."""
    with process_fleet(breakable_broker.url, CONFIG, targets=["a"]) as fleet:
        (fleet.folder / "bot.py").write_text(BOT)
        yield fleet


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
