"""Operations that run together: each has the outcome it would have alone, and none sees another half done."""

from __future__ import annotations

import asyncio

import pytest

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, AttemptOutcome, Settle
from quintain.contracts.session import SessionOpened
from quintain.errors import BudgetExhausted, Unauthorized
from quintain_metadata.ledger import settles
from quintain_metadata.ledger.call_rows import CallRow
from quintain_metadata.ledger.calls import CallOperations
from quintain_metadata.ledger.decisions import AdmitOperation
from quintain_metadata.store.base import Moment, Operation, SqlProgram, SqlValue, execute
from support.ledger_driver import Driver, admit_request, alone, settle_request

CALLS = 10


def admit(session: SessionOpened, request_id: str, attempt: str) -> AdmitOperation:
    request = admit_request(session, request_id, attempt_id=attempt)
    return AdmitOperation(request, "w1", request.credential())


def settle(session: SessionOpened, request_id: str, attempt: str, outcome: AttemptOutcome) -> Settle:
    return settle_request(session, admit_request(session, request_id, attempt_id=attempt), outcome)


def is_granted(decision: object) -> bool:
    return isinstance(decision, Admission) and decision.is_grant


async def test_a_budget_that_ends_within_a_batch_is_spent_exactly(driver: Driver) -> None:
    ledger = driver.ledger
    small, large = [await driver.open_session(max_calls=count) for count in (4, 100)]
    operations = [
        admit(session, f"r{number}", f"{session.session_id} {number}")
        for number in range(CALLS)
        for session in (small, large)
    ]
    outcomes = await CallOperations(ledger).run(operations)
    granted = [is_granted(outcome) for outcome in outcomes]
    assert (sum(granted[::2]), sum(granted[1::2])) == (4, CALLS)
    assert sum(isinstance(outcome, BudgetExhausted) for outcome in outcomes) == CALLS - 4
    batch = [
        settle(large, f"r{number}", f"{large.session_id} {number}", outcome)
        for number, outcome in enumerate([AttemptOutcome.RESULT, AttemptOutcome.REFUND] * (CALLS // 2))
    ]
    await CallOperations(ledger).run(batch)
    info = await driver.info(large)
    assert (info.call_count, info.committed, info.refunded, info.running) == (CALLS // 2, CALLS // 2, CALLS // 2, 0)
    assert await driver.audit_findings() == ()


async def test_each_call_of_a_batch_has_its_own_number_in_its_session(driver: Driver) -> None:
    parent = await driver.open_session(max_calls=3 * CALLS)
    reserving = await driver.open_session(parent=parent, max_calls=CALLS, reserve=CALLS // 2)
    for batch in range(2):
        operations = [
            admit(session, f"r{batch}{number}", f"{session.session_id} {batch} {number}")
            for number in range(CALLS // 2)
            for session in (reserving, parent)
        ]
        outcomes = await CallOperations(driver.ledger).run(operations)
        counts = [[outcome.call_count for outcome in outcomes[place::2]] for place in range(2)]  # type: ignore[union-attr]
        first = batch * CALLS // 2 + 1
        assert sorted(counts[0]) == list(range(first, first + CALLS // 2))
        assert len(set(counts[1])) == CALLS // 2
        # The first batch of the child is paid for by what it reserved, the second is not.
        assert (await driver.info(parent)).call_count == (batch + 1) * CALLS
    assert await driver.audit_findings() == ()


async def test_operations_of_one_call_in_a_batch_follow_each_other(driver: Driver) -> None:
    session = await driver.open_session(max_calls=CALLS)
    operations = [
        admit(session, "r1", "one"),
        settle(session, "r1", "one", AttemptOutcome.REFUND),
        admit(session, "r1", "two"),
        settle(session, "r1", "two", AttemptOutcome.RESULT),
        admit(session, "r1", "three"),
    ]
    outcomes = await CallOperations(driver.ledger).run(operations)
    assert [is_granted(outcome) for outcome in outcomes[::2]] == [True, True, False]
    assert outcomes[4].is_replay
    info = await driver.info(session)
    assert (info.call_count, info.committed) == (1, 1)
    assert await driver.audit_findings() == ()


async def test_a_defect_of_one_settle_undoes_no_other_of_its_batch(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ledger = await driver.open_session(max_calls=CALLS), driver.ledger
    for name in ("r1", "r2", "r3"):
        await driver.admit_granted(session, name, attempt=name)
    real = settles.reply_parameters

    def broken(moment: Moment, call: CallRow, settlement: Settle) -> tuple[SqlValue, ...] | None:
        if settlement.request_id == "r2":
            raise RuntimeError("a defect")
        return real(moment, call, settlement)

    monkeypatch.setattr(settles, "reply_parameters", broken)
    batch = [settle(session, name, name, AttemptOutcome.RESULT) for name in ("r1", "r2", "r3")]
    outcomes = await CallOperations(ledger).run(batch)
    assert [isinstance(outcome, RuntimeError) for outcome in outcomes] == [False, True, False]
    info = await driver.info(session)
    assert (info.committed, info.running) == (2, 1)
    assert await driver.audit_findings() == ()


async def test_what_one_operation_raises_undoes_its_own_writes_and_no_others(driver: Driver) -> None:
    session = await driver.open_session(max_calls=CALLS)

    def failing(_: Moment) -> SqlProgram[object]:
        yield from execute("UPDATE session SET label = 'broken' WHERE id = ?", session.session_id)
        raise RuntimeError("a defect")

    stranger = session.model_copy(update={"token": SessionToken.mint().text})
    operations: list[Operation[object]] = [
        alone(admit(session, "r1", "one")),
        failing,
        alone(admit(stranger, "r2", "two")),
        alone(admit(session, "r3", "three")),
    ]
    outcomes = await asyncio.gather(*map(driver.ledger.transact, operations), return_exceptions=True)
    assert [is_granted(outcome) for outcome in outcomes] == [True, False, False, True]
    assert isinstance(outcomes[1], RuntimeError)
    assert isinstance(outcomes[2], Unauthorized)
    info = await driver.info(session)
    assert (info.call_count, info.label) == (2, None)


@pytest.mark.parametrize("used", [-1, 2])
async def test_a_counter_out_of_its_bounds_cannot_be_written(driver: Driver, used: int) -> None:
    session = await driver.open_session(max_calls=1)
    with pytest.raises(AssertionError, match="invariant"):
        await driver.transact(lambda _: execute("UPDATE session SET used = ? WHERE id = ?", used, session.session_id))
    assert (await driver.info(session)).call_count == 0
