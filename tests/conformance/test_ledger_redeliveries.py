"""Messages of running calls that are delivered again, and how long a call may last: the same on every store."""

from __future__ import annotations

import pytest

from quintain.contracts.values import MAX_DEADLINE_SECONDS
from quintain.errors import BadRequest
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import CLOCK_TOLERANCE_SECONDS, DeferReason, Deferred
from support.ledger_driver import Driver

LEASE_MS = 16_000


def is_held(decision: object) -> bool:
    return isinstance(decision, Deferred) and decision.reason is DeferReason.CALL


async def test_what_is_delivered_again_waits_for_its_call_and_keeps_it_from_no_cancellation(driver: Driver) -> None:
    session = await driver.open_session()
    for call in ("again", "another caller's"):
        await driver.admit_granted(session, call)
    assert is_held(await driver.admit(session, "again", by="w2", redelivered=True))
    assert is_held(await driver.admit(session, "another caller's", by="w2"))
    assert await driver.cancel(session, "again", "another caller's") == CancelResult(1, {"again": "w1"})
    assert (await driver.info(session)).call_count == 2


async def test_what_is_delivered_again_takes_over_once_its_calls_worker_is_gone(driver: Driver) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r")
    assert is_held(await driver.admit(session, "r", by="w2", redelivered=True))
    driver.clock_ahead_ms += LEASE_MS
    await driver.register("w2")
    assert (await driver.admit_granted(session, "r", by="w2", redelivered=True)).attempt == 2
    info = await driver.info(session)
    assert (info.call_count, info.running) == (1, 1)


async def test_a_call_lasts_twelve_hours_and_a_later_deadline_is_refused_with_the_limit(driver: Driver) -> None:
    session = await driver.open_session()
    now = (await driver.info(session)).now + driver.clock_ahead_ms
    longest = now + int(MAX_DEADLINE_SECONDS * 1000)
    assert (await driver.admit_granted(session, "longest", deadline=longest)).deadline == longest
    too_late = longest + int(CLOCK_TOLERANCE_SECONDS * 1000) + 60_000
    fault = await driver.admit_fault(session, "too late", deadline=too_late)
    assert (fault.code, fault.charged) == ("bad_request", False)
    assert "43200" in fault.error
    with pytest.raises(BadRequest, match="43200"):
        await driver.reserve(session, ["reserved"], seconds=MAX_DEADLINE_SECONDS + 60)
    assert (await driver.info(session)).call_count == 1
