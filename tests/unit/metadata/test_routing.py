"""Requests that named no target, or one that nothing serves: each is sent on once, or answered with what there is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator

import pytest

from quintain.bus.base import Delivery
from quintain.contracts.credentials import SessionToken
from quintain.contracts.headers import DEADLINE_HEADER, REQUEST_ID_HEADER, ROUTED_HEADER, TOKEN_HEADER
from quintain.contracts.session import SessionOpened
from quintain.errors import BadRequest, BusError, Overloaded, Unauthorized, UnknownTarget
from quintain.topology import INVOKE, Binding, Topology, target_queue, target_topology
from support.ledger_driver import admit_request
from support.metadata_service import Metadata, next_delivery, run_metadata_service
from support.quick import timings


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    async with run_metadata_service(timings(unknown_target_seconds=0.05)) as alone:
        yield alone


async def serve(metadata: Metadata, *targets: str) -> asyncio.Queue[Delivery]:
    """Registered targets, with somebody who takes what comes to the first of them."""
    await metadata.driver.register(names=targets)
    for target in targets:
        await metadata.bus.declare(target_topology(target))
    return await metadata.consume_queue(target_queue(targets[0]))


async def send(metadata: Metadata, session: SessionOpened, **more: object) -> None:
    """Publish a request that names no target by its key, and does not wait."""
    headers = {TOKEN_HEADER: session.token, REQUEST_ID_HEADER: "r1"}
    body = {"question": "x", **more}
    await metadata.publish(INVOKE, "", body, headers=headers, correlation_id="c", reply_to="r")


async def test_a_request_without_a_target_goes_to_the_default_byte_for_byte(
    metadata: Metadata, session: SessionOpened
) -> None:
    got = await serve(metadata, "a")
    body = b'{ "question" : "as it was written", "unknown": [1] }'
    headers = {TOKEN_HEADER: session.token, REQUEST_ID_HEADER: "r1", "traceparent": "t", "x-mine": 1.5}
    await metadata.publish(INVOKE, "", body, headers=headers, correlation_id="c", reply_to="r", expiration_ms=60_000)
    sent = await next_delivery(got)
    assert (sent.body, sent.routing_key, sent.type) == (body, "a", "invoke")
    assert (sent.correlation_id, sent.reply_to, sent.expiration_ms) == ("c", "r", 60_000)
    assert dict(sent.headers) == {**headers, ROUTED_HEADER: 1}


@pytest.mark.parametrize("spelling", ["target", "provider"])
async def test_a_target_named_in_the_body_alone_is_where_it_goes(
    metadata: Metadata, session: SessionOpened, spelling: str
) -> None:
    got = await serve(metadata, "b", "a")
    await send(metadata, session, **{spelling: "b"})
    assert (await next_delivery(got)).routing_key == "b"


@pytest.mark.parametrize(
    ("key", "named", "sentence"),
    [
        ("nope", {}, "Unknown target 'nope'. Available: a, b"),
        ("nope", {"target": "nope"}, "Unknown target 'nope'. Available: a, b"),
        ("", {"target": "nope"}, "Unknown target 'nope'. Available: a, b"),
        ("", {"provider": "nope"}, "Unknown provider 'nope'. Available: a, b"),
        ("", {"target": ""}, "Unknown target ''. Available: a, b"),
    ],
)
async def test_an_unknown_target_is_answered_with_what_there_is(
    metadata: Metadata, session: SessionOpened, key: str, named: dict[str, str], sentence: str
) -> None:
    await serve(metadata, "b", "a", "c")
    narrow = await metadata.driver.open_session(parent=session, allowed_targets=["a", "b"])
    with pytest.raises(UnknownTarget) as unknown:
        await metadata.invoke(narrow.token, {"question": "x", **named}, key)
    assert (unknown.value.message, unknown.value.available_targets) == (sentence, ("a", "b"))


async def test_a_default_that_nobody_registered_is_unknown_too(metadata: Metadata, session: SessionOpened) -> None:
    with pytest.raises(UnknownTarget, match="Unknown target 'a'. Available: $"):
        await metadata.invoke(session.token, {"question": "x"})


async def test_a_marked_message_that_comes_back_is_answered_and_not_sent_round_again(
    metadata: Metadata, session: SessionOpened
) -> None:
    await metadata.driver.register()  # known, but its queue is not there: what is sent to it comes back
    with pytest.raises(UnknownTarget, match="Unknown target 'a'"):
        await metadata.invoke(session.token, {"question": "x"}, "a", {ROUTED_HEADER: 1})


async def test_an_unknown_target_costs_nothing_and_ends_its_reservation(
    metadata: Metadata, session: SessionOpened
) -> None:
    await metadata.driver.reserve(session, ["r1", "r2", "r3"])
    with pytest.raises(UnknownTarget):
        await metadata.invoke(session.token, {"question": "x"}, "nope", {REQUEST_ID_HEADER: "r1"})
    with pytest.raises(BadRequest):
        await metadata.invoke(session.token, {}, "nope", {REQUEST_ID_HEADER: "r2"})
    info = await metadata.driver.info(session)
    assert (info.call_count, info.reserved) == (1, 1)


async def test_a_default_is_declared_once_and_again_where_its_queue_is_gone(
    metadata: Metadata, session: SessionOpened, monkeypatch: pytest.MonkeyPatch
) -> None:
    await metadata.driver.register()
    declared: list[Topology] = []
    declare = metadata.service_bus.declare

    async def count(topology: Topology, *, redeclare: bool = True) -> None:
        declared.append(topology)
        await declare(topology, redeclare=redeclare)

    monkeypatch.setattr(metadata.service_bus, "declare", count)

    async def arrived() -> int:
        while True:
            with contextlib.suppress(BusError):
                if ready := metadata.memory.queue("quintain.target.a").ready:
                    return len(ready)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(5):
        await send(metadata, session)
        assert await arrived() == 1
        await send(metadata, session)
        while await arrived() != 2:
            await asyncio.sleep(0.01)
        assert declared == [target_topology("a")]
        await metadata.bus.delete(target_queue("a"))
        await send(metadata, session)
        assert await arrived() == 1
    assert declared == [target_topology("a")] * 2


async def test_the_target_first_resolved_stays(metadata: Metadata, session: SessionOpened) -> None:
    got = await serve(metadata, "b", "a")
    await metadata.driver.ask(admit_request(session, "r1", target="b"))
    await send(metadata, session)
    assert (await next_delivery(got)).routing_key == "b"


@pytest.mark.parametrize(
    ("key", "body", "sentence"),
    [
        ("nope", {"question": "x", "target": "other"}, "target: the body names 'other', the routing key 'nope'"),
        ("", {}, "Missing required field: question"),
        ("", b"{", "The body is not JSON"),
    ],
)
async def test_a_bad_request_is_said_after_the_token(
    metadata: Metadata, session: SessionOpened, key: str, body: object, sentence: str
) -> None:
    with pytest.raises(BadRequest, match=sentence):
        await metadata.invoke(session.token, body, key)
    for token in (SessionToken.mint().text, "junk", None):
        with pytest.raises(Unauthorized):
            await metadata.invoke(token, body, key)


async def test_the_answer_carries_the_request_id(metadata: Metadata, session: SessionOpened) -> None:
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    metadata.rpc_client.subscribe("c", replies.put_nowait)
    address = {"correlation_id": "c", "reply_to": metadata.rpc_client.reply_key}
    for headers in ({REQUEST_ID_HEADER: "mine"}, {}):
        await metadata.publish(INVOKE, "nope", {"question": "x"}, headers=headers, **address)
        reply = await next_delivery(replies)
        told = (reply.headers[REQUEST_ID_HEADER], reply.correlation_id)
        assert told == (headers.get(REQUEST_ID_HEADER, "c"), "c")


async def test_a_full_queue_is_overloaded_and_no_defect(metadata: Metadata, session: SessionOpened) -> None:
    await metadata.driver.register()
    tiny = dataclasses.replace(target_queue("a"), max_length=0)
    await metadata.bus.declare(Topology((), (tiny,), (Binding(INVOKE, tiny, "a"),)))
    with pytest.raises(Overloaded, match="queue of target 'a' is full") as overloaded:
        await metadata.invoke(session.token, {"question": "x"})
    assert overloaded.value.retryable
    assert (await metadata.driver.info(session)).call_count == 0


@pytest.mark.parametrize("key", ["", "nope"])
async def test_a_deadline_that_is_no_integer_is_refused(metadata: Metadata, session: SessionOpened, key: str) -> None:
    await serve(metadata, "a")
    for deadline in (1.5, "soon", True, "99999999999999.5", [1]):
        with pytest.raises(BadRequest, match=f"^{DEADLINE_HEADER}: "):
            await metadata.invoke(session.token, {"question": "x"}, key, {DEADLINE_HEADER: deadline})
