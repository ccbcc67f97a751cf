"""The ledger's promise, kept by every store: who may call what, how often, and what became of each call."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest
from pydantic import ValidationError

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, AttemptOutcome
from quintain.contracts.message import LARGE_REPLY_BYTES
from quintain.contracts.session import ListSessions, Priority, SessionOpened
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
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
from quintain_metadata.ledger import sessions
from quintain_metadata.ledger.decisions import Deferred
from quintain_metadata.ledger.replies import LargeReplay, read_replay
from support.ledger_driver import Driver


async def test_a_large_reply_is_kept_and_is_no_part_of_the_decision_to_replay_it(driver: Driver) -> None:
    session, text = await driver.open_session(max_calls=1), "kept" * LARGE_REPLY_BYTES
    grant = await driver.admit_granted(session, "r1")
    await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT, text)
    again = await driver.admit(session, "r1", by="w2")
    assert isinstance(again, LargeReplay)
    assert (again.replay, again.is_replay) == (None, True)
    read = await driver.transact(lambda _: read_replay(again))
    assert read.replay is not None
    assert (read.attempt_id, read.replay.raw_text, read.replay.replayed) == (again.attempt_id, text, True)


@pytest.mark.parametrize("other", [{"body_sha256": "other"}, {"target": "b"}], ids=str)
async def test_another_request_under_the_same_id_is_a_conflict(driver: Driver, other: dict[str, object]) -> None:
    session = await driver.open_session()
    await driver.admit_granted(session, "r1")
    with pytest.raises(RequestConflict):
        await driver.admit(session, "r1", **other)
    assert (await driver.info(session)).call_count == 1


async def test_two_hundred_at_once_are_granted_exactly_the_limit_with_duplicates_among_them(driver: Driver) -> None:
    # No lease lapses, however long it takes.
    driver.clock_ahead_ms = -3_600_000
    session = await driver.open_session(max_calls=50)
    names = [f"r{number}" for number in range(200)] + [f"r{number}" for number in range(40)]
    random.Random(7).shuffle(names)
    admissions = await asyncio.gather(*(driver.admit(session, name) for name in names), return_exceptions=True)
    granted = [one for one in admissions if isinstance(one, Admission)]
    refused = [one for one in admissions if isinstance(one, BudgetExhausted)]
    joined = [one for one in admissions if isinstance(one, Deferred)]
    assert len(granted) == 50
    assert len(granted) + len(refused) + len(joined) == 240
    assert (await driver.info(session)).call_count == 50


async def test_who_registers_under_an_id_of_its_alone_has_outlived_whoever_had_it_before(driver: Driver) -> None:
    session = await driver.open_session()
    await driver.register("before", worker_id="here", sole=True)
    await driver.admit_granted(session, "r1", by="before")
    await driver.admit_granted(session, "r2", by="w1")
    # The service begins anew with the worker, and takes nobody for gone because of that.
    driver.ledger.lease_expiry.suspended_until = await driver.ledger.now() + 10_000
    await driver.register("after", worker_id="here", sole=True)
    assert (await driver.admit_granted(session, "r1", by="after")).attempt == 2
    assert isinstance(await driver.admit(session, "r2", by="after"), Deferred)


async def test_charged_faults_are_counted_without_what_the_provider_answered(driver: Driver) -> None:
    session = await driver.open_session()
    faults = [
        ProviderFailed('"code":"rejected","status":422,', charged=True),
        TimedOut(),
        Rejected("too long"),
        ReplyTooLarge(),
        None,
    ]
    for number, fault in enumerate(faults):
        grant = await driver.admit_granted(session, f"r{number}")
        outcome = AttemptOutcome.RESULT if fault is None else AttemptOutcome.CHARGED
        await driver.settle(session, f"r{number}", grant.attempt_id, outcome, fault=fault)
    info = await driver.info(session)
    assert (info.committed, info.charged_faults, info.in_doubt) == (5, 2, 0)


async def test_a_call_whose_deadline_passed_in_the_queue_is_refused_uncharged(driver: Driver) -> None:
    session = await driver.open_session()
    with pytest.raises(Expired) as refusal:
        await driver.admit(session, "r1", deadline=1)
    assert not refusal.value.charged
    assert (await driver.info(session)).call_count == 0


async def test_a_child_draws_on_its_parent_and_narrows_it(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=3, allowed_targets=["a", "b"])
    child, other = await driver.open_session(parent=parent, max_calls=2), await driver.open_session(parent=parent)
    for session, name in ((child, "r1"), (child, "r2"), (other, "r1")):
        await driver.admit_granted(session, name)
    for session, limit in ((child, "limit: 2"), (other, "limit: 3")):
        with pytest.raises(BudgetExhausted, match=limit):
            await driver.admit(session, "r3")
    assert [(await driver.info(each)).call_count for each in (parent, child, other)] == [3, 2, 1]
    with pytest.raises(BadRequest, match="maxCalls"):
        await driver.open_session(parent=parent, max_calls=4)
    with pytest.raises(ForbiddenTarget):
        await driver.open_session(parent=parent, allowed_targets=["a", "c"])


async def test_an_expired_or_unknown_session_opens_nothing_and_says_no_more(driver: Driver) -> None:
    session = await driver.open_session(expires_in_seconds=5)
    child = await driver.open_session(parent=session)
    forged = session.model_copy(update={"token": SessionToken.mint().text})
    for token, ahead_ms in ((forged, 0), (session, 6_000), (child, 6_000)):
        driver.clock_ahead_ms = ahead_ms
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await driver.admit(token, "r1")


async def test_a_grant_says_what_the_session_does_with_unsupported_settings(driver: Driver) -> None:
    strict = await driver.open_session()
    assert not (await driver.admit_granted(strict, "r1")).ignore_unsupported
    assert (await driver.info(strict)).unsupported is None
    tolerant = await driver.open_session(unsupported="ignore")
    assert (await driver.admit_granted(tolerant, "r1")).ignore_unsupported
    assert (await driver.info(tolerant)).unsupported == "ignore"


async def test_a_session_limits_the_size_of_its_bodies(driver: Driver) -> None:
    usual, large = await driver.open_session(), await driver.open_session(max_body_bytes=3_000_000)
    for session, most, told in ((usual, 1024 * 1024, None), (large, 3_000_000, 3_000_000)):
        with pytest.raises(PayloadTooLarge):
            await driver.admit(session, "r1", body_bytes=most + 1)
        assert (await driver.admit_granted(session, "r1", body_bytes=most)).max_body_bytes == told
        assert (await driver.info(session)).max_body_bytes == told
    assert (await driver.amend(usual, max_body_bytes=3_000_000)).max_body_bytes == 3_000_000
    await driver.admit_granted(usual, "r2", body_bytes=3_000_000)


async def test_a_child_has_its_parents_limit_of_bodies_or_less(driver: Driver) -> None:
    parent = await driver.open_session(max_body_bytes=3_000_000)
    for asked, given in ((None, 3_000_000), (1000, 1000)):
        child = await driver.open_session(parent=parent, max_body_bytes=asked)
        assert (await driver.info(child)).max_body_bytes == given
    with pytest.raises(BadRequest, match="maxBodyBytes"):
        await driver.open_session(parent=parent, max_body_bytes=3_000_001)


async def test_a_child_has_its_parents_share_of_quotas_or_less(driver: Driver) -> None:
    async def share(session: SessionOpened) -> tuple[int, Priority]:
        info = await driver.info(session)
        return info.weight, info.priority

    usual = await driver.open_session()
    assert await share(usual) == (10, Priority.NORMAL)
    parent = await driver.open_session(weight=50, priority="interactive")
    child = await driver.open_session(parent=parent)
    assert await share(child) == (50, Priority.INTERACTIVE)
    lower = await driver.open_session(parent=child, weight=20, priority="batch")
    assert await share(lower) == (20, Priority.BATCH)
    for of, more in ((parent, {"weight": 51}), (lower, {"priority": "normal"}), (usual, {"weight": 11})):
        with pytest.raises(BadRequest, match=next(iter(more))):
            await driver.open_session(parent=of, **more)
    with pytest.raises(BadRequest, match="weight"):
        await driver.amend(child, weight=51)
    await driver.amend(parent, weight=5, priority="normal")
    assert await share(parent) == await share(child) == (5, Priority.NORMAL)
    assert await share(lower) == (5, Priority.BATCH)


async def test_a_reply_no_longer_kept_is_never_a_second_call(driver: Driver) -> None:
    session = await driver.open_session(store_replies=False)
    grant = await driver.admit_granted(session, "r1")
    assert not grant.store_replies
    await driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.RESULT)
    with pytest.raises(ReplyExpired):
        await driver.admit(session, "r1")
    assert (await driver.info(session)).call_count == 1


@pytest.mark.parametrize("text", ["\0", "a\0b", "x" * 3_000, "\ufffe", "\U0010ffff"], ids=ascii)
async def test_text_that_no_column_takes_is_a_bad_request_or_kept(driver: Driver, text: str) -> None:
    session = await driver.open_session()
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: driver.open_session(label=text),
        lambda: driver.open_session(text),
        lambda: driver.reserve(session, [text]),
        lambda: driver.admit(session, text),
        lambda: driver.cancel(session, text),
        lambda: driver.info(session.model_copy(update={"session_id": text})),
        lambda: driver.at_now(sessions.list_page, ListSessions.model_construct(cursor=f"1.{text}")),
    ]
    for operation in operations:
        # What a contract refuses has not reached the store.
        with contextlib.suppress(BadRequest, ValidationError):
            await operation()
