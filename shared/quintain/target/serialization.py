"""Serialises arbitrary values to text and JSON, without ever raising."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

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


def from_json_text(text: str) -> object:
    """Parse text of `to_json_text`."""
    return json.loads(text)


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else safe_str(value, repr)
