"""Constrained strings: target names, ids, request ids, and text that the ledger and JSON can hold."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, StringConstraints

#: ``protocol.md`` §1. It is also a routing key and part of a queue's name, so nothing else gets in.
TARGET_NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"

TargetName = Annotated[str, StringConstraints(pattern=TARGET_NAME_PATTERN)]

#: A sentence shows so much of a name that somebody else chose.
MAX_DISPLAY_LENGTH = 100


def _check_no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("it holds U+0000, which no ledger keeps")
    return text


#: Text that any ledger can keep: PostgreSQL has no U+0000.
Text = Annotated[str, AfterValidator(_check_no_nul)]

#: What names a worker, an attempt, a session: short, because a ledger finds things by it.
Id = Annotated[str, StringConstraints(max_length=200), AfterValidator(_check_no_nul)]

#: The idempotency key within a session: 1 to 128 characters, none of them U+0000.
RequestId = Annotated[str, StringConstraints(min_length=1, max_length=128), AfterValidator(_check_no_nul)]


def sanitize_request_id(text: str) -> str:
    """The text itself where it may be a request id, and otherwise one like it, to keep a refusal with."""
    return re.sub("[\0\ud800-\udfff]", "?", text[:128]) or "-"


def shorten(name: str) -> str:
    """So much of a name as a sentence shows: it may be as long as a message."""
    return name if len(name) <= MAX_DISPLAY_LENGTH else f"{name[:MAX_DISPLAY_LENGTH]}…"


def replace_surrogates(text: str) -> str:
    """The text without halves of characters, which no UTF-8 can carry: a model cut off in the middle of an emoji
    leaves one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
