"""What may be a target's name, and a request id."""

from __future__ import annotations

from typing import Annotated

from pydantic import StringConstraints

#: ``protocol.md`` §1. It is also a routing key and part of a queue's name, so nothing else gets in.
TARGET_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

TargetName = Annotated[str, StringConstraints(pattern=TARGET_NAME_PATTERN)]

#: The idempotency key within a session: 1 to 128 characters.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
