"""JSON that a model wrote: strict, so that nothing is a number to one reader and an error to the next. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from pydantic import JsonValue

_FENCE = re.compile(r"^```[a-zA-Z0-9_-]*[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)


class NoJson(ValueError):
    """The text is no JSON; its words say why."""


def read_json(text: str) -> JsonValue:
    """The value of a text that is JSON and nothing else. Raises `NoJson`."""
    try:
        value: JsonValue = json.loads(text.strip(), parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise NoJson(f"{error.msg}, {line}column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise NoJson(str(error)) from None
    return value


def fenced_json(text: str) -> str:
    """What stands in the one fenced block of a text; the text itself where it has none.

    Raises `NoJson` where there are several: nobody can tell which is meant.
    """
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise NoJson(f"it has {len(blocks)} fenced blocks, and one is meant")
    return str(blocks[0]) if blocks else text


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is too large a number")
    return number
