"""The result tables of a run as rows of text, used by the terminal and the Markdown report. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quintain.contracts.session import Usage
from quintain.fleet.tables import format_count
from quintain_runner.report.judge_tables import juries_table, own_judge_notes, pairwise_tables
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import RunSummary, RunTotals, TrialCounts
from quintain_runner.report.text_table import TextTable
from quintain_runner.results.bill import Bill, cost_text
from quintain_runner.results.counts import UNCOMPARED_TEXT
from quintain_runner.results.row import split_column
from quintain_runner.statistics.analysis import (
    MISSING,
    Analysis,
    PassAndScore,
    ReducedValue,
    TargetStatistics,
    format_interval,
    format_score,
    format_score_difference,
    format_score_interval,
    format_share,
    format_share_difference,
    format_share_interval,
    p_note,
)

#: The most pairs of targets shown; ``run.json`` has all of them.
MAX_SHOWN_PAIRS = 10


def run_tables(report: RunReport) -> list[TextTable]:
    """The tables of a run: its targets, its graders if there are several, its juries, its choices, each field of
    ``by``, its pairs of targets if there are any, and the comparisons of its pairwise graders.
    """
    summary, analysis = report.summary, report.analysis
    tables = [_targets_table(report)]
    if len({name for target in analysis.targets.values() for name in target.graders}) > 1:
        tables.append(_graders_table(analysis))
    if analysis.juries:
        tables.append(juries_table(analysis))
    if analysis.choices:
        tables.append(_choices_table(analysis))
    tables.extend(_tag_table(field, analysis) for field in analysis.by)
    if analysis.pairs:
        tables.append(_pairs_table(analysis, summary))
    for name, statistics in analysis.pairwise.items():
        tables.extend(pairwise_tables(name, statistics))
    return tables


class LineUsage(NamedTuple):
    """The calls and tokens in one line of a table; a cost in the same line is the cost of these calls."""

    calls: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> LineUsage:
        """Those of a line of a bill."""
        return cls(usage.calls, usage.token_usage.input, usage.token_usage.output)


def column_usage(bill: Bill | None, columns: Collection[str]) -> dict[str, Usage]:
    """What the calls of the target of each column took, as the ledger counts them, by column.

    Only columns that are the only one of their target are in it, and none where no cost is known.
    """
    targets = [split_column(column)[0] for column in columns]
    billed = {} if bill is None or not bill.is_priced else bill.targets
    return {
        column: billed[target]
        for column, target in zip(columns, targets, strict=True)
        if target in billed and targets.count(target) == 1
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportLine:
    """One line of the table of the targets; ``counts`` is None for a target that only graders call."""

    name: str
    counts: TrialCounts | None = None
    statistics: TargetStatistics = field(default_factory=TargetStatistics)
    usage: LineUsage
    cost: str

    def cells(self, shown: Sequence[str], *, has_reduced: bool) -> tuple[str, ...]:
        """The cells, with these optional columns."""
        counts, missing = self.counts, MISSING
        reduced = _reduced_cells(self.statistics.row) if has_reduced else ()
        measured = (*_measured_cells(counts, self.statistics.row), *reduced, f"{counts.errors:,}") if counts else ()
        more = {
            "tied": f"{counts.tied:,}" if counts else missing,
            "in doubt": f"{counts.in_doubt:,}" if counts else missing,
            "tokens in/out": f"{self.usage.input_tokens:,}/{self.usage.output_tokens:,}",
            "cost": self.cost,
        }
        return (
            self.name,
            *(measured or (missing,) * (5 + len(reduced))),
            f"{self.usage.calls:,}",
            *(more[column] for column in shown),
        )


def _targets_table(report: RunReport) -> TextTable:
    """The table of the targets, with the optional columns that have values, and a total."""
    summary, bill = report.summary, report.bill
    all_counts = [*summary.per_target.values(), summary.total]
    extra = {
        "tied": any(counts.tied for counts in all_counts),
        "in doubt": any(counts.in_doubt for counts in all_counts),
        "tokens in/out": any(counts.token_usage.input or counts.token_usage.output for counts in all_counts),
        "cost": bill is not None and bill.is_priced,
    }
    shown = [name for name, is_shown in extra.items() if is_shown]
    reduced = _first_reduced(statistics.row for statistics in report.analysis.targets.values())
    lines = list(_target_lines(report))
    rows = [line.cells(shown, has_reduced=reduced is not None) for line in lines]
    total = None
    if len(rows) > 1:
        usage = LineUsage(*(sum(counts) for counts in zip(*(line.usage for line in lines), strict=True)))
        cost = "" if bill is None else bill.text
        all_line = _ReportLine(name="all", counts=summary.total, usage=usage, cost=cost)
        total = all_line.cells(shown, has_reduced=reduced is not None)
    reduced_columns = (reduced.reducer, "95 %") if reduced else ()
    return TextTable(
        title=_title(summary),
        columns=("target", "passed", "95 %", "mean score", "95 %", *reduced_columns, "errors", "calls", *shown),
        rows=rows,
        total=total,
        notes=[
            *_uncompared_notes(summary.total),
            *([_votes_note(summary.total.lacks_votes)] if summary.total.lacks_votes else []),
            *_left_out_notes(report.analysis),
            *own_judge_notes(report.analysis),
        ],
    )


def _uncompared_notes(total: RunTotals) -> Iterator[str]:
    if total.uncompared:
        yield f"{total.uncompared:,} rows are not yet compared"
    if total.unscored:
        answers = "1 answer has" if total.unscored == 1 else f"{total.unscored:,} answers have"
        yield f"{answers} no score: {UNCOMPARED_TEXT}"


def _target_lines(report: RunReport) -> Iterator[_ReportLine]:
    """The lines of the table of the targets.

    The calls, the tokens and the cost of a line are those of the same calls: the calls of the target, as the ledger
    counts them; its cost has what its agents called too. Targets that only graders, agents or simulated users ask have
    lines of their own. With several prompts, or without a known cost, the calls and tokens are those of the line's
    rows, graders included.
    """
    columns = report.summary.per_target
    called, bill = column_usage(report.bill, columns), report.bill or Bill()
    for name, counts in columns.items():
        in_rows = LineUsage(counts.calls, counts.token_usage.input, counts.token_usage.output)
        yield _ReportLine(
            name=name,
            counts=counts,
            statistics=report.analysis.targets.get(name, TargetStatistics()),
            usage=LineUsage.of(called[name]) if name in called else in_rows,
            cost=cost_text(bill.whole_cost(split_column(name)[0])) if name in called else MISSING,
        )
    asked = {split_column(name)[0] for name in columns}
    if not bill.is_priced or len(asked) < len(columns):
        return
    for name, usage in bill.targets.items():
        if name not in asked:
            called_by = bill.role_text(name)
            yield _ReportLine(name=f"{name} ({called_by})", usage=LineUsage.of(usage), cost=cost_text(usage.cost))


def _votes_note(count: int) -> str:
    return f"{count:,} of these rows have a verdict of a jury without all its votes; the next run asks for the others"


def _left_out_notes(analysis: Analysis) -> Iterator[str]:
    """A sentence for each column of which cases are missing in the reduced value."""
    for name, statistics in analysis.targets.items():
        reduced = None if statistics.row is None else statistics.row.reduced
        if reduced is not None and reduced.left_out:
            yield (
                f"{name}: {format_count(reduced.left_out, 'case')} with too few graded repeats for {reduced.reducer} "
                "left out of it"
            )


def _first_reduced(measured: Iterable[PassAndScore | None]) -> ReducedValue | None:
    return next((one.reduced for one in measured if one is not None and one.reduced is not None), None)


def _reduced_cells(measured: PassAndScore | None, *, named: bool = False) -> tuple[str, str]:
    """The cells of a reduced value and of its interval; ``named`` puts the reducer's name before it."""
    reduced = None if measured is None else measured.reduced
    if reduced is None:
        return MISSING, MISSING
    value = format_score(reduced.estimate.value)
    return f"{reduced.reducer} {value}" if named else value, format_interval(reduced.estimate)


def _tag_table(field: str, analysis: Analysis) -> TextTable:
    """The table of the tags of one field."""
    by_tag = analysis.by[field]
    reduced = _first_reduced(measured for by_column in by_tag.values() for measured in by_column.values())
    rows = [
        (
            tag,
            column,
            f"{measured.score.rows:,}",
            format_share(measured.passed),
            format_share_interval(measured),
            format_score(measured.score.value),
            format_score_interval(measured),
            *(_reduced_cells(measured) if reduced else ()),
        )
        for tag, by_column in by_tag.items()
        for column, measured in by_column.items()
    ]
    columns = (field, "target", "rows", "passed", "95 %", "mean score", "95 %")
    return TextTable(f"By {field}", (*columns, *((reduced.reducer, "95 %") if reduced else ())), rows, name_columns=2)


def _title(summary: RunSummary) -> str:
    """The number of cases and repeats, as the title of the table."""
    repeats = max((counts.trials // max(1, summary.total.cases) for counts in summary.per_target.values()), default=1)
    repeats_text = f", {repeats} times each" if repeats > 1 else ""
    return f"{format_count(summary.total.cases, 'case')}{repeats_text}"


def _measured_cells(counts: TrialCounts, measured: PassAndScore | None) -> tuple[str, ...]:
    """The cells of pass rate and mean score, with their intervals."""
    passed = f"{counts.passed:,}/{counts.graded:,}"
    return (
        passed,
        format_share_interval(measured),
        format_score(counts.mean_score),
        format_score_interval(measured),
    )


def _graders_table(analysis: Analysis) -> TextTable:
    """The table of the graders, by target."""
    names = dict.fromkeys(name for statistics in analysis.targets.values() for name in statistics.graders)
    reduced = _first_reduced(one for statistics in analysis.targets.values() for one in statistics.graders.values())
    rows = [
        (
            grader,
            target,
            format_share(measured.passed),
            format_share_interval(measured),
            format_score(measured.score.value),
            format_score_interval(measured),
            *(_reduced_cells(measured, named=True) if reduced else ()),
        )
        for grader in names
        for target, statistics in analysis.targets.items()
        if (measured := statistics.graders.get(grader)) is not None
    ]
    columns = ("grader", "target", "passed", "95 %", "mean score", "95 %", *(("reduced", "95 %") if reduced else ()))
    return TextTable("By grader", columns, rows, name_columns=2)


def _choices_table(analysis: Analysis) -> TextTable:
    """The table of the positions of multiple choice: what was chosen, what was right, and how often it was found."""
    rows = [
        (
            grader,
            column,
            letter,
            _share(at.chosen, found.answers - found.unread),
            _share(at.right, found.answers),
            _share(at.hit, at.right),
        )
        for grader, columns in analysis.choices.items()
        for column, found in columns.items()
        for letter, at in found.positions.items()
    ]
    notes = [
        f"{grader}, {column}: no choice could be read in {found.unread:,} of {format_count(found.answers, 'answer')}"
        for grader, columns in analysis.choices.items()
        for column, found in columns.items()
        if found.unread
    ]
    columns = ("grader", "target", "position", "chosen", "right", "passed where right")
    return TextTable("By position", columns, rows, name_columns=3, notes=notes)


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} %" if of else MISSING


def _pairs_table(analysis: Analysis, summary: RunSummary) -> TextTable:
    """The table of the paired differences between targets."""
    rows: list[tuple[str, ...]] = []
    shown = analysis.pairs[:MAX_SHOWN_PAIRS]
    for pair in shown:
        rows.append((f"{pair.first} - {pair.second}", "passed", *format_share_difference(pair.passed)))
        rows.append(("", "mean score", *format_score_difference(pair.score)))
    holm_note = f", Holm over {len(analysis.pairs)} pairs" if len(analysis.pairs) > 1 else ""
    notes = [p_note([pair.passed for pair in shown], [pair.score for pair in shown], holm_note)]
    if len(analysis.pairs) > MAX_SHOWN_PAIRS:
        notes.append(f"{len(analysis.pairs) - MAX_SHOWN_PAIRS} pairs more: {summary.results.with_name('run.json')}")
    return TextTable(
        "Paired differences",
        ("the same cases", "", "difference", "95 %", "+ / -", "p"),
        rows,
        name_columns=2,
        notes=notes,
    )
