"""Poison messages: the headers and the description of messages kept in ``quintain.poison`` (``protocol.md`` §1)."""

from __future__ import annotations

from quintain.contracts.message import Message

#: Every header that says how a message is kept begins so; one that a stranger wrote is not taken over.
POISON_HEADER_PREFIX = "x-quintain-poison-"

#: Its name, given when it is kept.
POISON_ID_HEADER = "x-quintain-poison-id"
#: When it was kept, in milliseconds since the epoch.
DEAD_LETTERED_AT_HEADER = "x-quintain-poison-kept"
#: The exchange it had been published to. Its routing key is the one it is kept with.
EXCHANGE_HEADER = "x-quintain-poison-exchange"
#: Which copy it is: a copy's number is greater than that of the message it was made from. In nanoseconds since
#: the epoch, so that of what a crash left twice the later one is the greater.
COPY_NUMBER_HEADER = "x-quintain-poison-copy"
#: Why it is kept.
REASON_HEADER = "x-quintain-reason"


class PoisonMessage(Message):
    """What is told of one kept message. Tokens in its headers are masked."""

    id: str
    kept_ms: int | None = None
    reason: str | None = None
    exchange: str | None = None
    routing_key: str
    type: str
    size_bytes: int
    headers: dict[str, str | int | float | bool]


class PoisonMessageList(Message):
    """The kept messages, the oldest first."""

    messages: list[PoisonMessage]
