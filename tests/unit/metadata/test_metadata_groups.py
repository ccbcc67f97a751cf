"""Groups in the metadata service: unrouted, dead or poison, each call is handled by itself."""

from __future__ import annotations

import asyncio

import pytest

from quintain.bus.base import Delivery, Envelope, HeaderValue
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, GroupItem, encode_group
from quintain.contracts.headers import PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.contracts.invoke import FaultReply
from quintain.topology import DEAD, INVOKE, POISON_QUEUE, Exchange, target_queue, target_topology
from support.metadata_service import Metadata, next_delivery

QUESTION = b'{"question": "x"}'


async def send_group(
    metadata: Metadata,
    exchange: Exchange,
    items: list[GroupItem],
    *,
    reply_to: str | None,
    **headers: HeaderValue,
) -> None:
    session = await metadata.driver.open_session(default_target="a", max_calls=5)
    envelope = Envelope(
        body=encode_group(items),
        type=INVOKE_GROUP_TYPE,
        content_type=GROUP_CONTENT_TYPE,
        correlation_id="the group",
        reply_to=reply_to,
        headers={TOKEN_HEADER: session.token, PROTOCOL_HEADER: 1, **headers},
    )
    await metadata.bus.publish(exchange, "" if exchange is INVOKE else "a", envelope)


def items(*names: str) -> list[GroupItem]:
    return [GroupItem(f"c-{name}", QUESTION, {REQUEST_ID_HEADER: f"r-{name}"}) for name in names]


async def test_the_calls_of_an_unrouted_group_are_forwarded_one_by_one(metadata: Metadata) -> None:
    await metadata.bus.declare(target_topology("a"))
    queue = await metadata.consume_queue(target_queue("a"))
    await send_group(metadata, INVOKE, items("x", "y"), reply_to=metadata.rpc_client.reply_key)
    forwarded = [await next_delivery(queue) for _ in range(2)]
    assert {call.correlation_id: call.headers[REQUEST_ID_HEADER] for call in forwarded} == {"c-x": "r-x", "c-y": "r-y"}
    assert {(call.type, call.body, call.reply_to) for call in forwarded} == {
        ("invoke", QUESTION, metadata.rpc_client.reply_key)
    }


async def replies_to_group(
    metadata: Metadata, exchange: Exchange, **headers: HeaderValue
) -> dict[str, tuple[HeaderValue | None, str]]:
    """The request id and the code of each reply to a group of two, by its correlation id."""
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    for name in "xy":
        metadata.rpc_client.subscribe(f"c-{name}", replies.put_nowait)
    await send_group(metadata, exchange, items("x", "y"), reply_to=metadata.rpc_client.reply_key, **headers)
    faults = [await next_delivery(replies) for _ in range(2)]
    codes = [FaultReply.from_wire(fault.body).code for fault in faults]
    return {
        str(fault.correlation_id): (fault.headers[REQUEST_ID_HEADER], code)
        for fault, code in zip(faults, codes, strict=True)
    }


async def test_the_calls_of_a_dead_group_are_answered_one_by_one(metadata: Metadata) -> None:
    told = await replies_to_group(metadata, DEAD, **{"x-first-death-reason": "expired"})
    assert told == {"c-x": ("r-x", "expired"), "c-y": ("r-y", "expired")}


async def test_the_calls_of_a_group_that_nobody_can_answer_are_kept_one_by_one(
    metadata: Metadata,
) -> None:
    poison = await metadata.consume_queue(POISON_QUEUE)
    await send_group(metadata, DEAD, items("x", "y"), reply_to=None)
    kept = [await next_delivery(poison) for _ in range(2)]
    assert {(message.headers[REQUEST_ID_HEADER], message.type, message.body) for message in kept} == {
        ("r-x", "invoke", QUESTION),
        ("r-y", "invoke", QUESTION),
    }


@pytest.mark.parametrize("exchange", [INVOKE, DEAD])
async def test_each_call_of_a_group_of_another_version_is_answered(metadata: Metadata, exchange: Exchange) -> None:
    told = await replies_to_group(metadata, exchange, **{PROTOCOL_HEADER: 2})
    assert told == {"c-x": ("r-x", "bad_request"), "c-y": ("r-y", "bad_request")}


async def test_a_group_that_cannot_be_taken_apart_is_answered_as_a_whole(metadata: Metadata) -> None:
    replies: asyncio.Queue[Delivery] = asyncio.Queue()
    metadata.rpc_client.subscribe("the group", replies.put_nowait)
    for exchange in (INVOKE, DEAD):
        await send_group(metadata, exchange, items("x", "x"), reply_to=metadata.rpc_client.reply_key)
        assert (await next_delivery(replies)).type == "fault"
