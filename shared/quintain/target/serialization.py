"""Serialises arbitrary values to text and JSON, without ever raising."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

from quintain.contracts.strings import replace_surrogates


def safe_str(value: object, to_str: Callable[[object], str] = str) -> str:
    """What the value says of itself, and its class where even that raises."""
    try:
        return replace_surrogates(to_str(value))
    except Exception as error:
        # A target's own ``__str__`` may raise anything, and must not take the message along that carries it.
        return f"<{type(value).__name__} that cannot be written: {type(error).__name__}>"


def to_json_text(content: object) -> str:
    """Anything as JSON text in ASCII: a time as ISO writes it, and what JSON does not know by its repr, as superred's
    files have it. Never raises: content that cannot be written at all is its repr."""
    try:
        return json.dumps(content, default=_json_default)
    except (ValueError, TypeError, RecursionError):
        return json.dumps(safe_str(content, repr))


def from_json_text(text: str) -> object:
    """The content of such a text."""
    return json.loads(text)


def _json_default(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else safe_str(value, repr)
