"""Finds numbers that JSON cannot express: NaN and the infinities."""

from __future__ import annotations

import math


def non_finite_path(value: object, path: str = "") -> str | None:
    """Return the place of a NaN or infinite number in a JSON value, such as ``tools.0.minimum``, or None.

    ``path`` is the place of the value itself, and begins the result.
    """
    remaining = [(path, value)]
    while remaining:
        place, item = remaining.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return place
        prefix = f"{place}." if place else ""
        if isinstance(item, dict):
            remaining += [(f"{prefix}{key}", member) for key, member in item.items()]
        elif isinstance(item, list):
            remaining += [(f"{prefix}{index}", member) for index, member in enumerate(item)]
    return None
