"""A ledger of an older release: opened by this one it has what it had, and does what this one does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver, counters, result
from quintain.contracts.ledger import Admission, CallKey
from quintain.contracts.session import SessionOpened
from quintain_metadata.ledger.factory import open_ledger
from quintain_metadata.ledger.migrations import MIGRATIONS, REPLY_RETENTION_MS, SCHEMA_VERSION
from quintain_metadata.rules.calls import Deferred
from quintain_metadata.rules.cancellation import CancelResult
from support.old_ledger import Store, insert_session, old_postgres, old_sqlite

FIRST = MIGRATIONS[0]


@pytest.fixture(params=["sqlite", "postgres"])
def old_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty ledger as the first release left it."""
    if request.param == "sqlite":
        making = old_sqlite(tmp_path / "ledger.sqlite3", 1)
    else:
        making = old_postgres(request.getfixturevalue("fresh_postgres_url"), 1)
    with making as store:
        yield store


@pytest.fixture
async def upgraded(old_store: Store) -> AsyncIterator[tuple[ClockedLedgerDriver, SessionOpened]]:
    session = insert_session(old_store)
    ledger = await open_ledger(old_store.url)
    yield ClockedLedgerDriver(ledger), session
    await ledger.close()


def test_the_first_release_is_what_it_was() -> None:
    # What was released is never edited: these tests would write another schema than the one that is out there.
    assert SCHEMA_VERSION == len(MIGRATIONS) == 15
    assert not any("cancelled_at" in statement or "paused_until" in statement for statement in FIRST)


async def test_an_older_ledger_has_every_call_it_had(upgraded: tuple[ClockedLedgerDriver, SessionOpened]) -> None:
    desk, session = upgraded
    assert counters(await desk.info(session)) == {
        "used": 4, "reserved": 1, "running": 1, "committed": 1, "refunded": 1, "in_doubt": 1,
    }  # fmt: skip
    for name in ("committed", "inDoubt"):
        assert (await desk.admit_fault(session, name)).error == "it broke"
    assert isinstance(await desk.admit(session, "running", by="w1"), Deferred)
    for name in ("reserved", "released", "refunded", "new"):
        await desk.admit_granted(session, name)
    assert await desk.audit_findings() == ()


async def test_the_calls_of_an_older_ledger_are_cancelled_and_its_targets_paused(
    upgraded: tuple[ClockedLedgerDriver, SessionOpened],
) -> None:
    desk, session = upgraded
    names = ("reserved", "running", "committed", "inDoubt", "refunded", "released", "unknown")
    assert await desk.cancel(session, *names) == CancelResult(5, ["running"])
    assert (await desk.info(session)).call_count == 3
    until = await desk.pause("a", 60_000)
    renewed = await desk.renew("w1")
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="running")]
    assert renewed.paused == {"a": until}
    assert (await desk.admit_fault(session, "released")).code == "cancelled"
    assert await desk.audit_findings() == ()


async def test_a_reply_that_an_older_release_stored_is_told_again(old_store: Store) -> None:
    session = insert_session(old_store)
    old_store.run("UPDATE call SET fault = NULL WHERE request_id = 'committed'")
    body = old_store.bytes_of(result("kept").to_wire())
    old_store.run(
        "INSERT INTO reply (session_id, request_id, body, expires_at)"
        f" VALUES ('{session.session_id}', 'committed', {body}, {REPLY_RETENTION_MS})"
    )
    ledger = await open_ledger(old_store.url)
    admission = await ClockedLedgerDriver(ledger).admit(session, "committed")
    assert isinstance(admission, Admission)
    assert admission.replay is not None
    assert admission.replay.raw_text == "kept"
    await ledger.close()


async def test_a_ledger_is_upgraded_once(old_store: Store) -> None:
    session = insert_session(old_store)
    for _ in range(2):
        ledger = await open_ledger(old_store.url)
        assert (await ClockedLedgerDriver(ledger).info(session)).call_count == 4
        await ledger.close()
