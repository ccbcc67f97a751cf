"""The names and values of a message's headers, and the types of partial messages (``docs/protocol/README.md``)."""

from __future__ import annotations

TOKEN_HEADER = "x-quintain-session"  # noqa: S105 -- the name of a header
#: The proof of a call, beside the id of its session in `TOKEN_HEADER`.
PROOF_HEADER = "x-quintain-proof"
REQUEST_ID_HEADER = "x-quintain-request-id"
DEADLINE_HEADER = "x-quintain-deadline"
#: Until when a call may wait, in milliseconds since the epoch, beside its deadline: one that runs then goes on.
WAIT_UNTIL_HEADER = "x-quintain-wait-until"
PROTOCOL_HEADER = "x-quintain-protocol"
ACCEPT_HEADER = "x-quintain-accept"
ROUTED_HEADER = "x-quintain-routed"
#: Present on a call that a worker without a free slot has put back into its queue.
RETURNED_HEADER = "x-quintain-returned"

#: When the request was published, in milliseconds since the epoch, on the metadata service's clock. RabbitMQ's own
#: message interceptor writes the same header; without it the time in the queue is unknown.
PUBLISHED_AT_HEADER = "timestamp_in_ms"

#: Values of `ACCEPT_HEADER`: partial messages wanted before the final one, pieces of the answer and notifications that
#: the call is running; and that the caller reads groups of replies.
ACCEPT_CHUNKS = "chunk"
ACCEPT_PROGRESS = "progress"
ACCEPT_GROUPS = "group"

#: The AMQP types of partial messages.
CHUNK_TYPE = "chunk"
PROGRESS_TYPE = "progress"

#: The version of the protocol. A request and a worker with another one are refused with ``bad_request``.
PROTOCOL_VERSION = 1

#: The W3C trace context, over AMQP and HTTP.
TRACEPARENT_HEADER = "traceparent"

#: The headers of one call. In a group they stand in the head of its item; all others are the message's.
CALL_HEADERS = frozenset(
    {PROOF_HEADER, REQUEST_ID_HEADER, DEADLINE_HEADER, WAIT_UNTIL_HEADER, PUBLISHED_AT_HEADER, PROTOCOL_HEADER,
     TRACEPARENT_HEADER}
)  # fmt: skip

#: Headers that RabbitMQ adds to a message that it delivers again, and that are not part of it: how often it delivered
#: it before.
DELIVERY_COUNT_HEADERS = ("x-delivery-count", "x-acquired-count")
