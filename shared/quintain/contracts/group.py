"""The body of a group: several requests, or several replies, in one message (``docs/protocol/groups.md``). No I/O.

A body is a sequence of items. An item is the length of its head and the length of its body, each an unsigned integer of
4 bytes with the most significant byte first, then the head, then the body. The head is a JSON object with the AMQP
properties and headers in which the item differs from its message; the body is that of the same message sent alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from quintain.contracts.values import replace_surrogates, shorten
from quintain.errors import BadRequest, PayloadTooLarge

#: The AMQP types of a group of requests and of a group of replies.
INVOKE_GROUP_TYPE, REPLY_GROUP_TYPE = "invoke_group", "reply_group"

#: The AMQP content type of both.
GROUP_CONTENT_TYPE = "application/vnd.quintain.group"

#: The most items of a group, and the most bytes of its body.
MAX_GROUP_ITEMS, MAX_GROUP_BYTES = 64, 256 * 1024

#: The deadlines of a group's requests lie within so many milliseconds.
MAX_DEADLINE_SPREAD_MS = 1000

#: The most bytes of an AMQP short string, which a correlation id is, and the integers that an AMQP header can hold.
MAX_SHORT_STRING_BYTES, HEADER_INTEGERS = 255, range(-(2**63), 2**63)

_LENGTHS = struct.Struct(">II")

_KNOWN_KEYS = frozenset({"correlationId", "type", "headers"})


_NO_HEADERS: Mapping[str, Any] = MappingProxyType({})


class GroupItem(NamedTuple):
    """One request or reply of a group. ``type`` is the AMQP type it would have alone, empty for a request.

    ``problem`` says why no message of AMQP could carry it as it was written: its correlation id was cut then, and
    headers were left out.
    """

    correlation_id: str
    body: bytes
    headers: Mapping[str, Any] = _NO_HEADERS
    type: str = ""
    problem: str = ""


def encode_item(item: GroupItem) -> bytes:
    """Return the bytes of one item of a group; those of several, joined, are the group's body."""
    correlation_id, body, headers, item_type, _ = item
    fields: dict[str, object] = {"correlationId": correlation_id}
    if item_type:
        fields["type"] = item_type
    if headers:
        fields["headers"] = dict(headers)
    try:
        head = to_json(fields)
    except PydanticSerializationError:
        # A caller's text may hold half of a surrogate pair, which only an escape can write.
        head = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


def encode_group(items: Iterable[GroupItem]) -> bytes:
    """Return the body of a group of these items."""
    return b"".join(map(encode_item, items))


def count_fitting(sizes: Iterable[int]) -> int:
    """Return how many of the first items of these sizes in bytes fit into one group; the first one goes in any case."""
    total = count = 0
    for size in sizes:
        total += size
        if count and (total > MAX_GROUP_BYTES or count == MAX_GROUP_ITEMS):
            break
        count += 1
    return count


def decode_group(body: bytes) -> list[GroupItem]:
    """Return the items of a group, in order.

    Raises `PayloadTooLarge` for more items or bytes than a group may have, and `BadRequest` where a length or a head is
    wrong. Two replies may have one correlation id: a call may be answered twice.
    """
    if len(body) > MAX_GROUP_BYTES:
        raise PayloadTooLarge(f"The group has {len(body)} bytes; the limit is {MAX_GROUP_BYTES}")
    items = list[GroupItem]()
    offset = 0
    while offset < len(body):
        number = len(items) + 1
        if number > MAX_GROUP_ITEMS:
            raise PayloadTooLarge(f"The group has more than {MAX_GROUP_ITEMS} items")
        head_start = offset + _LENGTHS.size
        if head_start > len(body):
            raise BadRequest(f"group: item {number} ends within its lengths")
        head_length, body_length = _LENGTHS.unpack_from(body, offset)
        body_start = head_start + head_length
        offset = body_start + body_length
        if offset > len(body):
            raise BadRequest(f"group: item {number} is longer than the rest of the message")
        items.append(_item(number, body[head_start:body_start], body[body_start:offset]))
    if not items:
        raise BadRequest("group: it has no items")
    return items


def _item(number: int, head: bytes, body: bytes) -> GroupItem:
    try:
        fields = from_json(head)
    except ValueError:
        fields = _read_head_slowly(number, head)
    if not isinstance(fields, dict):
        raise BadRequest(f"group: the head of item {number} is not an object")
    if not fields.keys() <= _KNOWN_KEYS:
        # A property of a later version may change what the item means.
        raise BadRequest(f"group: the head of item {number} has unknown keys")
    correlation_id, item_type, headers = fields.get("correlationId"), fields.get("type"), fields.get("headers")
    if not isinstance(correlation_id, str) or not correlation_id:
        raise BadRequest(f"group: item {number} has no correlationId")
    if not isinstance(item_type, str | None) or not isinstance(headers, dict | None):
        raise BadRequest(f"group: the type or the headers of item {number} are of a wrong kind")
    problem, headers = "", headers or {}
    if unfit := [name for name, value in headers.items() if not _fits_header(value)]:
        name = shorten(replace_surrogates(unfit[0]))
        problem = f"{name}: it holds what no AMQP header can: half of a surrogate pair, or more than 64 bits"
        headers = {name: value for name, value in headers.items() if name not in unfit}
    short = correlation_id
    if not correlation_id.isascii() or len(correlation_id) > MAX_SHORT_STRING_BYTES:
        short = correlation_id.encode(errors="replace")[:MAX_SHORT_STRING_BYTES].decode(errors="ignore")
    if short != correlation_id:
        problem = f"correlationId: at most {MAX_SHORT_STRING_BYTES} bytes of UTF-8, without half of a surrogate pair"
    return GroupItem(short, body, headers, item_type or "", problem)


def _fits_header(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
    return not isinstance(value, int) or value in HEADER_INTEGERS


def _read_head_slowly(number: int, head: bytes) -> object:
    """Read a head that may hold half of a surrogate pair, which is valid JSON."""
    try:
        return json.loads(head)
    except (ValueError, RecursionError):
        raise BadRequest(f"group: the head of item {number} is not JSON") from None
