"""The ledger's promise, kept by every store: who may call what, how often, and what became of each call."""

from __future__ import annotations

import asyncio
import random

import pytest

from conformance.clocked_ledger_driver import USED, ClockedLedgerDriver, counters
from quintain.contracts.credentials import SessionToken
from quintain.contracts.invoke import FaultReply
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import LARGE_REPLY_BYTES
from quintain.contracts.session import AmendSession, Info, Priority, SessionOpened, SessionState
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    Cancelled,
    Expired,
    ForbiddenTarget,
    PayloadTooLarge,
    ProviderFailed,
    Rejected,
    ReplyExpired,
    ReplyTooLarge,
    RequestConflict,
    TimedOut,
    Unauthorized,
)
from quintain_metadata.ledger import calls, sessions
from quintain_metadata.ledger.calls import LOST_SETTLE_MS
from quintain_metadata.ledger.decisions import Deferred
from quintain_metadata.ledger.lifecycle import LOSSES_BEFORE_ALONE
from quintain_metadata.ledger.replies import LargeReplay, read_replay
from quintain_metadata.store.base import Moment, SqlProgram


async def test_a_call_is_charged_once_from_its_admit_to_its_result(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=2)
    grant = await ledger_driver.admit_granted(session, "r1")
    assert (grant.attempt, grant.call_count, grant.max_calls) == (1, 1, 2)
    assert (await ledger_driver.info(session)).running == 1
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    info = await ledger_driver.info(session)
    assert (info.call_count, info.committed, info.running) == (1, 1, 0)
    assert info.token_usage == USED


async def test_the_same_request_id_is_answered_from_the_ledger(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=1)
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT, "kept")
    again = await ledger_driver.admit(session, "r1", by="w2")
    assert isinstance(again, Admission)
    assert again.replay is not None
    assert (again.replay.raw_text, again.replay.replayed) == ("kept", True)
    assert (await ledger_driver.info(session)).call_count == 1


async def test_a_large_reply_is_kept_and_is_no_part_of_the_decision_to_replay_it(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session, text = await ledger_driver.open_session(max_calls=1), "kept" * LARGE_REPLY_BYTES
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT, text)
    again = await ledger_driver.admit(session, "r1", by="w2")
    assert isinstance(again, LargeReplay)
    assert (again.replay, again.is_replay) == (None, True)
    read = await ledger_driver.ledger.transact(lambda _: read_replay(again))
    assert read.replay is not None
    assert (read.attempt_id, read.replay.raw_text, read.replay.replayed) == (again.attempt_id, text, True)


async def test_another_body_under_the_same_request_id_is_a_conflict(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1")
    with pytest.raises(RequestConflict):
        await ledger_driver.admit(session, "r1", body_sha256="other")
    assert (await ledger_driver.info(session)).call_count == 1


async def test_another_target_under_the_same_request_id_is_a_conflict(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1")
    with pytest.raises(RequestConflict):
        await ledger_driver.admit(session, "r1", target="b")
    assert (await ledger_driver.info(session)).call_count == 1


async def test_the_limit_holds_and_a_refusal_leaves_no_trace(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=1)
    await ledger_driver.admit_granted(session, "r1")
    with pytest.raises(BudgetExhausted, match=r"Max calls exceeded \(limit: 1\)"):
        await ledger_driver.admit(session, "r2")
    await ledger_driver.ledger.transact(
        lambda moment: sessions.amend_session(moment.now, AmendSession(session_id=session.session_id, max_calls=2))
    )
    assert (await ledger_driver.admit_granted(session, "r2")).call_count == 2


async def test_two_hundred_at_once_are_granted_exactly_the_limit_with_duplicates_among_them(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    # No lease lapses, however long it takes.
    ledger_driver.clock_ahead_ms = -3_600_000
    session = await ledger_driver.open_session(max_calls=50)
    names = [f"r{number}" for number in range(200)] + [f"r{number}" for number in range(40)]
    random.Random(7).shuffle(names)
    admissions = await asyncio.gather(*(ledger_driver.admit(session, name) for name in names), return_exceptions=True)
    granted = [one for one in admissions if isinstance(one, Admission)]
    refused = [one for one in admissions if isinstance(one, BudgetExhausted)]
    joined = [one for one in admissions if isinstance(one, Deferred)]
    assert len(granted) == 50
    assert len(granted) + len(refused) + len(joined) == 240
    assert (await ledger_driver.info(session)).call_count == 50


async def test_the_same_attempt_gets_the_same_grant(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=1)
    grant = await ledger_driver.admit_granted(session, "r1", attempt="mine")
    assert await ledger_driver.admit_granted(session, "r1", attempt="mine") == grant
    assert (await ledger_driver.info(session)).call_count == 1


async def test_another_attempt_waits_while_the_holder_lives_and_takes_over_when_its_lease_lapsed(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(max_calls=1)
    await ledger_driver.admit_granted(session, "r1", by="w1")
    held = await ledger_driver.admit(session, "r1", by="w2")
    assert isinstance(held, Deferred)
    assert held.is_duplicate
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    grant = await ledger_driver.admit_granted(session, "r1", by="w2")
    assert (grant.attempt, grant.call_count) == (2, 1)


async def test_nobody_is_taken_for_gone_while_this_service_was(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 16_000
    ledger_driver.ledger.lease_expiry.suspended_until = (
        await ledger_driver.ledger.now() + ledger_driver.clock_ahead_ms + 10_000
    )
    assert isinstance(await ledger_driver.admit(session, "r1", by="w2"), Deferred)


async def test_who_registers_under_an_id_of_its_alone_has_outlived_whoever_had_it_before(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.register("before", sole_id="here")
    await ledger_driver.admit_granted(session, "r1", by="before")
    await ledger_driver.admit_granted(session, "r2", by="w1")
    # The service begins anew with the worker, and takes nobody for gone because of that.
    ledger_driver.ledger.lease_expiry.suspended_until = await ledger_driver.ledger.now() + 10_000
    await ledger_driver.register("after", sole_id="here")
    assert (await ledger_driver.admit_granted(session, "r1", by="after")).attempt == 2
    assert isinstance(await ledger_driver.admit(session, "r2", by="after"), Deferred)


async def test_after_three_lost_attempts_the_call_is_in_doubt(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    for number in (1, 2, 3):
        await ledger_driver.register(f"w{number}")
        grant = await ledger_driver.admit_granted(session, "r1", by=f"w{number}", alone=number > LOSSES_BEFORE_ALONE)
        assert grant.attempt == number
        ledger_driver.clock_ahead_ms += 16_000
    lost = await ledger_driver.admit(session, "r1", by="w4")
    assert isinstance(lost, Admission)
    assert lost.fault is not None
    assert (lost.fault.code, lost.fault.charged) == ("worker_lost", True)
    assert counters(await ledger_driver.info(session))["in_doubt"] == 1
    assert (await ledger_driver.info(session)).call_count == 1


async def test_a_result_counts_whoever_it_comes_from_and_however_late(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    first = await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    await ledger_driver.admit_granted(session, "r1", by="w2")
    await ledger_driver.settle(session, "r1", first.attempt_id, AttemptOutcome.RESULT, "from the dead")
    again = await ledger_driver.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.replay is not None
    assert again.replay.raw_text == "from the dead"


async def test_a_proven_refund_gives_the_call_back_and_it_may_run_again(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=1)
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.REFUND)
    assert counters(await ledger_driver.info(session)) == {
        "used": 0, "reserved": 0, "running": 0, "committed": 0, "refunded": 1, "in_doubt": 0,
    }  # fmt: skip
    assert (await ledger_driver.admit_granted(session, "r1")).call_count == 1


async def test_a_refund_is_no_proof_for_an_attempt_that_was_lost(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    second = await ledger_driver.admit_granted(session, "r1", by="w2")
    await ledger_driver.settle(session, "r1", second.attempt_id, AttemptOutcome.REFUND)
    info = await ledger_driver.info(session)
    assert (info.in_doubt, info.call_count) == (1, 1)


async def test_a_stale_refund_is_recorded_and_counts_as_proof_later(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    first = await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 16_000
    await ledger_driver.register("w2")
    second = await ledger_driver.admit_granted(session, "r1", by="w2")
    await ledger_driver.settle(session, "r1", first.attempt_id, AttemptOutcome.REFUND)
    assert (await ledger_driver.info(session)).running == 1
    await ledger_driver.settle(session, "r1", second.attempt_id, AttemptOutcome.REFUND)
    assert (await ledger_driver.info(session)).call_count == 0


@pytest.mark.parametrize(
    ("outcome", "state"), [(AttemptOutcome.CHARGED, "committed"), (AttemptOutcome.IN_DOUBT, "in_doubt")]
)
async def test_a_charged_fault_and_a_doubt_are_kept_and_told_again(
    ledger_driver: ClockedLedgerDriver, outcome: AttemptOutcome, state: str
) -> None:
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, outcome)
    assert counters(await ledger_driver.info(session))[state] == 1
    again = await ledger_driver.admit(session, "r1")
    assert isinstance(again, Admission)
    assert again.fault is not None
    assert (again.fault.error, again.fault.charged) == ("it broke", True)


async def test_charged_faults_are_counted_without_what_the_provider_answered(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    faults = [
        ProviderFailed('"code":"rejected","status":422,', charged=True),
        TimedOut(),
        Rejected("too long"),
        ReplyTooLarge(),
        None,
    ]
    for number, fault in enumerate(faults):
        grant = await ledger_driver.admit_granted(session, f"r{number}")
        outcome = AttemptOutcome.RESULT if fault is None else AttemptOutcome.CHARGED
        await ledger_driver.settle(session, f"r{number}", grant.attempt_id, outcome, fault=fault)
    info = await ledger_driver.info(session)
    assert (info.committed, info.charged_faults, info.in_doubt) == (5, 2, 0)


async def test_an_attempt_given_up_before_its_grant_never_runs(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.settle(session, "r1", "late", AttemptOutcome.NEVER_SENT)
    with pytest.raises(Cancelled):
        await ledger_driver.admit(session, "r1", attempt="late")
    assert (await ledger_driver.info(session)).call_count == 0


async def test_an_attempt_given_up_whose_grant_was_lost_is_given_back(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    await ledger_driver.admit_granted(session, "r1", attempt="mine")
    await ledger_driver.settle(session, "r1", "mine", AttemptOutcome.NEVER_SENT)
    assert (await ledger_driver.info(session)).call_count == 0


async def test_a_batch_is_reserved_all_or_nothing(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=5)
    await ledger_driver.admit_granted(session, "r1")
    with pytest.raises(BudgetExhausted, match=r"Batch would exceed max calls \(current: 1, batch: 5, limit: 5\)"):
        await ledger_driver.reserve(session, [f"b{number}" for number in range(5)])
    assert (await ledger_driver.info(session)).call_count == 1
    assert await ledger_driver.reserve(session, ["b1", "b2", "b3", "b4", "r1"]) == 4
    assert counters(await ledger_driver.info(session))["reserved"] == 4
    assert (await ledger_driver.admit_granted(session, "b1")).call_count == 5


async def test_a_reservation_ends_with_its_deadline_or_its_release_or_its_session(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(max_calls=10)
    await ledger_driver.reserve(session, ["short"], seconds=1)
    await ledger_driver.reserve(session, ["long", "given back"], seconds=600)
    assert await ledger_driver.release(session, ["given back", "unknown"]) == 1
    ledger_driver.clock_ahead_ms = 2_000
    assert await ledger_driver.sweep() == 1
    assert (await ledger_driver.info(session)).reserved == 1

    def close(moment: Moment) -> SqlProgram[Info]:
        yield from calls.end_family(moment, [session.session_id])
        return (
            yield from sessions.amend_session(
                moment.now, AmendSession(session_id=session.session_id, state=SessionState.CLOSED)
            )
        )

    assert (await ledger_driver.ledger.transact(close)).call_count == 0


async def test_the_clock_refunds_nothing_that_may_have_reached_a_provider(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(deadline_seconds=1)
    await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 10_000
    assert await ledger_driver.sweep() == 0  # its worker lives, and settles
    ledger_driver.clock_ahead_ms = 16_000
    assert await ledger_driver.sweep() == 1
    info = await ledger_driver.info(session)
    assert (info.in_doubt, info.call_count) == (1, 1)


async def test_a_call_whose_settle_was_lost_ends_although_its_worker_lives(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(deadline_seconds=1)
    granted = await ledger_driver.admit_granted(session, "r1", by="w1")
    ledger_driver.clock_ahead_ms = 1_000 + LOST_SETTLE_MS
    await ledger_driver.renew("w1")
    assert await ledger_driver.sweep() == 1
    assert counters(await ledger_driver.info(session))["in_doubt"] == 1
    # It was only late.
    await ledger_driver.settle(session, "r1", granted.attempt_id, AttemptOutcome.RESULT)
    assert counters(await ledger_driver.info(session))["committed"] == 1
    assert await ledger_driver.audit_findings() == ()


async def test_a_call_whose_deadline_passed_in_the_queue_is_refused_uncharged(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session()
    with pytest.raises(Expired) as refusal:
        await ledger_driver.admit(session, "r1", deadline=1)
    assert not refusal.value.charged
    assert (await ledger_driver.info(session)).call_count == 0


async def test_a_target_at_its_limit_holds_the_next_admit_until_a_slot_is_free(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    await ledger_driver.register(limit=1)
    session = await ledger_driver.open_session()
    grant = await ledger_driver.admit_granted(session, "r1")
    held = await ledger_driver.admit(session, "r2")
    assert isinstance(held, Deferred)
    assert not held.is_duplicate
    assert (await ledger_driver.info(session)).call_count == 1
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    assert (await ledger_driver.admit_granted(session, "r2")).call_count == 2


async def test_a_child_draws_on_its_parent_and_narrows_it(ledger_driver: ClockedLedgerDriver) -> None:
    parent = await ledger_driver.open_session(max_calls=3, allowed_targets=["a", "b"])
    child = await ledger_driver.open_session(parent=parent, max_calls=2)
    await ledger_driver.admit_granted(child, "r1")
    await ledger_driver.admit_granted(child, "r2")
    with pytest.raises(BudgetExhausted, match="limit: 2"):
        await ledger_driver.admit(child, "r3")
    other = await ledger_driver.open_session(parent=parent)
    await ledger_driver.admit_granted(other, "r1")
    with pytest.raises(BudgetExhausted, match="limit: 3"):
        await ledger_driver.admit(other, "r2")
    assert counters(await ledger_driver.info(parent)) == {
        "used": 3, "reserved": 0, "running": 3, "committed": 0, "refunded": 0, "in_doubt": 0,
    }  # fmt: skip
    assert (await ledger_driver.info(other)).call_count == 1
    with pytest.raises(BadRequest, match="maxCalls"):
        await ledger_driver.open_session(parent=parent, max_calls=4)
    with pytest.raises(ForbiddenTarget):
        await ledger_driver.open_session(parent=parent, allowed_targets=["a", "c"])


async def test_a_closed_expired_or_unknown_session_opens_nothing_and_says_no_more(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    session = await ledger_driver.open_session(expires_in_seconds=5)
    child = await ledger_driver.open_session(parent=session)
    forged = SessionToken.mint()
    forged_token = session.model_copy(update={"token": forged.text})
    for token in (forged_token,):
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await ledger_driver.admit(token, "r1")
    ledger_driver.clock_ahead_ms = 6_000
    for token in (session, child):
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await ledger_driver.admit(token, "r1")


async def test_the_token_is_checked_before_the_body(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    problem = FaultReply.from_fault(BadRequest("Missing required field: question"))
    with pytest.raises(BadRequest, match="question"):
        await ledger_driver.admit(session, "r1", problem=problem)
    stranger = session.model_copy(update={"token": SessionToken.mint().text})
    with pytest.raises(Unauthorized):
        await ledger_driver.admit(stranger, "r1", problem=problem)


async def test_a_grant_says_what_the_session_does_with_unsupported_settings(
    ledger_driver: ClockedLedgerDriver,
) -> None:
    strict = await ledger_driver.open_session()
    assert not (await ledger_driver.admit_granted(strict, "r1")).ignore_unsupported
    assert (await ledger_driver.info(strict)).unsupported is None
    tolerant = await ledger_driver.open_session(unsupported="ignore")
    assert (await ledger_driver.admit_granted(tolerant, "r1")).ignore_unsupported
    assert (await ledger_driver.info(tolerant)).unsupported == "ignore"


async def test_a_session_limits_the_size_of_its_bodies(ledger_driver: ClockedLedgerDriver) -> None:
    usual, large = await ledger_driver.open_session(), await ledger_driver.open_session(max_body_bytes=3_000_000)
    with pytest.raises(PayloadTooLarge):
        await ledger_driver.admit(usual, "r1", body_bytes=1024 * 1024 + 1)
    assert (await ledger_driver.admit_granted(usual, "r1", body_bytes=1024 * 1024)).max_body_bytes is None
    with pytest.raises(PayloadTooLarge):
        await ledger_driver.admit(large, "r1", body_bytes=3_000_001)
    assert (await ledger_driver.admit_granted(large, "r1", body_bytes=3_000_000)).max_body_bytes == 3_000_000
    assert (await ledger_driver.info(usual)).max_body_bytes is None
    assert (await ledger_driver.info(large)).max_body_bytes == 3_000_000


async def test_the_limit_of_bodies_is_amended(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session()
    amendment = AmendSession(session_id=session.session_id, max_body_bytes=3_000_000)
    info = await ledger_driver.ledger.transact(lambda moment: sessions.amend_session(moment.now, amendment))
    assert (info.max_body_bytes, info.max_calls) == (3_000_000, 50)
    await ledger_driver.admit_granted(session, "r1", body_bytes=3_000_000)


async def test_a_child_has_its_parents_limit_of_bodies_or_less(ledger_driver: ClockedLedgerDriver) -> None:
    parent = await ledger_driver.open_session(max_body_bytes=3_000_000)
    for asked, given in ((None, 3_000_000), (1000, 1000)):
        child = await ledger_driver.open_session(parent=parent, max_body_bytes=asked)
        assert (await ledger_driver.info(child)).max_body_bytes == given
    with pytest.raises(BadRequest, match="maxBodyBytes"):
        await ledger_driver.open_session(parent=parent, max_body_bytes=3_000_001)


async def test_a_child_has_its_parents_share_of_quotas_or_less(ledger_driver: ClockedLedgerDriver) -> None:
    async def share(session: SessionOpened) -> tuple[int, Priority]:
        info = await ledger_driver.info(session)
        return info.weight, info.priority

    async def amend(session: SessionOpened, **fields: object) -> None:
        amendment = AmendSession.model_validate({"session_id": session.session_id, **fields})
        await ledger_driver.ledger.transact(lambda moment: sessions.amend_session(moment.now, amendment))

    usual = await ledger_driver.open_session()
    assert await share(usual) == (10, Priority.NORMAL)
    parent = await ledger_driver.open_session(weight=50, priority="interactive")
    child = await ledger_driver.open_session(parent=parent)
    assert await share(child) == (50, Priority.INTERACTIVE)
    lower = await ledger_driver.open_session(parent=child, weight=20, priority="batch")
    assert await share(lower) == (20, Priority.BATCH)
    for of, more in ((parent, {"weight": 51}), (lower, {"priority": "normal"}), (usual, {"weight": 11})):
        with pytest.raises(BadRequest, match=next(iter(more))):
            await ledger_driver.open_session(parent=of, **more)
    with pytest.raises(BadRequest, match="weight"):
        await amend(child, weight=51)
    await amend(parent, weight=5)
    await amend(parent, priority="normal")
    assert await share(parent) == await share(child) == (5, Priority.NORMAL)
    assert await share(lower) == (5, Priority.BATCH)


async def test_a_reply_no_longer_kept_is_never_a_second_call(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(store_replies=False)
    grant = await ledger_driver.admit_granted(session, "r1")
    assert not grant.store_replies
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    with pytest.raises(ReplyExpired):
        await ledger_driver.admit(session, "r1")
    assert (await ledger_driver.info(session)).call_count == 1


async def test_a_limit_below_what_is_used_becomes_what_is_used(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=5)
    for number in range(3):
        await ledger_driver.admit_granted(session, f"r{number}")
    info = await ledger_driver.ledger.transact(
        lambda moment: sessions.amend_session(moment.now, AmendSession(session_id=session.session_id, max_calls=1))
    )
    assert (info.max_calls, info.call_count) == (3, 3)
