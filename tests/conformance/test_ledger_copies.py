"""Copies of the messages of running calls, and how long a call may last: the same on every store."""

from __future__ import annotations

import pytest

from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.values import MAX_DEADLINE_SECONDS
from quintain.errors import BadRequest
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import CLOCK_TOLERANCE_SECONDS, DeferReason, Deferred
from support.ledger_driver import Driver

LEASE_MS = 16_000


def is_held(decision: object) -> bool:
    return isinstance(decision, Deferred) and decision.reason is DeferReason.CALL


def needs_slot(decision: object) -> bool:
    return isinstance(decision, Admission) and decision.needs_slot is True and not decision.is_grant


async def test_a_copy_waits_for_its_call_and_does_not_keep_it_from_being_cancelled(driver: Driver) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r", attempt="holder")
    assert is_held(await driver.admit(session, "r", by="w2", copy_of="holder"))
    assert await driver.cancel(session, "r") == CancelResult(1, ["r"])


async def test_what_is_no_attempts_copy_needs_a_slot(driver: Driver) -> None:
    session = await driver.open_session()
    assert needs_slot(await driver.admit(session, "r", copy_of="unknown"))
    await driver.admit_granted(session, "r", attempt="holder")
    assert needs_slot(await driver.admit(session, "r", by="w2", copy_of="forged"))
    assert (await driver.info(session)).call_count == 1


async def test_a_copy_needs_a_slot_once_its_calls_worker_is_gone_and_is_one_of_the_next_attempt_too(
    driver: Driver,
) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r", attempt="holder")
    driver.clock_ahead_ms += LEASE_MS
    await driver.register("w2")
    assert needs_slot(await driver.admit(session, "r", by="w2", copy_of="holder"))
    assert (await driver.admit_granted(session, "r", by="w2", attempt="heir")).attempt == 2
    for attempt in ("holder", "heir"):
        assert is_held(await driver.admit(session, "r", by="w2", copy_of=attempt))
    info = await driver.info(session)
    assert (info.call_count, info.running) == (1, 1)


async def test_a_copy_of_a_refunded_call_needs_a_slot(driver: Driver) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r", attempt="holder")
    await driver.settle(session, "r", "holder", AttemptOutcome.REFUND)
    assert needs_slot(await driver.admit(session, "r", by="w2", copy_of="holder"))


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
