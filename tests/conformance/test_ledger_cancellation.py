"""Calls that are taken back, and targets that are paused: the same on every store."""

from __future__ import annotations

import pytest

from quintain.contracts.credentials import SessionToken
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, Cancelled, ForbiddenTarget, Throttled, Unauthorized
from quintain_metadata.ledger import calls
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import DeferReason, Deferred
from quintain_metadata.ledger.targets import MAX_PAUSE_MS
from support.ledger_driver import Driver, counters


async def fault_of_next_attempt(
    driver: Driver, session: SessionOpened, request_id: str = "r1", **overrides: object
) -> tuple[str, bool]:
    """What another attempt of the call is told: the code of its fault, and whether it was charged."""
    fault = await driver.admit_fault(session, request_id, **overrides)
    return fault.code, fault.charged


async def defer_reason(
    driver: Driver, session: SessionOpened, request_id: str = "r1", **overrides: object
) -> DeferReason:
    """What another attempt waits for."""
    held = await driver.admit(session, request_id, **overrides)  # type: ignore[arg-type]
    assert isinstance(held, Deferred)
    return held.reason


async def test_what_would_be_refused_anyway_is_refused_as_ever(driver: Driver) -> None:
    session = await driver.open_session(allowed_targets=["a"])
    await driver.cancel(session, "r1")
    problem = FaultReply.from_fault(BadRequest("Missing required field: question"))
    with pytest.raises(BadRequest, match="question"):
        await driver.admit(session, "r1", problem=problem)
    with pytest.raises(ForbiddenTarget):
        await driver.admit(session, "r1", target="b")
    with pytest.raises(Unauthorized):
        await driver.admit(session.model_copy(update={"token": SessionToken.mint().text}), "r1")


async def test_an_aborted_call_that_may_have_been_billed_says_that_it_was_cancelled(driver: Driver) -> None:
    session = await driver.open_session()
    grant = await driver.admit_granted(session, "r1")
    assert await driver.cancel(session, "r1") == CancelResult(1, {"r1": "w1"})
    await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.IN_DOUBT, fault=Cancelled("aborted"))
    fault = await driver.admit_fault(session, "r1")
    assert (fault.error, fault.code, fault.charged, fault.retryable) == ("aborted", "cancelled", True, False)
    assert await driver.audit_findings() == ()


async def test_the_code_of_what_is_no_cancellation_is_kept_as_ever(driver: Driver) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r1")
    await driver.lose_worker()
    second = await driver.admit_granted(session, "r1", by="w2")
    await driver.settle(session, "r1", second.attempt_id, AttemptOutcome.REFUND, fault=Throttled())
    assert await fault_of_next_attempt(driver, session) == ("provider_error", True)


# Who may run anything at all: a worker that lives, at a target that is not paused.


async def test_a_worker_without_a_lease_is_granted_nothing_until_it_has_one(driver: Driver) -> None:
    session = await driver.open_session()
    assert await defer_reason(driver, session, by="stranger") is DeferReason.LEASE
    driver.clock_ahead_ms = 16_000
    assert await defer_reason(driver, session, by="w1") is DeferReason.LEASE
    assert (await driver.info(session)).call_count == 0
    await driver.renew("w1")
    grant = await driver.admit_granted(session, "r1", by="w1")
    driver.clock_ahead_ms = 32_000
    # Somebody else may follow it at any time.
    assert await defer_reason(driver, session, by="w1", attempt=grant.attempt_id) is DeferReason.LEASE
    await driver.renew("w1")
    assert await driver.admit_granted(session, "r1", by="w1", attempt=grant.attempt_id) == grant


async def test_after_a_gap_of_this_services_own_a_worker_it_knows_has_its_lease(driver: Driver) -> None:
    session = await driver.open_session()
    driver.clock_ahead_ms = 16_000
    driver.ledger.lease_expiry.suspended_until = await driver.ledger.now() + driver.clock_ahead_ms + 10_000
    await driver.admit_granted(session, "r1", by="w1")
    assert await defer_reason(driver, session, "r2", by="stranger") is DeferReason.LEASE


async def test_what_ends_with_its_deadline_at_a_paused_target_says_so(driver: Driver) -> None:
    session = await driver.open_session(deadline_seconds=30)
    await driver.admit_granted(session, "r1", by="w1")
    await driver.pause("a", 60_000)
    driver.clock_ahead_ms = 31_000
    assert await fault_of_next_attempt(driver, session, by="w2") == ("timeout", True)


async def test_nobody_pauses_a_target_for_longer_than_a_day(driver: Driver) -> None:
    now = await driver.ledger.now()
    until = await driver.pause("a", 10**15)
    assert until is not None
    assert 0 <= until - now - MAX_PAUSE_MS < 10_000
    assert await driver.pause("unknown", 1_000) is None


# Throttled calls that nothing of their own ends: their session is closed, or their message is dead-lettered.


async def throttle(driver: Driver, session: SessionOpened, request_id: str, *, unproven: bool) -> None:
    granted = await driver.admit_granted(session, request_id)
    tries = {"tries": 1, "unproven": int(unproven) or None}
    await driver.settle(session, request_id, granted.attempt_id, AttemptOutcome.RETRY, **tries)


@pytest.mark.parametrize("unproven", [True, False])
@pytest.mark.parametrize("by", ["its session", "its message"])
async def test_a_throttled_call_ends_with_its_session_or_its_message(driver: Driver, by: str, unproven: bool) -> None:
    session = await driver.open_session()
    await throttle(driver, session, "r1", unproven=unproven)
    if by == "its session":
        await driver.close(session)
    else:
        _, fault = await driver.as_owner(session, lambda moment, owner: calls.end_dead_letter(moment, owner, "r1"))
        assert (fault and fault.code) == ("timeout" if unproven else None)
    found = counters(await driver.info(session))
    assert (found["used"], found["in_doubt"], found["reserved"]) == (unproven, unproven, 0)
    assert await driver.audit_findings() == ()


async def test_another_request_with_its_id_does_not_end_a_throttled_call(driver: Driver) -> None:
    session = await driver.open_session()
    await throttle(driver, session, "r1", unproven=False)
    assert (await driver.admit_fault(session, "r1", body_sha256="other")).code == "request_conflict"
    assert counters(await driver.info(session))["reserved"] == 1


async def test_a_throttled_call_that_names_no_deadline_keeps_its_first(driver: Driver) -> None:
    session = await driver.open_session()
    first = await driver.admit_granted(session, "r0")
    await throttle(driver, session, "r1", unproven=False)
    driver.clock_ahead_ms += 5_000
    again = await driver.admit_granted(session, "r1")
    assert again.deadline - first.deadline < 5_000
