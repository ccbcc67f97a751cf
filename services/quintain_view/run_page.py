"""What the page of a run shows: its tables, its plots and the matrix of cases and columns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quintain.web import visible
from quintain_runner.report.run_file import RunFile
from quintain_runner.report.run_report import RunReport
from quintain_runner.report.summary import account_lines
from quintain_runner.report.tables import run_tables
from quintain_runner.report.text_table import TextTable, bill_table
from quintain_runner.statistics.analysis import Analysis, TargetPair, format_p
from quintain_runner.untrusted import plain_line
from quintain_view.case_page import OUTCOME_WORDS
from quintain_view.filters import SortOrder, TrialFilter, TrialState
from quintain_view.index_reader import MAX_COUNTED_CASES, CaseEntry, TrialEntry
from quintain_view.index_schema import ColumnCounts, Outcome
from quintain_view.index_writer import IndexProgress
from quintain_view.run_list import status_of
from quintain_view.text import one_line

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
        summary=f"{label}: {value:+.3f}, {shown_interval}, p {format_p(pair.score.adjusted_p)}, {word}",
    )


def _ends(pair: TargetPair) -> tuple[float, float, float]:
    estimate = pair.score.estimate
    low, high = (estimate.value,) * 2 if estimate.interval is None else (estimate.interval.low, estimate.interval.high)
    return estimate.value, low, high


def _place(value: float, bound: float) -> float:
    return WIDTH * (value + bound) / (2 * bound)


#: How many columns the matrix shows; a filter by target chooses others.
MAX_COLUMNS = 12

MAX_HISTOGRAMS = 6

CASES_PER_PAGE = 50

STATE_WORDS = {
    TrialState.PASSED: "passed",
    TrialState.FAILED: "failed",
    TrialState.ERROR: "errors",
    TrialState.IN_DOUBT: "in doubt",
    TrialState.STALE: "stale",
}


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The trials of one case in one column: how they ended, their mean score, and how often they passed."""

    outcome: str
    score: float | None
    passed: int
    trials: int
    duration_ms: float
    stale: bool
    disagreement: float
    label: str

    @property
    def level(self) -> str:
        """The tenth of the score, for its color; "none" without a score."""
        return "none" if self.score is None else str(min(9, max(0, int(self.score * 10))))


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One case of the matrix; ``place`` is its place in the list."""

    case_id: str
    shown_id: str
    question: str
    place: int
    cells: list[MatrixCell | None]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A page of the list of cases. ``found`` says how many there are."""

    columns: list[str]
    hidden_columns: int
    rows: list[MatrixRow]
    found: str
    page: int
    has_next: bool


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of one run."""

    title: str
    folder: str
    status: str
    is_ended: bool
    tables: list[TextTable]
    notes: list[str]
    histograms: list[Histogram]
    differences: DifferencePlot | None
    matrix: Matrix
    trial_filter: TrialFilter
    all_columns: list[str]
    graders: list[str]
    facts: list[tuple[str, str]]
    configuration: str
    progress: IndexProgress
    live: list[str]


def matrix_cell(trials: Sequence[TrialEntry]) -> MatrixCell | None:
    """The cell of these trials: of the worst outcome, in the order error, in doubt, failed, passed; None of none."""
    counted = [trial for trial in trials if trial.counts] or list(trials)
    if not counted:
        return None
    severity = (Outcome.PASSED, Outcome.FAILED, Outcome.IN_DOUBT, Outcome.ERROR)
    worst = max((trial.outcome for trial in counted), key=severity.index)
    scores = [trial.score for trial in counted if trial.score is not None]
    passed = sum(trial.outcome is Outcome.PASSED for trial in counted)
    score = sum(scores) / len(scores) if scores else None
    label = OUTCOME_WORDS[worst] if len(counted) == 1 else f"{passed} of {len(counted)} passed"
    return MatrixCell(
        outcome=OUTCOME_WORDS[worst],
        score=score,
        passed=passed,
        trials=len(counted),
        duration_ms=max(trial.duration_ms for trial in counted),
        stale=any(trial.stale for trial in counted),
        disagreement=max(trial.disagreement for trial in counted),
        label=label,
    )


def shown_columns(all_columns: Sequence[str], trial_filter: TrialFilter) -> list[str]:
    """The columns of the matrix: those of the filter, or the first ones."""
    chosen = [column for column in all_columns if column in trial_filter.columns] or list(all_columns)
    return chosen[:MAX_COLUMNS]


def matrix(
    cases: Sequence[tuple[CaseEntry, Sequence[TrialEntry]]],
    columns: Mapping[str, int],
    trial_filter: TrialFilter,
    *,
    count: int,
    page: int,
    limit: int = CASES_PER_PAGE,
) -> Matrix:
    """A page of the matrix; ``cases`` may have one more than ``limit``, which shows that there is another page.

    ``columns`` are all columns with their numbers in the index, ``count`` is the number of cases in the list.
    """
    names = shown_columns(list(columns), trial_filter)
    rows = []
    for number, (case, trials) in enumerate(cases[:limit]):
        cells = [matrix_cell([trial for trial in trials if trial.column_no == columns[name]]) for name in names]
        place = (page - 1) * limit + number
        rows.append(MatrixRow(case.case_id, one_line(case.case_id, 60), one_line(case.question), place, cells))
    is_more = trial_filter.is_narrowed and count > MAX_COUNTED_CASES
    return Matrix(
        columns=[visible(name) for name in names],
        hidden_columns=len(columns) - len(names),
        rows=rows,
        found=f"more than {MAX_COUNTED_CASES:,} cases" if is_more else f"{count:,} case" + ("s" if count != 1 else ""),
        page=page,
        has_next=len(cases) > limit,
    )


def run_page(
    report: RunReport,
    page_matrix: Matrix,
    trial_filter: TrialFilter,
    *,
    counts: Mapping[str, ColumnCounts],
    graders: Sequence[str],
    progress: IndexProgress,
) -> RunPage:
    """The page of a run; ``counts`` are those of its index by column, in the index's order."""
    run = report.run
    return RunPage(
        title=visible(run.name),
        folder=visible(str(report.folder)),
        status=status_of(run),
        is_ended=run.ended_at is not None,
        tables=[*run_tables(report), *([bill_table(run.bill)] if run.bill else [])] if run.ended_at is not None else [],
        notes=[plain_line(line, max_length=1_000) for line in account_lines(run.totals, run.bill)],
        histograms=[histogram(name, column.bins) for name, column in list(counts.items())[:MAX_HISTOGRAMS]],
        differences=difference_plot(report.analysis),
        matrix=page_matrix,
        trial_filter=trial_filter,
        all_columns=list(counts) or run.configuration.columns,
        graders=list(graders),
        facts=[(name, visible(value)) for name, value in _facts(run)],
        configuration=visible(run.configuration.content),
        progress=progress,
        live=[_live_line(name, column) for name, column in list(counts.items())[:MAX_COLUMNS]],
    )


def _live_line(name: str, counts: ColumnCounts) -> str:
    graded = counts.passed + counts.failed
    parts = [f"{counts.passed:,} of {graded:,} passed"]
    parts += [f"mean score {counts.score_sum / graded:.3f}"] if graded else []
    parts += [f"{counts.errors:,} errors"] if counts.errors else []
    parts += [f"{counts.in_doubt:,} in doubt"] if counts.in_doubt else []
    return f"{visible(name)}: {', '.join(parts)}"


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


SORT_WORDS = {
    SortOrder.CASE: "in the order of the results",
    SortOrder.SCORE: "lowest score first",
    SortOrder.DURATION: "slowest first",
    SortOrder.COST: "dearest first",
    SortOrder.DISAGREEMENT: "graders disagree most first",
}
