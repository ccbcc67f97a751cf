"""The operations of ``docs/protocol/operations.md``: who may ask what, and what is heard by whoever may not."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import TOKEN_HEADER
from quintain.contracts.ledger import DrainState
from quintain.contracts.quota import QuotaCard, QuotaTerms
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, Fault, Unauthorized
from quintain.topology import METADATA, METADATA_QUEUE, Binding, Topology
from quintain_metadata.admission import AdmissionQueue
from quintain_metadata.fleet import FleetStatus
from quintain_metadata.handlers import MetadataRequestHandler
from support.ledger_driver import admit_request
from support.metadata_service import ADMIN_TOKEN, Metadata, next_delivery, result_body, run_metadata_service
from support.quick import timings

#: Every operation with a question it takes, and whose token opens it.
OPERATION_BODIES: dict[str, tuple[dict[str, object], set[str]]] = {
    "info": ({}, {"session"}),
    "open": ({"defaultTarget": "a"}, {"session", "admin"}),
    "amend": ({"sessionId": "SESSION", "maxCalls": 9}, {"admin"}),
    "reserve": ({"requestIds": ["r1"], "deadline": int(time.time() * 1000) + 600_000}, {"session"}),
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
    "quotas": ({}, {"session", "admin"}),
    "set_quota": ({"quota": "team", "concurrency": 3, "reason": "a test"}, {"admin"}),
    "set_user": ({"user": "worker-a", "targets": ["a"]}, {"admin"}),
}


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with run_metadata_service() as alone:
        quota = QuotaCard(id="key", name="team", terms=QuotaTerms())
        await alone.driver.register(names="ab", drain=DrainState.SUPPORTED, quota=quota)
        yield alone


def operation_body(operation: str, session: SessionOpened) -> dict[str, object]:
    text = json.dumps(OPERATION_BODIES[operation][0]).replace("SESSION", session.session_id)
    body: dict[str, object] = json.loads(text)
    return body


@pytest.mark.parametrize("operation", list(OPERATION_BODIES))
async def test_an_operation_is_open_to_whom_the_protocol_says(
    metadata: Metadata, session: SessionOpened, operation: str
) -> None:
    body = operation_body(operation, session)
    for who, token in (("session", session.token), ("admin", ADMIN_TOKEN)):
        if who in OPERATION_BODIES[operation][1]:
            assert await metadata.call_operation(operation, token, body)
        else:
            with pytest.raises((Unauthorized, BadRequest)) as refusal:
                await metadata.call_operation(operation, token, body)
            assert (refusal.value.code == "unauthorized") is (who == "session")


@pytest.mark.parametrize("operation", list(OPERATION_BODIES))
async def test_no_other_token_opens_anything_whatever_is_asked_and_all_hear_the_same(
    metadata: Metadata, session: SessionOpened, operation: str
) -> None:
    tampered = session.token[:-1] + ("0" if session.token[-1] != "0" else "1")
    strangers = [None, "", "junk", "Bearer x", "the admin token of a tesT", SessionToken.mint().text, tampered]
    if OPERATION_BODIES[operation][1] == {"admin"}:
        strangers.append(session.token)
    questions = [operation_body(operation, session), b"{", b"[]", b'{"maxCalls": "many", "requestIds": 7}']
    for token, body in itertools.product(strangers, questions):
        with pytest.raises(Unauthorized, match="^Unauthorized$"):
            await metadata.call_operation(operation, token, body)


@pytest.mark.parametrize("operation", list(OPERATION_BODIES))
async def test_what_grants_refuses_unknown_keys_and_other_operations_ignore_them(
    metadata: Metadata, session: SessionOpened, operation: str
) -> None:
    token = session.token if "session" in OPERATION_BODIES[operation][1] else ADMIN_TOKEN
    body = {**operation_body(operation, session), "maxcalls": 5}
    if operation not in {"open", "amend", "set_quota", "set_user"}:
        assert await metadata.call_operation(operation, token, body)
        return
    with pytest.raises(BadRequest, match="unknown key 'maxcalls'"):
        await metadata.call_operation(operation, token, body)
    assert (await metadata.call_operation("info", session.token))["maxCalls"] == 5


async def test_an_unknown_operation_names_those_there_are(metadata: Metadata, session: SessionOpened) -> None:
    # The exchange is direct: what it does not know reaches the queue only by a binding, such as an operator's.
    await metadata.bus.declare(Topology(bindings=(Binding(METADATA, METADATA_QUEUE, "dance"),)))
    for token in (session.token, ADMIN_TOKEN):
        with pytest.raises(BadRequest, match="there is no operation 'dance'; there are info, open, amend"):
            await metadata.call_operation("dance", token)
    with pytest.raises(Unauthorized):
        await metadata.call_operation("dance", SessionToken.mint().text)


async def test_info_is_the_protocols(metadata: Metadata, session: SessionOpened) -> None:
    info = await metadata.call_operation("info", session.token)
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
        "quotas": {"a": "team", "b": "team"},
        "weight": 10,
        "priority": "normal",
        "committed": 0,
        "refunded": 0,
        "inDoubt": 0,
        "chargedFaults": 0,
        "tries": 0,
        "unprovenTries": 0,
        "tokenUsage": {"input": 0, "output": 0},
        "state": "open",
        "groupSlots": {"a": 64, "b": 64},
    }


async def test_the_token_is_shown_once_and_never_again(metadata: Metadata) -> None:
    opened = await metadata.call_operation("open", ADMIN_TOKEN, {"defaultTarget": "a", "label": "mine"})
    secret = str(opened["token"]).split("_")[3]
    shown = await metadata.call_operation("show", ADMIN_TOKEN, {"sessionId": opened["sessionId"]})
    listed = await metadata.call_operation("list", ADMIN_TOKEN)
    info = await metadata.call_operation("info", str(opened["token"]))
    for answer in (shown, listed, info):
        assert secret not in json.dumps(answer)
    assert shown["label"] == "mine"


async def test_a_session_is_opened_once_for_its_opener_its_correlation_id_and_its_body(
    metadata: Metadata, session: SessionOpened
) -> None:
    async def open_one(token: str, correlation_id: str, **fields: object) -> dict[str, object]:
        replies: asyncio.Queue[Delivery] = asyncio.Queue()
        metadata.rpc_client.subscribe(correlation_id, replies.put_nowait)
        address = {"correlation_id": correlation_id, "reply_to": metadata.rpc_client.reply_key}
        body = {"defaultTarget": "a", **fields}
        await metadata.publish(METADATA, "open", body, headers={TOKEN_HEADER: token}, **address)
        return result_body(await next_delivery(replies))

    first = await open_one(ADMIN_TOKEN, "c")
    assert await open_one(ADMIN_TOKEN, "c") == first
    others = [
        await open_one(ADMIN_TOKEN, "another"),
        await open_one(ADMIN_TOKEN, "c", maxCalls=2),
        await open_one(session.token, "c"),
    ]
    assert len({str(each["token"]) for each in (first, *others)}) == 4
    with pytest.raises(BadRequest, match="correlation_id"):
        await open_one(ADMIN_TOKEN, "")


async def test_a_closed_sessions_call_whose_worker_is_gone_is_in_doubt_and_another_runs_on(
    metadata: Metadata, session: SessionOpened
) -> None:
    child = await metadata.driver.open_session(parent=session, max_calls=2)
    await metadata.driver.register("gone")
    await metadata.driver.register("alive")
    await metadata.driver.ask(admit_request(child, "r1"), "gone")
    await metadata.driver.ask(admit_request(session, "r2"), "alive")
    await metadata.driver.expire_lease("gone")
    # The service has just started, so that no lease lapses yet.
    metadata.driver.ledger.lease_expiry.suspended_until = 0
    closed = await metadata.call_operation("close", session.token)
    assert (closed["running"], closed["inDoubt"], closed["callCount"]) == (1, 1, 2)


async def test_a_session_may_close_itself_and_its_children_and_nobody_else(
    metadata: Metadata, session: SessionOpened
) -> None:
    child = await metadata.driver.open_session(parent=session, max_calls=3)
    grandchild = await metadata.driver.open_session(parent=child, max_calls=2)
    await metadata.driver.reserve(grandchild, ["r1"])
    closed = await metadata.call_operation("close", child.token)
    assert (closed["sessionId"], closed["state"], closed["callCount"]) == (child.session_id, "closed", 0)
    for token in (child.token, grandchild.token):
        with pytest.raises(Unauthorized):
            await metadata.call_operation("info", token)
    assert (await metadata.call_operation("info", session.token))["state"] == "open"


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
    metadata: Metadata, session: SessionOpened, operation: str, body: object
) -> None:
    if isinstance(body, dict) and body.get("sessionId") == "SESSION":
        body["sessionId"] = session.session_id
    with pytest.raises(BadRequest):
        await metadata.call_operation(operation, ADMIN_TOKEN, body)


async def test_the_list_is_paged_newest_first_and_filtered(metadata: Metadata) -> None:
    opened = [await metadata.driver.open_session(label=str(number)) for number in range(105)]
    closed = opened[50].session_id
    await metadata.call_operation("amend", ADMIN_TOKEN, {"sessionId": closed, "state": "closed"})
    first = await metadata.call_operation("list", ADMIN_TOKEN)
    second = await metadata.call_operation("list", ADMIN_TOKEN, {"cursor": first["cursor"]})
    ids = [one["sessionId"] for page in (first, second) for one in page["sessions"]]  # type: ignore[attr-defined]
    assert len(ids) == len(set(ids)) == 105
    assert set(ids) == {one.session_id for one in opened}
    assert "cursor" not in second
    only = await metadata.call_operation("list", ADMIN_TOKEN, {"state": "closed"})
    assert [one["sessionId"] for one in only["sessions"]] == [closed]  # type: ignore[attr-defined]


async def test_without_an_admin_token_nobody_is_the_administrator(metadata: Metadata, session: SessionOpened) -> None:
    ledger = metadata.driver.ledger
    operations = MetadataRequestHandler(
        metadata.bus, ledger, AdmissionQueue(ledger), FleetStatus(metadata.bus, ledger, "x", list), None
    )
    assert not operations._is_admin("")
    assert not operations._is_admin(ADMIN_TOKEN)


async def test_a_fault_is_typed_whatever_happens(metadata: Metadata, session: SessionOpened) -> None:
    await metadata.driver.ledger.close()
    with pytest.raises(Fault) as fault:
        await metadata.call_operation("info", session.token)
    assert (fault.value.code, fault.value.retryable) == ("budget_unavailable", True)


async def test_info_waits_for_the_calls_that_its_asker_was_answered(metadata: Metadata, session: SessionOpened) -> None:
    admit = admit_request(session, "r1")
    await metadata.driver.ask(admit)
    unknown = {"answered": ["never sent"]}
    assert (await metadata.call_operation("info", session.token, unknown))["running"] == 1
    asking = asyncio.ensure_future(metadata.call_operation("info", session.token, {"answered": ["r0", "r1"]}))
    await asyncio.sleep(0.1)
    assert not asking.done()
    await metadata.driver.end(session, admit)
    info = await asking
    assert (info["running"], info["committed"]) == (0, 1)


async def test_info_waits_a_limited_time() -> None:
    async with run_metadata_service(timings(answered_settle_seconds=0.05)) as alone:
        await alone.driver.register()
        session = await alone.driver.open_session()
        await alone.driver.ask(admit_request(session, "r1"))
        assert (await alone.call_operation("info", session.token, {"answered": ["r1"]}))["running"] == 1
