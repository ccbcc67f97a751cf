"""Strict parsing of JSON written by models or people: no NaN, no infinity, no text around the value. No I/O."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from pydantic import JsonValue

_FENCE = re.compile(r"^```[a-zA-Z0-9_-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class InvalidJson(ValueError):
    """The text is no JSON; its words say why."""


def read_json(text: str) -> JsonValue:
    """The value of a text that is JSON and nothing else. Raises `InvalidJson`."""
    try:
        value: JsonValue = json.loads(text.strip(), parse_constant=_reject_constant, parse_float=_parse_finite)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise InvalidJson(f"{error.msg}, {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJson(str(error)) from None
    return value


def extract_fenced_json(text: str) -> str:
    """What stands in the one fenced block of a text; the text itself where it has none.

    Raises `InvalidJson` where there are several: nobody can tell which is meant.
    """
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise InvalidJson(f"it has {len(blocks)} fenced blocks, and one is meant")
    return str(blocks[0]) if blocks else text


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number
