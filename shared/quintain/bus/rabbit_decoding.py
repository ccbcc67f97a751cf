"""Reading what strangers wrote: a property that cannot be read ends neither the connection nor its other deliveries.

AMQP says that short strings are UTF-8, and a timestamp has 64 bits; RabbitMQ passes on whatever a publisher put
there. The library raises over it in the task that reads the connection: the connection ends, the broker delivers the
message again over the next one, and each time every other message in flight counts a delivery, until good ones are
dropped with it. So what cannot be read is read as something harmless: a text with replacement characters, the epoch,
headers without entries.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

from pamqp import common, decode

#: What a timestamp that no calendar has is read as.
EPOCH: Final = dt.datetime.fromtimestamp(0, tz=dt.UTC)

#: What the library's decoders raise: wrong UTF-8 is a ValueError, a nesting without end a RuntimeError.
_UNREADABLE = (ValueError, OverflowError, OSError, RecursionError)


def tolerate_strangers() -> None:
    """Make the library's decoders read whatever a broker passes on. It holds for the whole process, and may be called
    again."""
    decode.METHODS.update(shortstr=_short_string, timestamp=_timestamp, table=_table)
    decode.TABLE_MAPPING[b"T"] = _timestamp


def _short_string(value: bytes) -> tuple[int, str]:
    length = value[0]
    return length + 1, value[1 : length + 1].decode(errors="replace")


def _timestamp(value: bytes) -> tuple[int, dt.datetime]:
    try:
        return decode.timestamp(value)
    except _UNREADABLE:
        return 8, EPOCH


def _table(value: bytes) -> tuple[int, common.FieldTable]:
    try:
        return decode.field_table(value)
    except _UNREADABLE:
        return 4 + int.from_bytes(value[:4]), {}
