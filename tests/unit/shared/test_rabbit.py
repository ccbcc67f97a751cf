"""RabbitMQ's side of the bus, without one: URLs, connections, acknowledgements, properties that cannot be read."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterator
from itertools import islice
from typing import cast

import aiormq
import pytest
from aiormq.exceptions import ChannelInvalidStateError
from pamqp.commands import Basic

from quintain.bus.rabbit import RabbitBus
from quintain.bus.rabbit_connection import RabbitConnection, node_urls, round_robin
from quintain.bus.rabbit_consumer import EPOCH, ChannelAcks, install_tolerant_decoders
from quintain.errors import ConfigError
from quintain.settings import without_password

# The URL of one RabbitMQ, or of a cluster's nodes: taken apart, and shown.


HEARTBEAT = "heartbeat=15"


@pytest.mark.parametrize(
    ("urls", "nodes"),
    [
        ("amqp://a/", (f"amqp://a/?{HEARTBEAT}",)),
        ("amqp://a/?heartbeat=3", ("amqp://a/?heartbeat=3",)),
        ("amqp://a/?x=1", (f"amqp://a/?x=1&{HEARTBEAT}",)),
        ("amqp://a/,amqps://b/v", (f"amqp://a/?{HEARTBEAT}", f"amqps://b/v?{HEARTBEAT}")),
        (" amqp://a/, amqp://b/ ", (f"amqp://a/?{HEARTBEAT}", f"amqp://b/?{HEARTBEAT}")),
        # A comma that no URL follows is of the password.
        ("amqp://me:p,w@a/,amqp://me:p,w@b/", (f"amqp://me:p,w@a/?{HEARTBEAT}", f"amqp://me:p,w@b/?{HEARTBEAT}")),
    ],
)
def test_nodes_stand_between_commas(urls: str, nodes: tuple[str, ...]) -> None:
    assert node_urls(urls) == nodes


@pytest.mark.parametrize("option", ["no_verify_ssl=1", "x=1&no_verify_ssl=true", "no_verify%5Fssl=1", "no_verify_ssl="])
def test_verification_of_the_certificate_cannot_be_switched_off(option: str) -> None:
    for urls in (f"amqps://me:secret@a/?{option}", f"amqps://a/,amqps://me:secret@b/?{option}"):
        with pytest.raises(ConfigError) as refused:
            RabbitBus(urls)
        assert "secret" not in str(refused.value)
    assert node_urls("amqps://a/?cafile=/ca.pem&no_verify_ssl=0&heartbeat=3")


def test_nodes_take_turns_and_each_client_begins_somewhere() -> None:
    nodes = ("a", "b", "c")
    rounds = {tuple(islice(round_robin(nodes), 4)) for _ in range(200)}
    assert rounds == {("a", "b", "c", "a"), ("b", "c", "a", "b"), ("c", "a", "b", "c")}


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("amqp://a:5672/v", "amqp://a:5672/v"),
        ("amqp://me:secret@a/", "amqp://me@a/"),
        ("amqp://me:s@e,c@a/,amqps://me:secret@b/", "amqp://me@a/, amqps://me@b/"),
    ],
)
def test_no_password_is_shown(urls: str, said: str) -> None:
    assert without_password(urls) == said


# A connection to a broker that is not there ends whenever it is closed.


#: One attempt to connect takes fewer turns of the event loop than this.
TURNS = 25


async def test_closing_ends_the_connection_at_any_moment_of_an_attempt() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        for turns in [*range(TURNS)] * 4:
            connection = RabbitConnection(f"amqp://guest:pw@127.0.0.1:{unused.getsockname()[1]}/", "test")
            connection.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(10):
                await connection.close()


# Acknowledgements of one channel: together where deliveries came one after another, and never one too many.


class BrokerChannel:
    """A channel that checks every frame as RabbitMQ does: what is settled must be outstanding."""

    def __init__(self, deliveries: int = 0) -> None:
        self.outstanding = set(range(1, deliveries + 1))
        self.acked: set[int] = set()
        self.nacked: set[int] = set()
        self.frames: list[tuple[int, bool]] = []
        self.is_closed = False

    async def basic_ack(self, tag: int, multiple: bool = False, wait: bool = True) -> None:
        if self.is_closed:
            raise ChannelInvalidStateError("closed")
        await asyncio.sleep(0)
        assert tag in self.outstanding
        settled = {each for each in self.outstanding if each <= tag} if multiple else {tag}
        self.outstanding -= settled
        self.acked |= settled
        self.frames.append((tag, multiple))

    async def basic_nack(self, tag: int, requeue: bool = True, wait: bool = True) -> None:
        await asyncio.sleep(0)
        self.outstanding.remove(tag)
        self.nacked.add(tag)


def acks_of(channel: BrokerChannel) -> ChannelAcks:
    return ChannelAcks(cast("aiormq.abc.AbstractChannel", channel))


async def test_deliveries_that_are_done_together_take_one_frame() -> None:
    channel = BrokerChannel(10)
    acks = acks_of(channel)
    for tag in (2, 1, 3, 7):
        acks.ack(tag)
    await acks.wait_sent()
    assert channel.frames == [(3, True), (7, False)]
    for tag in (4, 5, 6):
        acks.ack(tag)
    await acks.wait_sent()
    assert channel.frames[2:] == [(6, True)]
    assert channel.outstanding == {8, 9, 10}


@pytest.mark.parametrize("seed", range(5))
async def test_in_any_order_each_delivery_is_settled_once_and_as_it_was_said(seed: int) -> None:
    chance, channel = random.Random(seed), BrokerChannel(300)
    acks, given_back = acks_of(channel), set(random.Random(seed).sample(range(1, 301), 30))

    async def settle(tag: int) -> None:
        for _ in range(chance.randrange(20)):
            await asyncio.sleep(0)
        await acks.nack(tag, requeue=True) if tag in given_back else acks.ack(tag)

    await asyncio.gather(*(settle(tag) for tag in range(1, 301)))
    await acks.wait_sent()
    assert (channel.outstanding, channel.nacked) == (set(), given_back)
    assert len(channel.frames) < 270


async def test_a_lost_channel_settles_nothing_and_raises_nothing() -> None:
    channel = BrokerChannel(2)
    channel.is_closed = True
    acks = acks_of(channel)
    acks.ack(1)
    await acks.wait_sent()
    acks.ack(2)
    await acks.wait_sent()
    assert channel.outstanding == {1, 2}


# What a stranger's AMQP properties are read as where they cannot be read.


HEADERS, CORRELATION_ID, REPLY_TO, TIMESTAMP = 1 << 13, 1 << 10, 1 << 9, 1 << 6


@pytest.fixture(autouse=True)
def tolerant_decoders() -> Iterator[None]:
    kinds = (Basic.Properties, Basic.Deliver, Basic.Return)
    before = [kind.unmarshal for kind in kinds]
    install_tolerant_decoders()
    yield
    for kind, unmarshal in zip(kinds, before, strict=True):
        kind.unmarshal = unmarshal  # type: ignore[method-assign]


def read(flags: int, *fields: bytes) -> Basic.Properties:
    properties = Basic.Properties()
    properties.unmarshal(flags, b"".join(fields))
    return properties


def table(*entries: bytes) -> bytes:
    whole = b"".join(entries)
    return struct.pack(">I", len(whole)) + whole


def text(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + b"S" + struct.pack(">I", len(value)) + value


def test_a_text_that_is_no_utf_8_is_read_and_so_is_what_follows_it() -> None:
    properties = read(CORRELATION_ID | REPLY_TO, b"\x02\xff\xfe", b"\x03key")
    assert (properties.correlation_id, properties.reply_to) == ("??", "key")


def test_a_short_text_that_was_read_can_be_sent_again() -> None:
    correlation_id = read(CORRELATION_ID, b"\xff" + b"\xc3\xbc" * 100 + b"\xff" * 55).correlation_id
    assert correlation_id == "ü" * 100 + "?" * 55
    assert Basic.Properties(correlation_id=correlation_id).marshal()


def test_a_text_that_is_utf_8_is_read_as_it_is() -> None:
    assert read(REPLY_TO, b"\x02\xc3\xbc").reply_to == "ü"


def test_a_timestamp_that_no_calendar_has_is_the_epoch() -> None:
    assert read(TIMESTAMP, struct.pack(">Q", 2**63)).timestamp == EPOCH
    properties = read(HEADERS, table(b"\x04whenT" + struct.pack(">Q", 2**63), text(b"token", b"x")))
    assert properties.headers == {"when": EPOCH, "token": "x"}


@pytest.mark.parametrize(
    "entry",
    [
        text(b"\xff", b"x"),
        b"\x01x?",
        b"\x01x" + b"".join(b"A" + struct.pack(">I", 5 * depth) for depth in range(20_000, 0, -1)) + b"A\0\0\0\0",
    ],
    ids=["a key that is no UTF-8", "a kind nobody knows", "a nesting without end"],
)
def test_headers_that_cannot_be_read_are_none_and_what_follows_them_is_read(entry: bytes) -> None:
    properties = read(HEADERS | REPLY_TO, table(text(b"token", b"x"), entry), b"\x03key")
    assert (properties.headers, properties.reply_to) == ({}, "key")
