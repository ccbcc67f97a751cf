"""The body of a group: several requests, or several replies, in one message (``protocol.md`` §2). No I/O.

A body is a sequence of items. An item is the length of its head and the length of its body, each an unsigned integer of
4 bytes with the most significant byte first, then the head, then the body. The head is a JSON object with the AMQP
properties and headers in which the item differs from its message; the body is that of the same message sent alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quintain.errors import BadRequest, PayloadTooLarge

#: The AMQP types of a group of requests and of a group of replies.
INVOKE_GROUP_TYPE, REPLY_GROUP_TYPE = "invoke_group", "reply_group"

#: The AMQP content type of both.
GROUP_CONTENT_TYPE = "application/vnd.quintain.group"

#: The most items of a group, and the most bytes of its body.
MAX_GROUP_ITEMS, MAX_GROUP_BYTES = 64, 256 * 1024

#: The deadlines of a group's requests lie within so many milliseconds.
MAX_DEADLINE_SPREAD_MS = 1000

_LENGTHS = struct.Struct(">II")

#: A head is small; what it may add to an item, with the lengths, when a sender estimates a group's size.
HEAD_ALLOWANCE = 512

_KNOWN_KEYS = frozenset({"correlationId", "type", "headers"})


@dataclass(frozen=True, slots=True)
class GroupItem:
    """One request or reply of a group. ``type`` is the AMQP type it would have alone, empty for a request."""

    correlation_id: str
    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    type: str = ""


def encode_group(items: Iterable[GroupItem]) -> bytes:
    """Return the body of a group of these items."""
    parts = list[bytes]()
    for item in items:
        fields: dict[str, object] = {"correlationId": item.correlation_id}
        if item.type:
            fields["type"] = item.type
        if item.headers:
            fields["headers"] = dict(item.headers)
        head = json.dumps(fields, separators=(",", ":")).encode()
        parts += (_LENGTHS.pack(len(head), len(item.body)), head, item.body)
    return b"".join(parts)


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
        fields = json.loads(head)
    except (ValueError, RecursionError):
        raise BadRequest(f"group: the head of item {number} is not JSON") from None
    if not isinstance(fields, dict):
        raise BadRequest(f"group: the head of item {number} is not an object")
    unknown = fields.keys() - _KNOWN_KEYS
    if unknown:
        # A property of a later version may change what the item means.
        raise BadRequest(f"group: the head of item {number} has unknown keys")
    correlation_id, item_type, headers = fields.get("correlationId"), fields.get("type"), fields.get("headers")
    if not isinstance(correlation_id, str) or not correlation_id:
        raise BadRequest(f"group: item {number} has no correlationId")
    if not isinstance(item_type, str | None) or not isinstance(headers, dict | None):
        raise BadRequest(f"group: the type or the headers of item {number} are of a wrong kind")
    return GroupItem(correlation_id, body, headers or {}, item_type or "")
