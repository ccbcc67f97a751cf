"""A ledger of an older release: opened by this one it has what it had, and does what this one does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from conformance.ledger_desk import Desk, counters
from quintain.contracts.ledger import CallKey
from quintain.contracts.metadata import SessionOpened
from quintain_metadata.cancels import TakenBack
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.records import Held
from quintain_metadata.schema import MIGRATIONS, VERSION
from support.old_ledger import Store, old_postgres, old_sqlite, written

FIRST = MIGRATIONS[0]


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty ledger as the first release left it."""
    if request.param == "sqlite":
        making = old_sqlite(tmp_path / "ledger.sqlite3", 1)
    else:
        making = old_postgres(request.getfixturevalue("fresh_postgres_url"), 1)
    with making as store:
        yield store


@pytest.fixture
async def upgraded(old: Store) -> AsyncIterator[tuple[Desk, SessionOpened]]:
    session = written(old)
    ledger = await open_ledger(old.url)
    yield Desk(ledger), session
    await ledger.close()


def test_the_first_release_is_what_it_was() -> None:
    # What was released is never edited: these tests would write another schema than the one that is out there.
    assert VERSION == len(MIGRATIONS) == 4
    assert not any("cancelled_at" in statement or "paused_until" in statement for statement in FIRST)


async def test_an_older_ledger_has_every_call_it_had(upgraded: tuple[Desk, SessionOpened]) -> None:
    desk, session = upgraded
    assert counters(await desk.info(session)) == {
        "used": 4, "reserved": 1, "running": 1, "committed": 1, "refunded": 1, "in_doubt": 1,
    }  # fmt: skip
    for name in ("committed", "inDoubt"):
        assert (await desk.told(session, name)).error == "it broke"
    assert isinstance(await desk.admit(session, "running", by="w1"), Held)
    for name in ("reserved", "released", "refunded", "new"):
        await desk.granted(session, name)
    assert await desk.findings() == ()


async def test_the_calls_of_an_older_ledger_are_cancelled_and_its_targets_paused(
    upgraded: tuple[Desk, SessionOpened],
) -> None:
    desk, session = upgraded
    names = ("reserved", "running", "committed", "inDoubt", "refunded", "released", "unknown")
    assert await desk.cancel(session, *names) == TakenBack(5, ["running"])
    assert (await desk.info(session)).call_count == 3
    until = await desk.pause("a", 60_000)
    renewed = await desk.renew("w1")
    assert renewed.taken_back == [CallKey(session_id=session.session_id, request_id="running")]
    assert renewed.paused == {"a": until}
    assert (await desk.told(session, "released")).code == "cancelled"
    assert await desk.findings() == ()


async def test_a_ledger_is_upgraded_once(old: Store) -> None:
    session = written(old)
    for _ in range(2):
        ledger = await open_ledger(old.url)
        assert (await Desk(ledger).info(session)).call_count == 4
        await ledger.close()
