"""The plots of runs: distributions of scores, differences of columns, and trends. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintain_runner.statistics.analysis import (
    MISSING,
    Analysis,
    format_score_difference,
    format_share,
    format_share_interval,
)
from quintain_runner.statistics.inference import Interval
from quintain_view.index_schema import SCORE_BINS, ColumnCounts

WIDTH, BAR_AREA_HEIGHT = 240.0, 64.0

#: The room above the bars for their counts.
_COUNT_HEIGHT = 10.0

#: The most columns or pairs that a plot of points shows; the table of pairs has the same limit.
MAX_SHOWN_POINTS = 10

MAX_HISTOGRAMS = 6


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, its count, and what it stands for."""

    x: float
    y: float
    width: float
    height: float
    count: int
    label: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many trials of a column are in each part of a range; ``ticks`` are places of its axis, and their values."""

    title: str
    bars: list[Bar]
    ticks: list[tuple[float, str]]
    summary: str


def histograms(counts: Mapping[str, ColumnCounts]) -> list[Histogram]:
    """The distributions of scores of the first columns."""
    return [_histogram(name, column.bins) for name, column in list(counts.items())[:MAX_HISTOGRAMS]]


def _histogram(column: str, counts: Sequence[int]) -> Histogram:
    highest, step = max([*counts, 1]), WIDTH / SCORE_BINS
    bars, edges = [], [f"{edge / SCORE_BINS:.1f}" for edge in range(SCORE_BINS + 1)]
    for number, count in enumerate(counts):
        height = (BAR_AREA_HEIGHT - _COUNT_HEIGHT) * count / highest
        label = f"{edges[number]} to {edges[number + 1]}: {count:,}"
        bars.append(Bar(number * step + 1, BAR_AREA_HEIGHT - height, step - 2, height, count, label))
    filled = [bar.label for bar in bars if bar.count]
    title = f"score, {column}"
    ticks = [(number * step, edges[number]) for number in (0, SCORE_BINS // 2, SCORE_BINS)]
    return Histogram(title, bars, ticks, f"{title}: {'; '.join(filled) or 'none yet'}")


TREND_HEIGHT, MAX_TREND_RUNS = 48.0, 20


class TrendPoint(NamedTuple):
    """A run in a trend: the place of its pass rate, the ends of its interval, and what it stands for."""

    x: float
    y: float
    low: float
    high: float
    label: str


def trend_points(runs: Sequence[tuple[str, float, Interval | None]]) -> list[TrendPoint]:
    """The line of the last runs, the oldest first; of each its words, its pass rate and the interval of that."""
    shown = runs[-MAX_TREND_RUNS:]
    step = WIDTH / max(1, len(shown) - 1)
    points = []
    for number, (words, share, interval) in enumerate(shown):
        y, low, high = (TREND_HEIGHT * (1 - end) for end in _ends(share, interval))
        points.append(TrendPoint(number * step, y, low, high, words))
    return points


class PlotPoint(NamedTuple):
    """A value with the ends of its interval, as places of the plot's axis; ``summary`` has them as numbers."""

    label: str
    value: float
    low: float
    high: float
    summary: str
    is_significant: bool = False


@dataclass(frozen=True, slots=True)
class PointPlot:
    """Values with their intervals, a line each; ``ticks`` are the numbers at the axis' begin, middle and end."""

    title: str
    points: list[PlotPoint]
    ticks: tuple[str, str, str]


def pass_plot(analysis: Analysis) -> PointPlot | None:
    """The pass rates of the first columns; None where nothing is graded."""
    points = []
    for name, statistics in list(analysis.targets.items())[:MAX_SHOWN_POINTS]:
        if (measured := statistics.row) is not None:
            value, low, high = (WIDTH * end for end in _ends(measured.passed.value, measured.passed.interval))
            interval = format_share_interval(measured)
            summary = f"{format_share(measured.passed)}{'' if interval == MISSING else f' ({interval})'}"
            points.append(PlotPoint(name, value, low, high, summary))
    return PointPlot("Passed, with 95 % intervals", points, ("0", "50", "100 %")) if points else None


def difference_plot(analysis: Analysis) -> PointPlot | None:
    """The paired differences of the mean scores; None if there are none."""
    pairs = analysis.pairs[:MAX_SHOWN_POINTS]
    if not pairs:
        return None
    ends = [_ends(pair.score.estimate.value, pair.score.estimate.interval) for pair in pairs]
    bound = max(0.05, *(abs(end) for places in ends for end in places))
    points = []
    for pair, places in zip(pairs, ends, strict=True):
        shown, interval, _, p = format_score_difference(pair.score)
        value, low, high = (_place(end, bound) for end in places)
        summary, name = f"{shown} ({interval}), p {p}", f"{pair.first} - {pair.second}"
        points.append(PlotPoint(name, value, low, high, summary, pair.score.significant))
    return PointPlot("Differences of mean scores, on the same cases", points, (f"{-bound:+.2f}", "0", f"{bound:+.2f}"))


def _ends(value: float, interval: Interval | None) -> tuple[float, float, float]:
    return (value, value, value) if interval is None else (value, interval.low, interval.high)


def _place(value: float, bound: float) -> float:
    return WIDTH * (value + bound) / (2 * bound)
