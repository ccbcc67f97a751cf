"""The result tables of a run as rows of text, used by the terminal and the Markdown report. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quintain_runner.cost.run_cost import Cost, dollars
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import RunSummary, TrialCounts
from quintain_runner.statistics import formatting
from quintain_runner.statistics.analysis import Analysis, PassAndScore, TargetStatistics
from quintain_runner.statistics.significance import SIGNIFICANCE_LEVEL

#: More pairs of targets than so many are not shown: ``run.json`` has them all.
MAX_SHOWN_PAIRS = 10


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table: its title, its columns, and its rows. The first ``name_columns`` columns are names that somebody else
    gave."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    name_columns: int = 1
    #: A last row that sums the others up.
    total: tuple[str, ...] | None = None
    #: What has to be known to read it, a sentence each.
    notes: list[str] = field(default_factory=list)


def run_tables(report: RunReport) -> list[TextTable]:
    """The tables of a run: its targets; its graders, where they are several; its pairs of targets, where it has any."""
    summary, analysis = report.summary, report.analysis
    tables = [_targets_table(report)]
    if len({name for target in analysis.targets.values() for name in target.graders}) > 1:
        tables.append(_graders_table(analysis))
    if analysis.pairs:
        tables.append(_pairs_table(analysis, summary))
    return tables


def cost_line(cost: Cost | None) -> str | None:
    """What the run cost and which target took it; None where nobody knows."""
    if cost is None or cost.usd is None:
        return None
    known = sorted(((one.usd, name) for name, one in cost.targets.items() if one.usd is not None), reverse=True)
    parts = [f"{name} {dollars(usd, at_least=cost.targets[name].at_least)}" for usd, name in known]
    unknown = [name for name, one in cost.targets.items() if one.usd is None and one.calls]
    unpriced_note = f"; not counted, having no price: {', '.join(unknown)}" if unknown else ""
    return f"cost {dollars(cost.usd, at_least=cost.at_least)}: {', '.join(parts)}{unpriced_note}"


def _targets_table(report: RunReport) -> TextTable:
    summary, cost = report.summary, report.cost
    counts = [*summary.per_target.values(), summary.total]
    extra = {
        "in doubt": any(one.in_doubt for one in counts),
        "tokens in/out": any(one.input_tokens or one.output_tokens for one in counts),
        "cost": cost is not None and cost.usd is not None,
    }
    shown = [name for name, is_shown in extra.items() if is_shown]

    def row(name: str, one: TrialCounts, statistics: TargetStatistics, usd: str) -> tuple[str, ...]:
        more = {"in doubt": f"{one.in_doubt:,}", "tokens in/out": f"{one.input_tokens:,}/{one.output_tokens:,}"}
        return (
            name,
            *_measured_cells(one, statistics.row),
            f"{one.errors:,}",
            f"{one.calls:,}",
            *({**more, "cost": usd}[column] for column in shown),
        )

    nothing = TargetStatistics()
    rows = [
        row(name, one, report.analysis.targets.get(name, nothing), _cost_cell(cost, name))
        for name, one in summary.per_target.items()
    ]
    total = None
    if len(rows) > 1:
        total = row("all", summary.total, nothing, dollars(cost.usd, at_least=cost.at_least) if cost else "")
    return TextTable(
        title=_title(summary),
        columns=("target", "passed", "95 %", "mean score", "95 %", "errors", "calls", *shown),
        rows=rows,
        total=total,
    )


def _title(summary: RunSummary) -> str:
    repeats = max((one.trials // max(1, summary.cases) for one in summary.per_target.values()), default=1)
    times = f", {repeats} times each" if repeats > 1 else ""
    return f"{summary.cases:,} case{'s' if summary.cases != 1 else ''}{times}"


def _measured_cells(counts: TrialCounts, measured: PassAndScore | None) -> tuple[str, ...]:
    passed = f"{counts.passed:,}/{counts.graded:,}"
    return (
        passed,
        formatting.format_share_interval(measured),
        formatting.format_score(counts.mean_score),
        formatting.format_score_interval(measured),
    )


def _cost_cell(cost: Cost | None, name: str) -> str:
    one = None if cost is None else cost.targets.get(name)
    return formatting.MISSING if one is None else dollars(one.usd, at_least=one.at_least and one.usd is not None)


def _graders_table(analysis: Analysis) -> TextTable:
    names = dict.fromkeys(name for statistics in analysis.targets.values() for name in statistics.graders)
    rows = [
        (
            grader,
            target,
            formatting.format_share(one.passed),
            formatting.format_share_interval(one),
            formatting.format_score(one.score.value),
            formatting.format_score_interval(one),
        )
        for grader in names
        for target, said in analysis.targets.items()
        if (one := said.graders.get(grader)) is not None
    ]
    return TextTable("by grader", ("grader", "target", "passed", "95 %", "mean score", "95 %"), rows, name_columns=2)


def _pairs_table(analysis: Analysis, summary: RunSummary) -> TextTable:
    rows: list[tuple[str, ...]] = []
    for pair in analysis.pairs[:MAX_SHOWN_PAIRS]:
        rows.append((f"{pair.first} - {pair.second}", "passed", *formatting.format_share_difference(pair.passed)))
        rows.append(("", "mean score", *formatting.format_score_difference(pair.score)))
    holm_note = f", Holm over {len(analysis.pairs)} pairs" if len(analysis.pairs) > 1 else ""
    notes = [f"p: McNemar's exact test; for scores random signs{holm_note}; * below {SIGNIFICANCE_LEVEL}"]
    if len(analysis.pairs) > MAX_SHOWN_PAIRS:
        notes.append(f"{len(analysis.pairs) - MAX_SHOWN_PAIRS} pairs more: {summary.results.with_name('run.json')}")
    return TextTable(
        "paired", ("the same cases", "", "difference", "95 %", "+ / -", "p"), rows, name_columns=2, notes=notes
    )
