"""Parses the W3C ``traceparent`` header. No I/O."""

from __future__ import annotations

import re

#: The header's name, over AMQP and HTTP alike.
TRACEPARENT_HEADER = "traceparent"

#: The variable in which a process finds the context of whoever started it, as OpenTelemetry names it.
TRACEPARENT_VARIABLE = "TRACEPARENT"

#: Version 00 has exactly this length; whatever is longer or shorter is looked at no further.
_TRACEPARENT_LENGTH = 55
_TRACEPARENT_PATTERN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(header: object) -> str | None:
    """The header where it is a trace context, else None: a stranger may write anything there, of any size."""
    if (
        not isinstance(header, str)
        or len(header) != _TRACEPARENT_LENGTH
        or _TRACEPARENT_PATTERN.fullmatch(header) is None
    ):
        return None
    return header


def trace_id_of(traceparent: str) -> str:
    """The id of the trace, 32 hexadecimal digits."""
    return traceparent[3:35]
