"""The operations of ``protocol.md`` §4: who may ask what, and what is heard by whoever may not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from quintain.contracts.metadata import SessionOpened
from quintain.contracts.token import SessionToken
from quintain.errors import (
    BadRequest,
    BudgetExhausted,
    Fault,
    ForbiddenTarget,
    Overloaded,
    Unauthorized,
)
from quintain.topology import METADATA, METADATA_QUEUE, Binding, Topology
from quintain_metadata.canceller import Canceller
from quintain_metadata.desk import Desk
from quintain_metadata.operations import Operations
from support.metadata_alone import ADMIN_TOKEN, MetadataAlone, metadata_alone

#: Every operation with a question it takes, and whose token opens it.
QUESTIONS: dict[str, tuple[dict[str, object], set[str]]] = {
    "info": ({}, {"session"}),
    "open": ({"defaultTarget": "a"}, {"session", "admin"}),
    "amend": ({"sessionId": "SESSION", "maxCalls": 9}, {"admin"}),
    "reserve": ({"requestIds": ["r1"], "deadline": 10**14}, {"session"}),
    "release": ({"requestIds": ["r1"]}, {"session"}),
    "cancel": ({"requestIds": ["r1"]}, {"session"}),
    "close": ({}, {"session"}),
    "list": ({}, {"admin"}),
    "show": ({"sessionId": "SESSION"}, {"admin"}),
    "targets": ({}, {"admin"}),
    "pause": ({"target": "a", "forSeconds": 60}, {"admin"}),
    "resume": ({"target": "a"}, {"admin"}),
    "workers": ({}, {"admin"}),
    "drain": ({"workerId": "w1"}, {"admin"}),
}


@pytest.fixture
async def alone() -> AsyncIterator[MetadataAlone]:
    async with metadata_alone() as alone:
        await alone.books.register("a", "b")
        yield alone


@pytest.fixture
async def session(alone: MetadataAlone) -> SessionOpened:
    return await alone.books.open(max_calls=5)


def question(operation: str, session: SessionOpened) -> dict[str, object]:
    text = json.dumps(QUESTIONS[operation][0]).replace("SESSION", session.session_id)
    asked: dict[str, object] = json.loads(text)
    return asked


@pytest.mark.parametrize("operation", list(QUESTIONS))
async def test_an_operation_is_open_to_whom_the_protocol_says(
    alone: MetadataAlone, session: SessionOpened, operation: str
) -> None:
    body = question(operation, session)
    for who, token in (("session", session.token), ("admin", ADMIN_TOKEN)):
        if who in QUESTIONS[operation][1]:
            assert await alone.operate(operation, token, body)
        else:
            with pytest.raises((Unauthorized, BadRequest)) as refusal:
                await alone.operate(operation, token, body)
            assert (refusal.value.code == "unauthorized") is (who == "session")


@pytest.mark.parametrize("operation", list(QUESTIONS))
@pytest.mark.parametrize("token", [None, "", "junk", "Bearer x", "the admin token of a tesT", "forged", "tampered"])
async def test_no_other_token_opens_anything_and_all_hear_the_same(
    alone: MetadataAlone, session: SessionOpened, operation: str, token: str | None
) -> None:
    if token == "forged":
        token = SessionToken.mint().text
    if token == "tampered":
        token = session.token[:-1] + ("0" if session.token[-1] != "0" else "1")
    with pytest.raises(Unauthorized, match="^Unauthorized$"):
        await alone.operate(operation, token, question(operation, session))


@pytest.mark.parametrize("operation", [*QUESTIONS, "nonsense"])
async def test_the_token_is_looked_at_before_the_question(
    alone: MetadataAlone, session: SessionOpened, operation: str
) -> None:
    for body in (b"{", b"[]", b'{"maxCalls": "many", "requestIds": 7}'):
        if operation in QUESTIONS:
            with pytest.raises(Unauthorized):
                await alone.operate(operation, SessionToken.mint().text, body)
        if QUESTIONS.get(operation, ({}, set()))[1] == {"admin"}:
            with pytest.raises(Unauthorized):
                await alone.operate(operation, session.token, body)


@pytest.mark.parametrize(
    "operation", ["open", "amend", "reserve", "release", "cancel", "show", "pause", "resume", "drain"]
)
async def test_a_question_nobody_can_read_is_a_bad_request(
    alone: MetadataAlone, session: SessionOpened, operation: str
) -> None:
    token = session.token if "session" in QUESTIONS[operation][1] else ADMIN_TOKEN
    for body in (b"{", b"[]", b"{}", b"null"):
        with pytest.raises(BadRequest):
            await alone.operate(operation, token, body)


async def test_an_unknown_operation_names_those_there_are(alone: MetadataAlone, session: SessionOpened) -> None:
    # The exchange is direct: what it does not know reaches the queue only by a binding, such as an operator's.
    await alone.bus.declare(Topology(bindings=(Binding(METADATA, METADATA_QUEUE, "dance"),)))
    for token in (session.token, ADMIN_TOKEN):
        with pytest.raises(BadRequest, match="there is no operation 'dance'; there are info, open, amend"):
            await alone.operate("dance", token)
    with pytest.raises(Unauthorized):
        await alone.operate("dance", SessionToken.mint().text)


async def test_an_operation_may_be_asked_without_a_body(alone: MetadataAlone, session: SessionOpened) -> None:
    assert (await alone.operate("info", session.token))["targetName"] == "a"


async def test_info_is_the_protocols(alone: MetadataAlone, session: SessionOpened) -> None:
    info = await alone.operate("info", session.token)
    now = info.pop("now")
    assert isinstance(now, int)
    assert info == {
        "sessionId": session.session_id,
        "targetName": "a",
        "maxCalls": 5,
        "callCount": 0,
        "availableTargets": ["a", "b"],
        "reserved": 0,
        "running": 0,
        "committed": 0,
        "refunded": 0,
        "inDoubt": 0,
        "tokenUsage": {"input": 0, "output": 0},
        "state": "open",
    }


async def test_the_token_is_shown_once_and_never_again(alone: MetadataAlone) -> None:
    opened = await alone.operate("open", ADMIN_TOKEN, {"defaultTarget": "a", "label": "mine"})
    secret = str(opened["token"]).split("_")[3]
    shown = await alone.operate("show", ADMIN_TOKEN, {"sessionId": opened["sessionId"]})
    listed = await alone.operate("list", ADMIN_TOKEN)
    info = await alone.operate("info", str(opened["token"]))
    for answer in (shown, listed, info):
        assert secret not in json.dumps(answer)
    assert shown["label"] == "mine"


async def test_a_session_opens_children_that_narrow_it_and_nothing_more(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    parent = await alone.books.open(max_calls=5, allowed_targets=["a"], expires_in_seconds=100)
    child = await alone.operate("open", parent.token, {"defaultTarget": "a"})
    assert child["parentId"] == parent.session_id
    info = await alone.operate("info", str(child["token"]))
    assert (info["maxCalls"], info["availableTargets"]) == (5, ["a"])
    with pytest.raises(BadRequest, match="maxCalls: a child may only narrow"):
        await alone.operate("open", parent.token, {"defaultTarget": "a", "maxCalls": 6})
    with pytest.raises(ForbiddenTarget):
        await alone.operate("open", parent.token, {"defaultTarget": "b"})
    with pytest.raises(ForbiddenTarget):
        await alone.operate("open", parent.token, {"defaultTarget": "a", "allowedTargets": ["a", "b"]})


async def test_a_closed_session_opens_nothing_nor_do_its_children_and_its_reservations_end(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    child = await alone.books.open(parent=session, max_calls=2)
    await alone.books.reserve(session, "r1")
    await alone.books.reserve(child, "r1", "r2")
    assert (await alone.books.info(session)).reserved == 3
    closed = await alone.operate("amend", ADMIN_TOKEN, {"sessionId": session.session_id, "state": "closed"})
    assert (closed["state"], closed["callCount"], closed["reserved"]) == ("closed", 0, 0)
    assert (await alone.books.info(child)).call_count == 0
    for token in (session.token, child.token):
        for operation in ("info", "open", "reserve"):
            with pytest.raises(Unauthorized, match="^Unauthorized$"):
                await alone.operate(operation, token, question(operation, session))
    reopened = await alone.operate("amend", ADMIN_TOKEN, {"sessionId": session.session_id, "state": "open"})
    assert reopened["state"] == "closed"


async def test_a_session_may_close_itself_and_its_children_and_nobody_else(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    child = await alone.books.open(parent=session, max_calls=3)
    grandchild = await alone.books.open(parent=child, max_calls=2)
    await alone.books.reserve(grandchild, "r1")
    closed = await alone.operate("close", child.token)
    assert (closed["sessionId"], closed["state"], closed["callCount"]) == (child.session_id, "closed", 0)
    for token in (child.token, grandchild.token):
        with pytest.raises(Unauthorized):
            await alone.operate("info", token)
    assert (await alone.operate("info", session.token))["state"] == "open"


async def test_a_paused_session_reserves_nothing_until_it_is_open_again(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    ask = question("reserve", session)
    await alone.operate("amend", ADMIN_TOKEN, {"sessionId": session.session_id, "state": "paused"})
    with pytest.raises(Overloaded, match="paused") as refusal:
        await alone.operate("reserve", session.token, ask)
    assert refusal.value.retryable
    assert (await alone.operate("info", session.token))["state"] == "paused"
    await alone.operate("amend", ADMIN_TOKEN, {"sessionId": session.session_id, "state": "open"})
    assert await alone.operate("reserve", session.token, ask) == {"granted": 1}


async def test_a_reservation_is_all_or_nothing_and_is_released_once(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    async def reserve(*ids: str) -> dict[str, object]:
        return await alone.operate("reserve", session.token, {"requestIds": list(ids), "deadline": 10**14})

    assert await reserve("r1", "r2", "r1") == {"granted": 2}
    assert await reserve("r2", "r3") == {"granted": 1}
    with pytest.raises(BudgetExhausted, match=r"\(current: 3, batch: 3, limit: 5\)"):
        await reserve("r4", "r5", "r6")
    for released in (2, 0):
        answer = await alone.operate("release", session.token, {"requestIds": ["r1", "r2", "nobody's"]})
        assert answer == {"released": released}
    assert (await alone.operate("info", session.token))["callCount"] == 1


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("open", {"defaultTarget": "a", "maxCalls": 10**30}),
        ("open", {"defaultTarget": "a", "expiresInSeconds": 1e300}),
        ("open", b'{"defaultTarget": "a", "expiresInSeconds": Infinity}'),
        ("amend", {"sessionId": "SESSION", "maxCalls": 10**30}),
        ("list", {"cursor": "9" * 5000 + ".x"}),
        ("list", {"cursor": "junk"}),
        ("show", {"sessionId": "nobody"}),
    ],
)
async def test_a_number_that_no_ledger_can_hold_is_the_askers_mistake(
    alone: MetadataAlone, session: SessionOpened, operation: str, body: object
) -> None:
    if isinstance(body, dict) and body.get("sessionId") == "SESSION":
        body["sessionId"] = session.session_id
    with pytest.raises(BadRequest):
        await alone.operate(operation, ADMIN_TOKEN, body)


async def test_a_deadline_however_far_is_the_furthest_there_is(alone: MetadataAlone, session: SessionOpened) -> None:
    for number, deadline in enumerate((10**30, -(10**30))):
        ask = {"requestIds": [f"r{number}"], "deadline": deadline}
        assert await alone.operate("reserve", session.token, ask) == {"granted": 1}


async def test_the_list_is_paged_newest_first_and_filtered(alone: MetadataAlone) -> None:
    opened = [await alone.books.open(label=str(number)) for number in range(105)]
    closed = opened[50].session_id
    await alone.operate("amend", ADMIN_TOKEN, {"sessionId": closed, "state": "closed"})
    first = await alone.operate("list", ADMIN_TOKEN)
    second = await alone.operate("list", ADMIN_TOKEN, {"cursor": first["cursor"]})
    ids = [one["sessionId"] for page in (first, second) for one in page["sessions"]]  # type: ignore[attr-defined]
    assert len(ids) == len(set(ids)) == 105
    assert set(ids) == {one.session_id for one in opened}
    assert "cursor" not in second
    only = await alone.operate("list", ADMIN_TOKEN, {"state": "closed"})
    assert [one["sessionId"] for one in only["sessions"]] == [closed]  # type: ignore[attr-defined]


async def test_every_question_is_acknowledged_even_where_nobody_waits_for_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with metadata_alone() as alone:
        session = await alone.books.open()
        queue = alone.memory.queue("quintain.metadata")
        await alone.publish(METADATA, "info", None, headers={"x-quintain-session": session.token})
        await alone.publish(METADATA, "info", None, reply_to="gone", correlation_id="c")
        await alone.publish(METADATA, "info", b"junk", reply_to="gone", correlation_id="c")
        await alone.operate("info", session.token)
    assert not queue.ready  # what was not acknowledged came back when the service went
    assert "named no reply_to" in caplog.text


async def test_without_an_admin_token_nobody_is_the_administrator(alone: MetadataAlone, session: SessionOpened) -> None:
    ledger = alone.books.ledger
    operations = Operations(alone.bus, ledger, Canceller(alone.bus, ledger, Desk(ledger)), None)
    assert not operations._is_admin("")
    assert not operations._is_admin(ADMIN_TOKEN)


async def test_a_fault_is_typed_whatever_happens(alone: MetadataAlone, session: SessionOpened) -> None:
    await alone.books.ledger.close()
    with pytest.raises(Fault) as fault:
        await alone.operate("info", session.token)
    assert (fault.value.code, fault.value.retryable) == ("budget_unavailable", True)


async def test_what_went_to_which_target_is_told_to_whoever_asks_for_it(
    alone: MetadataAlone, session: SessionOpened
) -> None:
    assert "perTarget" not in await alone.operate("info", session.token, {})
    assert (await alone.operate("info", session.token, {"perTarget": True}))["perTarget"] == {}
