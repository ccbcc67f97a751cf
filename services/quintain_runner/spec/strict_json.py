"""Strict parsing of JSON that a model or a person wrote: no NaN, no infinity, no text around the value. No I/O."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from pydantic import JsonValue

_FENCE = re.compile(r"^```[a-zA-Z0-9_-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class InvalidJson(ValueError):
    """The text is not valid JSON; the message says why."""


def read_json(text: str) -> JsonValue:
    """Parse a text that consists of one JSON value. Raises `InvalidJson`, also for NaN and infinite numbers."""
    try:
        value: JsonValue = json.loads(text.strip(), parse_constant=_reject_constant, parse_float=_parse_finite)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise InvalidJson(f"{error.msg}, {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(str(error)) from None
    return value


def extract_fenced_json(text: str) -> str:
    """The content of the only fenced code block of a text, or the whole text if it has none.

    Raises `InvalidJson` if there are several blocks.
    """
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise InvalidJson(f"it has {len(blocks)} fenced blocks; only one is allowed")
    return str(blocks[0]) if blocks else text


def _reject_constant(name: str) -> NoReturn:
    """Reject NaN and the infinities, which Python's parser would accept."""
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    """Parse a number with a fraction or exponent; raises `ValueError` if it overflows to infinity."""
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number
