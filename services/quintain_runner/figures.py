"""Numbers as a reader sees them: scores, shares, intervals, p-values, differences. Pure."""

from __future__ import annotations

from quintain_runner.analysis import Difference, Estimate, Measured

#: Where there is no number.
NONE = "-"

#: Smaller p-values say no more than that.
_SMALLEST_P = 0.001


def score(mean: float | None) -> str:
    """A mean score, with three digits; a dash where there is none."""
    return NONE if mean is None else f"{mean:.3f}"


def score_interval(measured: Measured | None) -> str:
    """From which score to which the mean may be."""
    interval = None if measured is None else measured.score.interval
    return NONE if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"


def share(estimate: Estimate) -> str:
    """A pass rate."""
    return f"{100 * estimate.value:.0f} %"


def share_interval(measured: Measured | None) -> str:
    """From which share to which the pass rate may be."""
    interval = None if measured is None else measured.passed.interval
    return NONE if interval is None else f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"


def score_difference(difference: Difference) -> tuple[str, str, str, str]:
    """By how much one mean is above another, from what to what that may be, in how many cases, and by chance?"""
    interval = difference.estimate.interval
    reach = NONE if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"
    return f"{difference.estimate.value:+.3f}", reach, _flips(difference), p_value(difference)


def share_difference(difference: Difference) -> tuple[str, str, str, str]:
    """The same of a pass rate, in points of a hundred."""
    interval = difference.estimate.interval
    reach = NONE if interval is None else f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} %"
    return f"{100 * difference.estimate.value:+.0f} %", reach, _flips(difference), p_value(difference)


def p_value(difference: Difference) -> str:
    """The adjusted p-value; a star where it is significant."""
    p = difference.adjusted_p
    shown = f"< {_SMALLEST_P}" if p < _SMALLEST_P else f"{p:.3f}"
    return f"{shown} *" if difference.significant else shown


def _flips(difference: Difference) -> str:
    return f"{difference.better} / {difference.worse}"
