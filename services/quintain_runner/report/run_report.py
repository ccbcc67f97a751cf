"""Reads a results folder into a report: counts, statistics and cost of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from quintain_runner.report.progress import ProgressState
from quintain_runner.report.run_file import RunFile, read_run
from quintain_runner.report.summary import RunSummary, summarize
from quintain_runner.results.bill import Bill
from quintain_runner.results.row import Row
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

    @property
    def stale_rows(self) -> int:
        """The number of rows that count although what made them changed."""
        return self.summary.total.stale

    def rows(self) -> Iterator[Row]:
        """Iterate over the current rows of the targets, prompts and repeats that the run was configured for."""
        columns = set(self.run.configuration.columns)
        for row in current_rows(self.folder):
            if row.column in columns and row.repeat <= self.run.configuration.repeats:
                yield row


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
    state.budget.update(totals.plan_calls, totals.max_calls)
    state.budget.calls_of_earlier_plans = totals.calls_of_earlier_plans
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
