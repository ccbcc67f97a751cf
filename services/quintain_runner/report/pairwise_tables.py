"""The tables of a run's pairwise comparisons, for the terminal, the Markdown report and the pages. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import MISSING, format_p
from quintain_runner.statistics.inference import SIGNIFICANCE_LEVEL, MeanEstimate
from quintain_runner.statistics.pairwise import ComparedPair, PairwiseStatistics, PositionBias

#: The most pairs shown; ``run.json`` has all of them.
MAX_SHOWN_PAIRS = 20


def pairwise_tables(name: str, statistics: PairwiseStatistics) -> Iterator[TextTable]:
    """The order of the targets by a pairwise grader, and its pairs if there are several."""
    rows = [
        (column, *_counts(one.wins, one.ties, one.losses), *_rate_cells(one.rate), f"{one.strength:+.2f}")
        for column, one in statistics.columns.items()
    ]
    several = len(statistics.pairs) > 1
    prior = f"Bradley-Terry, with a prior of {statistics.prior_ties:g} tie with it"
    notes = [
        f"win rate: a tie is half a win; strength: log-odds against an average target ({prior})",
        bias_text(statistics.position_bias),
    ]
    columns = ("target", "wins", "ties", "losses", "win rate", "95 %", "strength")
    yield TextTable(f"pairwise: {name}", columns, rows, notes=notes)
    holm = f", Holm over {len(statistics.pairs)} pairs" if several else ""
    notes = [f"p of a win rate of 50 %, by random signs over cases{holm}; * below {SIGNIFICANCE_LEVEL}"]
    if len(statistics.pairs) > MAX_SHOWN_PAIRS:
        notes.append(f"{len(statistics.pairs) - MAX_SHOWN_PAIRS} pairs more are in run.json")
    shown = [_pair_cells(pair) for pair in statistics.pairs[:MAX_SHOWN_PAIRS]]
    columns = ("pair", "wins", "ties", "losses", "win rate", "95 %", "p")
    yield TextTable(f"pairs: {name}", columns, shown, notes=notes)


def bias_text(bias: PositionBias) -> str:
    """The judge's position bias in words."""
    if not bias.pairs:
        return "position bias of the judge: not known, because all answers were equal"
    return (
        f"position bias of the judge: {100 * bias.share:.0f} % of {bias.pairs:,} pairs went to the same place in both "
        f"orders (first {bias.first:,}, second {bias.second:,}), and are ties"
    )


def _pair_cells(pair: ComparedPair) -> tuple[str, ...]:
    p = f"{format_p(pair.adjusted_p)} *" if pair.significant else format_p(pair.adjusted_p)
    counts = _counts(pair.wins, pair.ties, pair.losses)
    return f"{pair.first} - {pair.second}", *counts, *_rate_cells(pair.rate), p


def _counts(*counts: int) -> tuple[str, ...]:
    return tuple(f"{count:,}" for count in counts)


def _rate_cells(rate: MeanEstimate) -> tuple[str, str]:
    interval = rate.interval
    shown = MISSING if interval is None else f"{100 * interval.low:.0f}-{100 * interval.high:.0f} %"
    return f"{100 * rate.value:.0f} %", shown
