"""Groups of requests in a worker: each call by itself, the message acknowledged after the last of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from quintain.bus.base import Delivery, Envelope, HeaderValue
from quintain.contracts.group import (
    GROUP_CONTENT_TYPE,
    INVOKE_GROUP_TYPE,
    REPLY_GROUP_TYPE,
    GroupItem,
    decode_group,
    encode_group,
)
from quintain.contracts.headers import ACCEPT_HEADER, DEADLINE_HEADER, PROTOCOL_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER
from quintain.rpc.groups import split_replies
from quintain.rpc.server import ReplyGroups
from quintain.topology import INVOKE, Exchange, target_queue
from quintain_worker.providers.provider import JOIN_SECONDS
from quintain_worker.streaming import ChunkSender
from support.fake_ledger_service import FakeEvaluator, FakeLedgerService, next_item
from support.quick import timings
from support.running_worker import GatedProvider, running_worker
from support.waiting import wait_until

QUESTION = b'{"question": "x"}'


def call_item(name: str, body: bytes = QUESTION, **headers: object) -> GroupItem:
    deadline = int(time.time() * 1000) + 60_000
    return GroupItem(f"c-{name}", body, {REQUEST_ID_HEADER: f"r-{name}", DEADLINE_HEADER: deadline, **headers})


async def send_group(
    evaluator: FakeEvaluator,
    items: Sequence[GroupItem],
    headers: Mapping[str, HeaderValue] | None = None,
    body: bytes | None = None,
) -> None:
    envelope = Envelope(
        body=encode_group(items) if body is None else body,
        type=INVOKE_GROUP_TYPE,
        content_type=GROUP_CONTENT_TYPE,
        correlation_id="the group",
        reply_to=evaluator.reply_key,
        headers={TOKEN_HEADER: evaluator.token, PROTOCOL_HEADER: 1, **(headers or {})},
    )
    await evaluator.bus.publish(INVOKE, "a", envelope)


async def next_replies(evaluator: FakeEvaluator, count: int) -> dict[str, str]:
    """The types of the next replies by correlation id, however they travel."""
    types = dict[str, str]()
    while len(types) < count:
        delivery = await next_item(evaluator.replies)
        replies: Sequence[Delivery] = split_replies(delivery) if delivery.type == REPLY_GROUP_TYPE else [delivery]
        types |= {reply.correlation_id or "": reply.type for reply in replies}
    return types


async def test_replies_that_are_ready_together_travel_together_to_a_caller_that_reads_groups(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    async with running_worker(ledger, GatedProvider(), max_concurrency=64):
        await send_group(evaluator, [call_item(str(n)) for n in range(64)], {ACCEPT_HEADER: "group"})
        assert set((await next_replies(evaluator, 64)).values()) == {"result"}
        assert evaluator.replies.empty()


async def test_chunks_of_several_calls_travel_together() -> None:
    published: asyncio.Queue[Envelope] = asyncio.Queue()

    async def publish(_exchange: object, _key: str, envelope: Envelope) -> None:
        await published.put(envelope)

    bus: Any = SimpleNamespace(publish=publish)
    deliveries: list[Any] = [SimpleNamespace(reply_to="k", correlation_id=name) for name in "ab"]
    groups = ReplyGroups(bus, 1000)
    senders = [ChunkSender(bus, each, "r", 1, groups=groups) for each in deliveries]
    for sender in senders:
        sender.add("text")
    envelope = await next_item(published)
    assert (envelope.type, envelope.persistent, envelope.expiration_ms) == (REPLY_GROUP_TYPE, False, 1000)
    items = decode_group(envelope.body)
    assert [(item.correlation_id, item.type) for item in items] == [("a", "chunk"), ("b", "chunk")]
    assert {json.loads(item.body)["delta"] for item in items} == {"text"}
    for sender in senders:
        await sender.close()
    assert published.empty()


async def test_pieces_are_sent_at_once_and_then_joined() -> None:
    deltas: list[str] = []

    async def publish(_exchange: object, _key: str, envelope: Envelope, **_options: float) -> None:
        deltas.append(json.loads(envelope.body)["delta"])

    bus: Any = SimpleNamespace(publish=publish)
    delivery: Any = SimpleNamespace(reply_to="k", correlation_id="c")
    for groups in (None, ReplyGroups(bus, 1000)):
        deltas.clear()
        sender = ChunkSender(bus, delivery, "r", 1, groups=groups)
        sender.add("first ")
        for _ in range(20):
            await asyncio.sleep(0)
        assert deltas == ["first "]
        began = time.monotonic()
        for number in range(20):
            sender.add(f"{number} ")
            await asyncio.sleep(0.004)
        await asyncio.sleep(2 * JOIN_SECONDS)
        joins = (time.monotonic() - began) / JOIN_SECONDS
        await sender.close()
        assert "".join(deltas) == "first " + "".join(f"{number} " for number in range(20))
        assert len(deltas) <= joins + 2


async def test_a_call_of_a_group_is_admitted_only_when_a_slot_is_free(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=2):
        await send_group(evaluator, [call_item(str(n)) for n in range(6)])
        for _ in range(2):
            await next_item(closed_gate.requests)
        await asyncio.sleep(0.05)
        assert ledger.admits.qsize() == 2
        closed_gate.open.set()
        assert len(await next_replies(evaluator, 6)) == 6


async def test_calls_that_cannot_start_soon_are_put_back_once_while_other_workers_have_room(
    ledger: FakeLedgerService, evaluator: FakeEvaluator
) -> None:
    provider, published = GatedProvider(), list[Envelope]()
    provider.open.clear()
    ledger.other_slots = {"a": 3}
    async with running_worker(ledger, provider, max_concurrency=2, timings=timings(heartbeat_seconds=0.05)) as (
        _,
        bus,
    ):
        publish = bus.publish

        async def record(exchange: Exchange, key: str, envelope: Envelope, **options: float) -> None:
            if exchange == INVOKE:
                published.append(envelope)
            await publish(exchange, key, envelope, **options)

        bus.publish = record  # type: ignore[method-assign, assignment]
        await send_group(evaluator, [call_item(str(n)) for n in range(6)])
        await wait_until(lambda: len(published) >= 2)
        await asyncio.sleep(0.2)
        put_back = [
            [item.correlation_id for item in decode_group(one.body)] for one in published if one.type != "invoke"
        ]
        alone = [one.correlation_id for one in published if one.type == "invoke"]
        assert (put_back, alone) == ([["c-3", "c-4", "c-5"]], ["c-2"])
        assert {one.correlation_id for one in published if one.type != "invoke"} == {"the group"}
        provider.open.set()
        assert len(await next_replies(evaluator, 6)) == 6


async def test_a_worker_that_stops_puts_back_the_calls_that_wait_for_a_slot(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=1):
        await send_group(evaluator, [call_item(str(n)) for n in range(3)])
        await next_item(closed_gate.requests)
    assert closed_gate.requests.empty()
    (_, returned) = sorted(ledger.memory.queue(target_queue("a").name).ready, key=lambda one: len(one.envelope.body))
    assert returned.envelope.type == INVOKE_GROUP_TYPE


async def test_a_group_of_a_lost_connection_keeps_its_place_once_and_is_then_taken_apart(
    ledger: FakeLedgerService, evaluator: FakeEvaluator, closed_gate: GatedProvider
) -> None:
    async with running_worker(ledger, closed_gate, max_concurrency=1) as (_, bus):
        await send_group(evaluator, [call_item(str(n)) for n in range(3)])
        await next_item(closed_gate.requests)
        await send_group(evaluator, [call_item("after")])
        queue = ledger.memory.queue(target_queue("a").name)

        async def wait_for_ready(*correlation_ids: str) -> None:
            await wait_until(lambda: [message.envelope.correlation_id for message in queue.ready] == [*correlation_ids])

        bus.drop_connection()
        assert len(queue.ready) == 2
        await wait_for_ready("the group")
        bus.drop_connection()
        assert len(queue.ready) == 2
        # The worker has the other group, and of the first one what was published for it is behind that.
        await wait_for_ready("c-0", "c-1", "c-2")
        closed_gate.open.set()
        assert len(await next_replies(evaluator, 4)) == 4
