"""Formats scores, pass rates, intervals, p-values and differences for tables. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from quintain_runner.statistics.analysis import Difference, MeanEstimate, PassAndScore
from quintain_runner.statistics.inference import SIGNIFICANCE_LEVEL, SignificanceTest

#: Shown in place of a missing number.
MISSING = "-"

#: Smaller p-values are shown as "< 0.001".
_MIN_SHOWN_P = 0.001

_TEST_NAMES: Final[Mapping[SignificanceTest, str]] = {
    "mcnemar": "McNemar's exact test",
    "sign_flip": "random signs",
    "normal": "random signs, by their normal approximation",
}


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
    shown = format_p(difference.adjusted_p)
    return f"{shown} *" if difference.significant else shown


def format_p(p: float) -> str:
    """A p-value with three decimal places; it is never shown as 0."""
    return f"< {_MIN_SHOWN_P}" if p < _MIN_SHOWN_P else f"{p:.3f}"


def p_note(passed: Iterable[Difference | None], scores: Iterable[Difference | None], compared: str) -> str:
    """The note below a table of differences: the tests of their p-values, and the adjustment over what was compared."""
    names = [
        " or ".join(dict.fromkeys(_TEST_NAMES[one.test] for one in differences if one is not None))
        for differences in (passed, scores)
    ]
    tests = names[0] if names[0] == names[1] else "; for scores ".join(filter(None, names))
    return f"p: {tests}{compared}; * below {SIGNIFICANCE_LEVEL}"


def _format_flips(difference: Difference) -> str:
    """The numbers of better and worse cases, such as ``5 / 2``."""
    return f"{difference.better} / {difference.worse}"
