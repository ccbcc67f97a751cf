"""What the page of a run shows: its tables, its plots and the matrix of cases and columns. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quintain.fleet.tables import duration
from quintain_runner.report.headline import Headline, headline
from quintain_runner.report.notes import account_lines
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable, bill_table
from quintain_runner.results.bill import dollars
from quintain_runner.untrusted import plain_line
from quintain_view.case_page import OUTCOME_WORDS
from quintain_view.filters import IN_ORDER, Shown, SortOrder, TrialFilter, TrialState
from quintain_view.index_reader import MAX_COUNTED_CASES, CaseEntry, TrialEntry
from quintain_view.index_schema import MAX_BITS, ColumnCounts, Outcome, reduced_outcome
from quintain_view.index_writer import IndexProgress
from quintain_view.plots import Histogram, PointPlot, difference_plot, histograms, pass_plot
from quintain_view.run_list import status_of
from quintain_view.text import one_line

#: How many columns the matrix shows; a filter by target chooses others.
MAX_COLUMNS = 12

CASES_PER_PAGE = 50

#: What the order of a list is called, and the columns of which its cells can show a value.
SORT_WORDS = {
    SortOrder.CASE: "in the order of the results",
    SortOrder.SCORE: "lowest score first",
    SortOrder.DURATION: "slowest first",
    SortOrder.COST: "dearest first",
    SortOrder.TOKENS: "most tokens first",
    SortOrder.DISAGREEMENT: "graders disagree most first",
}
VALUE_WORDS = {
    SortOrder.SCORE: "score",
    SortOrder.DURATION: "duration",
    SortOrder.COST: "cost",
    SortOrder.TOKENS: "tokens",
    SortOrder.DISAGREEMENT: "disagreement",
}

_SCORE = Shown(SortOrder.SCORE)

#: An answer is disputed whose graders' scores are so far apart.
DISPUTED = 0.5


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The trials of one case in one column: what they come to, how often they passed, and the values that are shown."""

    outcome: str
    passed: int
    trials: int
    is_disputed: bool
    values: list[tuple[str, str]]

    @property
    def is_mixed(self) -> bool:
        """Whether some passed and others did not."""
        return 0 < self.passed < self.trials


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One case of the matrix; ``place`` is its place in the list, ``tags`` are those of the fields that are shown."""

    case_id: str
    shown_id: str
    question: str
    place: int
    tags: list[str]
    cells: list[MatrixCell | None]

    @property
    def is_failure(self) -> bool:
        """Whether one of its columns did not pass."""
        return any(cell is not None and cell.outcome != "passed" for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A page of the list of cases, of which there are ``count``. ``found`` says how many."""

    names: list[str]
    tag_fields: list[str]
    hidden_columns: int
    rows: list[MatrixRow]
    count: int
    found: str
    page: int
    has_next: bool


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of one run. ``widenings`` are the parts of the filter: what each asks, the filter without it, and how
    many cases that finds, where the filter itself finds none."""

    title: str
    started: str
    folder: str
    status: str
    is_ended: bool
    headline: Headline | None
    tables: list[TextTable]
    notes: list[str]
    wrong: list[tuple[str, TrialFilter | None]]
    histograms: list[Histogram]
    passed: PointPlot | None
    differences: PointPlot | None
    matrix: Matrix
    trial_filter: TrialFilter
    widenings: list[tuple[str, TrialFilter, str]]
    all_columns: list[str]
    filter_columns: list[str]
    has_repeats: bool
    reduce: str
    graders: list[str]
    sorts: list[tuple[str, str]]
    values: list[tuple[str, str]]
    facts: list[tuple[str, str]]
    configuration: str
    progress: IndexProgress
    live: list[str]


@dataclass(frozen=True, slots=True)
class MatrixView:
    """What a page of the matrix depends on: the columns and the graders with their numbers, and the run's reducer."""

    columns: Mapping[str, int]
    graders: Mapping[str, int]
    reducer: str | None

    def cell(self, trials: Sequence[TrialEntry], shown: Sequence[Shown]) -> MatrixCell | None:
        """The cell of these trials; None of none."""
        if not trials:
            return None
        counts = [sum(trial.outcome is outcome for trial in trials) for outcome in Outcome]
        values = [(self._name(one), self._value(one, trials)) for one in shown if one.kind is not SortOrder.TAG]
        return MatrixCell(
            outcome=OUTCOME_WORDS[reduced_outcome(counts, self.reducer)],
            passed=counts[Outcome.PASSED],
            trials=len(trials),
            is_disputed=any(trial.disagreement >= DISPUTED for trial in trials),
            values=[(name, value) for name, value in values if value],
        )

    def _name(self, one: Shown) -> str:
        return one.name or VALUE_WORDS.get(one.kind, "")

    def _value(self, one: Shown, trials: Sequence[TrialEntry]) -> str:
        """The value of several trials: the mean of scores, the slowest and the most disputed, and sums."""
        match one.kind:
            case SortOrder.DURATION:
                return duration(max(trial.duration_ms for trial in trials))
            case SortOrder.COST:
                cost = sum(trial.cost for trial in trials)
                return dollars(cost) if cost else ""
            case SortOrder.TOKENS:
                return f"{sum(trial.input_tokens + trial.output_tokens for trial in trials):,}"
            case SortOrder.DISAGREEMENT:
                return f"{max(trial.disagreement for trial in trials):.2f}"
            case SortOrder.GRADER:
                bit = self.graders.get(one.name, -1)
                return _mean([score for trial in trials for number, score in trial.scores if number == bit])
            case _:
                return _mean([trial.score for trial in trials if trial.score is not None])


def _mean(scores: Sequence[float]) -> str:
    return f"{sum(scores) / len(scores):.2f}" if scores else ""


def shown_columns(all_columns: Sequence[str], trial_filter: TrialFilter) -> list[str]:
    """The columns of the matrix: those of the filter, or the first ones."""
    chosen = [column for column in all_columns if column in trial_filter.columns] or list(all_columns)
    return chosen[:MAX_COLUMNS]


def shown_values(trial_filter: TrialFilter) -> list[Shown]:
    """What the cells show: what was chosen, or the score, and what the list is ordered by."""
    ordered = [] if trial_filter.order == IN_ORDER else [trial_filter.order]
    return list(dict.fromkeys([*(trial_filter.shown or (_SCORE,)), *ordered]))


def matrix(
    cases: Sequence[tuple[CaseEntry, Sequence[TrialEntry]]],
    view: MatrixView,
    trial_filter: TrialFilter,
    *,
    count: int,
    page: int,
    limit: int = CASES_PER_PAGE,
) -> Matrix:
    """A page of the matrix; ``cases`` may have one more than ``limit``, which shows that there is another page.

    ``count`` is the number of cases in the list.
    """
    names, shown = shown_columns(list(view.columns), trial_filter), shown_values(trial_filter)
    fields = [one.name for one in shown if one.kind is SortOrder.TAG]
    rows = []
    for number, (case, trials) in enumerate(cases[:limit]):
        tags = json.loads(case.tags)
        rows.append(
            MatrixRow(
                *(case.case_id, one_line(case.case_id, 60), one_line(case.question), (page - 1) * limit + number),
                tags=[", ".join(tags.get(name, ())) for name in fields],
                cells=[
                    view.cell([one for one in trials if one.column_no == view.columns[name]], shown) for name in names
                ],
            )
        )
    is_more = trial_filter.is_narrowed and count > MAX_COUNTED_CASES
    return Matrix(
        names=names,
        tag_fields=fields,
        hidden_columns=len(view.columns) - len(names),
        rows=rows,
        count=count,
        found=_found(count, is_more=is_more),
        page=page,
        has_next=len(cases) > limit,
    )


def _found(count: int, *, is_more: bool = False) -> str:
    return f"more than {MAX_COUNTED_CASES:,} cases" if is_more else f"{count:,} case" + ("s" if count != 1 else "")


@dataclass(frozen=True, slots=True)
class RunContents:
    """What the index of a run says of it as a whole.

    ``counts`` are by column, in the index's order; ``count_cases`` counts the cases of a filter, and is asked only
    where the list is empty.
    """

    counts: Mapping[str, ColumnCounts] = field(default_factory=dict)
    graders: Sequence[str] = ()
    tag_fields: Sequence[str] = ()
    count_cases: Callable[[TrialFilter], int] | None = None


def run_page(
    report: RunReport,
    page_matrix: Matrix,
    trial_filter: TrialFilter,
    *,
    contents: RunContents,
    progress: IndexProgress,
) -> RunPage:
    """The page of a run."""
    counts, graders, count_cases = contents.counts, contents.graders, contents.count_cases
    run, columns = report.run, list(counts) or report.run.configuration.columns
    named = [(f"{SortOrder.GRADER}:{name}", name) for name in graders]
    named += [(f"{SortOrder.TAG}:{name}", name) for name in contents.tag_fields]
    is_empty = not page_matrix.rows and count_cases is not None
    return RunPage(
        title=_title(run),
        started=run.started_at[:16].replace("T", " "),
        folder=str(report.folder),
        status=status_of(run),
        is_ended=run.ended_at is not None,
        headline=headline(report.summary, report.analysis, run.bill) if run.ended_at is not None else None,
        tables=[*run_tables(report), *([bill_table(run.bill)] if run.bill else [])] if run.ended_at is not None else [],
        notes=[plain_line(line, max_length=1_000) for line in account_lines(run.totals, run.targets, run.bill)],
        wrong=list(_wrong(run, counts, is_whole=progress.is_complete)),
        histograms=histograms(counts),
        passed=pass_plot(report.analysis),
        differences=difference_plot(report.analysis),
        matrix=page_matrix,
        trial_filter=trial_filter,
        widenings=[
            (text, wider, _found(count_cases(wider)) if is_empty and count_cases is not None else "")
            for text, wider in trial_filter.parts()
        ],
        all_columns=columns,
        filter_columns=[
            name for name in columns[:MAX_BITS] if name in page_matrix.names or name in dict(trial_filter.outcomes)
        ],
        has_repeats=run.configuration.repeats > 1,
        reduce=run.configuration.reduce.row or "the worst repeat",
        graders=list(graders),
        sorts=[
            *((str(order), words) for order, words in SORT_WORDS.items()),
            *((key, f"by {name}") for key, name in named),
        ],
        values=[*((str(kind), words) for kind, words in VALUE_WORDS.items()), *named],
        facts=list(_facts(run)),
        configuration=run.configuration.content,
        progress=progress,
        live=[_live_line(name, column) for name, column in list(counts.items())[:MAX_COLUMNS]],
    )


#: Names of evaluation files that say nothing: the folder's name says more.
_BARE_NAMES = {"eval", "evaluation"}


def _title(run: RunFile) -> str:
    """The name of the evaluation: that of its file, or of the file's folder."""
    folder = Path(run.configuration.evaluation).parent.name
    return folder if folder and run.name in _BARE_NAMES else run.name


#: What went wrong with trials, by the word of `ColumnCounts`.
_WRONG: Final = {
    TrialState.ERROR: "errors",
    TrialState.IN_DOUBT: "in_doubt",
    TrialState.UNCOMPARED: "uncompared",
}


def _wrong(
    run: RunFile, counts: Mapping[str, ColumnCounts], *, is_whole: bool
) -> Iterator[tuple[str, TrialFilter | None]]:
    """What went wrong, each with the list that shows it, if there is one."""
    for state, words in _WRONG.items():
        if count := sum(getattr(column, words) for column in counts.values()):
            text = "1 error" if (count, words) == (1, "errors") else f"{count:,} {words.replace('_', ' ')}"
            yield text, TrialFilter(states=(state,))
    found = sum(one.passed + one.failed + one.errors + one.in_doubt + one.uncompared for one in counts.values())
    counted = run.totals.trials - run.totals.waiting
    if run.ended_at is not None and is_whole and found < counted:
        yield f"{counted - found:,} of the {counted:,} rows that the record counts are not in the results", None
    for name, parked in run.parked_targets.items():
        yield f"{name} was stopped: {parked.reason} ({parked.code}: {parked.error})", None


def _live_line(name: str, counts: ColumnCounts) -> str:
    graded = counts.passed + counts.failed
    parts = [f"{counts.passed:,} of {graded:,} passed"]
    parts += [f"mean score {counts.score_sum / graded:.3f}"] if graded else []
    parts += [f"{counts.errors:,} errors"] if counts.errors else []
    parts += [f"{counts.in_doubt:,} in doubt"] if counts.in_doubt else []
    parts += [f"{counts.uncompared:,} not compared yet"] if counts.uncompared else []
    return f"{name}: {', '.join(parts)}"


def _facts(run: RunFile) -> list[tuple[str, str]]:
    configuration = run.configuration
    facts = [
        ("evaluation", configuration.evaluation),
        ("started", run.started_at),
        ("ended", run.ended_at or "not yet"),
        ("calls", f"{run.totals.calls:,} of {run.totals.max_calls:,}"),
        ("threshold", "none" if configuration.threshold is None else f"{configuration.threshold}"),
        ("dataset SHA-256", configuration.identity.dataset),
        ("graders SHA-256", configuration.identity.graders),
        *((f"fingerprint of {name}", value or "unknown") for name, value in run.fingerprints.targets.items()),
        *((f"version of {name}", str(version)) for name, version in run.versions.items()),
    ]
    revision = {} if run.revision is None else run.revision.model_dump()
    return facts + [(f"revision, {name}", str(value)) for name, value in revision.items()]
