"""What goes over a pipe between a broker's process and one beside it: frames of a kind, fields in JSON, and a body.

A frame is the lengths of its head and its body (4 bytes each, the highest first), the head, the body. The head is a
JSON object of ``kind`` and the fields below; ``number`` is the question's, and its answer's.

    kind       fields                               answer
    declare    number, topology, kept               done or refused
    publish    number, exchange, key, envelope      done or refused     the message's body
    consume    number, consumer, queue, prefetch    done or refused
    cancel     number, consumer                     done or refused
    release    number, consumer                     done or refused     what it has not settled comes again
    delete     number, queue                        done or refused
    settle     consumer, tag, how                   none
    deliver    consumer, tag, message               none                the message's body; from the broker's end
    lost       consumer                             none                from the broker's end
    done       number
    refused    number, error, message

Both ends are of one release: one starts the other.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quintain.bus.base import Delivery, Envelope
from quintain.errors import BrokerRefused, BrokerUnavailable, BusError, QueueFull, Unroutable

_LENGTHS = struct.Struct(">II")

_ERRORS = {error.__name__: error for error in (BrokerRefused, BrokerUnavailable, QueueFull, Unroutable)}


class Kind(StrEnum):
    """What a frame says."""

    DECLARE = "declare"
    PUBLISH = "publish"
    CONSUME = "consume"
    CANCEL = "cancel"
    RELEASE = "release"
    DELETE = "delete"
    SETTLE = "settle"
    DELIVER = "deliver"
    LOST = "lost"
    DONE = "done"
    REFUSED = "refused"


class How(StrEnum):
    """How a delivery is settled."""

    ACK = "ack"
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame. ``fields`` are values of JSON."""

    kind: Kind
    fields: Mapping[str, Any]
    body: bytes = b""

    def encoded(self) -> bytes:
        """The frame as it is sent."""
        head = json.dumps({"kind": self.kind, **self.fields}).encode()
        return b"".join((_LENGTHS.pack(len(head), len(self.body)), head, self.body))


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; None when the other end has gone, even in the middle of one."""
    try:
        head_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        fields = json.loads(await reader.readexactly(head_length))
        body = await reader.readexactly(body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Frame(Kind(fields.pop("kind")), fields, body)


def envelope_fields(envelope: Envelope) -> dict[str, object]:
    """What an envelope has beside its body, by the names of its fields."""
    return {
        "type": envelope.type,
        "correlation_id": envelope.correlation_id,
        "reply_to": envelope.reply_to,
        "headers": dict(envelope.headers),
        "expiration_ms": envelope.expiration_ms,
        "persistent": envelope.persistent,
    }


def message_fields(delivery: Delivery) -> dict[str, object]:
    """What a delivery has beside its body, by the names of its properties."""
    return {
        "type": delivery.type,
        "correlation_id": delivery.correlation_id,
        "reply_to": delivery.reply_to,
        "headers": dict(delivery.headers),
        "expiration_ms": delivery.expiration_ms,
        "exchange": delivery.exchange,
        "routing_key": delivery.routing_key,
        "redelivered": delivery.redelivered,
    }


def refused(number: int, error: BusError) -> Frame:
    """The answer to a question that failed."""
    return Frame(Kind.REFUSED, {"number": number, "error": type(error).__name__, "message": error.message})


def error_of(fields: Mapping[str, Any]) -> BusError:
    """The error that a refusal tells of."""
    return _ERRORS.get(fields["error"], BusError)(fields["message"])
