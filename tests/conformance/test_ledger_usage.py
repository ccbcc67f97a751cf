"""What calls took, target by target, and the export of one session's family: the same from every store."""

from __future__ import annotations

from conformance.clocked_ledger_driver import USED, ClockedLedgerDriver
from quintain.contracts.ledger import AttemptOutcome
from quintain.contracts.session import SessionOpened, TargetUsage
from quintain.errors import ProviderFailed
from quintain_metadata.ledger import audit, usage


async def usage_of(ledger_driver: ClockedLedgerDriver, session: SessionOpened) -> dict[str, TargetUsage]:
    return await ledger_driver.ledger.transact(lambda _: usage.usage_per_target(session.session_id))


async def complete_call(
    ledger_driver: ClockedLedgerDriver, session: SessionOpened, name: str, target: str = "a"
) -> None:
    grant = await ledger_driver.admit_granted(session, name, target=target)
    await ledger_driver.settle(session, name, grant.attempt_id, AttemptOutcome.RESULT)


async def test_tokens_are_told_by_target_a_childs_too(ledger_driver: ClockedLedgerDriver) -> None:
    parent = await ledger_driver.open_session(max_calls=9)
    child = await ledger_driver.open_session(parent=parent, max_calls=5)
    await complete_call(ledger_driver, parent, "r1")
    await complete_call(ledger_driver, child, "r2")
    await complete_call(ledger_driver, child, "r3", target="judge")
    assert await usage_of(ledger_driver, parent) == {
        "a": TargetUsage(calls=2, counted=2, token_usage=USED + USED, made_twice=0),
        "judge": TargetUsage(calls=1, counted=1, token_usage=USED, made_twice=0),
    }
    assert (await usage_of(ledger_driver, child))["a"] == TargetUsage(
        calls=1, counted=1, token_usage=USED, made_twice=0
    )


async def test_a_charged_call_without_tokens_is_a_call_that_was_not_counted(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=9)
    await complete_call(ledger_driver, session, "r1")
    await ledger_driver.admit_granted(session, "runs")
    grant = await ledger_driver.admit_granted(session, "broke")
    await ledger_driver.settle(session, "broke", grant.attempt_id, AttemptOutcome.CHARGED)
    assert await usage_of(ledger_driver, session) == {
        "a": TargetUsage(calls=3, counted=1, token_usage=USED, made_twice=0)
    }


async def test_what_was_given_back_was_not_spent(ledger_driver: ClockedLedgerDriver) -> None:
    session = await ledger_driver.open_session(max_calls=9)
    grant = await ledger_driver.admit_granted(session, "r1")
    await ledger_driver.settle(session, "r1", grant.attempt_id, AttemptOutcome.REFUND, fault=ProviderFailed("refused"))
    await ledger_driver.reserve(session, ["r2"])
    assert await usage_of(ledger_driver, session) == {}


async def test_one_family_can_be_exported_by_itself(ledger_driver: ClockedLedgerDriver) -> None:
    parent, stranger = await ledger_driver.open_session(max_calls=9), await ledger_driver.open_session(max_calls=9)
    child = await ledger_driver.open_session(parent=parent, max_calls=5)
    for session in (parent, child, stranger):
        await complete_call(ledger_driver, session, "r1")
    await ledger_driver.admit_granted(child, "runs")
    records = await ledger_driver.ledger.transact(lambda _: audit.export_page(("", ""), session_id=parent.session_id))
    assert sorted((record.session_id, record.request_id) for record in records) == sorted(
        [(parent.session_id, "r1"), (child.session_id, "r1"), (child.session_id, "runs")]
    )
    assert {record.request_id: record.token_usage for record in records} == {"r1": USED, "runs": None}
    rest = await ledger_driver.ledger.transact(
        lambda _: audit.export_page((records[0].session_id, records[0].request_id), session_id=parent.session_id)
    )
    assert rest == records[1:]
    assert len(await ledger_driver.ledger.transact(lambda _: audit.export_page(("", "")))) == 4
