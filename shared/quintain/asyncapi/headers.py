"""JSON schemas of each message's headers: the application's own headers, and AMQP properties under their own names.

AsyncAPI has no separate place for AMQP properties, and its expressions for a reply address and a correlation id refer
to headers.
"""

from __future__ import annotations

from typing import Any

from quintain.contracts.strings import TARGET_NAME_PATTERN
from quintain.routes import (
    ACCEPT_HEADER,
    DEADLINE_HEADER,
    PROOF_HEADER,
    PROTOCOL_HEADER,
    PROTOCOL_VERSION,
    PUBLISHED_AT_HEADER,
    REQUEST_ID_HEADER,
    ROUTED_HEADER,
    TOKEN_HEADER,
)
from quintain.telemetry.trace_context import TRACEPARENT_HEADER

Node = dict[str, Any]

#: A whole number, which may be sent as a string of digits.
_NUMBER: Node = {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "^[0-9]{1,18}$"}]}

REPLY_TO: Node = {"type": "string", "description": "AMQP property: the routing key of the client's reply queue"}
CORRELATION_ID: Node = {"type": "string", "description": "AMQP property: the same in request and reply"}
TARGET_NAME: Node = {"type": "string", "pattern": TARGET_NAME_PATTERN}

_TOKEN: Node = {"type": "string", "description": "The session's token; the admin token for operations that accept it"}
_REQUEST_ID: Node = {"type": "string", "minLength": 1, "maxLength": 128, "description": "The idempotency key"}
_TRACEPARENT: Node = {"type": "string", "description": "W3C trace context; a malformed one is ignored"}

_CALL: Node = {
    TOKEN_HEADER: {"type": "string", "description": "The session's token; beside a proof, the session's id"},
    PROOF_HEADER: {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "A proof of this call in place of the token; it needs a deadline",
    },
    REQUEST_ID_HEADER: {**_REQUEST_ID, "description": "The idempotency key; the correlation id if absent"},
    DEADLINE_HEADER: {**_NUMBER, "description": "Milliseconds since the epoch, at most 25 minutes ahead"},
    PROTOCOL_HEADER: {**_NUMBER, "description": "The protocol version", "default": PROTOCOL_VERSION},
    ACCEPT_HEADER: {
        "type": "string",
        "description": "What the client reads besides single replies: chunk, progress, group; commas between",
    },
    PUBLISHED_AT_HEADER: {"type": "integer", "description": "Publish time, in milliseconds since the epoch"},
    ROUTED_HEADER: {"type": "integer", "description": "Present if the metadata service has routed the request"},
    TRACEPARENT_HEADER: _TRACEPARENT,
}


def invoke_headers() -> Node:
    """Return the headers of an invoke request."""
    return _object(_CALL | _reply_properties(), TOKEN_HEADER, "reply_to", "correlation_id")


def operation_headers() -> Node:
    """Return the headers of an operation that is authorized by a token."""
    own = {TOKEN_HEADER: _TOKEN, TRACEPARENT_HEADER: _TRACEPARENT}
    return _object(own | _reply_properties(), TOKEN_HEADER, "reply_to", "correlation_id")


def service_request_headers() -> Node:
    """Return the headers of requests between services, which are authorized by broker permissions alone."""
    return _object({TRACEPARENT_HEADER: _TRACEPARENT} | _reply_properties(), "reply_to", "correlation_id")


def one_way_headers() -> Node:
    """Return the headers of messages that have no reply."""
    return _object({})


def reply_headers() -> Node:
    """Return the headers of every reply; the request id is present in replies to calls."""
    return _object({REQUEST_ID_HEADER: _REQUEST_ID, "correlation_id": CORRELATION_ID}, "correlation_id")


def _reply_properties() -> Node:
    return {"reply_to": REPLY_TO, "correlation_id": CORRELATION_ID}


def _object(properties: Node, *required: str) -> Node:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}
