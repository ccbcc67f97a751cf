"""The tables of what judges say: of pairs, in juries, and beside labels. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quintain_runner.report.text_table import TextTable
from quintain_runner.statistics.analysis import MISSING, Analysis, format_p, format_score
from quintain_runner.statistics.inference import MeanEstimate
from quintain_runner.statistics.judge_agreement import LabelAgreement, Rate
from quintain_runner.statistics.pairwise import ComparedPair, PairwiseStatistics, PositionBias
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL

#: The most pairs shown; ``run.json`` has all of them.
MAX_SHOWN_PAIRS = 20


def own_judge_notes(analysis: Analysis) -> Iterator[str]:
    """A sentence for each grader whose judge is the target itself."""
    for name, judge in analysis.judges.items():
        if judge.own:
            yield f"{name}: {', '.join(judge.own)} judged its own answers, and models favour their own"


def juries_table(analysis: Analysis) -> TextTable:
    """The table of the judges of each jury: how often they voted, and how they lean."""
    rows = [
        (
            grader,
            judge,
            f"{said.votes:,}",
            f"{said.missing:,}",
            MISSING if said.pass_rate is None else f"{100 * said.pass_rate:.0f} %",
            MISSING if said.lean_pass is None else f"{100 * said.lean_pass:+.0f} %",
            format_score(said.mean_score),
            MISSING if said.lean_score is None else f"{said.lean_score:+.3f}",
        )
        for grader, jury in analysis.juries.items()
        for judge, said in jury.judges.items()
    ]
    notes = [
        f"{grader}: Krippendorff's alpha {format_score(jury.alpha_pass)} of passes (nominal), "
        f"{format_score(jury.alpha_score)} of scores (interval), of {jury.answers:,} answers; {jury.tied:,} tied"
        for grader, jury in analysis.juries.items()
    ]
    columns = ("jury", "judge", "votes", "missing", "passed", "lean", "mean score", "lean")
    notes.append("lean: how much more than the other judges on the same answers")
    return TextTable("By judge", columns, rows, name_columns=2, notes=notes)


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
    yield TextTable(f"Pairwise: {name}", columns, rows, notes=notes)
    holm = f", Holm over {len(statistics.pairs)} pairs" if several else ""
    notes = [f"p of a win rate of 50 %, by random signs over cases{holm}; * below {SIGNIFICANCE_LEVEL}"]
    if len(statistics.pairs) > MAX_SHOWN_PAIRS:
        notes.append(f"{len(statistics.pairs) - MAX_SHOWN_PAIRS} pairs more are in run.json")
    shown = [_pair_cells(pair) for pair in statistics.pairs[:MAX_SHOWN_PAIRS]]
    columns = ("pair", "wins", "ties", "losses", "win rate", "95 %", "p")
    yield TextTable(f"Pairs: {name}", columns, shown, notes=notes)


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


def agreement_table(title: str, graders: Mapping[str, LabelAgreement]) -> TextTable:
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
        notes=["kappa: Cohen's; in brackets 95 % intervals, that of kappa by drawing cases with replacement"],
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
