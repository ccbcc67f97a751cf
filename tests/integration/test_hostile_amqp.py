"""What a stranger's AMQP client may put on the wire, at a real RabbitMQ: no connection of ours ends over it.

The broker passes on properties that are no UTF-8, timestamps that no calendar has and headers that fill a frame. Who
cannot read one, or copies one into something larger than a frame, loses the connection; the message comes again over
the next one, and takes its neighbours with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import decimal
import json
import logging
import struct
import uuid
from collections.abc import AsyncIterator

import pika
import pytest

from quintain.bus.base import Delivery, Envelope
from quintain.bus.connect import connect_bus
from quintain.client.client import Client, connect
from quintain.contracts.credentials import SessionToken, digest
from quintain.contracts.group import GROUP_CONTENT_TYPE, INVOKE_GROUP_TYPE, GroupItem, encode_group
from quintain.contracts.headers import (
    ACCEPT_HEADER,
    CALL_HEADERS,
    PROTOCOL_HEADER,
    REQUEST_ID_HEADER,
    RETURNED_HEADER,
    ROUTED_HEADER,
    TOKEN_HEADER,
)
from quintain.contracts.session import OpenSession, SessionOpened
from quintain.topology import DEAD, DEAD_QUEUE, INVOKE, POISON_QUEUE, UNROUTED_QUEUE, Exchange, exclusive_reply_topology
from quintain_metadata.ledger import sessions
from quintain_metadata.service import MetadataService
from quintain_metadata.store.base import Ledger
from quintain_metadata.store.opening import open_ledger
from quintain_worker.target import WorkerTarget
from quintain_worker.worker import Worker
from support.observed_fleet import CARD, StubProvider
from support.process_fleet import ADMIN_TOKEN, delete_protocol_queues

EVERY_KIND: list[object] = [
    None,
    True,
    7,
    -(2**63),
    b"\xff\x00",
    decimal.Decimal("1.5"),
    dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    [1, [b"x", None]],
    {"a": {"b": 2}},
    "",
    "a\0b",
    "x" * 129,
    "\u00e9",
    "9" * 18,
]

OURS = [*CALL_HEADERS, TOKEN_HEADER, ACCEPT_HEADER, RETURNED_HEADER, ROUTED_HEADER, "x-first-death-reason"]


#: Exchanges and keys that a stranger may publish to.
PLACES = [
    *(("quintain.invoke", key) for key in ("a", "")),
    *(("quintain.metadata", key) for key in ("info", "reserve", "quotas")),
    *(("quintain.ledger", key) for key in ("register", "heartbeat", "admit", "settle")),
    ("quintain.dead", "a"),
]


class RawHeaders(pika.BasicProperties):
    """A correlation id, a reply key, and a header table as these bytes."""

    def __init__(self, table: bytes) -> None:
        super().__init__()
        self._table = table

    def encode(self) -> list[bytes]:
        flags = 1 << 13 | 1 << 10 | 1 << 9
        return [struct.pack(">H", flags), struct.pack(">I", len(self._table)), self._table, b"\x01c", b"\x01r"]


def entry(key: bytes, kind: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + kind + value


def text(name: str, value: str) -> bytes:
    return entry(name.encode(), b"S", struct.pack(">I", len(value)) + value.encode())


def nested(depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        value = b"A" + struct.pack(">I", len(value)) + value
    return entry(b"x", b"", value)


def hostile_properties(token: str, place: int) -> list[pika.BasicProperties]:
    """What a broker passes on that is not what we write ourselves; of each header at each place every third kind."""
    honest = {TOKEN_HEADER: token}
    answered = {"reply_to": "nobody.at.all", "correlation_id": "c"}
    long = "x" * 130_800
    return [
        *(
            pika.BasicProperties(headers={**honest, name: kind}, **answered)
            for number, name in enumerate(OURS)
            for kind in EVERY_KIND[(place + number) % 3 :: 3]
        ),
        pika.BasicProperties(headers=honest, reply_to=b"\xff\xfe", correlation_id=b"\xff\xfe"),
        pika.BasicProperties(headers=honest, type=b"\xff\xfe", timestamp=2**63, **answered),
        pika.BasicProperties(headers=honest, timestamp=2**60),
        pika.BasicProperties(headers={REQUEST_ID_HEADER: long}, **answered),
        pika.BasicProperties(headers={**honest, "stray": long}, **answered),
        pika.BasicProperties(headers={**honest, "stray": long}),
        pika.BasicProperties(headers=honest, reply_to=b"\xff" * 255, correlation_id=b"\xff" * 255),
        pika.BasicProperties(headers=honest, type=b"\xff" * 255, **answered),
        RawHeaders(entry(b"\xff", b"S", struct.pack(">I", 1) + b"x")),
        RawHeaders(entry(b"when", b"T", struct.pack(">Q", 2**63))),
        RawHeaders(nested(5_000)),
        RawHeaders(text(TOKEN_HEADER, token) + entry(b"x", b"d", struct.pack(">d", 1e308))),
        RawHeaders(text(TOKEN_HEADER, token) + entry(b"x-quintain-deadline", b"d", struct.pack(">d", -1e308))),
    ]


def publish(broker_url: str, exchange: str, key: str, properties: list[pika.BasicProperties]) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for one in properties:
            channel.basic_publish(exchange, key, b'{"question": "x"}', one, mandatory=True)


async def open_session(ledger: Ledger) -> SessionOpened:
    ask = OpenSession(default_target="a", max_calls=1_000)
    return await ledger.transact(lambda moment: sessions.open_session(moment.now, ask, SessionToken.mint(), None))


@contextlib.asynccontextmanager
async def run_services(broker_url: str) -> AsyncIterator[tuple[SessionOpened, Client]]:
    """A metadata service and a worker on the real broker, and an honest client; ended in order."""
    await asyncio.to_thread(delete_protocol_queues, broker_url, ["a"])
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, delete_protocol_queues, broker_url, ["a"])
        ledger = await open_ledger("sqlite://")
        stack.push_async_callback(ledger.close)
        bus, worker_bus = await connect_bus(broker_url), await connect_bus(broker_url)
        stack.push_async_callback(bus.close)
        stack.push_async_callback(worker_bus.close)
        service = MetadataService(bus, ledger, digest(ADMIN_TOKEN), start_window_seconds=0)
        await service.start()
        stack.push_async_callback(service.stop)
        worker = Worker(worker_bus, {"a": WorkerTarget(name="a", provider=StubProvider(), max_tries=1)}, [CARD])
        await worker.start()
        stack.push_async_callback(worker.stop)
        session = await open_session(ledger)
        yield session, await stack.enter_async_context(connect(broker_url, session.token))


async def test_no_hostile_message_ends_a_connection(broker_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with run_services(broker_url) as (session, client):
            for place, (exchange, key) in enumerate(PLACES):
                await asyncio.to_thread(publish, broker_url, exchange, key, hostile_properties(session.token, place))
                for named in ({"target": "a"}, {}):
                    assert (await client.invoke(uuid.uuid4().hex, **named)).raw_text == "yes", (exchange, key)
            async with asyncio.timeout(20):
                while (await client.get_info()).running:  # the last settle is on its way
                    pass
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "connection" in line and "lost" in line] == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert [line for line in said if session.token.split("_")[3] in line] == []


@pytest.mark.parametrize(
    ("exchange", "key", "is_invented"),
    [(INVOKE, "a", False), (INVOKE, "a", True), (INVOKE, "", True), (DEAD, "a", True)],
    ids=["a target", "a target, invented token", "unrouted, invented token", "dead letters, invented token"],
)
async def test_items_that_no_message_could_carry_are_answered_alone_and_once(
    broker_url: str, exchange: Exchange, key: str, is_invented: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["n1", "x" * 300, "n2", "half \ud800", "n3", "half a header"]
    items = [GroupItem(name, b'{"question": "x"}', {REQUEST_ID_HEADER: f"r{n}"}) for n, name in enumerate(names)]
    items[-1] = items[-1]._replace(headers={"x-\ud800": "\ud800"})
    async with run_services(broker_url) as (session, client):
        bus = await connect_bus(broker_url)
        topology = exclusive_reply_topology("quintain.reply.guest.hostile", "hostile.items")
        replies: asyncio.Queue[Delivery] = asyncio.Queue()

        async def on_reply(reply: Delivery) -> None:
            await reply.ack()
            replies.put_nowait(reply)

        await bus.declare(topology)
        await bus.consume(topology.queues[0], on_reply, prefetch=10)
        group = Envelope(
            body=encode_group(items),
            type=INVOKE_GROUP_TYPE,
            content_type=GROUP_CONTENT_TYPE,
            correlation_id="the group",
            reply_to="hostile.items",
            headers={TOKEN_HEADER: SessionToken.mint().text if is_invented else session.token, PROTOCOL_HEADER: 1},
        )
        await bus.publish(exchange, key, group)
        async with asyncio.timeout(20):
            answers = [await replies.get() for _ in items]
        assert (await client.invoke(uuid.uuid4().hex)).raw_text == "yes"
        counts = await bus.count([UNROUTED_QUEUE, DEAD_QUEUE, POISON_QUEUE])
        assert [count.messages for count in counts.values()] == [0, 0, 0]
        assert replies.empty()
        await bus.close()
    codes = {reply.correlation_id: json.loads(reply.body).get("code", "result") for reply in answers}
    good = "unauthorized" if is_invented else "result"
    bad = dict.fromkeys(("x" * 255, "half ?", "half a header"), "bad_request")
    assert codes == {"n1": good, "n2": good, "n3": good, **bad}
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
