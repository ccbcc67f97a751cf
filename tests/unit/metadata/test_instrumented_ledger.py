"""A ledger's outages are told in two lines, however many wait for it and however often they ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from quintain.errors import BadRequest, BudgetUnavailable
from quintain_metadata.metrics import InstrumentedLedger
from quintain_metadata.store.base import Moment, SqlProgram, execute
from quintain_metadata.store.postgres_connection import translate_error
from quintain_metadata.store.sqlite import SqliteLedger
from support.quick import timings

OUTAGE, RECOVERY = "The ledger is out of reach", "The ledger answers again"


@pytest.fixture
async def wrapped_ledger() -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    yield ledger
    await ledger.close()


@pytest.fixture(autouse=True)
def info_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message.partition(";")[0] for record in caplog.records]


def read_operation(_: Moment) -> SqlProgram[object]:
    return (yield from execute("SELECT count(*) FROM worker"))


def write_operation(_: Moment) -> SqlProgram[object]:
    sql = "INSERT INTO worker (incarnation, worker_id, lease_until) VALUES (hex(randomblob(8)), hex(randomblob(?)), 0)"
    return (yield from execute(sql, 100_000))


async def test_only_the_log_has_the_address_of_the_database(
    wrapped_ledger: SqliteLedger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "postgresql://ledger@db.internal:5432/money"

    async def fail(*_: object) -> object:
        raise translate_error(ConnectionRefusedError(111, f"Connect call failed {address}"), address)

    for method in ("transact", "now"):
        monkeypatch.setattr(wrapped_ledger, method, fail)
    ledger = InstrumentedLedger(wrapped_ledger)
    outcomes: list[BudgetUnavailable] = []
    for operation in (lambda: ledger.transact(read_operation), ledger.now):
        with pytest.raises(BudgetUnavailable) as unavailable:
            await operation()
        assert unavailable.value.__cause__ is None
        outcomes.append(unavailable.value)
    assert not any("db.internal" in each.message for each in outcomes)
    assert "db.internal" in caplog.text


async def test_an_outage_is_told_once_and_its_end_once(
    wrapped_ledger: SqliteLedger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = InstrumentedLedger(wrapped_ledger, timings=timings(ledger_quiet_seconds=1e-9))
    await ledger.transact(read_operation)
    assert messages(caplog) == []
    for _ in range(2):
        with monkeypatch.context() as away:
            away.setattr(wrapped_ledger, "_closed", True)
            for _ in range(3):
                with pytest.raises(BudgetUnavailable):
                    await ledger.transact(read_operation)
        for _ in range(3):
            await ledger.transact(read_operation)
    assert messages(caplog) == [OUTAGE, RECOVERY] * 2


async def test_a_full_disk_that_can_be_read_is_one_outage(
    wrapped_ledger: SqliteLedger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = InstrumentedLedger(wrapped_ledger)
    pages = next(iter(wrapped_ledger._connection.execute("PRAGMA page_count")))[0]
    wrapped_ledger._connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(5):
        with pytest.raises(BudgetUnavailable):
            await ledger.transact(write_operation)
        await ledger.transact(read_operation)
    assert messages(caplog) == [OUTAGE]


async def test_a_refusal_is_no_outage(wrapped_ledger: SqliteLedger, caplog: pytest.LogCaptureFixture) -> None:
    ledger = InstrumentedLedger(wrapped_ledger)

    def refusing(_: Moment) -> SqlProgram[None]:
        yield from execute("SELECT 1")
        raise BadRequest("no")

    with pytest.raises(BadRequest):
        await ledger.transact(refusing)
    assert messages(caplog) == []
