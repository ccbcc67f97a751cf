"""W3C trace context, as it comes in a header: text of one exact shape, or nothing. Pure."""

from __future__ import annotations

import re

#: The header's name, over AMQP and HTTP alike.
TRACEPARENT_HEADER = "traceparent"

#: The variable in which a process finds the context of whoever started it, as OpenTelemetry names it.
TRACEPARENT_VARIABLE = "TRACEPARENT"

#: Version 00 has exactly this length; whatever is longer or shorter is looked at no further.
_LENGTH = 55
_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_in(header: object) -> str | None:
    """The header where it is a trace context, else None: a stranger may write anything there, of any size."""
    if not isinstance(header, str) or len(header) != _LENGTH or _SHAPE.fullmatch(header) is None:
        return None
    return header


def trace_id_in(traceparent: str) -> str:
    """The id of the trace, 32 hexadecimal digits."""
    return traceparent[3:35]
