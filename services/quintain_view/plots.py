"""The plots of runs: distributions of scores, differences of columns, and trends. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quintain_runner.statistics.analysis import Analysis, TargetPair, format_p
from quintain_runner.statistics.inference import Interval
from quintain_view.index_schema import SCORE_BINS, ColumnCounts

WIDTH, BAR_AREA_HEIGHT, LINE_HEIGHT = 240.0, 64.0, 26.0

#: The room above the bars for their counts.
_COUNT_HEIGHT = 10.0

#: The most pairs that a plot shows; the table has the same limit.
MAX_SHOWN_PAIRS = 10

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


@dataclass(frozen=True, slots=True)
class DifferenceLine:
    """The difference of the mean scores of two columns on the same cases, with its interval; places from 0 to 1."""

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


def difference_plot(analysis: Analysis) -> DifferencePlot | None:
    """The paired differences of the mean scores; None if there are none."""
    pairs = analysis.pairs[:MAX_SHOWN_PAIRS]
    if not pairs:
        return None
    ends = [abs(end) for pair in pairs for end in _ends(pair.score.estimate.value, pair.score.estimate.interval)]
    bound = max(0.05, *ends)
    lines = [_difference_line(pair, bound, number) for number, pair in enumerate(pairs)]
    return DifferencePlot(lines, len(lines) * LINE_HEIGHT, bound)


def _difference_line(pair: TargetPair, bound: float, number: int) -> DifferenceLine:
    interval = pair.score.estimate.interval
    value, low, high = _ends(pair.score.estimate.value, interval)
    label = f"{pair.first} - {pair.second}"
    shown_interval = "no interval" if interval is None else f"95 % from {interval.low:+.2f} to {interval.high:+.2f}"
    word = "significant" if pair.score.significant else "not significant"
    return DifferenceLine(
        value=_place(value, bound),
        low=_place(low, bound),
        high=_place(high, bound),
        y=(number + 0.5) * LINE_HEIGHT,
        is_significant=pair.score.significant,
        summary=f"{label}: {value:+.3f}, {shown_interval}, p {format_p(pair.score.adjusted_p)}, {word}",
    )


def _ends(value: float, interval: Interval | None) -> tuple[float, float, float]:
    return (value, value, value) if interval is None else (value, interval.low, interval.high)


def _place(value: float, bound: float) -> float:
    return WIDTH * (value + bound) / (2 * bound)
