"""Formats scores, shares, intervals, p-values and differences for tables. No I/O."""

from __future__ import annotations

from quintain_runner.statistics.analysis import Difference, MeanEstimate, PassAndScore

#: Where there is no number.
MISSING = "-"

#: Smaller p-values say no more than that.
_MIN_SHOWN_P = 0.001


def format_score(mean: float | None) -> str:
    """A mean score, with three digits; a dash where there is none."""
    return MISSING if mean is None else f"{mean:.3f}"


def format_score_interval(measured: PassAndScore | None) -> str:
    """From which score to which the mean may be."""
    interval = None if measured is None else measured.score.interval
    return MISSING if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"


def format_share(estimate: MeanEstimate) -> str:
    """A pass rate."""
    return f"{100 * estimate.value:.0f} %"


def format_share_interval(measured: PassAndScore | None) -> str:
    """From which share to which the pass rate may be."""
    interval = None if measured is None else measured.passed.interval
    return MISSING if interval is None else f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"


def format_score_difference(difference: Difference) -> tuple[str, str, str, str]:
    """By how much one mean is above another, from what to what that may be, in how many cases, and by chance?"""
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"
    return f"{difference.estimate.value:+.3f}", range_text, _format_flips(difference), format_p_value(difference)


def format_share_difference(difference: Difference) -> tuple[str, str, str, str]:
    """The same of a pass rate, in points of a hundred."""
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} %"
    return (
        f"{100 * difference.estimate.value:+.0f} %",
        range_text,
        _format_flips(difference),
        format_p_value(difference),
    )


def format_p_value(difference: Difference) -> str:
    """The adjusted p-value; a star where it is significant."""
    p = difference.adjusted_p
    shown = f"< {_MIN_SHOWN_P}" if p < _MIN_SHOWN_P else f"{p:.3f}"
    return f"{shown} *" if difference.significant else shown


def _format_flips(difference: Difference) -> str:
    return f"{difference.better} / {difference.worse}"
