"""Geometry of the plots: bars of scores, and differences with their intervals. No I/O.

A plot is a drawing of `WIDTH` units across. Each has a sentence for those who do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quintain.web.text import visible
from quintain_runner import Analysis, TargetPair

WIDTH, BAR_AREA_HEIGHT, LINE_HEIGHT = 240.0, 48.0, 26.0

#: The most pairs that a plot shows; the table has the same limit.
MAX_SHOWN_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    label: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many scores of a column are in each part from 0 to 1."""

    column: str
    bars: list[Bar]
    summary: str


@dataclass(frozen=True, slots=True)
class DifferenceLine:
    """The difference of the mean scores of two columns on the same cases, with its interval; places from 0 to 1."""

    label: str
    value: float
    low: float
    high: float
    y: float
    is_significant: bool
    summary: str


@dataclass(frozen=True, slots=True)
class DifferencePlot:
    """Differences of pairs of columns, one line each; ``zero`` is the place of no difference."""

    lines: list[DifferenceLine]
    height: float
    bound: float


def histogram(column: str, counts: Sequence[int]) -> Histogram:
    """The bars of a column's scores."""
    highest, step = max([*counts, 1]), WIDTH / max(len(counts), 1)
    bars = []
    for number, count in enumerate(counts):
        height = BAR_AREA_HEIGHT * count / highest
        label = f"{number / len(counts):.1f} to {(number + 1) / len(counts):.1f}: {count:,}"
        bars.append(Bar(number * step + 1, BAR_AREA_HEIGHT - height, step - 2, height, label))
    filled = [bar.label for bar, count in zip(bars, counts, strict=True) if count]
    return Histogram(visible(column), bars, f"scores of {visible(column)}: {'; '.join(filled) or 'none yet'}")


def difference_plot(analysis: Analysis) -> DifferencePlot | None:
    """The paired differences of the mean scores; None if there are none."""
    pairs = analysis.pairs[:MAX_SHOWN_PAIRS]
    if not pairs:
        return None
    ends = [abs(end) for pair in pairs for end in _ends(pair)]
    bound = max(0.05, *ends)
    lines = [_difference_line(pair, bound, number) for number, pair in enumerate(pairs)]
    return DifferencePlot(lines, len(lines) * LINE_HEIGHT, bound)


def _difference_line(pair: TargetPair, bound: float, number: int) -> DifferenceLine:
    value, low, high = _ends(pair)
    label = visible(f"{pair.first} - {pair.second}")
    interval = pair.score.estimate.interval
    shown_interval = "no interval" if interval is None else f"95 % from {interval.low:+.2f} to {interval.high:+.2f}"
    word = "significant" if pair.score.significant else "not significant"
    return DifferenceLine(
        label=label,
        value=_place(value, bound),
        low=_place(low, bound),
        high=_place(high, bound),
        y=(number + 0.5) * LINE_HEIGHT,
        is_significant=pair.score.significant,
        summary=f"{label}: {value:+.3f}, {shown_interval}, p {pair.score.adjusted_p:.3f}, {word}",
    )


def _ends(pair: TargetPair) -> tuple[float, float, float]:
    estimate = pair.score.estimate
    low, high = (estimate.value,) * 2 if estimate.interval is None else (estimate.interval.low, estimate.interval.high)
    return estimate.value, low, high


def _place(value: float, bound: float) -> float:
    return WIDTH * (value + bound) / (2 * bound)
