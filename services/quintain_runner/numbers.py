"""The numbers that stand in an answer. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

#: A number as people and models write it: 1,234.5 and .5 and -2e3. What is glued to letters or to further points (a
#: version, 42nd) is none.
_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?!\w|\.\d)", re.ASCII
)


def numbers_in(text: str) -> Iterator[float]:
    """The finite numbers of a text, in its order."""
    for match in _NUMBER.finditer(text):
        number = number_of(match[0])
        if number is not None:
            yield number


def number_of(text: str) -> float | None:
    """The number that a text is, thousands separated by commas or not; None where it is none."""
    try:
        number = float(text.strip().replace(",", "").replace("\u2212", "-").replace("_", " "))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
