"""Reads a results folder into a report: counts, statistics and cost of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from quintain.contracts.invoke import content_text
from quintain_runner.report.progress import ProgressState
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import Row, RowStatus
from quintain_runner.results.store import current_rows, read_resume_state
from quintain_runner.statistics.analysis import Analysis, analyse_run


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """The results of a run, which may not have ended. ``run`` is what was written of it last."""

    folder: Path
    run: RunFile
    summary: RunSummary
    analysis: Analysis

    @property
    def bill(self) -> Bill | None:
        """The bill of the run; None if it is unknown."""
        return self.run.bill

    def rows(self) -> Iterator[Row]:
        """Iterate over the current rows of the targets, prompts and repeats that the run was configured for."""
        columns = set(self.run.configuration.columns)
        for row in current_rows(self.folder):
            if row.column in columns and row.repeat <= self.run.configuration.repeats:
                yield row

    def worst_rows(self, count: int = 3) -> list[Row]:
        """The graded rows with the lowest scores that did not pass, one of each case."""
        worst: dict[str, Row] = {}
        for row in self.rows():
            if row.status is not RowStatus.GRADED or row.passed:
                continue
            if row.case_id not in worst or _score_of(row) < _score_of(worst[row.case_id]):
                worst[row.case_id] = row
            if len(worst) > count:
                del worst[max(worst, key=lambda case_id: _score_of(worst[case_id]))]
        return sorted(worst.values(), key=_score_of)


def _score_of(row: Row) -> float:
    return row.score or 0.0


def question_text(row: Row) -> str:
    """What was asked, as one text: the question, or the text of the last message; empty if the row has no contents."""
    if row.case is None:
        return ""
    if row.case.question is not None:
        return row.case.question
    contents = [message.content for message in row.case.messages or ()]
    if not contents and row.case.user is not None:
        return row.case.user.goal
    return content_text(contents[-1]) if contents else next(iter(row.case.turns or ()), "")


def read_report(folder: Path, summary: RunSummary | None = None) -> RunReport:
    """Read the report of a results folder, also of a run that has not ended.

    ``summary`` is the summary of a run that just ended; if None, the rows are counted. Raises `ConfigError` if the
    folder is not usable.

    Example::

        report = read_report(Path("runs/eval"))
        print(report.summary.total.mean_score)
    """
    run = read_run(folder)
    report = RunReport(
        folder=folder,
        run=run,
        summary=_counted(folder, run) if summary is None else summary,
        analysis=run.statistics or Analysis(),
    )
    if run.statistics is not None:
        return report
    configuration = run.configuration
    columns, repeats, reducers = configuration.columns, configuration.repeats, configuration.reduce
    return replace(report, analysis=analyse_run(report.rows, columns, repeats, reducers))


def _counted(folder: Path, run: RunFile) -> RunSummary:
    """The summary of the rows as they are now."""
    recorded, totals = run.summary(folder), run.totals
    state = ProgressState(
        run.configuration.columns,
        cases=totals.cases,
        repeats=run.configuration.repeats,
        resume_state=read_resume_state(folder),
    )
    state.budget.update(totals.calls, totals.max_calls)
    counted = summarize(
        state,
        threshold=recorded.threshold,
        is_budget_spent=recorded.is_budget_spent,
        results=recorded.results,
    )
    total = counted.total.with_fields(calls_left=totals.calls_left)
    return replace(recorded, total=total, per_target=counted.per_target)


def read_recorded_report(folder: Path, run: RunFile) -> RunReport:
    """The report of a results folder by the counts that its run wrote last, without a look at the rows.

    While the run goes on, these are the counts of its beginning. ``run`` is what `read_run` returns.
    """
    return RunReport(folder=folder, run=run, summary=run.summary(folder), analysis=run.statistics or Analysis())
