"""The tables of how far graders agree with labels, which pages and the terminal draw. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import MISSING
from quintain_runner.statistics.label_agreement import LabelAgreement, Rate


def agreement_table(title: str, graders: Mapping[str, LabelAgreement], notes: Sequence[str] = ()) -> TextTable:
    """A line for each grader: its labels, and its agreement, kappa, precision and recall, each with its interval."""
    return TextTable(
        title,
        ("grader", "labels", "cases", "agreement", "kappa", 'precision of "fail"', 'recall of "fail"'),
        [
            (
                name,
                f"{one.labels:,}",
                f"{one.cases:,}",
                *map(_rate_text, (one.agreement, one.kappa, one.fail_precision, one.fail_recall)),
            )
            for name, one in graders.items()
        ],
        notes=[*notes, "kappa: Cohen's; in brackets 95 % intervals, that of kappa by drawing cases with replacement"],
    )


def _rate_text(rate: Rate) -> str:
    if rate.value is None:
        return MISSING
    interval = rate.interval
    range_text = "" if interval is None else f" ({_two_places(interval.low)} to {_two_places(interval.high)})"
    return f"{_two_places(rate.value)}{range_text}"


def _two_places(value: float) -> str:
    # The sum with 0.0 makes 0 of a negative 0.
    return f"{round(value, 2) + 0.0:.2f}"
