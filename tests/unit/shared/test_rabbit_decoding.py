"""What a stranger's AMQP properties are read as where they cannot be read."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from pamqp.commands import Basic

from quintain.bus.rabbit_consumer import EPOCH, install_tolerant_decoders

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
