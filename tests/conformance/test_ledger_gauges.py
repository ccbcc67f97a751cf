"""What people look at: the books' few numbers, the registered targets, the schema; the same from every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain_metadata.metrics import read_gauges
from quintain_metadata.store.opening import open_ledger, open_snapshot
from quintain_metadata.store.schema import SCHEMA_VERSION
from support.ledger_driver import Driver


async def test_the_figures_count_what_is_open(driver: Driver) -> None:
    doubtful, closed, nearly = [await driver.open_session(max_calls=most) for most in (10, 1, 1)]
    for session in (doubtful, closed):
        grant = await driver.admit_granted(session, "r1")
        await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.IN_DOUBT)
    await driver.admit_granted(nearly, "r1")
    await driver.amend(closed, state="closed")
    read = await driver.transact(read_gauges)
    assert dict(read.sessions) == {"open": 2, "closed": 1}
    assert (read.in_doubt, read.near_limit) == (1, 1)
    assert {target.name: target.running for target in read.targets}["a"] == 1


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_snapshot_knows_its_schemas_version(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if store == "postgres":
        url = request.getfixturevalue("fresh_postgres_url")
        async with open_snapshot(url) as before:
            assert await before.version() == 0
    else:
        url = f"sqlite://{tmp_path / 'ledger.sqlite3'}"
    ledger = await open_ledger(url)
    async with open_snapshot(url) as snapshot:
        assert await snapshot.version() == SCHEMA_VERSION
    await ledger.close()
