"""The tables that a run ends with, as text in rows and columns: a terminal and a Markdown page show the same. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quintain_runner import figures
from quintain_runner.analysis import Analysis, Measured, TargetStatistics
from quintain_runner.cost import Cost, dollars
from quintain_runner.paired import SIGNIFICANT
from quintain_runner.report import RunReport
from quintain_runner.summary import Counts, RunSummary

#: More pairs of targets than so many are not shown: ``run.json`` has them all.
MOST_PAIRS = 10


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its title, its columns, and its rows. The first ``names`` columns are names that somebody else gave."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    names: int = 1
    #: A last row that sums the others up.
    total: tuple[str, ...] | None = None
    #: What has to be known to read it, a sentence each.
    notes: list[str] = field(default_factory=list)


def sheets_of(report: RunReport) -> list[Sheet]:
    """The tables of a run: its targets; its graders, where they are several; its pairs of targets, where it has any."""
    summary, analysis = report.summary, report.analysis
    sheets = [_targets(report)]
    if len({name for target in analysis.targets.values() for name in target.graders}) > 1:
        sheets.append(_graders(analysis))
    if analysis.pairs:
        sheets.append(_pairs(analysis, summary))
    return sheets


def cost_line(cost: Cost | None) -> str | None:
    """What the run cost and which target took it; None where nobody knows."""
    if cost is None or cost.usd is None:
        return None
    known = sorted(((one.usd, name) for name, one in cost.targets.items() if one.usd is not None), reverse=True)
    parts = [f"{name} {dollars(usd, at_least=cost.targets[name].at_least)}" for usd, name in known]
    unknown = [name for name, one in cost.targets.items() if one.usd is None and one.calls]
    missing = f"; not counted, having no price: {', '.join(unknown)}" if unknown else ""
    return f"cost {dollars(cost.usd, at_least=cost.at_least)}: {', '.join(parts)}{missing}"


def _targets(report: RunReport) -> Sheet:
    summary, cost = report.summary, report.cost
    counts = [*summary.per_target.values(), summary.total]
    extra = {
        "in doubt": any(one.in_doubt for one in counts),
        "tokens in/out": any(one.input_tokens or one.output_tokens for one in counts),
        "cost": cost is not None and cost.usd is not None,
    }
    shown = [name for name, there in extra.items() if there]

    def row(name: str, one: Counts, said: TargetStatistics, usd: str) -> tuple[str, ...]:
        more = {"in doubt": f"{one.in_doubt:,}", "tokens in/out": f"{one.input_tokens:,}/{one.output_tokens:,}"}
        return (name, *_measured(one, said.row), f"{one.errors:,}", f"{one.calls:,}", *(
            {**more, "cost": usd}[column] for column in shown
        ))  # fmt: skip

    nothing = TargetStatistics()
    rows = [
        row(name, one, report.analysis.targets.get(name, nothing), _cost_of(cost, name))
        for name, one in summary.per_target.items()
    ]
    total = None
    if len(rows) > 1:
        total = row("all", summary.total, nothing, dollars(cost.usd, at_least=cost.at_least) if cost else "")
    return Sheet(
        title=_title(summary),
        columns=("target", "passed", "95 %", "mean score", "95 %", "errors", "calls", *shown),
        rows=rows,
        total=total,
    )


def _title(summary: RunSummary) -> str:
    repeats = max((one.trials // max(1, summary.cases) for one in summary.per_target.values()), default=1)
    times = f", {repeats} times each" if repeats > 1 else ""
    return f"{summary.cases:,} case{'s' if summary.cases != 1 else ''}{times}"


def _measured(counts: Counts, said: Measured | None) -> tuple[str, ...]:
    passed = f"{counts.passed:,}/{counts.graded:,}"
    return passed, figures.share_interval(said), figures.score(counts.mean_score), figures.score_interval(said)


def _cost_of(cost: Cost | None, name: str) -> str:
    one = None if cost is None else cost.targets.get(name)
    return figures.NONE if one is None else dollars(one.usd, at_least=one.at_least and one.usd is not None)


def _graders(analysis: Analysis) -> Sheet:
    names = dict.fromkeys(name for said in analysis.targets.values() for name in said.graders)
    rows = [
        (grader, target, figures.share(one.passed), figures.share_interval(one), figures.score(one.score.value),
         figures.score_interval(one))
        for grader in names
        for target, said in analysis.targets.items()
        if (one := said.graders.get(grader)) is not None
    ]  # fmt: skip
    return Sheet("by grader", ("grader", "target", "passed", "95 %", "mean score", "95 %"), rows, names=2)


def _pairs(analysis: Analysis, summary: RunSummary) -> Sheet:
    rows: list[tuple[str, ...]] = []
    for pair in analysis.pairs[:MOST_PAIRS]:
        rows.append((f"{pair.first} - {pair.second}", "passed", *figures.share_difference(pair.passed)))
        rows.append(("", "mean score", *figures.score_difference(pair.score)))
    several = f", Holm over {len(analysis.pairs)} pairs" if len(analysis.pairs) > 1 else ""
    notes = [f"p: McNemar's exact test; for scores random signs{several}; * below {SIGNIFICANT}"]
    if len(analysis.pairs) > MOST_PAIRS:
        notes.append(f"{len(analysis.pairs) - MOST_PAIRS} pairs more: {summary.results.with_name('run.json')}")
    return Sheet("paired", ("the same cases", "", "difference", "95 %", "+ / -", "p"), rows, names=2, notes=notes)
