"""The ledger's promise, kept by every store: who may call what, how often, and what became of each call."""

from __future__ import annotations

import asyncio
import random

import pytest

from conformance.ledger_desk import Desk, counters
from quintain.contracts.invoke import FaultReply, TokenUsage
from quintain.contracts.ledger import Admission, Outcome
from quintain.contracts.metadata import AmendSession, Info, SessionState
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    Cancelled,
    Expired,
    ForbiddenTarget,
    ReplyExpired,
    RequestConflict,
    Unauthorized,
)
from quintain_metadata import reservations, sessions
from quintain_metadata.records import Held, Moment
from quintain_metadata.steps import Steps


async def test_a_call_is_charged_once_from_its_admit_to_its_result(desk: Desk) -> None:
    session = await desk.open(max_calls=2)
    grant = await desk.granted(session, "r1")
    assert (grant.attempt, grant.call_count, grant.max_calls) == (1, 1, 2)
    assert (await desk.info(session)).running == 1
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT)
    info = await desk.info(session)
    assert (info.call_count, info.committed, info.running) == (1, 1, 0)
    assert info.token_usage == TokenUsage(input=3, output=2)


async def test_the_same_request_id_is_answered_from_the_ledger(desk: Desk) -> None:
    session = await desk.open(max_calls=1)
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT, "kept")
    again = await desk.admit(session, "r1", by="w2")
    assert isinstance(again, Admission)
    assert again.replay is not None
    assert (again.replay.raw_text, again.replay.replayed) == ("kept", True)
    assert (await desk.info(session)).call_count == 1


async def test_another_body_under_the_same_request_id_is_a_conflict(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1")
    with pytest.raises(RequestConflict):
        await desk.admit(session, "r1", body_sha256="other")
    assert (await desk.info(session)).call_count == 1


async def test_the_limit_holds_and_a_refusal_leaves_no_trace(desk: Desk) -> None:
    session = await desk.open(max_calls=1)
    await desk.granted(session, "r1")
    with pytest.raises(BudgetExhausted, match=r"Max calls exceeded \(limit: 1\)"):
        await desk.admit(session, "r2")
    await desk.ledger.do(
        lambda moment: sessions.amend(moment.now, AmendSession(session_id=session.session_id, max_calls=2))
    )
    assert (await desk.granted(session, "r2")).call_count == 2


async def test_two_hundred_at_once_are_granted_exactly_the_limit_with_duplicates_among_them(desk: Desk) -> None:
    session = await desk.open(max_calls=50)
    names = [f"r{number}" for number in range(200)] + [f"r{number}" for number in range(40)]
    random.Random(7).shuffle(names)
    admissions = await asyncio.gather(*(desk.admit(session, name) for name in names), return_exceptions=True)
    granted = [one for one in admissions if isinstance(one, Admission)]
    refused = [one for one in admissions if isinstance(one, BudgetExhausted)]
    joined = [one for one in admissions if isinstance(one, Held)]
    assert len(granted) == 50
    assert len(granted) + len(refused) + len(joined) == 240
    assert (await desk.info(session)).call_count == 50


async def test_the_same_attempt_gets_the_same_grant(desk: Desk) -> None:
    session = await desk.open(max_calls=1)
    grant = await desk.granted(session, "r1", attempt="mine")
    assert await desk.granted(session, "r1", attempt="mine") == grant
    assert (await desk.info(session)).call_count == 1


async def test_another_attempt_waits_while_the_holder_lives_and_takes_over_when_its_lease_lapsed(desk: Desk) -> None:
    session = await desk.open(max_calls=1)
    await desk.granted(session, "r1", by="w1")
    held = await desk.admit(session, "r1", by="w2")
    assert isinstance(held, Held)
    assert held.joined
    desk.ahead = 16_000
    await desk.register("w2")
    grant = await desk.granted(session, "r1", by="w2")
    assert (grant.attempt, grant.call_count) == (2, 1)


async def test_nobody_is_taken_for_gone_while_this_service_was(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1", by="w1")
    desk.ahead = 16_000
    desk.ledger.mourn_from(await desk.ledger.now() + desk.ahead + 10_000)
    assert isinstance(await desk.admit(session, "r1", by="w2"), Held)


async def test_who_registers_under_an_id_of_its_alone_has_outlived_whoever_had_it_before(desk: Desk) -> None:
    session = await desk.open()
    await desk.register("before", sole_id="here")
    await desk.granted(session, "r1", by="before")
    await desk.granted(session, "r2", by="w1")
    # The service begins anew with the worker, and takes nobody for gone because of that.
    desk.ledger.mourn_from(await desk.ledger.now() + 10_000)
    await desk.register("after", sole_id="here")
    assert (await desk.granted(session, "r1", by="after")).attempt == 2
    assert isinstance(await desk.admit(session, "r2", by="after"), Held)


async def test_after_three_lost_attempts_the_call_is_in_doubt(desk: Desk) -> None:
    session = await desk.open()
    for number in (1, 2, 3):
        await desk.register(f"w{number}")
        assert (await desk.granted(session, "r1", by=f"w{number}")).attempt == number
        desk.ahead += 16_000
    lost = await desk.admit(session, "r1", by="w4")
    assert isinstance(lost, Admission)
    assert lost.fault is not None
    assert (lost.fault.code, lost.fault.charged) == ("worker_lost", True)
    assert counters(await desk.info(session))["in_doubt"] == 1
    assert (await desk.info(session)).call_count == 1


async def test_a_result_counts_whoever_it_comes_from_and_however_late(desk: Desk) -> None:
    session = await desk.open()
    first = await desk.granted(session, "r1", by="w1")
    desk.ahead = 16_000
    await desk.register("w2")
    await desk.granted(session, "r1", by="w2")
    await desk.settle(session, "r1", first.attempt_id, Outcome.RESULT, "from the dead")
    again = await desk.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.replay is not None
    assert again.replay.raw_text == "from the dead"


async def test_a_proven_refund_gives_the_call_back_and_it_may_run_again(desk: Desk) -> None:
    session = await desk.open(max_calls=1)
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, Outcome.REFUND)
    assert counters(await desk.info(session)) == {
        "used": 0, "reserved": 0, "running": 0, "committed": 0, "refunded": 1, "in_doubt": 0,
    }  # fmt: skip
    assert (await desk.granted(session, "r1")).call_count == 1


async def test_a_refund_is_no_proof_for_an_attempt_that_was_lost(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1", by="w1")
    desk.ahead = 16_000
    await desk.register("w2")
    second = await desk.granted(session, "r1", by="w2")
    await desk.settle(session, "r1", second.attempt_id, Outcome.REFUND)
    info = await desk.info(session)
    assert (info.in_doubt, info.call_count) == (1, 1)


async def test_a_stale_refund_is_recorded_and_counts_as_proof_later(desk: Desk) -> None:
    session = await desk.open()
    first = await desk.granted(session, "r1", by="w1")
    desk.ahead = 16_000
    await desk.register("w2")
    second = await desk.granted(session, "r1", by="w2")
    await desk.settle(session, "r1", first.attempt_id, Outcome.REFUND)
    assert (await desk.info(session)).running == 1
    await desk.settle(session, "r1", second.attempt_id, Outcome.REFUND)
    assert (await desk.info(session)).call_count == 0


@pytest.mark.parametrize(("outcome", "state"), [(Outcome.CHARGED, "committed"), (Outcome.DOUBT, "in_doubt")])
async def test_a_charged_fault_and_a_doubt_are_kept_and_told_again(desk: Desk, outcome: Outcome, state: str) -> None:
    session = await desk.open()
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, outcome)
    assert counters(await desk.info(session))[state] == 1
    again = await desk.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.fault is not None
    assert (again.fault.error, again.fault.charged) == ("it broke", True)


async def test_an_attempt_given_up_before_its_grant_never_runs(desk: Desk) -> None:
    session = await desk.open()
    await desk.settle(session, "r1", "late", Outcome.NEVER_SENT)
    with pytest.raises(Cancelled):
        await desk.admit(session, "r1", attempt="late")
    assert (await desk.info(session)).call_count == 0


async def test_an_attempt_given_up_whose_grant_was_lost_is_given_back(desk: Desk) -> None:
    session = await desk.open()
    await desk.granted(session, "r1", attempt="mine")
    await desk.settle(session, "r1", "mine", Outcome.NEVER_SENT)
    assert (await desk.info(session)).call_count == 0


async def test_a_batch_is_reserved_all_or_nothing(desk: Desk) -> None:
    session = await desk.open(max_calls=5)
    await desk.granted(session, "r1")
    with pytest.raises(BudgetExhausted, match=r"Batch would exceed max calls \(current: 1, batch: 5, limit: 5\)"):
        await desk.reserve(session, [f"b{number}" for number in range(5)])
    assert (await desk.info(session)).call_count == 1
    assert await desk.reserve(session, ["b1", "b2", "b3", "b4", "r1"]) == 4
    assert counters(await desk.info(session))["reserved"] == 4
    assert (await desk.granted(session, "b1")).call_count == 5


async def test_a_reservation_ends_with_its_deadline_or_its_release_or_its_session(desk: Desk) -> None:
    session = await desk.open(max_calls=10)
    await desk.reserve(session, ["short"], seconds=1)
    await desk.reserve(session, ["long", "given back"], seconds=600)
    assert await desk.release(session, ["given back", "unknown"]) == 1
    desk.ahead = 2_000
    assert await desk.sweep() == 1
    assert (await desk.info(session)).reserved == 1

    def close(moment: Moment) -> Steps[Info]:
        yield from reservations.release_all(moment, (yield from sessions.existing(session.session_id)))
        return (
            yield from sessions.amend(
                moment.now, AmendSession(session_id=session.session_id, state=SessionState.CLOSED)
            )
        )

    assert (await desk.ledger.do(close)).call_count == 0


async def test_the_clock_refunds_nothing_that_may_have_reached_a_provider(desk: Desk) -> None:
    session = await desk.open(deadline_seconds=1)
    await desk.granted(session, "r1", by="w1")
    desk.ahead = 10_000
    assert await desk.sweep() == 0  # its worker lives, and settles
    desk.ahead = 16_000
    assert await desk.sweep() == 1
    info = await desk.info(session)
    assert (info.in_doubt, info.call_count) == (1, 1)


async def test_a_call_whose_deadline_passed_in_the_queue_is_refused_uncharged(desk: Desk) -> None:
    session = await desk.open()
    with pytest.raises(Expired) as refusal:
        await desk.admit(session, "r1", deadline=1)
    assert not refusal.value.charged
    assert (await desk.info(session)).call_count == 0


async def test_a_target_at_its_limit_holds_the_next_admit_until_a_slot_is_free(desk: Desk) -> None:
    await desk.register(limit=1)
    session = await desk.open()
    grant = await desk.granted(session, "r1")
    held = await desk.admit(session, "r2")
    assert isinstance(held, Held)
    assert not held.joined
    assert (await desk.info(session)).call_count == 1
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT)
    assert (await desk.granted(session, "r2")).call_count == 2


async def test_a_child_draws_on_its_parent_and_narrows_it(desk: Desk) -> None:
    parent = await desk.open(max_calls=3, allowed_targets=["a", "b"])
    child = await desk.open(parent=parent, max_calls=2)
    await desk.granted(child, "r1")
    await desk.granted(child, "r2")
    with pytest.raises(BudgetExhausted, match="limit: 2"):
        await desk.admit(child, "r3")
    other = await desk.open(parent=parent)
    await desk.granted(other, "r1")
    with pytest.raises(BudgetExhausted, match="limit: 3"):
        await desk.admit(other, "r2")
    assert counters(await desk.info(parent)) == {
        "used": 3, "reserved": 0, "running": 3, "committed": 0, "refunded": 0, "in_doubt": 0,
    }  # fmt: skip
    assert (await desk.info(other)).call_count == 1
    with pytest.raises(BadRequest, match="maxCalls"):
        await desk.open(parent=parent, max_calls=4)
    with pytest.raises(ForbiddenTarget):
        await desk.open(parent=parent, allowed_targets=["a", "c"])


async def test_a_closed_expired_or_unknown_session_opens_nothing_and_says_no_more(desk: Desk) -> None:
    session = await desk.open(expires_in_seconds=5)
    child = await desk.open(parent=session)
    forged = SessionToken.mint()
    forged_token = session.model_copy(update={"token": forged.text})
    for token in (forged_token,):
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await desk.admit(token, "r1")
    desk.ahead = 6_000
    for token in (session, child):
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await desk.admit(token, "r1")


async def test_the_token_is_checked_before_the_body(desk: Desk) -> None:
    session = await desk.open()
    problem = FaultReply.of(BadRequest("Missing required field: question"))
    with pytest.raises(BadRequest, match="question"):
        await desk.admit(session, "r1", problem=problem)
    stranger = session.model_copy(update={"token": SessionToken.mint().text})
    with pytest.raises(Unauthorized):
        await desk.admit(stranger, "r1", problem=problem)


async def test_a_reply_no_longer_kept_is_never_a_second_call(desk: Desk) -> None:
    session = await desk.open(store_replies=False)
    grant = await desk.granted(session, "r1")
    assert not grant.store_replies
    await desk.settle(session, "r1", grant.attempt_id, Outcome.RESULT)
    with pytest.raises(ReplyExpired):
        await desk.admit(session, "r1")
    assert (await desk.info(session)).call_count == 1


async def test_a_limit_below_what_is_used_becomes_what_is_used(desk: Desk) -> None:
    session = await desk.open(max_calls=5)
    for number in range(3):
        await desk.granted(session, f"r{number}")
    info = await desk.ledger.do(
        lambda moment: sessions.amend(moment.now, AmendSession(session_id=session.session_id, max_calls=1))
    )
    assert (info.max_calls, info.call_count) == (3, 3)
