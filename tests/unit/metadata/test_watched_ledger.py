"""A ledger's outages are told in two lines, however many wait for it and however often they ask."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from quintain.errors import BadRequest, BudgetUnavailable
from quintain_metadata.instrumentation import InstrumentedLedger
from quintain_metadata.records import Moment
from quintain_metadata.sqlite import SqliteLedger
from quintain_metadata.steps import Steps, run
from support.quick import timings

AWAY, BACK = "The ledger is out of reach", "The ledger answers again"


@pytest.fixture
async def inner() -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(":memory:", asyncio.get_running_loop())
    yield ledger
    await ledger.close()


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message.partition(",")[0] for record in caplog.records]


def reading(_: Moment) -> Steps[object]:
    return (yield from run("SELECT count(*) FROM worker"))


def writing(_: Moment) -> Steps[object]:
    return (yield from run("INSERT INTO worker VALUES (hex(randomblob(8)), hex(randomblob(100000)), 0, 0)"))


async def test_an_outage_is_told_once_and_its_end_once(
    inner: SqliteLedger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = InstrumentedLedger(inner, timings=timings(ledger_quiet_seconds=1e-9))
    await ledger.do(reading)
    assert said(caplog) == []
    for _ in range(2):
        with monkeypatch.context() as away:
            away.setattr(inner, "_closed", True)
            for _ in range(3):
                with pytest.raises(BudgetUnavailable):
                    await ledger.do(reading)
        for _ in range(3):
            await ledger.do(reading)
    assert said(caplog) == [AWAY, BACK] * 2


async def test_a_full_disk_that_can_be_read_is_one_outage(
    inner: SqliteLedger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = InstrumentedLedger(inner)
    pages = next(iter(inner._connection.execute("PRAGMA page_count")))[0]
    inner._connection.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(5):
        with pytest.raises(BudgetUnavailable):
            await ledger.do(writing)
        await ledger.do(reading)
    assert said(caplog) == [AWAY]


async def test_a_refusal_is_no_outage(inner: SqliteLedger, caplog: pytest.LogCaptureFixture) -> None:
    ledger = InstrumentedLedger(inner)

    def refusing(_: Moment) -> Steps[None]:
        yield from run("SELECT 1")
        raise BadRequest("no")

    with pytest.raises(BadRequest):
        await ledger.do(refusing)
    assert said(caplog) == []


async def test_it_is_the_ledger_it_was_given(inner: SqliteLedger) -> None:
    ledger = InstrumentedLedger(inner)
    ledger.mourn_from(77)

    def mourned(moment: Moment) -> Steps[int]:
        yield from ()
        return moment.mourn_from

    assert await ledger.do(mourned) == 77
    assert abs(await ledger.now() - await inner.now()) < 10_000
    await ledger.close()
    with pytest.raises(BudgetUnavailable, match="closed"):
        await ledger.do(mourned)
