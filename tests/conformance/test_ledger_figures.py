"""What people look at: the books' few numbers, the registered targets, the schema; the same from every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.ledger_desk import Desk
from quintain.contracts.ledger import Outcome
from quintain.contracts.metadata import AmendSession, SessionState
from quintain_metadata import sessions, targets
from quintain_metadata.figures import figures
from quintain_metadata.ledger_factory import open_ledger
from quintain_metadata.schema import VERSION
from quintain_metadata.snapshot import snapshot_of


async def test_the_figures_count_what_is_open(desk: Desk) -> None:
    doubtful, closed, nearly = [await desk.open(max_calls=most) for most in (10, 1, 1)]
    for session in (doubtful, closed):
        grant = await desk.granted(session, "r1")
        await desk.settle(session, "r1", grant.attempt_id, Outcome.DOUBT)
    await desk.granted(nearly, "r1")
    closing = AmendSession(session_id=closed.session_id, state=SessionState.CLOSED)
    await desk.ledger.do(lambda moment: sessions.amend(moment.now, closing))
    read = await desk.ledger.do(figures)
    assert dict(read.sessions) == {"open": 2, "closed": 1}
    assert (read.in_doubt, read.nearly_spent) == (1, 1)
    assert {target.name: target.running for target in read.targets}["a"] == 1


async def test_a_registered_target_says_how_long_it_is_paused(desk: Desk) -> None:
    await desk.pause("a", 60_000)
    listed = await desk.ledger.do(lambda moment: targets.registered(moment.now))
    paused = {target.name: target.paused_until for target in listed.targets}
    assert (paused["a"] or 0) > listed.now
    assert {name for name, until in paused.items() if until is None} == set(paused) - {"a"}


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_snapshot_knows_its_schemas_version(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if store == "postgres":
        url = request.getfixturevalue("fresh_postgres_url")
        async with snapshot_of(url) as before:
            assert await before.version() == 0
    else:
        url = f"sqlite://{tmp_path / 'ledger.sqlite3'}"
    ledger = await open_ledger(url)
    async with snapshot_of(url) as snapshot:
        assert await snapshot.version() == VERSION
    await ledger.close()
