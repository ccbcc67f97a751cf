"""What calls took, target by target, and the export of one session's family: the same from every store."""

from __future__ import annotations

from conformance.ledger_desk import Desk
from quintain.contracts.invoke import TokenUsage
from quintain.contracts.ledger import Outcome
from quintain.contracts.metadata import SessionOpened, TargetSpend
from quintain.errors import ProviderFailed
from quintain_metadata import audit, spending

USED = TokenUsage(input=3, output=2)


async def spent(desk: Desk, session: SessionOpened) -> dict[str, TargetSpend]:
    return await desk.ledger.do(lambda _: spending.per_target(session.session_id))


async def called(desk: Desk, session: SessionOpened, name: str, target: str = "a") -> None:
    grant = await desk.granted(session, name, target=target)
    await desk.settle(session, name, grant.attempt_id, Outcome.RESULT)


async def test_tokens_are_told_by_target_a_childs_too(desk: Desk) -> None:
    parent = await desk.open(max_calls=9)
    child = await desk.open(parent=parent, max_calls=5)
    await called(desk, parent, "r1")
    await called(desk, child, "r2")
    await called(desk, child, "r3", target="judge")
    assert await spent(desk, parent) == {
        "a": TargetSpend(calls=2, counted=2, token_usage=USED + USED),
        "judge": TargetSpend(calls=1, counted=1, token_usage=USED),
    }
    assert (await spent(desk, child))["a"] == TargetSpend(calls=1, counted=1, token_usage=USED)


async def test_a_charged_call_without_tokens_is_a_call_that_was_not_counted(desk: Desk) -> None:
    session = await desk.open(max_calls=9)
    await called(desk, session, "r1")
    await desk.granted(session, "runs")
    grant = await desk.granted(session, "broke")
    await desk.settle(session, "broke", grant.attempt_id, Outcome.CHARGED)
    assert await spent(desk, session) == {"a": TargetSpend(calls=3, counted=1, token_usage=USED)}


async def test_what_was_given_back_was_not_spent(desk: Desk) -> None:
    session = await desk.open(max_calls=9)
    grant = await desk.granted(session, "r1")
    await desk.settle(session, "r1", grant.attempt_id, Outcome.REFUND, fault=ProviderFailed("refused"))
    await desk.reserve(session, ["r2"])
    assert await spent(desk, session) == {}


async def test_one_family_can_be_exported_by_itself(desk: Desk) -> None:
    parent, stranger = await desk.open(max_calls=9), await desk.open(max_calls=9)
    child = await desk.open(parent=parent, max_calls=5)
    for session in (parent, child, stranger):
        await called(desk, session, "r1")
    await desk.granted(child, "runs")
    records = await desk.ledger.do(lambda _: audit.export_calls(("", ""), session_id=parent.session_id))
    assert sorted((record.session_id, record.request_id) for record in records) == sorted(
        [(parent.session_id, "r1"), (child.session_id, "r1"), (child.session_id, "runs")]
    )
    assert {record.request_id: record.token_usage for record in records} == {"r1": USED, "runs": None}
    rest = await desk.ledger.do(
        lambda _: audit.export_calls((records[0].session_id, records[0].request_id), session_id=parent.session_id)
    )
    assert rest == records[1:]
    assert len(await desk.ledger.do(lambda _: audit.export_calls(("", "")))) == 4
