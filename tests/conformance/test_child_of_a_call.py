"""The child session of a call: the attempt that runs the call opens it, and nobody else does."""

from __future__ import annotations

import pytest

from quintain.contracts.credentials import SessionToken
from quintain.contracts.ledger import Admission, OpenChild
from quintain.contracts.session import AGENTS, SessionOpened, SessionState
from quintain.errors import ForbiddenTarget, Unauthorized
from quintain_metadata.ledger import audit, children, usage
from support.ledger_driver import Driver


async def open_child(
    driver: Driver, session: SessionOpened, *, token: SessionToken | None = None, **altered: object
) -> SessionOpened:
    """Open the child of call r1, which attempt t1 of worker w1 runs."""
    fields = {
        "session_id": session.session_id,
        "request_id": "r1",
        "attempt_id": "t1",
        "incarnation": "w1",
        "targets": ["b", "c"],
        "max_calls": 3,
        **altered,
    }
    request = OpenChild.model_validate(fields)
    return await driver.transact(lambda moment: children.open_child(moment, request, token or SessionToken.mint()))


async def running_call(driver: Driver, **fields: object) -> SessionOpened:
    await driver.register()
    session = await driver.open_session(**fields)
    assert isinstance(await driver.admit(session, "r1", attempt="t1"), Admission)
    return session


async def test_it_has_the_configured_terms_and_ends_with_the_call(driver: Driver) -> None:
    session = await running_call(driver)
    child = await driver.info(await open_child(driver, session, expires_in_seconds=86_400))
    assert (child.parent_id, child.target_name, child.allowed_targets) == (session.session_id, "b", ["b", "c"])
    assert child.max_calls == 3
    assert child.expires_at is not None
    assert child.expires_at <= child.now + 600_000, "the call's deadline is that of its session"


@pytest.mark.parametrize("altered", [{"attempt_id": "t2"}, {"request_id": "r2"}, {"incarnation": "w2"}], ids=str)
async def test_nobody_but_the_attempt_that_runs_the_call_opens_it(driver: Driver, altered: dict[str, str]) -> None:
    session = await running_call(driver)
    with pytest.raises(Unauthorized):
        await open_child(driver, session, **altered)


async def test_an_exported_call_has_the_call_whose_agent_made_it(driver: Driver) -> None:
    session = await running_call(driver)
    child = await open_child(driver, session, targets=["a"])
    deeper = await driver.open_session(parent=child, max_calls=1)
    for each, name in ((child, "r2"), (deeper, "r3")):
        assert isinstance(await driver.admit(each, name, attempt=f"of {name}"), Admission)
    records = await driver.transact(lambda _: audit.export_page(("", ""), session_id=session.session_id))
    asker = audit.ParentCall(session_id=session.session_id, request_id="r1")
    assert {each.request_id: each.parent for each in records} == {"r1": None, "r2": asker, "r3": asker}
    lines = await driver.transact(lambda _: usage.usage_lines(session.session_id))
    assert [(line.target, line.grader, line.agent, line.calls) for line in lines] == [
        ("a", None, None, 1),
        ("a", AGENTS, "a", 2),
    ]


async def test_a_request_that_is_delivered_again_has_the_same_answer_and_ends_nothing(driver: Driver) -> None:
    session = await running_call(driver)
    first = await open_child(driver, session, token=SessionToken.of_request("t1", "random"))
    assert await open_child(driver, session, token=SessionToken.of_request("t1", "random")) == first
    assert (await driver.info(first)).state is SessionState.OPEN
    another = await open_child(driver, session, token=SessionToken.of_request("t1", "random too"))
    assert another.session_id != first.session_id
    assert (await driver.info(first)).state is SessionState.CLOSED


async def test_it_narrows_the_session_as_any_child_does(driver: Driver) -> None:
    session = await running_call(driver, max_calls=2, allowed_targets=["a", "b", "c"])
    assert (await driver.info(await open_child(driver, session))).max_calls == 2
    with pytest.raises(ForbiddenTarget):
        await open_child(driver, session, targets=["d"])


@pytest.mark.parametrize(("grader", "told"), [(None, AGENTS), ("kind", "kind")])
async def test_its_calls_are_told_apart_from_those_that_asked_for_them(
    driver: Driver, grader: str | None, told: str
) -> None:
    session = await running_call(driver, grader=grader)
    child = await open_child(driver, session, targets=["a"])
    assert isinstance(await driver.admit(child, "r2", attempt="t2"), Admission)
    lines = await driver.transact(lambda _: usage.usage_lines(session.session_id))
    assert [(line.grader, line.agent, line.calls) for line in lines] == [(grader, None, 1), (told, "a", 1)]
