"""Old sessions that have ended are deleted whole; the counters of what is left stay right, from every store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain.errors import ConfigError, Unauthorized
from quintain_metadata.ledger import pruning, replies
from quintain_metadata.ledger.audit import export_page
from quintain_metadata.ledger.replies import REPLY_RETENTION_MS as DAY
from quintain_metadata.store.base import SqlProgram
from support.ledger_driver import Driver


async def called(driver: Driver, session: SessionOpened, *request_ids: str) -> None:
    for request_id in request_ids:
        grant = await driver.admit_granted(session, request_id)
        await driver.settle(session, request_id, grant.attempt_id, AttemptOutcome.RESULT)


async def calls_left(driver: Driver) -> set[tuple[str, str]]:
    page = await driver.transact(lambda _: export_page(("", "")))
    return {(call.session_id, call.request_id) for call in page}


async def test_only_whole_sessions_that_ended_are_deleted(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "CALLS_PER_STEP", 2)
    monkeypatch.setattr(pruning, "ROOTS_PER_STEP", 1)
    driver.clock_ahead_ms = -10 * DAY
    await driver.renew()
    ended, expired, used_later, still_open, with_child = [
        await driver.open_session(max_calls=20, expires_in_seconds=seconds)
        for seconds in (None, 3600, None, None, None)
    ]
    for session in (ended, expired, used_later, still_open):
        await called(driver, session, *(f"r{number}" for number in range(5)))
    child = await driver.open_session(parent=with_child, max_calls=5)
    grandchild = await driver.open_session(parent=child, max_calls=5)
    await called(driver, grandchild, "g1", "g2", "g3")
    await called(driver, with_child, "p1")
    driver.clock_ahead_ms = -2 * DAY
    await driver.renew()
    await called(driver, used_later, "later")
    for session in (ended, used_later, with_child):
        await driver.close(session)
    driver.clock_ahead_ms = 0
    await driver.renew()
    before = await driver.ledger.now() - 5 * DAY

    def run(make: Callable[[], SqlProgram[Any]]) -> Any:
        return driver.transact(lambda _: make())

    old = [family async for family, _ in pruning.find_old(run, before + 5 * DAY, before)]
    children = [with_child.session_id, child.session_id, grandchild.session_id]
    assert sorted(map(sorted, old)) == sorted([[ended.session_id], [expired.session_id], sorted(children)])
    report = await pruning.prune(driver.ledger, before)
    assert (report.sessions, report.calls) == (5, 14)
    assert {session_id for session_id, _ in await calls_left(driver)} == {
        used_later.session_id,
        still_open.session_id,
    }
    assert await driver.audit_findings() == ()
    with pytest.raises(Unauthorized):
        await driver.admit_granted(ended, "r1")
    assert (await pruning.prune(driver.ledger, before)).sessions == 0


async def test_what_was_interrupted_is_consistent_and_finished_later(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "CALLS_PER_STEP", 2)
    driver.clock_ahead_ms = -10 * DAY
    await driver.renew()
    parent = await driver.open_session(max_calls=20)
    child = await driver.open_session(parent=parent, max_calls=10)
    await called(driver, child, "r1", "r2", "r3")
    await driver.close(parent)
    driver.clock_ahead_ms = 0
    await driver.transact(lambda moment: replies.delete_expired(moment.now))
    assert await driver.transact(lambda _: pruning.delete_calls(child.session_id)) == 2
    assert await driver.audit_findings() == ()
    report = await pruning.prune(driver.ledger, await driver.ledger.now() - 5 * DAY)
    assert (report.sessions, report.calls) == (2, 1)


async def test_sessions_of_the_last_days_are_never_deleted(driver: Driver) -> None:
    with pytest.raises(ConfigError):
        await pruning.prune(driver.ledger, await driver.ledger.now() - DAY)
