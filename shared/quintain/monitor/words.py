"""The figures of a fleet in words, the same on the Fleet page and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from quintain.monitor.fleet_figures import BudgetFigures, Percentiles

#: What stands for a value that is not known or not there.
NOTHING = "-"

#: So many codes of errors are named.
MAX_CODES = 3

_UNITS_MS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def duration(milliseconds: float | None) -> str:
    """A duration in the largest unit that it fills, such as ``1.5 s``."""
    if milliseconds is None:
        return NOTHING
    for unit_ms, unit in _UNITS_MS:
        if milliseconds >= unit_ms:
            return f"{milliseconds / unit_ms:.1f} {unit}"
    return f"{milliseconds:.0f} ms"


def times(percentiles: Percentiles | None) -> str:
    """The median and the 95th percentile."""
    return NOTHING if percentiles is None else f"{duration(percentiles.p50)} / {duration(percentiles.p95)}"


def amount(number: float | None) -> str:
    """A count, shortened from ten thousand on."""
    if number is None:
        return NOTHING
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= unit:
            return f"{number / (1000 if name == 'k' else unit):.1f} {name}"
    return f"{number:g}"


def errors(faults: Mapping[str, int]) -> str:
    """The errors by code, the most frequent first."""
    named = sorted(faults.items(), key=lambda one: (-one[1], one[0]))
    words = [f"{count} × {code}" for code, count in named[:MAX_CODES]]
    left = sum(count for _, count in named[MAX_CODES:])
    return ", ".join([*words, *([f"{left} others"] if left else [])]) or NOTHING


def time_of_day(milliseconds: int) -> str:
    """A time since the epoch, as hours, minutes and seconds in UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%H:%M:%S} UTC"


def ends_in(budget: BudgetFigures) -> str:
    """When a budget is spent, at the rate of the last minute."""
    if budget.is_spent:
        return "spent"
    return NOTHING if budget.ends_in_ms is None else f"in {duration(budget.ends_in_ms)}"


def share(used: int, of: int) -> int:
    """A part of a whole in percent, rounded down: 100 only of all of it."""
    return 100 if of <= 0 else min(100, used * 100 // of)
