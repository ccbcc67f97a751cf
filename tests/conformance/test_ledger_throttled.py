"""Throttled calls that nothing of their own ends: their session is closed, or their message is dead-lettered."""

from __future__ import annotations

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver, counters
from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import AttemptOutcome, Settle
from quintain.contracts.session import SessionOpened
from quintain_metadata.ledger import calls, sessions
from quintain_metadata.store.base import Moment, SqlProgram
from support.ledger_operations import alone


async def throttle(driver: ClockedLedgerDriver, session: SessionOpened, request_id: str, *, unproven: bool) -> None:
    granted = await driver.admit_granted(session, request_id)
    item = Settle(
        session_id=session.session_id,
        request_id=request_id,
        attempt_id=granted.attempt_id,
        outcome=AttemptOutcome.THROTTLED,
        tries=1,
        unproven=int(unproven) or None,
    )
    await driver.ledger.transact(alone(item))


@pytest.mark.parametrize("unproven", [True, False])
async def test_a_throttled_call_ends_with_its_session(ledger_driver: ClockedLedgerDriver, unproven: bool) -> None:
    session = await ledger_driver.open_session()
    await throttle(ledger_driver, session, "r1", unproven=unproven)
    await ledger_driver.ledger.transact(lambda moment: calls.end_family(moment, [session.session_id]))
    found = counters(await ledger_driver.info(session))
    assert (found["used"], found["in_doubt"], found["reserved"]) == (unproven, unproven, 0)
    assert await ledger_driver.audit_findings() == ()


@pytest.mark.parametrize("unproven", [True, False])
async def test_a_throttled_call_ends_with_its_message(ledger_driver: ClockedLedgerDriver, unproven: bool) -> None:
    session = await ledger_driver.open_session()
    await throttle(ledger_driver, session, "r1", unproven=unproven)

    def end(moment: Moment) -> SqlProgram[str | None]:
        owner = yield from sessions.authenticate(moment.now, SessionToken.parse(session.token))
        _, fault = yield from calls.end_dead_letter(moment, owner, "r1")
        return None if fault is None else fault.code

    assert await ledger_driver.ledger.transact(end) == ("timeout" if unproven else None)
    found = counters(await ledger_driver.info(session))
    assert (found["used"], found["in_doubt"]) == (unproven, unproven)
    assert await ledger_driver.audit_findings() == ()


async def test_another_request_with_its_id_does_not_end_a_throttled_call(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await throttle(ledger_driver, session, "r1", unproven=False)
    assert (await ledger_driver.admit_fault(session, "r1", body_sha256="other")).code == "request_conflict"
    assert counters(await ledger_driver.info(session))["reserved"] == 1


async def test_a_throttled_call_that_names_no_deadline_keeps_its_first(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    first = await ledger_driver.admit_granted(session, "r0")
    await throttle(ledger_driver, session, "r1", unproven=False)
    ledger_driver.clock_ahead_ms += 5_000
    again = await ledger_driver.admit_granted(session, "r1")
    assert again.deadline - first.deadline < 5_000
