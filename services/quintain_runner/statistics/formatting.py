"""Formats scores, pass rates, intervals, p-values and differences for tables. No I/O."""

from __future__ import annotations

from quintain_runner.statistics.analysis import Difference, MeanEstimate, PassAndScore

#: Shown in place of a missing number.
MISSING = "-"

#: Smaller p-values are shown as "< 0.001".
_MIN_SHOWN_P = 0.001


def format_score(mean: float | None) -> str:
    """A mean score with three decimal places, or a dash for None."""
    return MISSING if mean is None else f"{mean:.3f}"


def format_score_interval(measured: PassAndScore | None) -> str:
    """The confidence interval of a mean score, such as ``0.71-0.83``, or a dash if there is none."""
    return MISSING if measured is None else format_interval(measured.score)


def format_interval(estimate: MeanEstimate) -> str:
    """The confidence interval of a mean, such as ``0.71-0.83``, or a dash if there is none."""
    interval = estimate.interval
    return MISSING if interval is None else f"{interval.low:.2f}-{interval.high:.2f}"


def format_share(estimate: MeanEstimate) -> str:
    """A pass rate in percent, such as ``87 %``."""
    return f"{100 * estimate.value:.0f} %"


def format_share_interval(measured: PassAndScore | None) -> str:
    """The confidence interval of a pass rate in percent, such as ``71-83 %``, or a dash if there is none."""
    interval = None if measured is None else measured.passed.interval
    return MISSING if interval is None else f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"


def format_score_difference(difference: Difference) -> tuple[str, str, str, str]:
    """Four table cells about a difference of mean scores.

    They are the difference, its confidence interval, the numbers of better and worse cases, and the p-value.
    """
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"
    return f"{difference.estimate.value:+.3f}", range_text, _format_flips(difference), format_p_value(difference)


def format_share_difference(difference: Difference) -> tuple[str, str, str, str]:
    """Four table cells about a difference of pass rates, in percentage points.

    They are the difference, its confidence interval, the numbers of better and worse cases, and the p-value.
    """
    interval = difference.estimate.interval
    range_text = MISSING if interval is None else f"{100 * interval.low:+.0f} to {100 * interval.high:+.0f} %"
    return (
        f"{100 * difference.estimate.value:+.0f} %",
        range_text,
        _format_flips(difference),
        format_p_value(difference),
    )


def format_p_value(difference: Difference) -> str:
    """The adjusted p-value, with a star if the difference is significant."""
    p = difference.adjusted_p
    shown = f"< {_MIN_SHOWN_P}" if p < _MIN_SHOWN_P else f"{p:.3f}"
    return f"{shown} *" if difference.significant else shown


def _format_flips(difference: Difference) -> str:
    """The numbers of better and worse cases, such as ``5 / 2``."""
    return f"{difference.better} / {difference.worse}"
