"""Calls that are taken back, and targets that are paused: the same on every store."""

from __future__ import annotations

import pytest

from conformance.clocked_ledger_driver import ClockedLedgerDriver, counters
from quintain.contracts.credentials import SessionToken
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, AttemptOutcome, CallKey
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, Cancelled, ForbiddenTarget, RequestConflict, Throttled, Unauthorized
from quintain_metadata.ledger.calls import CancelResult
from quintain_metadata.ledger.decisions import DUPLICATE_WAIT_MS, DeferReason, Deferred
from quintain_metadata.ledger.targets import MAX_PAUSE_MS

REFUSED = ("cancelled", False)
KEPT = ("cancelled", True)


async def fault_of_next_attempt(
    ledger_driver: ClockedLedgerDriver, session: SessionOpened, request_id: str = "r1", **overrides: object
) -> tuple[str, bool]:
    """What another attempt of the call is told: the code of its fault, and whether it was charged."""
    fault = await ledger_driver.admit_fault(session, request_id, **overrides)
    return fault.code, fault.charged


async def defer_reason(
    ledger_driver: ClockedLedgerDriver, session: SessionOpened, request_id: str = "r1", **overrides: object
) -> DeferReason:
    """What another attempt waits for."""
    held = await ledger_driver.admit(session, request_id, **overrides)  # type: ignore[arg-type]
    assert isinstance(held, Deferred)
    return held.reason


async def cancel_running_call(ledger_driver: ClockedLedgerDriver, session: SessionOpened) -> Admission:
    """A running call, cancelled."""
    grant = await ledger_driver.admit_granted(session, "r1")
    assert await ledger_driver.cancel(session, "r1") == CancelResult(1, ["r1"])
    return grant


async def test_a_call_that_is_cancelled_before_it_is_known_is_refused_and_nobody_is_charged(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    assert await ledger_driver.cancel(session, "r1") == CancelResult(1)
    assert await fault_of_next_attempt(ledger_driver, session) == REFUSED
    assert await fault_of_next_attempt(ledger_driver, session, body_sha256="any other") == REFUSED
    assert set(counters(await ledger_driver.info(session)).values()) == {0}
    assert await ledger_driver.cancel(session, "r1") == CancelResult(0)
    assert await ledger_driver.audit_findings() == ()


async def test_a_reservation_that_is_cancelled_is_given_back_to_the_whole_family(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    parent = await ledger_driver.open_session(max_calls=5)
    child = await ledger_driver.open_session(parent=parent, max_calls=5)
    await ledger_driver.reserve(child, ["r1", "r2", "r3"])
    assert await ledger_driver.cancel(child, "r3", "r1", "r1", "unknown") == CancelResult(3)
    for session in (parent, child):
        assert counters(await ledger_driver.info(session)) == {
            "used": 1, "reserved": 1, "running": 0, "committed": 0, "refunded": 0, "in_doubt": 0,
        }  # fmt: skip
    assert await fault_of_next_attempt(ledger_driver, child) == REFUSED
    assert await ledger_driver.reserve(child, ["r1", "unknown"]) == 0
    assert (await ledger_driver.info(parent)).call_count == 1
    assert await ledger_driver.audit_findings() == ()


async def test_only_the_calls_of_the_session_that_asks_are_cancelled(ledger_driver: ClockedLedgerDriver) -> None:
    mine, theirs = await ledger_driver.open_session(), await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(theirs, "r1")
    assert await ledger_driver.cancel(mine, "r1") == CancelResult(1)
    assert (await ledger_driver.renew()).taken_back is None
    assert await ledger_driver.admit_granted(theirs, "r1", attempt=grant.attempt_id) == grant


async def test_a_refunded_call_that_is_cancelled_never_runs_again(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.REFUND)
    assert await ledger_driver.cancel(session, "r1") == CancelResult(1)
    assert await fault_of_next_attempt(ledger_driver, session) == REFUSED
    with pytest.raises(RequestConflict):
        await ledger_driver.admit(session, "r1", body_sha256="another")
    assert counters(await ledger_driver.info(session))["refunded"] == 1


async def test_what_would_be_refused_anyway_is_refused_as_ever(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(allowed_targets=["a"])
    await ledger_driver.cancel(session, "r1")
    problem = FaultReply.from_fault(BadRequest("Missing required field: question"))
    with pytest.raises(BadRequest, match="question"):
        await ledger_driver.admit(session, "r1", problem=problem)
    with pytest.raises(ForbiddenTarget):
        await ledger_driver.admit(session, "r1", target="b")
    with pytest.raises(Unauthorized):
        await ledger_driver.admit(session.model_copy(update={"token": SessionToken.mint().text}), "r1")


@pytest.mark.parametrize("outcome", [AttemptOutcome.RESULT, AttemptOutcome.CHARGED, AttemptOutcome.IN_DOUBT])
async def test_a_call_that_has_ended_is_not_cancelled_and_tells_its_end(
    ledger_driver: ClockedLedgerDriver, outcome: AttemptOutcome
) -> None:
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, outcome)
    assert await ledger_driver.cancel(session, "r1") == CancelResult(0)
    again = await ledger_driver.admit(session, "r1")
    assert isinstance(again, Admission)
    assert (again.fault is None) is (outcome is AttemptOutcome.RESULT)
    assert again.fault is None or again.fault.code == "provider_error"


async def test_a_running_call_is_marked_and_its_worker_hears_so_until_it_has_settled(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.register("w2")
    grant = await cancel_running_call(ledger_driver, session)
    for _ in range(2):
        assert (await ledger_driver.renew("w1")).taken_back == [CallKey(session_id=session.session_id, request_id="r1")]
    assert (await ledger_driver.renew("w2")).taken_back is None
    assert counters(await ledger_driver.info(session))["running"] == 1
    assert await ledger_driver.cancel(session, "r1") == CancelResult(0)
    assert await defer_reason(ledger_driver, session, by="w2") is DeferReason.CALL
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.REFUND, fault=Cancelled())
    assert (await ledger_driver.renew("w1")).taken_back is None
    assert await fault_of_next_attempt(ledger_driver, session, by="w2") == REFUSED
    assert counters(await ledger_driver.info(session)) == {
        "used": 0, "reserved": 0, "running": 0, "committed": 0, "refunded": 1, "in_doubt": 0,
    }  # fmt: skip
    assert await ledger_driver.audit_findings() == ()


async def test_an_aborted_call_that_may_have_been_billed_is_in_doubt_and_says_that_it_was_cancelled(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    grant = await cancel_running_call(ledger_driver, session)
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.IN_DOUBT, fault=Cancelled("aborted"))
    fault = await ledger_driver.admit_fault(session, "r1")
    assert (fault.error, fault.code, fault.charged, fault.retryable) == ("aborted", "cancelled", True, False)
    assert counters(await ledger_driver.info(session))["in_doubt"] == 1
    assert await ledger_driver.audit_findings() == ()


async def test_a_result_that_comes_before_the_abort_is_the_calls_answer(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    grant = await cancel_running_call(ledger_driver, session)
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    again = await ledger_driver.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.replay is not None


async def test_a_grant_that_was_lost_on_its_way_is_granted_again_to_a_call_that_was_cancelled_meanwhile(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    grant = await cancel_running_call(ledger_driver, session)
    # It may run already: its worker hears of the cancellation, and settles.
    assert await ledger_driver.admit_granted(session, "r1", attempt=grant.attempt_id) == grant


@pytest.mark.parametrize("swept", [False, True])
async def test_a_cancelled_call_whose_worker_is_lost_is_in_doubt_and_never_taken_over(
    ledger_driver: ClockedLedgerDriver, swept: bool
) -> None:
    session = await ledger_driver.open_session(deadline_seconds=10)
    await cancel_running_call(ledger_driver, session)
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    if swept:
        assert await ledger_driver.sweep() == 1
    assert await fault_of_next_attempt(ledger_driver, session, by="w2") == KEPT
    assert counters(await ledger_driver.info(session))["in_doubt"] == 1
    assert await ledger_driver.audit_findings() == ()


async def test_a_call_that_another_delivery_waits_for_is_not_cancelled_until_that_one_is_gone(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1", by="w1")
    assert await defer_reason(ledger_driver, session, by="w2") is DeferReason.CALL
    assert await ledger_driver.cancel(session, "r1") == CancelResult(0)
    ledger_driver.clock_ahead_ms = DUPLICATE_WAIT_MS - 1_000
    assert await defer_reason(ledger_driver, session, by="w2") is DeferReason.CALL  # it is still there, and asks again
    ledger_driver.clock_ahead_ms = DUPLICATE_WAIT_MS + 1_000
    assert await ledger_driver.cancel(session, "r1") == CancelResult(0)
    assert (await ledger_driver.renew("w1")).taken_back is None
    ledger_driver.clock_ahead_ms = 2 * DUPLICATE_WAIT_MS
    assert await ledger_driver.cancel(session, "r1") == CancelResult(1, ["r1"])


async def test_whoever_joins_a_cancelled_call_does_not_uncancel_it(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await cancel_running_call(ledger_driver, session)
    assert await defer_reason(ledger_driver, session, by="w2") is DeferReason.CALL
    assert (await ledger_driver.renew("w1")).taken_back == [CallKey(session_id=session.session_id, request_id="r1")]


async def test_a_grant_says_whether_an_earlier_attempt_may_have_been_billed(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    first = await ledger_driver.admit_granted(session, "r1")
    assert not first.unproven
    await ledger_driver.settle(session, "r1", first.attempt_id, AttemptOutcome.REFUND)
    second = await ledger_driver.admit_granted(session, "r1")
    assert (second.attempt, second.unproven) == (2, False)
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    third = await ledger_driver.admit_granted(session, "r1", by="w2")
    assert third.unproven
    assert await ledger_driver.admit_granted(session, "r1", by="w2", attempt=third.attempt_id) == third
    # Its own proof gives nothing back, and the ledger and its worker say the same.
    await ledger_driver.settle(session, "r1", third.attempt_id, AttemptOutcome.REFUND, fault=Cancelled())
    assert await fault_of_next_attempt(ledger_driver, session) == KEPT
    assert (await ledger_driver.info(session)).call_count == 1


async def test_the_code_of_what_is_no_cancellation_is_kept_as_ever(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1")
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    second = await ledger_driver.admit_granted(session, "r1", by="w2")
    await ledger_driver.settle(session, "r1", second.attempt_id, AttemptOutcome.REFUND, fault=Throttled())
    assert await fault_of_next_attempt(ledger_driver, session) == ("provider_error", True)


# Who may run anything at all: a worker that lives, at a target that is not paused.


async def test_a_worker_without_a_lease_is_granted_nothing_until_it_has_one(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    assert await defer_reason(ledger_driver, session, by="stranger") is DeferReason.LEASE
    ledger_driver.clock_ahead_ms = 16_000
    assert await defer_reason(ledger_driver, session, by="w1") is DeferReason.LEASE
    assert (await ledger_driver.info(session)).call_count == 0
    await ledger_driver.renew("w1")
    grant = await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 32_000
    # Somebody else may follow it at any time.
    assert await defer_reason(ledger_driver, session, by="w1", attempt=grant.attempt_id) is DeferReason.LEASE
    await ledger_driver.renew("w1")
    assert await ledger_driver.admit_granted(session, "r1", by="w1", attempt=grant.attempt_id) == grant


async def test_after_a_gap_of_this_services_own_a_worker_it_knows_has_its_lease(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    ledger_driver.clock_ahead_ms = 16_000
    ledger_driver.ledger.lease_expiry.suspended_until = (
        await ledger_driver.ledger.now() + ledger_driver.clock_ahead_ms + 10_000
    )
    await ledger_driver.admit_granted(session, "r1", by="w1")
    assert await defer_reason(ledger_driver, session, "r2", by="stranger") is DeferReason.LEASE


async def test_a_worker_without_a_lease_hears_what_became_of_a_call(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1")
    assert await defer_reason(ledger_driver, session, by="stranger") is DeferReason.CALL
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.CHARGED)
    assert await fault_of_next_attempt(ledger_driver, session, by="stranger") == ("provider_error", True)


async def test_a_paused_target_starts_nothing_until_its_pause_is_over(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.reserve(session, ["reserved"])
    until = await ledger_driver.pause("a", 5_000)
    assert (await ledger_driver.renew("w1")).paused == {"a": until}
    for name in ("fresh", "reserved"):
        assert await defer_reason(ledger_driver, session, name) is DeferReason.TARGET
    assert counters(await ledger_driver.info(session))["reserved"] == 1
    ledger_driver.clock_ahead_ms = 5_001
    assert (await ledger_driver.renew("w1")).paused is None
    for name in ("fresh", "reserved"):
        await ledger_driver.admit_granted(session, name)


async def test_a_pause_leaves_what_runs_and_what_has_ended_alone(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    running, ended = (
        await ledger_driver.admit_granted(session, "running"),
        await ledger_driver.admit_granted(session, "ended"),
    )
    await ledger_driver.settle(session, "ended", ended.attempt_id, AttemptOutcome.RESULT)
    await ledger_driver.pause("a", 60_000)
    assert await ledger_driver.admit_granted(session, "running", attempt=running.attempt_id) == running
    assert await defer_reason(ledger_driver, session, "running") is DeferReason.CALL
    again = await ledger_driver.admit(session, "ended")
    assert isinstance(again, Admission)
    assert again.replay is not None
    await ledger_driver.settle(session, "running", running.attempt_id, AttemptOutcome.RESULT)
    assert counters(await ledger_driver.info(session))["committed"] == 2


async def test_a_lost_call_is_not_taken_over_at_a_paused_target_and_still_ends_with_its_deadline(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(deadline_seconds=30)
    await ledger_driver.admit_granted(session, "r1", by="w1")
    await ledger_driver.pause("a", 60_000)
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    assert await defer_reason(ledger_driver, session, by="w2") is DeferReason.TARGET
    ledger_driver.clock_ahead_ms = 31_000
    assert await fault_of_next_attempt(ledger_driver, session, by="w2") == ("timeout", True)


async def test_a_pause_that_a_heartbeat_asks_for_is_for_every_worker_and_is_never_made_shorter(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await ledger_driver.register("w2")
    renewed = await ledger_driver.renew("w1", pauses={"a": 20_000, "unknown": 20_000})
    assert renewed.paused is not None
    assert list(renewed.paused) == ["a"]
    until = renewed.paused["a"]
    assert 20_000 <= until - renewed.now < 21_000
    assert (await ledger_driver.renew("w2", pauses={"a": 1_000})).paused == {"a": until}
    assert (await ledger_driver.renew("w2", pauses={"a": 0})).paused == {"a": until}
    longer = (await ledger_driver.renew("w2", pauses={"a": 30_000})).paused
    assert longer is not None
    assert longer["a"] > until
    # Registered anew, a target is as paused as before.
    await ledger_driver.register("w3")
    assert (await ledger_driver.renew("w3")).paused == longer


async def test_nobody_pauses_a_target_for_longer_than_a_day(ledger_driver: ClockedLedgerDriver) -> None:
    now = await ledger_driver.ledger.now()
    until = await ledger_driver.pause("a", 10**15)
    assert until is not None
    assert 0 <= until - now - MAX_PAUSE_MS < 10_000
    assert await ledger_driver.pause("unknown", 1_000) is None
