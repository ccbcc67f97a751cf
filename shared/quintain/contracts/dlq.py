"""Poison messages: the headers and the description of messages kept in ``quintain.poison`` (``protocol.md`` §1)."""

from __future__ import annotations

from quintain.contracts.message import Message

#: Prefix of all headers of this module; headers with this prefix in the original message are not copied.
POISON_HEADER_PREFIX = "x-quintain-poison-"

#: The id of the poison message, assigned when it is put into the queue.
POISON_ID_HEADER = "x-quintain-poison-id"
#: When it was put into the queue, in milliseconds since the epoch.
DEAD_LETTERED_AT_HEADER = "x-quintain-poison-kept"
#: The exchange the original message was published to; the routing key stays the same.
EXCHANGE_HEADER = "x-quintain-poison-exchange"
#: Why the message could not be processed.
REASON_HEADER = "x-quintain-reason"


class PoisonMessage(Message):
    """The description of one poison message; session tokens in its headers are masked."""

    id: str
    kept_ms: int | None = None
    reason: str | None = None
    exchange: str | None = None
    routing_key: str
    type: str
    size_bytes: int
    headers: dict[str, str | int | float | bool]


class PoisonMessageList(Message):
    """The messages of the poison queue, oldest first."""

    messages: list[PoisonMessage]
