"""Serialises arbitrary values to text and JSON, without ever raising."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

from quintain.contracts.limits import MAX_RUN_ITEM_BYTES
from quintain.contracts.remote_target import WireEvent, WireResponse
from quintain.contracts.strings import replace_surrogates


def safe_str(value: object, to_str: Callable[[object], str] = str) -> str:
    """Convert a value to text; if that raises, return its class and the error's class."""
    try:
        return replace_surrogates(to_str(value))
    except Exception as error:
        # A ``__str__`` of the target may raise anything, and must not prevent the message from being sent.
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


def to_json_text(content: object) -> str:
    """Convert any value to ASCII JSON text: times in ISO format, unknown objects as their repr, as superred does.

    Never raises: a value that cannot be serialised at all becomes its repr.
    """
    try:
        return json.dumps(content, default=_json_default)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(safe_str(content, repr))


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else safe_str(value, repr)


def require_size(size: int, limit: int, description: str) -> None:
    """Raise `ValueError`, naming both, where a message has more bytes than the broker takes."""
    if size > limit:
        raise ValueError(
            f"{description} has {size:,} bytes, and {limit:,} is the most that can be sent: send a reference to it "
            "instead"
        )


def require_item_size(item: WireEvent | WireResponse, characters: int, description: str) -> None:
    """Raise `ValueError` for an event or response of more than `MAX_RUN_ITEM_BYTES`; ``characters`` is its text."""
    # A character has six bytes at most in JSON: most items need not be measured.
    if characters * 6 > MAX_RUN_ITEM_BYTES:
        require_size(len(item.to_wire()), MAX_RUN_ITEM_BYTES, description)
