"""Calls that are taken back, and targets that are paused: the same on every store."""

from __future__ import annotations

import pytest

from conformance.ledger_desk import Desk, counters
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, CallKey, Outcome
from quintain.contracts.metadata import SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import BadRequest, Cancelled, ForbiddenTarget, RequestConflict, Throttled, Unauthorized
from quintain_metadata.calls import JOINED_MS
from quintain_metadata.cancels import TakenBack
from quintain_metadata.records import Held, Wait
from quintain_metadata.upkeep import LONGEST_PAUSE_MS

REFUSED = ("cancelled", False)
KEPT = ("cancelled", True)


async def word(desk: Desk, session: SessionOpened, request_id: str = "r1", **more: object) -> tuple[str, bool]:
    """What another attempt of the call is told: the code of its fault, and whether it was charged."""
    fault = await desk.told(session, request_id, **more)
    return fault.code, fault.charged


async def wait(desk: Desk, session: SessionOpened, request_id: str = "r1", **more: object) -> Wait:
    """What another attempt waits for."""
    held = await desk.admit(session, request_id, **more)  # type: ignore[arg-type]
    assert isinstance(held, Held)
    return held.wait


async def running_taken_back(desk: Desk, session: SessionOpened) -> Admission:
    """A running call, cancelled."""
    grant = await desk.granted(session, "r1")
    assert await desk.cancel(session, "r1") == TakenBack(1, ["r1"])
    return grant


async def test_a_call_that_is_cancelled_before_it_is_known_is_refused_and_nobody_is_charged(desk: Desk) -> None:
    session = await desk.open()
    assert await desk.cancel(session, "r1") == TakenBack(1)
    assert await word(desk, session) == REFUSED
    assert await word(desk, session, body_sha256="any other") == REFUSED
    assert set(counters(await desk.info(session)).values()) == {0}
    assert await desk.cancel(session, "r1") == TakenBack(0)
    assert await desk.findings() == ()


async def test_a_reservation_that_is_cancelled_is_given_back_to_the_whole_family(desk: Desk) -> None:
    parent = await desk.open(max_calls=5)
    child = await desk.open(parent=parent, max_calls=5)
    await desk.reserve(child, ["r1", "r2", "r3"])
    assert await desk.cancel(child, "r3", "r1", "r1", "unknown") == TakenBack(3)
    for session in (parent, child):
        assert counters(await desk.info(session)) == {
            "used": 1, "reserved": 1, "running": 0, "committed": 0, "refunded": 0, "in_doubt": 0,
        }  # fmt: skip
    assert await word(desk, child) == REFUSED
    assert await desk.reserve(child, ["r1", "unknown"]) == 0
    assert (await desk.info(parent)).call_count == 1
    assert await desk.findings() == ()


async def test_only_the_calls_of_the_session_that_asks_are_cancelled(desk: Desk) -> None:
    mine, theirs = await desk.open(), await desk.open()
    grant = await desk.granted(theirs, "r1")
    assert await desk.cancel(mine, "r1") == TakenBack(1)
    assert (await desk.renew()).taken_back is None
    assert await desk.granted(theirs, "r1", attempt=grant.attempt_id) == grant


async def test_a_refunded_call_that_is_cancelled_never_runs_again(desk: Desk) -> None:
    session = await desk.open()
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, Outcome.REFUND)
    assert await desk.cancel(session, "r1") == TakenBack(1)
    assert await word(desk, session) == REFUSED
    with pytest.raises(RequestConflict):
        await desk.admit(session, "r1", body_sha256="another")
    assert counters(await desk.info(session))["refunded"] == 1


async def test_what_would_be_refused_anyway_is_refused_as_ever(desk: Desk) -> None:
    session = await desk.open(allowed_targets=["a"])
    await desk.cancel(session, "r1")
    problem = FaultReply.of(BadRequest("Missing required field: question"))
    with pytest.raises(BadRequest, match="question"):
        await desk.admit(session, "r1", problem=problem)
    with pytest.raises(ForbiddenTarget):
        await desk.admit(session, "r1", target="b")
    with pytest.raises(Unauthorized):
        await desk.admit(session.model_copy(update={"token": SessionToken.mint().text}), "r1")


@pytest.mark.parametrize("outcome", [Outcome.RESULT, Outcome.CHARGED, Outcome.DOUBT])
async def test_a_call_that_has_ended_is_not_cancelled_and_tells_its_end(desk: Desk, outcome: Outcome) -> None:
    session = await desk.open()
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, outcome)
    assert await desk.cancel(session, "r1") == TakenBack(0)
    again = await desk.admit(session, "r1")
    assert isinstance(again, Admission)
    assert (again.fault is None) is (outcome is Outcome.RESULT)
    assert again.fault is None or again.fault.code == "provider_error"


async def test_a_running_call_is_marked_and_its_worker_hears_so_until_it_has_settled(desk: Desk) -> None:
    session = await desk.open()
    await desk.register("w2")
    grant = await running_taken_back(desk, session)
    for _ in range(2):
        assert (await desk.renew("w1")).taken_back == [CallKey(session_id=session.session_id, request_id="r1")]
    assert (await desk.renew("w2")).taken_back is None
    assert counters(await desk.info(session))["running"] == 1
    assert await desk.cancel(session, "r1") == TakenBack(0)
    assert await wait(desk, session, by="w2") is Wait.CALL
    await desk.settle(session, "r1", grant.attempt_id, Outcome.REFUND, fault=Cancelled())
    assert (await desk.renew("w1")).taken_back is None
    assert await word(desk, session, by="w2") == REFUSED
    assert counters(await desk.info(session)) == {
        "used": 0, "reserved": 0, "running": 0, "committed": 0, "refunded": 1, "in_doubt": 0,
    }  # fmt: skip
    assert await desk.findings() == ()


async def test_an_aborted_call_that_may_have_been_billed_is_in_doubt_and_says_that_it_was_cancelled(desk: Desk) -> None:
    session = await desk.open()
    grant = await running_taken_back(desk, session)
    await desk.settle(session, "r1", grant.attempt_id, Outcome.DOUBT, fault=Cancelled("aborted"))
    fault = await desk.told(session, "r1")
    assert (fault.error, fault.code, fault.charged, fault.retryable) == ("aborted", "cancelled", True, False)
    assert counters(await desk.info(session))["in_doubt"] == 1
    assert await desk.findings() == ()


async def test_a_result_that_comes_before_the_abort_is_the_calls_answer(desk: Desk) -> None:
    session = await desk.open()
    grant = await running_taken_back(desk, session)
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT)
    again = await desk.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.replay is not None


async def test_a_grant_that_was_lost_on_its_way_is_granted_again_to_a_call_that_was_cancelled_meanwhile(
    desk: Desk,
) -> None:
    session = await desk.open()
    grant = await running_taken_back(desk, session)
    # It may run already: its worker hears of the cancellation, and settles.
    assert await desk.granted(session, "r1", attempt=grant.attempt_id) == grant


@pytest.mark.parametrize("swept", [False, True])
async def test_a_cancelled_call_whose_worker_is_lost_is_in_doubt_and_never_taken_over(desk: Desk, swept: bool) -> None:
    session = await desk.open(deadline_seconds=10)
    await running_taken_back(desk, session)
    desk.ahead = 16_000
    await desk.register("w2")
    if swept:
        assert await desk.sweep() == 1
    assert await word(desk, session, by="w2") == KEPT
    assert counters(await desk.info(session))["in_doubt"] == 1
    assert await desk.findings() == ()


async def test_a_call_that_another_delivery_waits_for_is_not_cancelled_until_that_one_is_gone(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1", by="w1")
    assert await wait(desk, session, by="w2") is Wait.CALL
    assert await desk.cancel(session, "r1") == TakenBack(0)
    desk.ahead = JOINED_MS - 1_000
    assert await wait(desk, session, by="w2") is Wait.CALL  # it is still there, and asks again
    desk.ahead = JOINED_MS + 1_000
    assert await desk.cancel(session, "r1") == TakenBack(0)
    assert (await desk.renew("w1")).taken_back is None
    desk.ahead = 2 * JOINED_MS
    assert await desk.cancel(session, "r1") == TakenBack(1, ["r1"])


async def test_whoever_joins_a_cancelled_call_does_not_uncancel_it(desk: Desk) -> None:
    session = await desk.open()
    await running_taken_back(desk, session)
    assert await wait(desk, session, by="w2") is Wait.CALL
    assert (await desk.renew("w1")).taken_back == [CallKey(session_id=session.session_id, request_id="r1")]


async def test_a_grant_says_whether_an_earlier_attempt_may_have_been_billed(desk: Desk) -> None:
    session = await desk.open()
    first = await desk.granted(session, "r1")
    assert not first.unproven
    await desk.settle(session, "r1", first.attempt_id, Outcome.REFUND)
    second = await desk.granted(session, "r1")
    assert (second.attempt, second.unproven) == (2, False)
    desk.ahead = 16_000
    await desk.register("w2")
    third = await desk.granted(session, "r1", by="w2")
    assert third.unproven
    assert await desk.granted(session, "r1", by="w2", attempt=third.attempt_id) == third
    # Its own proof gives nothing back, and the ledger and its worker say the same.
    await desk.settle(session, "r1", third.attempt_id, Outcome.REFUND, fault=Cancelled())
    assert await word(desk, session) == KEPT
    assert (await desk.info(session)).call_count == 1


async def test_the_code_of_what_is_no_cancellation_is_kept_as_ever(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1")
    desk.ahead = 16_000
    await desk.register("w2")
    second = await desk.granted(session, "r1", by="w2")
    await desk.settle(session, "r1", second.attempt_id, Outcome.REFUND, fault=Throttled())
    assert await word(desk, session) == ("provider_error", True)


# Who may run anything at all: a worker that lives, at a target that is not paused.


async def test_a_worker_without_a_lease_is_granted_nothing_until_it_has_one(desk: Desk) -> None:
    session = await desk.open()
    assert await wait(desk, session, by="stranger") is Wait.LEASE
    desk.ahead = 16_000
    assert await wait(desk, session, by="w1") is Wait.LEASE
    assert (await desk.info(session)).call_count == 0
    await desk.renew("w1")
    grant = await desk.granted(session, "r1", by="w1")
    desk.ahead = 32_000
    # Somebody else may follow it at any time.
    assert await wait(desk, session, by="w1", attempt=grant.attempt_id) is Wait.LEASE
    await desk.renew("w1")
    assert await desk.granted(session, "r1", by="w1", attempt=grant.attempt_id) == grant


async def test_after_a_gap_of_this_services_own_a_worker_it_knows_has_its_lease(desk: Desk) -> None:
    session = await desk.open()
    desk.ahead = 16_000
    desk.ledger.mourn_from(await desk.ledger.now() + desk.ahead + 10_000)
    await desk.granted(session, "r1", by="w1")
    assert await wait(desk, session, "r2", by="stranger") is Wait.LEASE


async def test_a_worker_without_a_lease_hears_what_became_of_a_call(desk: Desk) -> None:
    session = await desk.open()
    grant = await desk.granted(session, "r1")
    assert await wait(desk, session, by="stranger") is Wait.CALL
    await desk.settle(session, "r1", grant.attempt_id, Outcome.CHARGED)
    assert await word(desk, session, by="stranger") == ("provider_error", True)


async def test_a_paused_target_starts_nothing_until_its_pause_is_over(desk: Desk) -> None:
    session = await desk.open()
    await desk.reserve(session, ["reserved"])
    until = await desk.pause("a", 5_000)
    assert (await desk.renew("w1")).paused == {"a": until}
    for name in ("fresh", "reserved"):
        assert await wait(desk, session, name) is Wait.TARGET
    assert counters(await desk.info(session))["reserved"] == 1
    desk.ahead = 5_001
    assert (await desk.renew("w1")).paused is None
    for name in ("fresh", "reserved"):
        await desk.granted(session, name)


async def test_a_pause_leaves_what_runs_and_what_has_ended_alone(desk: Desk) -> None:
    session = await desk.open()
    running, ended = await desk.granted(session, "running"), await desk.granted(session, "ended")
    await desk.settle(session, "ended", ended.attempt_id, Outcome.RESULT)
    await desk.pause("a", 60_000)
    assert await desk.granted(session, "running", attempt=running.attempt_id) == running
    assert await wait(desk, session, "running") is Wait.CALL
    again = await desk.admit(session, "ended")
    assert isinstance(again, Admission)
    assert again.replay is not None
    await desk.settle(session, "running", running.attempt_id, Outcome.RESULT)
    assert counters(await desk.info(session))["committed"] == 2


async def test_a_lost_call_is_not_taken_over_at_a_paused_target_and_still_ends_with_its_deadline(desk: Desk) -> None:
    session = await desk.open(deadline_seconds=30)
    await desk.granted(session, "r1", by="w1")
    await desk.pause("a", 60_000)
    desk.ahead = 16_000
    await desk.register("w2")
    assert await wait(desk, session, by="w2") is Wait.TARGET
    desk.ahead = 31_000
    assert await word(desk, session, by="w2") == ("timeout", True)


async def test_a_pause_that_a_heartbeat_asks_for_is_for_every_worker_and_is_never_made_shorter(desk: Desk) -> None:
    await desk.register("w2")
    renewed = await desk.renew("w1", pauses={"a": 20_000, "unknown": 20_000})
    assert renewed.paused is not None
    assert list(renewed.paused) == ["a"]
    until = renewed.paused["a"]
    assert 20_000 <= until - renewed.now < 21_000
    assert (await desk.renew("w2", pauses={"a": 1_000})).paused == {"a": until}
    assert (await desk.renew("w2", pauses={"a": 0})).paused == {"a": until}
    longer = (await desk.renew("w2", pauses={"a": 30_000})).paused
    assert longer is not None
    assert longer["a"] > until
    # Registered anew, a target is as paused as before.
    await desk.register("w3")
    assert (await desk.renew("w3")).paused == longer


async def test_nobody_pauses_a_target_for_longer_than_a_day(desk: Desk) -> None:
    now = await desk.ledger.now()
    until = await desk.pause("a", 10**15)
    assert until is not None
    assert 0 <= until - now - LONGEST_PAUSE_MS < 10_000
    assert await desk.pause("unknown", 1_000) is None
