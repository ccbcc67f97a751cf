"""The result of a run in three sentences: which target is better, what it cost, and what went wrong. No I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import NamedTuple

from quintain.fleet.tables import format_count
from quintain_runner.report.summary import ExitCode, RunSummary, TrialCounts
from quintain_runner.results.bill import Bill
from quintain_runner.statistics.analysis import (
    MAX_COMPARED_TARGETS,
    Analysis,
    PassAndScore,
    TargetPair,
    format_p,
    format_score,
    format_share,
)
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL, Difference


class Headline(NamedTuple):
    """What a reader wants to know first, a sentence each; ``wrong`` is empty where nothing went wrong."""

    result: str
    cost: str
    wrong: str


def headline(summary: RunSummary, analysis: Analysis, bill: Bill | None) -> Headline:
    """The result, the cost and the failures of a run.

    Example::

        print(headline(report.summary, report.analysis, report.bill).result)
    """
    calls = format_count(summary.total.calls, "call")
    is_priced = bill is not None and bill.is_priced
    return Headline(
        result=f"{'; '.join(_result(summary.per_target, analysis))}.",
        cost=f"It cost {bill.text} for {calls}." if bill is not None and is_priced else f"It took {calls}.",
        wrong=" ".join(_wrong(summary)),
    )


def _result(columns: Mapping[str, TrialCounts], analysis: Analysis) -> Iterator[str]:
    """The clauses of the first sentence."""
    measured = {name: one.row for name, one in analysis.targets.items() if one.row is not None}
    ranked = sorted(measured, key=lambda name: _rank(measured[name]), reverse=True)
    if not ranked:
        yield "No answer has a score"
        return
    if len(ranked) == 1:
        yield _alone(ranked[0], columns.get(ranked[0], TrialCounts()), measured[ranked[0]])
    else:
        yield from _best_of(ranked, measured, analysis.pairs)
    if missing := [name for name in columns if name not in measured]:
        yield f"no answer of {_names(missing)} has a score"


def _rank(measured: PassAndScore) -> tuple[float, float]:
    return measured.passed.value, measured.score.value


def _alone(name: str, counts: TrialCounts, measured: PassAndScore) -> str:
    interval = measured.passed.interval
    range_text = "" if interval is None else f", 95 % from {100 * interval.low:.0f} to {100 * interval.high:.0f} %"
    answers = format_count(counts.graded, "answer")
    return (
        f"{name} passes {counts.passed:,} of {answers} ({format_share(measured.passed)}{range_text}) "
        f"with a mean score of {format_score(measured.score.value)}"
    )


def _best_of(ranked: list[str], measured: Mapping[str, PassAndScore], pairs: Sequence[TargetPair]) -> Iterator[str]:
    """Which of several targets passes most, and how sure that is beside the next one."""
    shares = {name: measured[name].passed.value for name in ranked}
    leading = [name for name in ranked if shares[name] == shares[ranked[0]]]
    share = format_share(measured[ranked[0]].passed)
    if len(ranked) > 2:
        verb = "passes" if len(leading) == 1 else "pass"
        yield f"Of {len(ranked)} targets {_names(leading)} {verb} most often ({share})"
    pair = next((one for one in pairs if {one.first, one.second} == set(ranked[:2])), None)
    if pair is not None:
        yield from _compared(pair, leader=leading[0] if len(leading) == 1 and len(ranked) > 2 else None)
        return
    if len(ranked) == 2:
        yield " and ".join(f"{name} passes {format_share(measured[name].passed)}" for name in ranked)
    if len(ranked) > MAX_COMPARED_TARGETS:
        yield f"pairs of more than {MAX_COMPARED_TARGETS} are not compared"
    else:
        yield f"{_names(ranked[:2])} have no case in common, so their difference is not known"


def _compared(pair: TargetPair, *, leader: str | None) -> Iterator[str]:
    """The difference of the pass rates of two targets, and of their scores where the pass rates tell less.

    ``leader`` is the target that the clause before named.
    """
    passed, score = pair.passed, pair.score
    names, common = (pair.first, pair.second), f"{format_count(passed.estimate.cases, 'case')} in common"
    if passed.estimate.value:
        better, worse = names if passed.estimate.value > 0 else names[::-1]
        subject = "it" if better == leader else better
        yield f"{subject} passes {_points(passed)} more than {worse} ({_range(passed)}{common})"
        yield _certainty(passed)
    else:
        yield f"{' and '.join(names)} pass equally often ({100 * passed.base:.0f} % of {common})"
    if score.estimate.value and (not passed.estimate.value or (score.significant and not passed.significant)):
        higher = names[0] if score.estimate.value > 0 else names[1]
        yield f"the mean score of {higher} is {abs(score.estimate.value):.3f} higher"
        yield _certainty(score)
    elif not passed.estimate.value and not score.estimate.value:
        yield "their mean scores are equal too"
    if not (passed.significant or score.significant) and (more := more_cases(passed)) is not None:
        yield f"about {more:,} more cases would probably tell"


def _points(difference: Difference) -> str:
    points = 100 * abs(difference.estimate.value)
    shown = f"{points:.0f}" if points >= 0.5 else f"{points:.2g}"
    return f"{shown} point" + ("s" if shown != "1" else "")


def _range(difference: Difference) -> str:
    """The interval of a difference in points, as seen from the better target."""
    if (interval := difference.estimate.interval) is None:
        return ""
    ends = (interval.low, interval.high) if difference.estimate.value > 0 else (-interval.high, -interval.low)
    return f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}, "


def _certainty(difference: Difference) -> str:
    shown = format_p(difference.adjusted_p)
    p = f"p {shown}" if shown.startswith("<") else f"p = {shown}"
    return f"{'significant' if difference.significant else 'not significant'}, {p}"


#: No number of further cases is named for a difference that chance alone gives at least so often.
_MOST_P = 0.5

#: The probability with which the named number of cases finds a difference of this size.
_POWER = 0.8


def more_cases(difference: Difference) -> int | None:
    """How many further cases would make this difference significant in 4 of 5 runs, if it is as large as it seems.

    The z-value of a mean grows with the square root of the cases. None where the difference is significant already, or
    where chance alone gives such a one in half of all runs.
    """
    if difference.significant or difference.adjusted_p >= _MOST_P:
        return None
    normal = NormalDist()
    level = SIGNIFICANCE_LEVEL * difference.p / difference.adjusted_p
    needed = normal.inv_cdf(1 - level / 2) + normal.inv_cdf(_POWER)
    z = normal.inv_cdf(1 - difference.p / 2)
    more = difference.estimate.cases * ((needed / z) ** 2 - 1)
    unit = 10 ** max(0, math.floor(math.log10(more)) - 1) if more >= 1 else 1
    return math.ceil(more / unit) * unit


def _wrong(summary: RunSummary) -> Iterator[str]:
    total = summary.total
    counts = {"erred": total.errors, "in doubt": total.in_doubt, "without an answer": total.waiting}
    if told := [f"{count:,} {words}" for words, count in counts.items() if count]:
        yield f"Of {format_count(total.trials, 'trial')}: {', '.join(told)}."
    if summary.parked_targets:
        yield f"Parked: {', '.join(summary.parked_targets)}."
    if summary.exit_code is ExitCode.BUDGET_SPENT:
        yield "The budget is spent."
    if summary.exit_code is ExitCode.BELOW_THRESHOLD:
        yield f"It fails: {summary.missed}."


def _names(names: Sequence[str]) -> str:
    """Up to three names, and how many others there are."""
    shown, others = list(names[:3]), len(names) - 3
    if others > 0:
        return f"{', '.join(shown)} and {format_count(others, 'other')}"
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
