"""Hostile data, as hypothesis makes it: bodies, headers and properties that a publisher may put on the wire.

A body is a valid message in which something was changed, cut, or put in place of everything. What `json` cannot write
(a number of 5,000 digits, half a surrogate pair, ``NaN``, a nesting without end) is written as `Raw` text.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st

from quintain.bus.base import Envelope
from quintain.contracts.headers import (
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
    ROUTED_HEADER,
    TOKEN_HEADER,
)

Headers = Mapping[str, object]


@dataclass(frozen=True)
class Raw:
    """JSON, or what is nearly JSON, as it is to be written."""

    text: str


RAW = [
    Raw("1" * 5_000),
    Raw("-" + "9" * 4_000),
    Raw("1e999"),
    Raw("NaN"),
    Raw("-Infinity"),
    Raw('"\\ud800"'),
    Raw('"\\udc00\\ud800"'),
    Raw('"\\u0000"'),
    Raw('"a\\u0000b"'),
    Raw("[" * 150 + "]" * 150),
    Raw('{"a":' * 190 + "1" + "}" * 190),
    Raw("[" * 100_000),
    Raw('"' + "x" * 100_000 + '"'),
]

TEXTS = [
    "",
    " ",
    "a",
    "a\nb",
    "\x1b[31mred\x07",
    "x" * 129,
    "x" * 5_000,
    "ü" * 128,
    "💥",
    "../../etc/passwd",
    "${{ SECRET }}",
    "'; DROP TABLE call; --",
    "#",
    "*.#",
    "1e3",
    "12.x",
    "\uff19\uff19",
]

INTEGERS = [0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**400]
FLOATS = [0.0, -0.5, 0.1, 1e308, -1e308, 5e-324, float("nan"), float("inf")]

#: Any value of JSON, and what is none.
VALUES = st.one_of(
    st.sampled_from(RAW),
    st.sampled_from(TEXTS),
    st.sampled_from(INTEGERS),
    st.sampled_from(FLOATS),
    st.sampled_from([None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": [1]}}]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.integers(), max_size=3),
)


def to_json(message: object) -> bytes:
    """The message as JSON, `Raw` as it stands."""
    raw: list[str] = []

    def replace_raw(value: object) -> object:
        if isinstance(value, Raw):
            raw.append(value.text)
            return f"\ue000{len(raw) - 1}\ue000"
        if isinstance(value, dict):
            return {key: replace_raw(one) for key, one in value.items()}
        return [replace_raw(one) for one in value] if isinstance(value, list) else value

    text = json.dumps(replace_raw(message), ensure_ascii=False)
    for number, written in enumerate(raw):
        text = text.replace(f'"\ue000{number}\ue000"', written)
    return text.encode()


def value_paths(message: object) -> list[tuple[str | int, ...]]:
    """Where a message can be changed: the path of every value in it."""
    inner: list[tuple[str | int, object]] = []
    if isinstance(message, dict):
        inner = list(message.items())
    elif isinstance(message, list):
        inner = list(enumerate(message))
    return [(), *((key, *rest) for key, value in inner for rest in value_paths(value))]


def with_change(message: object, path: tuple[str | int, ...], value: object, *, removed: bool = False) -> object:
    """A copy of the message with another value there, or with none."""
    if not path:
        return value
    copied = copy.deepcopy(message)
    parent: object = copied
    for step in path[:-1]:
        parent = parent[step]  # type: ignore[index]
    if removed:
        del parent[path[-1]]  # type: ignore[attr-defined]
    else:
        parent[path[-1]] = value  # type: ignore[index]
    return copied


@st.composite
def mutated_messages(draw: st.DrawFn, message: object, *, protected_keys: tuple[str, ...] = ()) -> object:
    """The message with one to three values of it changed or taken away; what is under a key of ``protected_keys``
    stays."""
    for _ in range(draw(st.integers(1, 3))):
        paths = [path for path in value_paths(message) if path and not set(path) & set(protected_keys)]
        if not paths:
            return message
        message = with_change(message, draw(st.sampled_from(paths)), draw(VALUES), removed=draw(st.integers(0, 4)) == 0)
    return message


@st.composite
def _damaged_json(draw: st.DrawFn, message: object) -> bytes:
    """The message's bytes, cut or with one of them changed."""
    wire = to_json(message)
    cut = draw(st.integers(0, len(wire)))
    if draw(st.booleans()):
        return wire[:cut]
    return wire[:cut] + bytes([draw(st.integers(0, 255))]) + wire[cut + 1 :]


def bodies(message: object, *, protected_keys: tuple[str, ...] = ()) -> st.SearchStrategy[bytes]:
    """What may come in place of this message; mostly something like it."""
    wire = to_json(message)
    mutated = mutated_messages(message, protected_keys=protected_keys).map(to_json)
    junk = [b"", b"null", b"[]", b"{}", b"0", b'""', b"\xff\xfe", wire.decode().encode("utf-16"), wire + wire]
    large = [b'{"question": "' + b"x" * 2**21 + b'"}', b" " * 2**21, b"[" * 2**20]
    return st.one_of(
        mutated,
        mutated,
        mutated,
        VALUES.map(to_json),
        _damaged_json(message),
        st.binary(max_size=64),
        st.sampled_from([*junk, *junk, *junk, *large]),
    )


#: Whatever an AMQP header may hold.
HEADER_VALUES = st.one_of(
    st.sampled_from([None, True, False, "1", "-1", "0" * 30, "1e3", "\uff19" * 13, b"\xff\x00", b"", bytearray(b"x")]),
    st.sampled_from([0, 1, 2, -1, 2**31, 2**53, 2**63 - 1, -(2**63), *FLOATS]),
    st.sampled_from([*TEXTS, "a\0b", "\0", "x" * 20_000]),
    st.sampled_from([[], [1, "a", [None]], {}, {"a": {"b": b"c"}}, decimal.Decimal("1.5")]),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)

HEADER_NAMES = [
    TOKEN_HEADER,
    REQUEST_ID_HEADER,
    DEADLINE_HEADER,
    PROTOCOL_HEADER,
    ROUTED_HEADER,
    PUBLISHED_AT_HEADER,
    "x-first-death-reason",
    "x-death",
    "traceparent",
]


@dataclass(frozen=True)
class HostileMessage:
    """What is published: a body, and what goes with it. ``routing_key`` is the consumer's own."""

    body: bytes
    headers: Headers = field(default_factory=dict)
    type: str = "invoke"
    correlation_id: str | None = "c"
    reply_to: str | None = None

    def envelope(self) -> Envelope:
        """As a bus takes it; its headers may be of every kind, as they are when they come from a stranger."""
        return Envelope(
            body=self.body,
            type=self.type,
            correlation_id=self.correlation_id,
            reply_to=self.reply_to,
            headers=self.headers,  # type: ignore[arg-type]
        )


@st.composite
def headers(draw: st.DrawFn, valid_headers: Headers) -> Headers:
    """Honest headers, with up to three of them something else."""
    mutated = dict(valid_headers)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        name = draw(st.sampled_from(HEADER_NAMES))
        if draw(st.integers(0, 4)) == 0:
            mutated.pop(name, None)
        else:
            mutated[name] = draw(HEADER_VALUES)
    return mutated


@st.composite
def deliveries(
    draw: st.DrawFn, message: object, *, valid_headers: Headers, reply_to: str, protected_keys: tuple[str, ...] = ()
) -> HostileMessage:
    """Hostile deliveries to somebody who expects this message. One in six has an honest body."""
    secret = str(valid_headers.get(TOKEN_HEADER, "invoke"))
    names = st.sampled_from(["", "\n", "a\0b", "x" * 255, "💥", "#", "nobody.at.all", "amq.rabbitmq.reply-to.x"])
    has_valid_body = draw(st.integers(0, 5)) == 0
    return HostileMessage(
        body=to_json(message) if has_valid_body else draw(bodies(message, protected_keys=protected_keys)),
        headers=draw(headers(valid_headers)),
        type=draw(st.sampled_from(["invoke", "invoke", "invoke", "", "\x1b[31m\n", secret])),
        correlation_id=draw(st.one_of(st.just("c"), st.just("c"), st.just("c"), st.none(), names)),
        reply_to=draw(st.one_of(*[st.just(reply_to)] * 5, st.none(), names)),
    )
