"""Parses the W3C ``traceparent`` header. No I/O."""

from __future__ import annotations

import re

#: The header's name, over AMQP and HTTP.
TRACEPARENT_HEADER = "traceparent"

#: The environment variable with the trace context of the parent process, as OpenTelemetry defines it.
TRACEPARENT_VARIABLE = "TRACEPARENT"

#: The exact length of version 00; anything longer or shorter is not parsed.
_TRACEPARENT_LENGTH = 55
_TRACEPARENT_PATTERN = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def valid_traceparent(header: object) -> str | None:
    """Return the header if it is a valid trace context, else None. It may be any value of an untrusted caller."""
    if (
        not isinstance(header, str)
        or len(header) != _TRACEPARENT_LENGTH
        or _TRACEPARENT_PATTERN.fullmatch(header) is None
    ):
        return None
    return header


def trace_id_of(traceparent: str) -> str:
    """Return the trace id, 32 hexadecimal digits."""
    return traceparent[3:35]
